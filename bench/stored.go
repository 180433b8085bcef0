package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/bench/harness"
	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

const (
	forks     = 8
	forkBytes = 64 << 20 // what the source of a fork holds in memory
)

// fork compares a fork of eight with one checkpoint of the same sandbox, by which
// its source stands still, and with one resume of a sandbox like it.
func (e *env) fork(ctx context.Context, r *harness.Result) error {
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	source, killSource, err := e.holding(ctx, c, forkBytes)
	if err != nil {
		return err
	}
	defer killSource()
	twin, killTwin, err := e.holding(ctx, c, forkBytes)
	if err != nil {
		return err
	}
	defer killTwin()
	bare, err := e.newBareHolder(ctx)
	if err != nil {
		return err
	}
	defer bare.close(ctx)
	var stops []time.Duration
	times, err := harness.InTurn(ctx, e.rounds,
		harness.Side{Name: "fork", Do: func(ctx context.Context) (time.Duration, error) {
			took, stopped, err := forkAll(ctx, c, source)
			stops = append(stops, stopped)
			return took, err
		}},
		harness.Side{Name: "snapshot", Do: func(ctx context.Context) (time.Duration, error) {
			s, err := c.Snapshot(ctx, source, "")
			if err != nil {
				return 0, err
			}
			return s.Stopped, c.RemoveSnapshot(ctx, string(s.ID))
		}},
		harness.Side{Name: "resume", Do: func(ctx context.Context) (time.Duration, error) {
			if _, err := c.Pause(ctx, twin); err != nil {
				return 0, err
			}
			start := time.Now()
			_, err := output(ctx, c, twin, insidePath, "hello")
			return time.Since(start), err
		}},
		harness.Timed("runsc checkpoint", bare.checkpoint),
	)
	if err != nil {
		return err
	}
	stops = stops[len(stops)-len(times[0]):] // without those to warm up
	r.AddTimes("fork of 8, until all have answered an exec", times[0])
	r.AddTimes("fork of 8, source stopped", stops)
	r.AddTimes("snapshot, source stopped", times[1])
	r.AddTimes("resume of one to an answered exec", times[2])
	r.AddTimes("runsc checkpoint of as much memory, whole command", times[3])
	r.AtMost("fork of 8, source stopped / snapshot", harness.Ratio(stops, times[1]), 1.2, "times")
	r.AtMost("fork of 8, source stopped / runsc checkpoint", harness.Ratio(stops, times[3]), 1.2, "times")
	r.AtMost("fork of 8, all answered / resume of one", harness.Ratio(times[0], times[2]), 5, "times")
	return nil
}

