package paths

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// For how long requests are made while directories are swapped, at least and at
// most, and how many if the vector does not say: a machine that is busy makes
// fewer.
const (
	raceLeast    = 5 * time.Second
	raceMost     = 30 * time.Second
	raceRequests = 2_000
	raceWorkers  = 8
	minSwaps     = 2_000 // fewer are no race
)

var raceCount = regexp.MustCompile(`during ([\d,]+) `)

// requests is how many requests the vector asks for.
func (c *caseRun) requests() int64 {
	if m := raceCount.FindStringSubmatch(c.v.Request.Arg); m != nil {
		return number(m[1])
	}
	return raceRequests
}

// swapping runs f while d is swapped for a link to the host's path inside; it
// returns the number of swaps.
func (c *caseRun) swapping(f func()) int64 {
	c.t.Helper()
	d := c.dir + "/d"
	c.mischief("mkdir", d)
	c.mischief("write", d+"/f", "inside")
	// What the link leads to exists inside too, with other content.
	for _, n := range []string{"f", "canary"} {
		c.put(c.t, c.name, c.world.dir+"/"+n, c.inSecret)
	}
	ready, counted := make(chan struct{}), make(chan int64, 1)
	var out lineWatcher
	out.first = func() { close(ready) }
	started := make(chan client.Process, 1)
	go func() {
		defer close(counted)
		_, err := c.api.Exec(c.t.Context(), c.name, client.ExecOptions{
			Argv: []string{home + "/mischief", "swap", d, c.world.dir}, Streams: client.Streams{Stdout: &out, Stderr: &out},
			Started: func(p client.Process) { started <- p },
		})
		var n int64
		if _, serr := fmt.Sscanf(out.text(), "swapping\n%d", &n); err != nil || serr != nil {
			c.t.Errorf("swapping: %v: %q", err, out.text())
		}
		counted <- n
	}()
	p := <-started
	select {
	case <-ready:
	case <-time.After(opTime):
		c.t.Fatal("the swapper does not begin")
	}
	f()
	if err := c.api.Signal(c.t.Context(), c.name, p.ID, int(syscall.SIGTERM), false); err != nil {
		c.t.Errorf("ending the swapper: %v", err)
	}
	return <-counted
}

// lineWatcher collects output and tells of the first.
type lineWatcher struct {
	mu    sync.Mutex
	b     bytes.Buffer
	first func()
}

func (l *lineWatcher) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.b.Len() == 0 && l.first != nil {
		l.first()
	}
	return l.b.Write(p)
}

func (l *lineWatcher) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// race makes requests until there were enough of them, from several workers.
// Errors that a swap explains are none.
func (c *caseRun) race(way string, request func(ctx context.Context) (string, error)) {
	var fine, failed, unexpected atomic.Int64
	var last atomic.Value
	began := time.Now()
	swaps := c.swapping(func() {
		var wg sync.WaitGroup
		more := func() bool {
			t := time.Since(began)
			return t < raceLeast || t < raceMost && fine.Load()+failed.Load() < c.requests()
		}
		for range raceWorkers {
			wg.Go(func() {
				for more() && unexpected.Load() < 100 {
					ctx, cancel := context.WithTimeout(c.t.Context(), opTime)
					out, err := request(ctx)
					cancel()
					switch {
					case strings.Contains(out, c.secret):
						c.t.Errorf("%s: the canary was read", way)
					case err == nil:
						fine.Add(1)
					case explained(err):
						failed.Add(1)
					default:
						unexpected.Add(1)
						last.Store(err)
					}
				}
			})
		}
		wg.Wait()
	})
	a := c.try(way, func(context.Context) (string, error) { return "", nil })
	a.note = fmt.Sprintf("%d swaps, %d requests of which %d failed", swaps, fine.Load()+failed.Load(), failed.Load())
	if n := unexpected.Load(); n > 0 {
		c.t.Errorf("%s: %d requests failed in a way that no swap explains, for instance: %v", way, n, last.Load())
	}
	if swaps < minSwaps {
		c.t.Errorf("only %d swaps", swaps)
	}
}

