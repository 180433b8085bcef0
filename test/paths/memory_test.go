package paths

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// memory watches how much the daemon and its keepers grow.
type memory struct {
	pids   []int
	before int64
	peak   int64
	quit   chan struct{}
	done   sync.WaitGroup
}

func (c *caseRun) watchMemory() *memory {
	info, err := c.api.Info(c.t.Context())
	c.must(err)
	m := &memory{pids: []int{info.PID}, quit: make(chan struct{})}
	owners, err := filepath.Glob(filepath.Join(c.Run, "keepers", "*", "owner.json"))
	c.must(err)
	for _, o := range owners {
		var owner struct{ PID int }
		if b, err := os.ReadFile(o); err == nil && json.Unmarshal(b, &owner) == nil && owner.PID > 0 {
			m.pids = append(m.pids, owner.PID)
		}
	}
	m.before = m.now()
	m.done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.peak = max(m.peak, m.now())
			case <-m.quit:
				return
			}
		}
	})
	return m
}

// now is what the processes hold, in bytes.
func (m *memory) now() int64 {
	var sum int64
	for _, pid := range m.pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), "\nVmRSS:")
		var kb int64
		if _, err := fmt.Sscan(rest, &kb); err == nil {
			sum += kb << 10
		}
	}
	return sum
}

// stop returns by how many bytes they grew at most.
func (m *memory) stop() int64 {
	close(m.quit)
	m.done.Wait()
	return max(0, m.peak-m.before)
}
