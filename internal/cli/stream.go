package cli

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
)

// attachment connects our standard streams to a command.
type attachment struct {
	a           *app
	interactive bool // pass standard input on
	relay       *relay

	term           *terminal.Terminal // when the command gets one
	stdout, stderr *capture           // when a program reads the result
	winch          chan os.Signal
	lost           [3]int64
	ended          bool
}

// attach prepares an attachment. end must be called.
func (a *app) attach(r *relay, interactive, tty bool) *attachment {
	at := &attachment{a: a, interactive: interactive, relay: r}
	if tty {
		at.term = terminal.New(a.in, a.out)
	}
	return at
}

// checkTTY refuses a terminal for which ours is not one at both ends.
func (a *app) checkTTY(tty bool) error {
	switch {
	case !tty:
	case !terminal.IsTerminal(a.in):
		return usagef("leave out -t; -i alone passes standard input on", "the input device is not a TTY")
	case !terminal.IsTerminal(a.out):
		return usagef("leave out -t when output goes to a file or a pipe", "the output device is not a TTY")
	}
	return nil
}

// size returns the size of our terminal; zero when it has none.
func (at *attachment) size() client.PTYSize {
	if at.term == nil {
		return client.PTYSize{}
	}
	cols, rows, err := terminal.Size(at.a.out)
	if err != nil || cols <= 0 || rows <= 0 || cols > 0xffff || rows > 0xffff {
		return client.PTYSize{Cols: 80, Rows: 24}
	}
	return client.PTYSize{Cols: uint16(cols), Rows: uint16(rows)}
}

// streams returns what carries the command's input and output.
func (at *attachment) streams() client.Streams {
	s := client.Streams{
		Stdout: at.a.out, Stderr: at.a.err, Signals: at.relay.out,
		OnGap: func(stream client.StreamID, n int64) { at.lost[stream] += n },
	}
	if at.stdout != nil {
		s.Stdout, s.Stderr = at.stdout, at.stderr
	}
	if at.interactive {
		s.Stdin = at.a.in
	}
	if at.term != nil {
		s.Stdout = at.term.Output()
		s.Resize = at.watchSize()
	}
	return s
}

// begin is called when the command runs: from now on the terminal and the
// signals are its own.
func (at *attachment) begin() {
	if at.term != nil && at.interactive {
		if err := at.term.Raw(); err != nil {
			at.a.warn("the terminal cannot be put into raw mode: %v", err)
		}
	}
	at.relay.begin()
}

// watchSize sends the size of our terminal now and at every change.
func (at *attachment) watchSize() <-chan client.PTYSize {
	at.winch = make(chan os.Signal, 1)
	sizes := make(chan client.PTYSize, 1)
	signal.Notify(at.winch, syscall.SIGWINCH)
	go func() {
		defer close(sizes)
		for range at.winch {
			select { // a size that was not yet taken is out of date
			case <-sizes:
			default:
			}
			sizes <- at.size()
		}
	}()
	return sizes
}

// end gives the terminal back and tells of output that was lost. Calls after
// the first do nothing.
func (at *attachment) end() {
	if at.winch != nil {
		signal.Stop(at.winch)
		close(at.winch)
		at.winch = nil
	}
	if at.term != nil {
		at.term.Restore()
	}
	if at.stdout == nil && !at.ended {
		for _, s := range []client.StreamID{client.Stdout, client.Stderr} {
			if n := at.lost[s]; n > 0 {
				at.a.warn("%s of %s was overwritten before it could be read", formatSize(n), streamName(s))
			}
		}
	}
	at.ended = true
}
