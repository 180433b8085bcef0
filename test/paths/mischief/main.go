// Command mischief does inside a sandbox, for the path vectors, what a hostile
// program would do: it makes awkward files and swaps directories for links.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// acts are the subcommands.
var acts = map[string]func(args []string) error{
	"link":    func(a []string) error { return os.Symlink(a[0], a[1]) },
	"fifo":    func(a []string) error { return unix.Mkfifo(a[0], 0o666) },
	"socket":  socket,
	"links":   links,
	"chain":   chain,
	"dirs":    dirs,
	"sparse":  sparse,
	"node":    func(a []string) error { return unix.Mknod(a[0], unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) },
	"mode":    mode,
	"write":   func(a []string) error { return os.WriteFile(a[0], []byte(a[1]), 0o644) },
	"mkdir":   func(a []string) error { return os.MkdirAll(a[0], 0o755) },
	"cat":     cat,
	"fill":    fill,
	"remount": remount,
	"swap":    swap,
	"touch":   touch,
}

func main() {
	if len(os.Args) < 2 || acts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: mischief ACT ARG...")
		os.Exit(2)
	}
	if err := acts[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "mischief:", err)
		os.Exit(1)
	}
}

// socket leaves a unix socket behind.
func socket(a []string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: a[0], Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

// links makes n links to a target in a directory.
func links(a []string) error {
	n, err := strconv.Atoi(a[1])
	for i := 0; err == nil && i < n; i++ {
		err = os.Symlink(a[2], filepath.Join(a[0], fmt.Sprintf("l%06d", i)))
	}
	return err
}

// chain makes n links of which each leads to the next and the last to a
// target; the first is called by the name given.
func chain(a []string) error {
	n, err := strconv.Atoi(a[1])
	to := a[2]
	for i := n - 1; err == nil && i >= 0; i-- {
		name := fmt.Sprintf("%s.%d", a[0], i)
		if i == 0 {
			name = a[0]
		}
		err = os.Symlink(to, name)
		to = name
	}
	return err
}

// dirs makes n directories, a thousand in each of the first.
func dirs(a []string) error {
	n, err := strconv.Atoi(a[1])
	for i := 0; err == nil && i < n; i++ {
		err = os.MkdirAll(filepath.Join(a[0], strconv.Itoa(i/1000), strconv.Itoa(i)), 0o755)
	}
	return err
}

func sparse(a []string) error {
	n, err := strconv.ParseInt(a[1], 10, 64)
	if err != nil {
		return err
	}
	f, err := os.Create(a[0])
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(n), f.Close())
}

// mode sets a mode as chmod(2) has it.
func mode(a []string) error {
	m, err := strconv.ParseUint(a[1], 8, 32)
	if err != nil {
		return err
	}
	return unix.Chmod(a[0], uint32(m))
}

// cat prints files; it tells of each that cannot be read.
func cat(a []string) error {
	var failed error
	for _, p := range a {
		b, err := os.ReadFile(p)
		os.Stdout.Write(b)
		failed = errors.Join(failed, err)
	}
	return failed
}

// fill writes a file until the disk is full, and then the little that may
// still fit.
func fill(a []string) error {
	f, err := os.Create(a[0])
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(i)
		}
		for err = nil; err == nil; {
			_, err = f.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			return err
		}
	}
	return nil
}

// remount makes a read-only mount writable in every way there is, then writes.
func remount(a []string) error {
	var tries []string
	try := func(what string, err error) { tries = append(tries, fmt.Sprintf("%s: %v", what, err)) }
	try("remount", unix.Mount("", a[0], "", unix.MS_REMOUNT, ""))
	try("remount bind", unix.Mount("", a[0], "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	try("bind", unix.Mount(a[0], "/mnt", "", unix.MS_BIND|unix.MS_REC, ""))
	try("remount the bind", unix.Mount("", "/mnt", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	fmt.Println(strings.Join(tries, "\n"))
	wrote := false
	for _, dir := range []string{a[0], "/mnt"} {
		err := os.WriteFile(filepath.Join(dir, a[1]), []byte("evil"), 0o666)
		try("write "+dir, err)
		fmt.Println(tries[len(tries)-1])
		_, there := os.Lstat(filepath.Join(a[0], a[1]))
		wrote = wrote || there == nil
	}
	if wrote {
		return nil
	}
	return errors.New("nothing could be written")
}

// touch makes a file and complains of nothing: the directory may be a link at
// the moment.
func touch(a []string) error {
	f, err := os.OpenFile(a[0], os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// rename moves a file, away with whatever somebody has put in its way.
func rename(from, to string) error {
	err := os.Rename(from, to)
	for range 100 {
		if err == nil {
			break
		}
		os.RemoveAll(to)
		err = os.Rename(from, to)
	}
	return err
}

// swap makes name in turn the directory that it is and a link to a target. It
// prints a line when it begins and the number of swaps when it is told to end.
func swap(a []string) error {
	name, target := a[0], a[1]
	link, real := name+".link", name+".real"
	defer os.Remove(link)
	if err := os.Symlink(target, link); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	fmt.Println("swapping")
	n := 0
	for {
		for _, move := range [][2]string{{name, real}, {link, name}, {name, link}, {real, name}} {
			if err := rename(move[0], move[1]); err != nil {
				return err
			}
		}
		n += 2
		select {
		case <-stop:
			fmt.Println(n)
			return nil
		default:
		}
	}
}
