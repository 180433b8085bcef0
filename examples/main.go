// Command examples runs programs as agents write them, one sandbox each,
// against the built binaries, and prints what ran, what was refused and why.
// `make demo` builds everything and runs it. It ends with 1 when an outcome is
// not the expected one.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	os.Exit(run())
}

func run() int {
	bin := flag.String("bin", "bin", "directory of the built programs")
	dir := flag.String("dir", "examples", "directory of the examples")
	quiet := flag.Bool("quiet", false, "print the table only")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: go run ./examples [--bin DIR] [--quiet] [EXAMPLE...]\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d, err := newDemo(*bin, *dir, *quiet)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 1
	}
	defer d.close()
	chosen, err := choose(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return 2
	}
	ok := true
	for _, e := range chosen {
		r := d.one(ctx, e)
		ok = ok && r.err == nil
		if ctx.Err() != nil {
			return 130
		}
	}
	d.table(os.Stdout)
	if err := d.leftovers(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		ok = false
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "demo: an outcome is not the expected one")
		return 1
	}
	return 0
}

// choose returns the examples of these names, all when there is none.
func choose(names []string) ([]*example, error) {
	all := examples()
	if len(names) == 0 {
		return all, nil
	}
	var out []*example
	for _, n := range names {
		found := false
		for _, e := range all {
			if e.dir == filepath.Base(n) {
				out, found = append(out, e), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no example %q", n)
		}
	}
	return out, nil
}
