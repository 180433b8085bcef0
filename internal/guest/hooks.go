package guest

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// runHooks runs the programs in the directory of hooks, one after another. A
// sandbox without that directory pays one system call.
func (s *Server) runHooks(ctx context.Context, h *wire.Hello) (ran []wire.Hook, left int) {
	names := hookNames(s.cfg.HookDir)
	if len(names) == 0 {
		return nil, 0
	}
	ctx, cancel := context.WithTimeout(ctx, wire.HookTime)
	defer cancel()
	for i, name := range names {
		if i == wire.MaxHooks || ctx.Err() != nil {
			return ran, len(names) - i
		}
		ran = append(ran, s.runHook(ctx, h, name))
	}
	return ran, 0
}

// hookNames lists the files in dir that are hooks, in order. Other names are
// what editors and package managers leave.
func hookNames(dir string) []string {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	names = slices.DeleteFunc(names, func(n string) bool { return !hookName(n) || !runnable(filepath.Join(dir, n)) })
	slices.Sort(names)
	return names
}

func hookName(n string) bool {
	return !strings.ContainsFunc(n, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}

func runnable(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}

// runHook runs one program, as root where the guest is root, and kills it when
// ctx ends.
func (s *Server) runHook(ctx context.Context, h *wire.Hello, name string) wire.Hook {
	out := wire.Hook{Name: name}
	var id [32]byte
	draw(&id)
	user := "root"
	if !s.root {
		user = "" // the only one that there is
	}
	p, err := s.start(&wire.Start{
		ID: hex.EncodeToString(id[:16]), Argv: []string{filepath.Join(s.cfg.HookDir, name)}, Cwd: "/", User: user,
		Env: map[string]string{
			"BELLJAR_SANDBOX_ID": string(h.SandboxID), "BELLJAR_GENERATION": strconv.FormatUint(h.Generation, 10),
		},
		KeepTree: true, Tag: "restore.d/" + name,
	})
	if err != nil {
		out.Error = sandbox.AsError(err).Message
		return out
	}
	p.unheld()
	select {
	case <-p.gone:
	case <-ctx.Done():
		p.tree.kill(s.base)
		<-p.gone
		out.Exit.TimedOut = true
	}
	timedOut := out.Exit.TimedOut
	out.Exit = *p.status().Exit
	out.Exit.TimedOut = timedOut
	out.Output, out.Cut = p.tail(wire.MaxHookOutput)
	if p.tree.empty() {
		p.release()
	} else {
		p.hadRead() // what it has started lives on, and nobody reads what it says
	}
	return out
}

// hookDrain bounds the wait for the last words of a hook that has ended: what
// it has started may keep its output open.
const hookDrain = 100 * time.Millisecond

// tail returns the end of what an ended process has written, at most n bytes:
// of its errors first, which tell more.
func (p *process) tail(n int) (text string, cut bool) {
	over := time.Now().Add(hookDrain)
	for !p.drained() && time.Now().Before(over) {
		time.Sleep(time.Millisecond)
	}
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	for _, s := range slices.Backward(p.streams) {
		have := s.end - s.start
		take := min(have, int64(n-len(text)))
		b := make([]byte, take)
		s.copyFrom(b, s.end-take)
		text = string(b) + text
		cut = cut || take < s.end
	}
	return text, cut
}

func (p *process) drained() bool {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	return p.out.done
}

// unheld lets a program go on although nobody reads what it writes.
func (p *process) unheld() {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	p.out.heldUntil = time.Time{}
	for _, s := range p.streams {
		s.poke()
	}
}

// hadRead takes all output, what comes later too, for read.
func (p *process) hadRead() {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	p.out.told = true
	for _, s := range p.streams {
		s.ack(s.end)
	}
}
