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

// Raw is a terminal in raw mode. Restore puts it back; every way out of the
// program must pass through it. It is safe for concurrent use.
type Raw struct {
	in, out *os.File
	modes   *Modes
	old     *term.State
	once    sync.Once
}

// MakeRaw puts the terminal in into raw mode. Output for out is to be written
// to the returned terminal's Output, which watches the modes.
func MakeRaw(in, out *os.File) (*Raw, error) {
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, err
	}
	return &Raw{in: in, out: out, modes: NewModes(out), old: old}, nil
}

// Output is where the program's output goes.
func (r *Raw) Output() *Modes { return r.modes }

// Restore switches off the modes that the program left on, discards input
// that it has not read, so that a shell does not take it for commands, and
// ends raw mode. Only the first call does anything.
func (r *Raw) Restore() {
	if r == nil {
		return
	}
	r.once.Do(func() {
		if s := r.modes.Reset(); s != "" {
			r.out.WriteString(s)
		}
		unix.IoctlSetInt(int(r.in.Fd()), unix.TCFLSH, unix.TCIFLUSH)
		term.Restore(int(r.in.Fd()), r.old)
	})
}
