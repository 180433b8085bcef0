package sandbox

import "slices"

// Boundary is what stands between guest code and host.
type Boundary string

// The boundaries, and Auto: the strongest that this host offers.
const (
	Process   Boundary = "process"
	Container Boundary = "container"
	GVisor    Boundary = "gvisor"
	MicroVM   Boundary = "microvm"
	Isolate   Boundary = "isolate"
	Wasm      Boundary = "wasm"
	Auto      Boundary = "auto"
)

// Boundaries lists every boundary that can be asked for, in the order in
// which documentation shows them.
func Boundaries() []Boundary {
	return []Boundary{Process, Container, GVisor, MicroVM, Isolate, Wasm, Auto}
}

// ParseBoundary returns s as a boundary, or an [Invalid] error; "" is
// [GVisor], the default.
func ParseBoundary(s string) (Boundary, error) {
	if s == "" {
		return GVisor, nil
	}
	if !slices.Contains(Boundaries(), Boundary(s)) {
		return "", Errorf(Invalid, "unknown boundary").WithField("boundary", s).
			WithHint("choose one of %v", Boundaries())
	}
	return Boundary(s), nil
}

// Isolation tells what stands between a sandbox and the host. Effective is
// never weaker than Requested unless the caller allowed it, and Reason then
// says why.
type Isolation struct {
	Requested Boundary `json:"requested"`
	Effective Boundary `json:"effective"`
	Reason    string   `json:"reason,omitempty"`
}
