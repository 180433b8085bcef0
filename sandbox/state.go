package sandbox

import "slices"

// State is where a sandbox stands in its life. A record holds exactly one.
type State string

// The states of a sandbox.
const (
	Creating State = "creating" // intent is written, resources are being acquired
	Running  State = "running"  // the guest has answered
	Pausing  State = "pausing"  // being checkpointed
	Paused   State = "paused"   // no process on the host
	Resuming State = "resuming" // being restored
	Killing  State = "killing"  // resources are being given back
	Dead     State = "dead"     // nothing is left on the host
)

// transitions is the whole life cycle. A crash may leave a record in any
// state but Dead; the reconciler takes it to Killing from there.
var transitions = map[State][]State{
	Creating: {Running, Killing},
	Running:  {Pausing, Killing},
	Pausing:  {Paused, Running, Killing},
	Paused:   {Resuming, Killing},
	Resuming: {Running, Paused, Killing},
	Killing:  {Dead},
	Dead:     {},
}

// Valid reports whether s is one of the states above.
func (s State) Valid() bool { _, ok := transitions[s]; return ok }

// Live reports whether a sandbox in s may hold resources of the host.
func (s State) Live() bool { return s != Dead }

// Rests reports whether a sandbox in s is paused, or on its way there or back:
// it can run again.
func (s State) Rests() bool { return s == Pausing || s == Paused || s == Resuming }

// To returns next when the life cycle allows s to become next, and otherwise
// a [Conflict] error that names both.
func (s State) To(next State) (State, error) {
	if slices.Contains(transitions[s], next) {
		return next, nil
	}
	return s, Errorf(Conflict, "a sandbox that is %s cannot become %s", s, next)
}