// forkAll forks, has each copy answer and ends them all.
func forkAll(ctx context.Context, c *client.Client, id string) (took, stopped time.Duration, err error) {
	start := time.Now()
	copies, stopped, err := c.Fork(ctx, id, forks, "")
	if err != nil {
		return 0, 0, err
	}
	each := func(do func(id string) error) error {
		errs := make([]error, len(copies))
		var wg sync.WaitGroup
		for i, sb := range copies {
			wg.Go(func() { errs[i] = do(string(sb.ID)) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	err = each(func(id string) error { _, err := output(ctx, c, id, insidePath, "hello"); return err })
	took = time.Since(start)
	killed := each(func(id string) error { _, err := c.Kill(context.WithoutCancel(ctx), id); return err })
	return took, stopped, errors.Join(err, killed)
}

// bareHolder is a sandbox without Belljar that holds memory.
type bareHolder struct {
	e      *env
	name   string
	rounds int
}

func (e *env) newBareHolder(ctx context.Context) (*bareHolder, error) {
	if err := e.needRunsc(ctx); err != nil {
		return nil, err
	}
	root, err := e.bareRoot()
	if err != nil {
		return nil, err
	}
	b := &bareHolder{e: e, name: "bare-holder"}
	dir, err := newBundle(b.name, root, "/inside", "hold", strconv.Itoa(forkBytes), "/tmp/ready").write(e.dir, b.name)
	if err != nil {
		return nil, err
	}
	if err := e.runsc(ctx, dir, b.name, "--detach").Run(); err != nil { // no pipes: it would hold them open
		return nil, fmt.Errorf("start a bare sandbox: %w", err)
	}
	if err := runQuiet(e.runscCommand(ctx, "exec", b.name, "/inside", "await", "/tmp/ready")); err != nil {
		b.close(ctx)
		return nil, err
	}
	return b, nil
}

func (b *bareHolder) checkpoint(ctx context.Context) error {
	b.rounds++
	dir := filepath.Join(b.e.dir, "bare-image-"+strconv.Itoa(b.rounds))
	defer os.RemoveAll(dir)
	return runQuiet(b.e.runscCommand(ctx, "checkpoint", "--leave-running", "--image-path", dir, b.name))
}

func (b *bareHolder) close(ctx context.Context) {
	_ = runQuiet(b.e.runscCommand(context.WithoutCancel(ctx), "delete", "--force", b.name))
}

// pages compares a resume until a process has read all of its 256 MiB with a
// plain copy of the image's pages into memory.
func (e *env) pages(ctx context.Context, r *harness.Result) error {
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	large, kill, err := e.holding(ctx, c, dirtyBytes)
	if err != nil {
		return err
	}
	defer kill()
	if _, err := c.Pause(ctx, large); err != nil {
		return err
	}
	kept := filepath.Join(e.state, "pages")
	if err := linkLargest(filepath.Join(e.state, "images", large), kept); err != nil {
		return err
	}
	defer os.Remove(kept)
	info, err := os.Stat(kept)
	if err != nil {
		return err
	}
	copied := filepath.Join("/dev/shm", filepath.Base(e.dir))
	defer os.Remove(copied)
	times, err := harness.InTurn(ctx, e.rounds,
		harness.Timed("cat", func(ctx context.Context) error {
			defer os.Remove(copied)
			return runQuiet(e.program(ctx, "sh", "-c", `cat "$0" >"$1"`, kept, copied))
		}),
		harness.Side{Name: "resume", Do: func(ctx context.Context) (time.Duration, error) {
			if _, err := c.Pause(ctx, large); err != nil {
				return 0, err
			}
			start := time.Now()
			_, err := output(ctx, c, large, insidePath, "touch", "/tmp/ready")
			return time.Since(start), err
		}},
	)
	if err != nil {
		return err
	}
	rate := func(times []time.Duration) float64 {
		return float64(info.Size()) / (1 << 20) / harness.Median(times).Seconds()
	}
	r.Add("pages in the image", float64(info.Size())/(1<<20), "MiB")
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		r.Add("of which no holes", float64(st.Blocks)*512/(1<<20), "MiB")
	}
	r.AddTimes("cat pages >/dev/shm/x", times[0])
	r.AddTimes("resume, until all memory has been read", times[1])
	r.Add("cat pages >/dev/shm/x", rate(times[0]), "MiB/s")
	r.Add("resume, until all memory has been read", rate(times[1]), "MiB/s")
	r.AtLeast("speed of a resume with all memory / cat", rate(times[1])/rate(times[0]), 0.6, "times")
	return nil
}

// linkLargest gives the largest file of dir another name.
func linkLargest(dir, to string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var largest os.FileInfo
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if largest == nil || info.Size() > largest.Size() {
			largest = info
		}
	}
	if largest == nil {
		return fmt.Errorf("%s: no image", dir)
	}
	return os.Link(filepath.Join(dir, largest.Name()), to)
}

// pausedMany counts what sandboxes cost the host while they are paused.
func (e *env) pausedMany(ctx context.Context, r *harness.Result) error {
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	if _, err := e.warm(ctx, c); err != nil {
		return err
	}
	before, _, err := e.holds(ctx, c)
	if err != nil {
		return err
	}
	var ids []string
	defer func() {
		for _, id := range ids {
			_, _ = c.Kill(context.WithoutCancel(ctx), id)
		}
	}()
	start := time.Now()
	for n := range e.paused {
		made, err := c.Create(ctx, sandbox.Spec{}, nil)
		if err != nil {
			return unavailable(err)
		}
		ids = append(ids, string(made.Sandbox.ID))
		if _, err := c.Pause(ctx, string(made.Sandbox.ID)); err != nil {
			return fmt.Errorf("pause %d: %w", n, err)
		}
		if n%50 == 49 {
			r.Logf("%d paused after %.0f s", n+1, time.Since(start).Seconds())
		}
	}
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	after, processes, err := e.holds(ctx, c)
	if err != nil {
		return err
	}
	if _, err := output(ctx, c, ids[0], "/bin/true"); err != nil {
		return fmt.Errorf("the first of them: %w", err)
	}
	r.Add("paused sandboxes", float64(e.paused), "")
	r.AtMost("memory of daemon and keepers, for each", float64(after-before)/(1<<20)/float64(e.paused), 1, "MiB PSS")
	r.AtMost("processes of paused sandboxes", float64(processes), 0, "")
	return nil
}

// holds adds up the memory of daemon and keepers with all that they have
// started, and counts the latter.
func (e *env) holds(ctx context.Context, c *client.Client) (pss int64, processes int, err error) {
	info, err := c.Info(ctx)
	if err != nil {
		return 0, 0, err
	}
	procs, err := harness.Processes()
	if err != nil {
		return 0, 0, err
	}
	keepers, err := e.keepers()
	if err != nil {
		return 0, 0, err
	}
	all := harness.Tree(procs, info.PID)
	for _, k := range keepers {
		tree := harness.Tree(procs, k.PID)
		all, processes = append(all, tree...), processes+len(tree)-1
	}
	seen := map[int]bool{}
	var once []harness.Process
	for _, p := range all { // a keeper may be the daemon's child
		if !seen[p.PID] {
			seen[p.PID] = true
			once = append(once, p)
		}
	}
	pss, err = harness.PSS(once)
	return pss, processes, err
}

// liveMany compares the memory of idle sandboxes from one snapshot with that of
// bare ones, all standing at the same time.
func (e *env) liveMany(ctx context.Context, r *harness.Result) error {
	if err := e.needRunsc(ctx); err != nil {
		return err
	}
	c, err := e.dial(ctx)
	if err != nil {
		return unavailable(err)
	}
	defer c.Close()
	source, kill, err := e.sandbox(ctx, c, sandbox.Spec{})
	if err != nil {
		return err
	}
	snapshot, err := c.Snapshot(ctx, source, "")
	kill()
	if err != nil {
		return err
	}
	defer c.RemoveSnapshot(context.WithoutCancel(ctx), string(snapshot.ID))
	n := e.live
	stop, err := e.startBare(ctx, n)
	defer stop()
	if err != nil {
		return err
	}
	end, err := e.startAll(ctx, c, sandbox.Spec{Snapshot: string(snapshot.ID)}, n)
	defer end()
	if err != nil {
		return err
	}
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	if err := e.addShares(r, n); err != nil {
		return err
	}
	ours, bare, err := e.measureIdle(n)
	if err != nil {
		return err
	}
	r.Add("live sandboxes of each kind", float64(n), "")
	r.Add("bare, each", bare, "MiB PSS")
	r.Add("belljar from one snapshot, each", ours, "MiB PSS")
	r.AtMost("belljar from one snapshot, each, against 1.1 times a bare one and 12 MiB", ours, 1.1*bare+12, "MiB PSS")
	return nil
}