func explained(err error) bool {
	switch sandbox.KindOf(err) {
	case sandbox.NotFound, sandbox.Invalid, sandbox.Denied, sandbox.Conflict, sandbox.AlreadyExists:
		return true
	}
	return false
}

func raceRead(c *caseRun) {
	c.mkdir()
	c.race("api read", func(ctx context.Context) (string, error) { return c.get(ctx, c.dir+"/d/f", "") })
	c.swapping(func() {
		for range 5 {
			a := c.cli("cp out", nil, "cp", c.name+":"+c.dir+"/d/f", c.hostFile())
			a.want = "contained"
			a = c.cli("cp tree out", nil, "cp", c.name+":"+c.dir, c.hostFile())
			a.want = "contained"
		}
	})
	c.checkOut()
}

func raceWrite(c *caseRun) {
	c.mkdir()
	var n atomic.Int64
	c.race("api write", func(ctx context.Context) (string, error) {
		_, err := c.putFile(ctx, fmt.Sprintf("%s/d/w%d", c.dir, n.Add(1)%100), "evil")
		return "", err
	})
}

func raceList(c *caseRun) {
	c.mkdir()
	c.race("api list", func(ctx context.Context) (string, error) {
		_, err := c.api.ReadDir(ctx, c.name, c.dir+"/d", "", 2)
		return "", err
	})
}

func raceDelete(c *caseRun) {
	c.mkdir()
	c.race("api delete", func(ctx context.Context) (string, error) {
		err := c.api.Remove(ctx, c.name, c.dir+"/d/sub", "")
		if err == nil || sandbox.KindOf(err) == sandbox.NotFound {
			_, err = c.api.Mkdir(ctx, c.name, c.dir+"/d/sub/below", "")
		}
		return "", err
	})
}

// raceCopyIn copies a large file in while its directory is swapped, inside;
// then while the source's directory is swapped for one with the canary, on the
// host.
func raceCopyIn(mib int64) scenario {
	return func(c *caseRun) {
		c.mkdir()
		src := path.Join(c.tmp, "big")
		f, err := os.Create(src)
		c.must(err)
		block := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
		for range mib {
			_, err := f.Write(block)
			c.must(err)
		}
		c.must(f.Close())
		swaps := c.swapping(func() {
			for range 2 {
				c.cli("cp in", nil, "cp", src, c.name+":"+c.dir+"/d/absent").want = "contained"
				c.cli("cp in", nil, "cp", src, c.name+":"+c.dir+"/d").want = "contained"
			}
		})
		c.tries[0].note = fmt.Sprintf("%d MiB, %d swaps inside", mib, swaps)
		c.swapSource(src)
	}
}

// swapSource copies a directory in while one of those in it becomes a link to
// the canary's and back.
func (c *caseRun) swapSource(big string) {
	top := path.Join(c.tmp, "top")
	c.must(os.MkdirAll(top+"/d", 0o755))
	c.must(os.Rename(big, top+"/a")) // packed first, so swaps go on meanwhile
	c.must(os.WriteFile(top+"/d/canary", []byte("mine"), 0o644))
	c.must(os.Symlink(c.world.dir, c.tmp+"/link"))
	var stop atomic.Bool
	var swaps int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			if unix.Renameat2(unix.AT_FDCWD, top+"/d", unix.AT_FDCWD, c.tmp+"/link", unix.RENAME_EXCHANGE) == nil {
				swaps++
			}
		}
	})
	for i := range 3 {
		to := fmt.Sprintf("%s/in%d", c.dir, i)
		c.cli("cp tree in", nil, "cp", top, c.name+":"+to).want = "contained"
		for _, p := range []string{to + "/d/canary", to + "/d/one"} {
			if got, err := c.get(c.t.Context(), p, ""); err == nil && strings.Contains(got, c.secret) {
				c.t.Errorf("%s: the canary was copied in", p)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	c.tries[len(c.tries)-1].note = fmt.Sprintf("%d swaps on the host", swaps)
}

// raceCopyOut copies out into a directory of the host in which another process
// swaps directories for links.
func raceCopyOut(c *caseRun) {
	c.mkdir()
	c.mischief("mkdir", c.dir+"/t/d")
	for _, n := range []string{"f", "canary", "one"} {
		c.mischief("write", c.dir+"/t/d/"+n, "evil")
	}
	dst := path.Join(c.tmp, "dst")
	c.must(os.MkdirAll(dst+"/t/d", 0o755))
	c.must(os.Symlink(c.world.dir, c.tmp+"/link"))
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			unix.Renameat2(unix.AT_FDCWD, dst+"/t/d", unix.AT_FDCWD, c.tmp+"/link", unix.RENAME_EXCHANGE)
		}
	})
	for range 20 {
		c.cli("cp tree out", nil, "cp", c.name+":"+c.dir+"/t", dst).want = "contained"
	}
	stop.Store(true)
	wg.Wait()
	left, err := filepath.Glob(dst + "/.belljar-tmp-*")
	if err != nil || len(left) > 0 {
		c.t.Errorf("left: %v, %v", left, err)
	}
}

