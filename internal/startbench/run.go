package startbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/belljar-sh/belljar/internal/config"
	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/internal/measure"
	"github.com/belljar-sh/belljar/sandbox"
)

// MaxRounds bounds [Options.Rounds]: with as many, a run takes an hour.
const MaxRounds = 1000

// Options say what is measured.
type Options struct {
	Program  string      // the belljar program
	Dirs     config.Dirs // of the user: the run works beneath them, and takes its template from them
	Template string
	Rounds   int // of each start, besides those to warm up
	Machine  host.System
	// Progress, when set, is told what is being done.
	Progress func(what string)
}

// cleanTime bounds the removal of the installation.
const cleanTime = time.Minute

// start is one way to a sandbox.
type start struct {
	name, what string
	ours       bool
	// once does it once and tells how long that took. It cleans up before it
	// returns, outside the time.
	once func(ctx context.Context) (time.Duration, error)
	// within are figures that once takes on its way.
	within []*part
}

// part is a figure that is taken within another.
type part struct {
	name, what string
	times      []time.Duration
}

// Run measures. When ctx ends it cleans up and returns its error.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Rounds < 1 || o.Rounds > MaxRounds {
		return nil, sandbox.Errorf(sandbox.Invalid, "there are between 1 and %d rounds", MaxRounds).WithField("rounds", fmt.Sprint(o.Rounds))
	}
	o.Progress("preparing")
	h, err := newHome(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
		defer cancel()
		err = errors.Join(err, h.close(clean))
	}()
	r = &Report{Machine: o.Machine, Template: o.Template, Rounds: o.Rounds}
	starts := h.peers(r)
	own, err := h.own(ctx)
	if err != nil {
		return nil, err
	}
	if starts, err = tryAll(ctx, append(starts, own...), r, o.Progress); err != nil {
		return nil, err
	}
	return r, measureAll(ctx, starts, r, o)
}

// tryAll does each start once and returns those that work. One of another
// program that does not is missing; one of ours is an error.
func tryAll(ctx context.Context, starts []*start, r *Report, tell func(string)) ([]*start, error) {
	var out []*start
	for _, s := range starts {
		tell("trying " + s.name)
		_, err := s.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil:
			out = append(out, s)
		case s.ours:
			return nil, fmt.Errorf("%s: %w", s.name, err)
		default:
			r.Missing = append(r.Missing, Missing{s.name, err.Error()})
		}
	}
	return out, nil
}

// measureAll does all starts in turn and adds what came out to r.
func measureAll(ctx context.Context, starts []*start, r *Report, o Options) error {
	sides := make([]measure.Side, len(starts))
	done := 0
	for i, s := range starts {
		sides[i] = measure.Side{Name: s.name, Do: func(ctx context.Context) (time.Duration, error) {
			round := done/len(starts) + 1 - measure.WarmUp
			done++
			if round < 1 {
				o.Progress("warming up: " + s.name)
			} else {
				o.Progress(fmt.Sprintf("round %d of %d: %s", round, o.Rounds, s.name))
			}
			return s.once(ctx)
		}}
	}
	times, err := measure.InTurn(ctx, o.Rounds, sides...)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	for i, s := range starts {
		for _, p := range s.within {
			r.Starts = append(r.Starts, newStart(p.name, p.what, s.ours, p.times[len(p.times)-o.Rounds:]))
		}
		r.Starts = append(r.Starts, newStart(s.name, s.what, s.ours, times[i]))
	}
	r.compare()
	return nil
}
