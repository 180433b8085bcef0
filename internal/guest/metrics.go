package guest

import (
	"bytes"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// hit is a limit that is held inside.
type hit int

const (
	hitProcesses hit = iota
	hitOutput
	hitDisk
	hitTime
	hitCount
)

var hitNames = [hitCount]sandbox.LimitName{
	sandbox.LimitProcesses, sandbox.LimitOutput, sandbox.LimitDisk, sandbox.LimitTime,
}

// hitCounter counts refusals by limits.
type hitCounter struct {
	mu sync.Mutex
	n  [hitCount]int64
}

func (c *hitCounter) add(h hit) {
	c.mu.Lock()
	c.n[h]++
	c.mu.Unlock()
}

func (c *hitCounter) byName() map[sandbox.LimitName]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out map[sandbox.LimitName]int64
	for h, n := range c.n {
		if n > 0 {
			if out == nil {
				out = map[sandbox.LimitName]int64{}
			}
			out[hitNames[h]] = n
		}
	}
	return out
}

// noteFull counts a hit of the process limit when the tree has been refused a
// fork, or, since gVisor does not count those, stands at the limit. It is
// called whenever hits are asked for and before a tree is killed; each tree
// counts once.
func (s *Server) noteFull(t tree) {
	c, ok := t.(*cgroupTree)
	if !ok || c.forest.unified || c.full.Load() {
		return
	}
	max := int64(s.procs.maxProcesses())
	if max == 0 {
		return
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(readControl(c.forest.dir, c.name+"/pids.current")), 10, 64)
	events := strings.TrimSpace(readControl(c.forest.dir, c.name+"/pids.events"))
	if (n >= max || events != "" && events != "max 0") && c.full.CompareAndSwap(false, true) {
		s.hits.add(hitProcesses)
	}
}

func (s *Server) getMetrics(q *request) error {
	m := wire.Metrics{CPUs: runtime.NumCPU()}
	m.MemTotal, m.MemUsed, m.MemCache = memory()
	var fs unix.Statfs_t
	if unix.Statfs("/", &fs) == nil {
		size := int64(fs.Bsize)
		m.DiskTotal, m.DiskUsed = int64(fs.Blocks)*size, int64(fs.Blocks-fs.Bfree)*size
	}
	m.Processes = countProcesses()
	for _, p := range s.procs.all() {
		s.noteFull(p.tree)
	}
	m.LimitHits = s.hits.byName()
	if n := s.trees.refused(); n > 0 {
		if m.LimitHits == nil {
			m.LimitHits = map[sandbox.LimitName]int64{}
		}
		m.LimitHits[sandbox.LimitProcesses] += n
	}
	return q.json(m)
}

// getEnv tells the environment that every process of the sandbox begins with.
func (s *Server) getEnv(q *request) error {
	env := s.defaults().Env
	if env == nil {
		env = map[string]string{}
	}
	return q.json(env)
}

func countProcesses() int64 {
	names, err := readNames("/proc")
	if err != nil {
		return 0
	}
	n := int64(0)
	for _, name := range names {
		if name[0] >= '1' && name[0] <= '9' {
			n++
		}
	}
	return n
}

func memory() (total, used, cache int64) {
	b, err := readSmall("/proc/meminfo", 64<<10)
	if err != nil {
		return 0, 0, 0
	}
	var free int64 = -1
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(string(f[1]), 10, 64)
		switch string(f[0]) {
		case "MemTotal:":
			total = kb << 10
		case "MemAvailable:":
			free = kb << 10
		case "Cached:":
			cache = kb << 10
		}
	}
	if free < 0 {
		return total, 0, cache
	}
	return total, total - free, cache
}
