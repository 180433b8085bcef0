package keeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/filesum"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// quiesceTime bounds how long a guest may take to come to rest.
const quiesceTime = 30 * time.Second

// checkpoint writes an image of a sandbox. The request's end does not stop it
// half way: a sandbox must not be left at rest.
func (k *keeper) checkpoint(w http.ResponseWriter, r *http.Request) {
	b := k.named(w, r)
	if b == nil {
		return
	}
	var req wire.Checkpoint
	if err := readJSON(r, &req); err != nil {
		writeError(w, err)
		return
	}
	t := &timeline{begin: time.Now()}
	done, err := b.checkpoint(k.life, &req, t)
	if err != nil {
		writeError(w, err)
		return
	}
	done.Status, done.Timeline = b.snapshot(), t.steps()
	writeJSON(w, http.StatusOK, done)
}

// checkpoint brings the guest to rest, has the driver write the image, and lets
// the guest go on, or ends it. A sandbox that goes on does not wait for the disk;
// one that ends does so when all of it is there.
func (b *box) checkpoint(ctx context.Context, req *wire.Checkpoint, t *timeline) (*wire.Checkpointed, error) {
	c, err := b.mayCheckpoint(req)
	if err != nil {
		return nil, err
	}
	b.saving.Lock()
	defer b.saving.Unlock()
	began := time.Now()
	step := t.start("quiesce")
	conn, err := b.rest(ctx)
	if err != nil {
		// The guest may have come half to rest, and serves nothing until it
		// hears the next hello.
		b.wake(ctx, &req.Hello)
		return nil, err
	}
	step()
	b.k.crash(AfterQuiesce)

	step = t.start("save")
	err = c.save(ctx, req.Dir, req.Keep)
	step()
	b.k.crash(AfterCheckpoint)
	done := &wire.Checkpointed{}
	if err == nil && !req.Keep {
		counting := b.settle(req)
		step = t.start("sync")
		err = counting.synced()
		step()
		if err == nil {
			step = t.start("end")
			conn.Close()
			err = b.remove(ctx)
			step()
			defer t.start("count")()
			var cerr error
			done.Files, cerr = counting.files()
			return done, errors.Join(err, cerr)
		}
		_, _ = counting.files() // it has failed already
		err = errors.Join(err, c.goOn(ctx))
	}
	step = t.start("hello")
	if gerr := b.goOn(ctx, conn, &req.Hello); gerr != nil {
		b.fault(gerr)
		return nil, sandbox.Errorf(sandbox.Internal, "the sandbox did not come back from its checkpoint and has been ended: %v", gerr).WithCause(gerr)
	}
	step()
	done.Stopped = time.Since(began)
	if err != nil {
		return nil, err
	}
	if !req.Passing {
		defer t.start("sync")()
		done.Files, err = b.settle(req).files()
	}
	return done, err
}

// settling is an image that is being brought to disk and counted.
type settling struct {
	dir  string
	sum  *filesum.Pending
	done func()
}

// settle has an image on disk and counts what it holds. Files must be called.
func (b *box) settle(req *wire.Checkpoint) *settling {
	done := allProcessors()
	return &settling{req.Dir, filesum.Start(req.Dir, nil), done}
}

func (s *settling) synced() error { return s.explain(s.sum.Synced()) }

func (s *settling) files() ([]driver.File, error) {
	defer s.done()
	files, err := s.sum.Files()
	return files, s.explain(err)
}

func (s *settling) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return sandbox.Errorf(sandbox.ResourceExhausted, "there is no room for the sandbox's image").WithField("image", s.dir).WithCause(err)
	}
	return sandbox.Errorf(sandbox.Internal, "the sandbox's image cannot be brought to disk: %w", err).WithField("image", s.dir)
}

// saver is how an instance is saved and, when it has been left stopped, goes on.
type saver struct {
	save func(ctx context.Context, dir string, leaveRunning bool) error
	goOn func(ctx context.Context) error
}

func (b *box) mayCheckpoint(req *wire.Checkpoint) (*saver, error) {
	if err := sock.CheckDir(req.Dir); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down == nil || !b.status.Running {
		return nil, notRunning(b.status.ID)
	}
	if req.Hello.Generation <= b.status.Generation {
		return nil, sandbox.Errorf(sandbox.Invalid, "the sandbox is at generation %d already", b.status.Generation).
			WithField("generation", strconv.FormatUint(req.Hello.Generation, 10))
	}
	if req.FilesOnly {
		if f, ok := b.inst.(driver.FileSaver); ok {
			return &saver{f.SaveFiles, f.Continue}, nil
		}
		return nil, sandbox.Errorf(sandbox.Unsupported, "the %s boundary cannot save files alone", b.status.Boundary)
	}
	if c, ok := b.inst.(driver.Checkpointer); ok {
		return &saver{c.Checkpoint, c.Continue}, nil
	}
	return nil, sandbox.Errorf(sandbox.Unsupported, "the %s boundary cannot save a sandbox", b.status.Boundary)
}

// rest has the guest end all that is under way and returns the connection of
// its down channel, on which nothing is.
func (b *box) rest(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, quiesceTime)
	defer cancel()
	b.mu.Lock()
	down, generation := b.down, b.status.Generation
	running := down != nil && b.status.Running
	b.mu.Unlock()
	if !running {
		return nil, notRunning(b.name())
	}
	seam := make([]byte, channel.SeamLen)
	rand.Read(seam)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/v1/quiesce", nil)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot ask the guest to rest: %w", err)
	}
	setGeneration(r.Header, generation)
	r.Header.Set(guest.HeaderSeam, hex.EncodeToString(seam))
	resp, err := down.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return nil, sandbox.Errorf(sandbox.Internal, "the guest does not come to rest: it answered with status %d", resp.StatusCode)
	}
	b.mu.Lock()
	b.down = nil // no request until it goes on
	b.mu.Unlock()
	conn, err := down.Split(ctx, seam)
	if err != nil {
		b.fault(err)
		return nil, err
	}
	return conn, nil
}

// wake says hello to a guest that has been asked to rest and has not let go of
// its channel. One that does not answer is ended: nobody could use it.
func (b *box) wake(ctx context.Context, h *guest.Hello) {
	b.mu.Lock()
	down, running := b.down, b.status.Running
	b.mu.Unlock()
	if down == nil || !running {
		return // it has ended, or been ended
	}
	h.Start = nil
	if _, err := b.sayHello(ctx, down, h); err != nil {
		b.fault(err)
		return
	}
	b.mu.Lock()
	b.status.Generation = h.Generation
	b.mu.Unlock()
}

// goOn says hello to a guest at rest.
func (b *box) goOn(ctx context.Context, conn net.Conn, h *guest.Hello) error {
	down, err := channel.DialHost(conn, b.limits())
	if err != nil {
		conn.Close()
		return err
	}
	h.Start = nil
	if _, err := b.sayHello(ctx, down, h); err != nil {
		down.Close()
		return err
	}
	b.mu.Lock()
	b.down, b.status.Generation = down, h.Generation
	b.mu.Unlock()
	b.owners.Go(func() { b.watchDown(down) })
	return nil
}

func notRunning(id sandbox.ID) error {
	return sandbox.Errorf(sandbox.Conflict, "the sandbox is not running").WithField("id", string(id))
}