// mountOnLink mounts a directory of the caller's where the template has a link
// to a place on the host, and writes there.
func mountOnLink(c *caseRun) {
	const name = "linked"
	helper, err := os.ReadFile(c.helper)
	c.must(err)
	raw := archiveOf(c.t,
		entry{name: "mischief", body: string(helper), mode: 0o755},
		entry{name: "vol", link: c.world.dir}, entry{name: "up", link: "/proc/self/root" + c.world.dir},
		entry{name: "loop", link: "loop"}, entry{name: "dir/", mode: 0o755},
	)
	r := c.Finish(withStdin(c.Command("template", "import", name, "-"), raw))
	if r.Code != 0 {
		c.t.Fatalf("import: %s", r.Stderr)
	}
	defer c.Belljar("template", "rm", name)
	for _, target := range []string{"/vol", "/up", "/loop", "/dir/../vol"} {
		src, err := os.MkdirTemp(c.tmp, "vol")
		c.must(err)
		a := c.cli("run -v "+target, nil, "run", "--template", name, "-u", "root", "-v", src+":"+target, "--",
			"/mischief", "write", target+"/absent", "evil")
		a.want = "contained"
		// Either nothing ran, or what was written lies in the volume or in the
		// sandbox; judge looks at the host.
		if a.err == nil {
			if _, err := os.Stat(path.Join(src, "absent")); err != nil {
				a.note = "stayed in the sandbox"
			}
		}
	}
	for _, p := range []string{path.Join(c.world.dir, "absent")} {
		if _, err := os.Lstat(p); err == nil {
			c.t.Errorf("%s was written on the host", p)
			os.Remove(p)
		}
	}
}

// remounts tries from inside, as root, to write to a read-only mount.
func remounts(c *caseRun) {
	src := path.Join(c.tmp, "ro")
	c.must(os.Mkdir(src, 0o777))
	c.must(os.Chmod(src, 0o777))
	c.must(os.Chmod(c.tmp, 0o755))
	c.must(os.WriteFile(src+"/there", []byte("x"), 0o666))
	bin := path.Join(c.tmp, "bin")
	c.must(os.Mkdir(bin, 0o755))
	helper, err := os.ReadFile(c.helper)
	c.must(err)
	c.must(os.WriteFile(bin+"/mischief", helper, 0o755))
	a := c.cli("run -v ro", nil, "run", "-u", "root", "-v", src+":/ro:ro", "-v", bin+":/tool:ro", "--", "/tool/mischief", "remount", "/ro", "evil")
	if !strings.Contains(a.out, "write /ro: ") {
		c.t.Errorf("nothing was tried: %q, %v", a.out, a.err)
	}
	left, err := os.ReadDir(src)
	if err != nil || len(left) != 1 {
		c.t.Errorf("on the host lies %v, %v", left, err)
	}
	b, err := os.ReadFile(src + "/there")
	if err != nil || string(b) != "x" {
		c.t.Errorf("the file on the host holds %q, %v", b, err)
	}
}
