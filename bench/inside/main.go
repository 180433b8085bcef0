// Command inside is what the benchmarks run inside a sandbox: it measures the
// guest's own fork and exec, fills and drains pipes and bare channels, and
// idles. It imports nothing but the standard library and is linked statically.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
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
	"pattern":  pattern,
	"digest":   digest,
	"drain":    drain,
	"send":     send,
	"receive":  receive,
	"idle":     idle,
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

// pattern writes N bytes that differ from place to place, free of control
// characters, so that a terminal passes them on as they are.
func pattern(_ context.Context, args []string) error {
	n, err := number(args, 0)
	if err != nil {
		return err
	}
	return WritePattern(os.Stdout, n)
}

// WritePattern writes the first n bytes of an endless text of numbered lines
// without line ends.
func WritePattern(w io.Writer, n int64) error {
	var buf bytes.Buffer
	for i := int64(0); n > 0; i++ {
		fmt.Fprintf(&buf, "%015x.", i*2654435761)
		if buf.Len() < block && int64(buf.Len()) < n {
			continue
		}
		k, err := w.Write(buf.Bytes()[:min(n, int64(buf.Len()))])
		if err != nil {
			return err
		}
		n -= int64(k)
		buf.Reset()
	}
	return nil
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

// send writes N bytes to descriptor FD.
func send(_ context.Context, args []string) error {
	f, n, err := channel(args)
	if err != nil {
		return err
	}
	return write(f, n)
}

// receive reads N bytes from descriptor FD and answers with one.
func receive(_ context.Context, args []string) error {
	f, n, err := channel(args)
	if err != nil {
		return err
	}
	if _, err := read(f, n); err != nil {
		return err
	}
	_, err = f.Write([]byte{1})
	return err
}

func channel(args []string) (*os.File, int64, error) {
	fd, err := number(args, 0)
	if err != nil {
		return nil, 0, err
	}
	n, err := number(args, 1)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), "channel"), n, nil
}

// idle waits to be ended.
func idle(ctx context.Context, _ []string) error {
	<-ctx.Done()
	return nil
}
