package keeper

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/run"
	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// addServers adds the two sockets to g.
func (k *keeper) addServers(ctx context.Context, g *run.Group, cancel func(), main, fds net.Listener) {
	h := k.handler()
	p := newPlain()
	g.Add(func() error {
		p.run(ctx, h)
		return nil
	}, func(error) {
		cancel()
		p.Close()
	})
	g.Add(func() error {
		return k.accept(main, func(c *net.UnixConn) { k.serveConn(ctx, c, p, h) })
	}, func(error) {
		cancel()
		main.Close()
	})
	g.Add(func() error {
		return k.accept(fds, func(c *net.UnixConn) { k.tickets.receive(ctx, c) })
	}, func(error) { fds.Close() })
}

// serveConn serves one connection in the language that its first bytes speak.
func (k *keeper) serveConn(ctx context.Context, c *net.UnixConn, p *plain, h http.Handler) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	two, err := speaksHTTP2(c)
	switch {
	case err != nil: // it has ended
	case two:
		channel.ServeLocal(ctx, c, h)
	default:
		p.serve(ctx, c)
	}
}

// acceptPause is how long to wait when descriptors or memory have run out.
const acceptPause = 20 * time.Millisecond

// accept serves each connection of this user's in a goroutine of its own and
// waits for them all.
func (k *keeper) accept(l net.Listener, serve func(*net.UnixConn)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if passing(err) {
			time.Sleep(acceptPause)
			continue
		}
		if err != nil {
			return sandbox.Errorf(sandbox.Unavailable, "cannot accept connections: %w", err)
		}
		u := c.(*net.UnixConn)
		if sock.CheckPeer(u) != nil {
			u.Close()
			continue
		}
		k.count(1)
		wg.Go(func() {
			defer k.count(-1)
			defer u.Close()
			serve(u)
		})
	}
}

// passing reports whether an error of accept goes away by itself. The keeper
// must not end for it: its sandboxes would end too.
func passing(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ECONNABORTED, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (k *keeper) count(n int) {
	k.mu.Lock()
	k.conns += n
	k.change()
	k.mu.Unlock()
}

func (k *keeper) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /keeper/v1/hello", k.hello)
	m.HandleFunc("POST /keeper/v1/sandboxes", k.create)
	m.HandleFunc("GET /keeper/v1/sandboxes", k.list)
	m.HandleFunc("GET /keeper/v1/sandboxes/{id}", k.status)
	m.HandleFunc("GET /keeper/v1/sandboxes/{id}/wait", k.wait)
	m.HandleFunc("GET /keeper/v1/sandboxes/{id}/stats", k.stats)
	m.HandleFunc("GET /keeper/v1/sandboxes/{id}/changes", k.changes)
	m.HandleFunc("POST /keeper/v1/sandboxes/{id}/claim", k.claim)
	m.HandleFunc("POST /keeper/v1/sandboxes/{id}/checkpoint", k.checkpoint)
	m.HandleFunc("DELETE /keeper/v1/sandboxes/{id}", k.delete)
	m.HandleFunc("POST /keeper/v1/stop", k.stopAll)
	m.HandleFunc("GET /keeper/v1/probe", k.probe)
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, sandbox.Errorf(sandbox.NotFound, "a keeper has no such route").WithField("path", r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Guest paths stay as they were sent: a mux would clean and redirect.
		if strings.HasPrefix(r.URL.Path, guestPrefix) {
			k.guest(w, r)
			return
		}
		m.ServeHTTP(w, r)
	})
}

func (k *keeper) hello(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	draining := k.draining
	k.mu.Unlock()
	writeJSON(w, http.StatusOK, wire.Hello{
		Protocol: wire.Protocol, Build: build.ID(), PID: pid(), Instance: k.instance, Draining: draining,
	})
}

func (k *keeper) list(w http.ResponseWriter, r *http.Request) {
	boxes := k.all()
	out := make([]wire.Status, 0, len(boxes))
	for _, b := range boxes {
		out = append(out, b.snapshot())
	}
	slices.SortFunc(out, func(a, b wire.Status) int { return strings.Compare(string(a.ID), string(b.ID)) })
	writeJSON(w, http.StatusOK, out)
}

// named returns the sandbox of the path, or answers that there is none.
func (k *keeper) named(w http.ResponseWriter, r *http.Request) *box {
	id := r.PathValue("id")
	b := k.find(sandbox.ID(id))
	if b == nil {
		writeError(w, sandbox.Errorf(sandbox.NotFound, "this keeper has no such sandbox").WithField("id", id))
	}
	return b
}

func (k *keeper) status(w http.ResponseWriter, r *http.Request) {
	if b := k.named(w, r); b != nil {
		writeJSON(w, http.StatusOK, b.snapshot())
	}
}

func (k *keeper) wait(w http.ResponseWriter, r *http.Request) {
	b := k.named(w, r)
	if b == nil {
		return
	}
	select {
	case <-b.ended:
		writeJSON(w, http.StatusOK, b.snapshot())
	case <-b.removed: // it never ran
		writeJSON(w, http.StatusOK, b.snapshot())
	case <-r.Context().Done():
	}
}

func (k *keeper) stats(w http.ResponseWriter, r *http.Request) {
	b := k.named(w, r)
	if b == nil {
		return
	}
	s, err := b.stats(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, s)
}

// delete ends a sandbox; the request's end does not stop it half way.
func (k *keeper) delete(w http.ResponseWriter, r *http.Request) {
	id := sandbox.ID(r.PathValue("id"))
	b := k.find(id)
	if b == nil {
		writeJSON(w, http.StatusOK, wire.Status{ID: id})
		return
	}
	if err := b.remove(k.life); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, b.snapshot())
}

// stopAll ends the keeper: at once, after killing everything, or with drain=1
// when its last sandbox has ended. Nothing new is created from now on.
func (k *keeper) stopAll(w http.ResponseWriter, r *http.Request) {
	drain := r.URL.Query().Get("drain") == "1"
	k.mu.Lock()
	k.draining = true
	k.mu.Unlock()
	k.removeParked()
	k.mu.Lock()
	done := len(k.boxes) == 0
	k.mu.Unlock()
	if !drain {
		if err := k.removeAll(); err != nil {
			writeError(w, err)
			return
		}
		done = true
	}
	w.WriteHeader(http.StatusNoContent)
	http.NewResponseController(w).Flush()
	if done {
		k.stop()
	}
}

func (k *keeper) probe(w http.ResponseWriter, r *http.Request) {
	out := make([]driver.Report, 0, len(k.opts.Drivers))
	for _, d := range k.opts.Drivers {
		out = append(out, d.Probe(r.Context()))
	}
	writeJSON(w, http.StatusOK, out)
}
