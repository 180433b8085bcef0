package sandbox

import "strconv"

// Origin tells how a sandbox came to be.
type Origin string

// The origins. A booted one was claimed from a pool before any program of its
// own had run in it, a ready one with its guest at work.
const (
	OriginCold   Origin = "cold"
	OriginBooted Origin = "booted"
	OriginReady  Origin = "ready"
)

// MaxPool bounds the sandboxes that one pool keeps.
const MaxPool = 1000

// PoolSpec is the size of a warm pool, which keeps sandboxes of one template
// with the same limits for those who ask for one like them, without mounts.
type PoolSpec struct {
	Template string `json:"template"`
	// Limits are those that a [Spec] must ask for to be served: zero fields are
	// those that it leaves out.
	Limits Limits `json:"limits"`
	Ready  int    `json:"ready"`  // guests that wait to be told who they are
	Booted int    `json:"booted"` // kernels that have run nothing yet
	// Ceiling is how many of both there may be when demand asks for more; 0:
	// twice Ready and Booted.
	Ceiling int `json:"ceiling,omitempty"`
}

// Pool is where a pool stands.
type Pool struct {
	PoolSpec
	ReadyNow  int   `json:"ready_now"`
	BootedNow int   `json:"booted_now"`
	Target    int   `json:"target"` // of both, with what demand has added for a while
	Hits      int64 `json:"hits"`   // requests that were served, since the daemon began
	Misses    int64 `json:"misses"` // requests like these that found nothing
	// MemoryBytes is what the sandboxes that wait take of the host.
	MemoryBytes int64 `json:"memory_bytes"`
	// Reason says why there are fewer than there should be: empty when nothing
	// is wrong.
	Reason string `json:"reason,omitempty"`
}

// Validate checks sizes and limits.
func (s PoolSpec) Validate() error {
	if err := CheckName("template", s.Template); err != nil {
		return err
	}
	if err := s.Limits.Validate(); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"ready", s.Ready}, {"booted", s.Booted}, {"ceiling", s.Ceiling}} {
		if f.n < 0 || f.n > MaxPool {
			return Errorf(Invalid, "a pool keeps between 0 and %d sandboxes", MaxPool).WithField(f.name, strconv.Itoa(f.n))
		}
	}
	switch base := s.Ready + s.Booted; {
	case base == 0:
		return Errorf(Invalid, "a pool without sandboxes is none").WithField("ready", "0").
			WithHint("say how many: --ready N, --booted M; `belljar pool rm` takes the pool away")
	case base > MaxPool:
		return Errorf(Invalid, "a pool keeps between 0 and %d sandboxes", MaxPool).WithField("ready", strconv.Itoa(base))
	case s.Ceiling != 0 && s.Ceiling < base:
		return Errorf(Invalid, "the ceiling is below the %d sandboxes that are always there", base).WithField("ceiling", strconv.Itoa(s.Ceiling))
	}
	return nil
}

// Most is how many sandboxes the pool may have.
func (s PoolSpec) Most() int {
	if s.Ceiling != 0 {
		return s.Ceiling
	}
	return min(2*(s.Ready+s.Booted), MaxPool)
}
