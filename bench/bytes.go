package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/bench/pattern"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

const (
	exactBytes = 64 << 20
	fileBytes  = 1 << 30
)

// counter is a digest that knows how much it has seen.
type counter struct {
	hash.Hash
	n int64
}

func newCounter() *counter { return &counter{Hash: sha256.New()} }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.Hash.Write(p)
}

func (c *counter) String() string {
	return fmt.Sprintf("%d %s", c.n, hex.EncodeToString(c.Sum(nil)))
}

// exact sends a pattern through pipes and terminals and compares digests.
func (e *env) exact(ctx context.Context, r *harness.Result) error {
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	id, kill, err := e.sandbox(ctx, c, sandbox.Spec{})
	if err != nil {
		return err
	}
	defer kill()
	want := newCounter()
	if err := pattern.Write(want, exactBytes); err != nil {
		return err
	}
	for _, way := range []struct {
		name string
		tty  bool
	}{{"out through a pipe", false}, {"out through a terminal", true}} {
		got := newCounter()
		argv := []string{insidePath, "pattern", strconv.Itoa(exactBytes)}
		exit, err := c.Exec(ctx, id, client.ExecOptions{Argv: argv, TTY: way.tty, Streams: client.Streams{Stdout: got, Stderr: io.Discard}})
		if err != nil || exit.Status() != 0 {
			return fmt.Errorf("%s: exit code %d: %w", way.name, exit.Status(), err)
		}
		addExact(r, way.name, got.String(), want.String())
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(pattern.Write(pw, exactBytes)) }()
	var out bytes.Buffer
	exit, err := c.Exec(ctx, id, client.ExecOptions{Argv: []string{insidePath, "digest"}, Streams: client.Streams{Stdin: pr, Stdout: &out}})
	if err != nil || exit.Status() != 0 {
		return fmt.Errorf("in through a pipe: exit code %d: %w", exit.Status(), err)
	}
	addExact(r, "in through a pipe", strings.TrimSpace(out.String()), want.String())
	return nil
}

func addExact(r *harness.Result, name, got, want string) {
	same := 0.0
	if got == want {
		same = 1
	} else {
		r.Logf("%s: got %s, want %s", name, got, want)
	}
	r.AtLeast("64 MiB "+name+", byte for byte", same, 1, "")
}

// zeros reads n bytes of zeros.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// rate is bytes per second in MB/s.
func rate(n int64, d time.Duration) float64 { return float64(n) / 1e6 / d.Seconds() }

// throughput compares what the product carries with what the bare channel of
// a bare sandbox carries.
func (e *env) throughput(ctx context.Context, r *harness.Result) error {
	bare, err := e.newBare(ctx)
	if err != nil {
		return err
	}
	defer bare.Close()
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	// The file that is transferred counts against the sandbox's memory when its
	// file system is kept there.
	id, kill, err := e.sandbox(ctx, c, sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: 4 << 30, DiskBytes: 3 << 30}})
	if err != nil {
		return err
	}
	defer kill()
	const file = "/tmp/transfer"
	upload := func(ctx context.Context) error {
		_, err := c.PutFile(ctx, id, file, "", 0o644, zeros(fileBytes), fileBytes)
		return err
	}
	download := func(ctx context.Context) error { return e.download(ctx, c, id, file) }
	out := func(ctx context.Context) error {
		var n countWriter
		exit, err := c.Exec(ctx, id, client.ExecOptions{
			Argv:    []string{insidePath, "emit", strconv.Itoa(fileBytes)},
			Streams: client.Streams{Stdout: &n, Stderr: io.Discard},
		})
		if err == nil && (exit.Status() != 0 || n != fileBytes) {
			err = fmt.Errorf("exit code %d after %d bytes", exit.Status(), n)
		}
		return err
	}
	times, err := harness.InTurn(ctx, e.rounds,
		harness.Side{Name: "bare channel, to the guest", Do: bare.toGuest},
		harness.Timed("upload", upload),
		harness.Timed("download", download),
		harness.Timed("output", out),
		harness.Side{Name: "bare channel, from the guest", Do: bare.fromGuest},
	)
	if err != nil {
		return err
	}
	names := []string{"bare channel, to the guest", "upload", "download", "output through a pipe", "bare channel, from the guest"}
	mbps := make([]float64, len(names))
	for i, name := range names {
		mbps[i] = rate(fileBytes, harness.Median(times[i]))
		r.Add(name, mbps[i], "MB/s")
	}
	r.AtLeast("upload / bare channel", mbps[1]/mbps[0], 0.35, "times")
	r.AtLeast("download / bare channel", mbps[2]/mbps[4], 0.35, "times")
	r.AtLeast("output / bare channel", mbps[3]/mbps[4], 0.35, "times")
	return e.transferMemory(ctx, r, c, id, upload, download, out)
}

type countWriter int64

func (n *countWriter) Write(p []byte) (int, error) {
	*n += countWriter(len(p))
	return len(p), nil
}

func (e *env) download(ctx context.Context, c *client.Client, id, path string) error {
	f, err := c.GetFile(ctx, id, path, "", 0)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 256<<10))
	if err == nil && n != fileBytes {
		err = fmt.Errorf("%d bytes came", n)
	}
	return err
}

// transferMemory repeats the transfers while it watches the resident memory of
// the daemon, the keepers and the guest.
func (e *env) transferMemory(ctx context.Context, r *harness.Result, c *client.Client, id string, transfers ...func(context.Context) error) error {
	idle, err := e.resident(ctx, c, id)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		for _, f := range transfers {
			if err := f(ctx); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	most := map[string]int64{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			running = false
		case <-tick.C:
		}
		now, err := e.resident(ctx, c, id)
		if err != nil {
			return err
		}
		for name, n := range now {
			most[name] = max(most[name], n)
		}
	}
	for _, name := range []string{"daemon", "keeper", "guest"} {
		r.AtMost(name+", resident memory during transfers above idle", float64(most[name]-idle[name])/(1<<20), 64, "MiB")
	}
	return nil
}

// resident is the resident memory of daemon, keepers and guest; the guest's is
// asked inside.
func (e *env) resident(ctx context.Context, c *client.Client, id string) (map[string]int64, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{"daemon": harness.RSS(info.PID)}
	keepers, err := e.keepers()
	if err != nil {
		return nil, err
	}
	for _, k := range keepers {
		out["keeper"] += harness.RSS(k.PID)
	}
	status, err := output(ctx, c, id, "/bin/cat", "/proc/1/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return nil, err
			}
			out["guest"] = n << 10
		}
	}
	return out, nil
}

// keepers finds the keepers of this installation: engine processes that are
// started with a directory beneath its runtime directory.
func (e *env) keepers() ([]harness.Process, error) {
	procs, err := harness.Processes()
	if err != nil {
		return nil, err
	}
	var out []harness.Process
	for _, p := range procs {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			continue
		}
		args := strings.Split(string(cmdline), "\x00")
		if len(args) > 1 && args[1] == "keeper" && strings.Contains(string(cmdline), e.rt) {
			out = append(out, p)
		}
	}
	return out, nil
}
