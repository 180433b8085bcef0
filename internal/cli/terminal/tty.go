package terminal

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// IsTerminal reports whether f is a terminal.
func IsTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

// Size returns the width and height of the terminal f in characters.
func Size(f *os.File) (cols, rows int, err error) { return term.GetSize(int(f.Fd())) }

// Terminal is ours, lent to a program inside. Restore puts it back; every way
// out of our program must pass through it. It is safe for concurrent use.
type Terminal struct {
	in, out *os.File
	modes   *Modes

	mu  sync.Mutex
	old *term.State // set while in raw mode
}

// New returns the terminal whose ends are in and out, as it is.
func New(in, out *os.File) *Terminal {
	return &Terminal{in: in, out: out, modes: NewModes(out)}
}

// Output is where the program's output goes: it watches the modes.
func (t *Terminal) Output() *Modes { return t.modes }

// Raw begins raw mode.
func (t *Terminal) Raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.old != nil {
		return nil
	}
	old, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return err
	}
	t.old = old
	return nil
}

// Restore switches off the modes that the program left on, discards input
// that it has not read, so that a shell does not take it for commands, and
// ends raw mode. When there is nothing to restore it does nothing.
func (t *Terminal) Restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.modes.Reset(); s != "" {
		t.out.WriteString(s)
	}
	if t.old == nil {
		return
	}
	unix.IoctlSetInt(int(t.in.Fd()), unix.TCFLSH, unix.TCIFLUSH)
	term.Restore(int(t.in.Fd()), t.old)
	t.old = nil
}
