package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/driver/gvisor"
	"github.com/belljar-sh/belljar/internal/keeper"
)

const usage = `usage: belljar-engine keeper|reap|probe|version

The part of Belljar that parents sandboxes. It is started by belljar.`

// run runs the subcommand that args name.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%s", usage)
	}
	switch name, rest := args[0], args[1:]; name {
	case "version":
		_, err := fmt.Fprintln(out, "belljar-engine", build.ID())
		return err
	case "probe":
		return probe(ctx, out)
	case "keeper":
		return keep(ctx, rest)
	case "reap":
		return reap(ctx, rest)
	default:
		return fmt.Errorf("unknown subcommand %q\n%s", name, usage)
	}
}

// drivers are the drivers of this program.
func drivers() ([]driver.Driver, error) {
	g, err := gvisor.New(gvisor.Options{DebugDir: os.Getenv("BELLJAR_GVISOR_DEBUG")})
	if err != nil {
		return nil, err
	}
	return []driver.Driver{g}, nil
}

// probe writes what each driver finds on this host as JSON.
func probe(ctx context.Context, out io.Writer) error {
	all, err := drivers()
	if err != nil {
		return err
	}
	var reports []driver.Report
	for _, d := range all {
		reports = append(reports, d.Probe(ctx))
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(reports)
}

// inherited are descriptors that came with the command line; -1 means none.
type inherited struct {
	lifeline, lock, socket, fds, ready int
}

// keep serves a keeper until it is told to end.
func keep(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("keeper", flag.ContinueOnError)
	var o keeper.Options
	var fd inherited
	fs.StringVar(&o.Dir, "dir", "", "the keeper's directory, 0700")
	fs.StringVar(&o.Kind, "kind", "daemon", "who it belongs to: daemon or run")
	fs.IntVar(&fd.lifeline, "lifeline", -1, "descriptor whose end ends the keeper")
	fs.IntVar(&fd.lock, "lock", -1, "descriptor of the directory's lock, held")
	fs.IntVar(&fd.socket, "socket", -1, "descriptor of the listening keeper.sock")
	fs.IntVar(&fd.fds, "fds", -1, "descriptor of the listening fds.sock")
	fs.IntVar(&fd.ready, "ready", -1, "descriptor that is closed once requests are served")
	fs.DurationVar(&o.IdleExit, "idle-exit", 0, "end after so long without a sandbox or connection; 0: never")
	fs.Func("crash", "for tests: die at this point", func(s string) error {
		o.Crash = keeper.CrashPoint(s)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := fd.open(&o); err != nil {
		return err
	}
	var err error
	if o.Drivers, err = drivers(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	signal.Ignore(unix.SIGHUP)
	return keeper.Run(ctx, o)
}

// open turns the descriptors into what the keeper takes. None of them may
// reach the processes of a sandbox.
func (d inherited) open(o *keeper.Options) (err error) {
	file := func(fd int, name string) *os.File {
		if fd < 0 {
			return nil
		}
		unix.CloseOnExec(fd)
		return os.NewFile(uintptr(fd), name)
	}
	o.Lifeline, o.Lock = file(d.lifeline, "lifeline"), file(d.lock, "lock")
	if o.Socket, err = listener(file(d.socket, "keeper.sock")); err != nil {
		return err
	}
	if o.FDSocket, err = listener(file(d.fds, "fds.sock")); err != nil {
		return err
	}
	if f := file(d.ready, "ready"); f != nil {
		o.Ready = func() { f.Close() }
	}
	return nil
}

func listener(f *os.File) (net.Listener, error) {
	if f == nil {
		return nil, nil
	}
	defer f.Close()
	return net.FileListener(f)
}

// reapTimeout bounds the reaping of one keeper's directory.
const reapTimeout = 5 * time.Minute

// reap gives back what a dead keeper has left.
func reap(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("reap", flag.ContinueOnError)
	dir := fs.String("dir", "", "the dead keeper's directory")
	if err := fs.Parse(args); err != nil {
		return err
	}
	all, err := drivers()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	return keeper.Reap(ctx, *dir, all)
}
