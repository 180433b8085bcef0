// Command inside is what the benchmarks run inside a sandbox: it measures the
// guest's own fork and exec, fills and drains pipes and bare channels, and
// idles. It is linked statically and imports little.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/bench/pattern"
)

// block is the size of reads and writes: with it the price of a system call
// inside matters little.
const block = 256 << 10

// roles is the whole command line.
var roles = map[string]func(ctx context.Context, args []string) error{
	"true":     func(context.Context, []string) error { return nil },
	"hello":    func(context.Context, []string) error { _, err := os.Stdout.WriteString("hello\n"); return err },
	"forkexec": forkExec,
	"emit":     emit,
	"pattern":  emitPattern,
	"digest":   digest,
	"drain":    drain,
	"channel":  serveChannel,
	"idle":     idle,
	"hold":     hold,
	"touch":    touch,
	"await":    await,
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	role, ok := roles[flag.Arg(0)]
	if !ok {
		fmt.Fprintf(os.Stderr, "inside: unknown role %q\n", flag.Arg(0))
		os.Exit(2)
	}
	err := role(ctx, flag.Args()[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "inside %s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

func number(args []string, i int) (int64, error) {
	if i >= len(args) {
		return 0, fmt.Errorf("argument %d is missing", i+1)
	}
	return strconv.ParseInt(args[i], 10, 64)
}

// Times is what forkexec prints, in nanoseconds.
type Times struct {
	Whole     []int64 `json:"whole"`      // fork to reaped
	FirstByte []int64 `json:"first_byte"` // fork to the first byte of output
}

// forkExec runs a command N times and prints how long each took.
func forkExec(ctx context.Context, args []string) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	if len(args) < 2 {
		return errors.New("no command")
	}
	var out Times
	for range n {
		whole, first, err := forkOnce(ctx, args[1:])
		if err != nil {
			return err
		}
		out.Whole = append(out.Whole, int64(whole))
		out.FirstByte = append(out.FirstByte, int64(first))
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func forkOnce(ctx context.Context, argv []string) (whole, first time.Duration, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	var b [1]byte
	_, err = stdout.Read(b[:])
	first = time.Since(start)
	if err != nil && err != io.EOF {
		return 0, 0, err
	}
	err = cmd.Wait()
	return time.Since(start), first, err
}

// emit writes N bytes of zeros to standard output.
func emit(_ context.Context, args []string) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	return write(os.Stdout, n)
}

func write(w io.Writer, n int64) error {
	buf := make([]byte, block)
	for n > 0 {
		k, err := w.Write(buf[:min(n, block)])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}

// emitPattern writes N bytes of the pattern to standard output.
func emitPattern(_ context.Context, args []string) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	return pattern.Write(os.Stdout, n)
}

// digest prints count and SHA-256 of standard input.
func digest(context.Context, []string) error {
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{os.Stdin}, make([]byte, block))
	if err != nil {
		return err
	}
	_, err = fmt.Printf("%d %x\n", n, h.Sum(nil))
	return err
}

// drain reads standard input to its end and prints the count.
func drain(context.Context, []string) error {
	n, err := read(os.Stdin, 1<<62)
	if err != nil {
		return err
	}
	_, err = fmt.Println(n)
	return err
}

func read(r io.Reader, n int64) (int64, error) {
	buf := make([]byte, block)
	var sum int64
	for sum < n {
		k, err := r.Read(buf)
		sum += int64(k)
		if err == io.EOF {
			break
		}
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// serveChannel answers requests on descriptor FD, one after another: a byte
// and a length (uint64, big endian). 'r' reads that many bytes and answers
// with one, 's' sends that many.
func serveChannel(_ context.Context, args []string) error {
	fd, err := number(args, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "channel")
	for {
		var head [9]byte
		if _, err := io.ReadFull(f, head[:]); err != nil {
			return err
		}
		n := int64(binary.BigEndian.Uint64(head[1:]))
		if head[0] == 's' {
			err = write(f, n)
		} else if _, err = read(f, n); err == nil {
			_, err = f.Write([]byte{1})
		}
		if err != nil {
			return err
		}
	}
}

// idle waits to be ended.
func idle(ctx context.Context, _ []string) error {
	<-ctx.Done()
	return nil
}

// hold fills N bytes of memory with what is no zeros, writes its number into a
// file when that is done, and keeps them. On SIGUSR1 it reads all of them and
// makes the file FILE.touched.
func hold(ctx context.Context, args []string) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	if len(args) < 2 {
		return errors.New("no file")
	}
	var kept bytes.Buffer
	kept.Grow(int(n))
	if err := pattern.Write(&kept, n); err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	if err := writeWhole(args[1], strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-asked:
			if err := writeWhole(args[1]+touched, strconv.Itoa(readPages(kept.Bytes()))); err != nil {
				return err
			}
		}
	}
}

const touched = ".touched"

// writeWhole has a file appear with all that is in it.
func writeWhole(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readPages reads a byte of each page.
func readPages(b []byte) (sum int) {
	for i := 0; i < len(b); i += os.Getpagesize() {
		sum += int(b[i])
	}
	return sum
}

// touch has the process that wrote FILE read all that it holds.
func touch(ctx context.Context, args []string) error {
	if len(args) < 1 {
		return errors.New("no file")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	if err := os.Remove(args[0] + touched); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		return err
	}
	return await(ctx, []string{args[0] + touched})
}

// await returns when FILE is there.
func await(ctx context.Context, args []string) error {
	if len(args) < 1 {
		return errors.New("no file")
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(args[0]); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
