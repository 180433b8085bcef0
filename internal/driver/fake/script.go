package fake

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// Step names a place at which the driver can be made to misbehave.
type Step string

// The steps. The two halves lie inside a step: everything has been acquired
// but Create has not returned, and everything has been given back but Reap
// has not.
const (
	Probe      Step = "probe"
	Handle     Step = "handle"
	Create     Step = "create"
	CreateHalf Step = "create-half"
	Start      Step = "start"
	Checkpoint Step = "checkpoint"
	Restore    Step = "restore"
	SaveFiles  Step = "save-files"
	ListFiles  Step = "list-files"
	Kill       Step = "kill"
	Wait       Step = "wait"
	Stats      Step = "stats"
	Destroy    Step = "destroy"
	Reap       Step = "reap"
	ReapHalf   Step = "reap-half"
)

// Steps lists them all.
func Steps() []Step {
	return []Step{Probe, Handle, Create, CreateHalf, Start, Checkpoint, Restore, SaveFiles, ListFiles, Kill, Wait, Stats, Destroy, Reap, ReapHalf}
}

// Action is what happens at a step. Block comes first, then Crash, then Err.
type Action struct {
	// Block waits until Release is closed or the call's context is done; the
	// latter is an error.
	Block   bool
	Release <-chan struct{}
	// Crash kills this process, as kill -9 would.
	Crash bool
	// Err is returned.
	Err error
	// Times is how often the action happens before the step is well again;
	// 0: always.
	Times int
}

// On sets what happens at a step from now on; the zero Action makes it well.
func (d *Driver) On(s Step, a Action) {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	if d.script.actions == nil {
		d.script.actions = map[Step]*planned{}
	}
	d.script.actions[s] = &planned{Action: a}
}

// Seen returns how often a step has been reached.
func (d *Driver) Seen(s Step) int {
	d.script.mu.Lock()
	defer d.script.mu.Unlock()
	return d.script.seen[s]
}

type planned struct {
	Action
	done int
}

type script struct {
	mu      sync.Mutex
	actions map[Step]*planned
	seen    map[Step]int
}

func (s *script) next(step Step) Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[Step]int{}
	}
	s.seen[step]++
	p := s.actions[step]
	if p == nil || p.Times > 0 && p.done >= p.Times {
		return Action{}
	}
	p.done++
	return p.Action
}

// run does what is planned for a step. done, when closed, ends a block.
func (s *script) run(done <-chan struct{}, step Step) error {
	a := s.next(step)
	if a.Block {
		select {
		case <-a.Release:
		case <-done:
			return sandbox.Errorf(sandbox.Canceled, "step %s was given up", step)
		}
	}
	if a.Crash {
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	return a.Err
}
