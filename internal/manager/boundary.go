package manager

import (
	"slices"
	"strings"

	"github.com/belljar-sh/belljar/sandbox"
)

// strength orders the boundaries that can run any program, weakest first.
// Isolate and wasm run their own kinds of program and stand in for nothing.
var strength = []sandbox.Boundary{sandbox.Process, sandbox.Container, sandbox.GVisor, sandbox.MicroVM}

// choose tells which boundary a spec gets where only those in available can be
// had. It never weakens what was asked for unless allowWeaker says so. It is
// pure.
func choose(asked sandbox.Boundary, allowWeaker bool, available []sandbox.Boundary) (sandbox.Isolation, error) {
	if asked == "" {
		asked = sandbox.GVisor
	}
	is := sandbox.Isolation{Requested: asked}
	if slices.Contains(available, asked) {
		is.Effective = asked
		return is, nil
	}
	if asked == sandbox.Auto {
		if is.Effective = strongest(available, len(strength)); is.Effective != "" {
			is.Reason = "the strongest boundary that this installation runs"
			return is, nil
		}
	}
	if rank := slices.Index(strength, asked); allowWeaker && rank >= 0 {
		if is.Effective = strongest(available, rank); is.Effective != "" {
			is.Reason = "this installation has no driver for " + string(asked) + ", and a weaker boundary was allowed"
			return is, nil
		}
	}
	e := sandbox.Errorf(sandbox.Unsupported, "this installation has no driver for that boundary").
		WithField("boundary", string(asked))
	if len(available) > 0 {
		e = e.WithHint("available: %s; `belljar doctor` tells what each needs", join(available))
	}
	return is, e
}

// strongest returns the strongest of available that is weaker than rank.
func strongest(available []sandbox.Boundary, rank int) sandbox.Boundary {
	for _, b := range slices.Backward(strength[:rank]) {
		if slices.Contains(available, b) {
			return b
		}
	}
	return ""
}

func join(bs []sandbox.Boundary) string {
	s := make([]string, len(bs))
	for i, b := range bs {
		s[i] = string(b)
	}
	return strings.Join(s, ", ")
}
