package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// parking is what a parked box was made from. A claim must ask for the same:
// none of it can be changed once the kernel has booted.
type parking struct {
	root     driver.Root
	node     node // of the root's directory
	guest    string
	limits   sandbox.Limits
	explicit driver.Explicit
}

// node tells directories apart that have had the same name one after another.
// The box holds its own open, so its number is not given to another meanwhile.
type node struct{ dev, ino uint64 }

func nodeOf(path string) (node, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return node{}, sandbox.Errorf(sandbox.NotFound, "the root is not there: %w", err).WithField("root", path)
	}
	return node{uint64(st.Dev), st.Ino}, nil
}

// mayPark checks a request for a parked sandbox.
func mayPark(req *wire.Create) error {
	switch {
	case req.Park == "":
		return nil
	case req.Park != wire.Booted && req.Park != wire.Ready:
		return sandbox.Errorf(sandbox.Invalid, "a sandbox is parked booted or ready").WithField("park", string(req.Park))
	case len(req.Mounts) > 0:
		return sandbox.Errorf(sandbox.Invalid, "a parked sandbox has no mounts: nobody has asked for it yet").WithField("park", string(req.Park))
	case req.Hello.Start != nil:
		return sandbox.Errorf(sandbox.Invalid, "a parked sandbox runs no command before it is claimed").WithField("park", string(req.Park))
	case req.Files != "":
		return sandbox.Errorf(sandbox.Invalid, "a parked sandbox has the files of its template: others are given as its kernel boots").WithField("files", req.Files)
	case req.Image != "" && req.Park == wire.Booted:
		return sandbox.Errorf(sandbox.Invalid, "a sandbox that is parked booted has no image until it is claimed").WithField("image", req.Image)
	}
	return nil
}

// park leaves the box as it waits for a claim: with its kernel booted, or with
// its guest at work, which has not been told who it is.
func (b *box) park(ctx context.Context, inst driver.Instance, req *wire.Create, t *timeline) error {
	if req.Park == wire.Ready {
		step := t.start("start")
		if err := b.begin(ctx, inst, req.Image); err != nil {
			return err
		}
		step()
		b.k.crash(AfterStart)
		step = t.start("prepare")
		for range 2 { // what the first has made is used by the second
			if err := b.prepare(ctx, req.Hello); err != nil {
				return b.explain(err, false)
			}
		}
		step()
	}
	b.k.crash(AfterPark)
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := b.status.Exit; x != nil {
		return sandbox.Errorf(sandbox.Internal, "the sandbox ended (%s) before it was parked", howEnded(x))
	}
	b.status.Parked = req.Park
	b.status.Limits, b.status.CPUsSeen = inst.Limits(), inst.CPUsSeen()
	return nil
}

// prepare returns when the guest has done all that it can without being told
// who it is.
func (b *box) prepare(ctx context.Context, h guest.Hello) error {
	ctx, cancel := context.WithTimeout(ctx, b.k.opts.HelloTimeout)
	defer cancel()
	h.Protocol, h.Build, h.Generation = guest.Protocol, build.ID(), 0
	body, err := json.Marshal(h)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "the hello cannot be encoded: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/v1/prepare", bytes.NewReader(body))
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot ask the guest: %w", err)
	}
	resp, err := b.down.RoundTrip(r)
	if err != nil {
		return err
	}
	return resp.Body.Close() // whatever it says: it has come to answer
}

// claim gives a parked sandbox its name and identity. As with a create, it is
// undone when the caller goes away before the answer; a claimed sandbox is
// never parked again.
func (k *keeper) claim(w http.ResponseWriter, r *http.Request) {
	var req wire.Claim
	if err := readJSON(r, &req); err != nil {
		writeError(w, err)
		return
	}
	t := &timeline{begin: time.Now()}
	c, ctx, err := k.take(r.Context(), sandbox.ID(r.PathValue("id")), &req)
	if err != nil {
		writeError(w, err)
		return
	}
	k.crash(AfterRename)
	reply, err := c.run(ctx, &req, t)
	close(c.making.over)
	c.answer(w, r, reply, err, t)
}

// claimed is a box that has just been claimed.
type claimed struct {
	*box
	making phase
	was    wire.Park
}

// take renames a parked box, unless another has claimed it or it is at its end.
// The context that it returns ends with the caller or with a DELETE.
func (k *keeper) take(ctx context.Context, id sandbox.ID, req *wire.Claim) (*claimed, context.Context, error) {
	if _, err := sandbox.ParseID(string(req.As)); err != nil {
		return nil, nil, err
	}
	now, err := nodeOf(req.Root.Path)
	if err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.boxes[id]
	switch {
	case k.draining:
		return nil, nil, errEnding()
	case k.boxes[req.As] != nil:
		return nil, nil, errHasIt(req.As)
	case b == nil:
		return nil, nil, unclaimable(id, "no such sandbox is parked: it has ended or another has claimed it")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.status.Parked == "":
		return nil, nil, unclaimable(id, "this sandbox is not parked")
	case b.going || b.status.Exit != nil:
		return nil, nil, unclaimable(id, "the parked sandbox has ended")
	case req.Image != "" && b.status.Parked != wire.Booted:
		return nil, nil, unclaimable(id, "only a sandbox that is parked booted can be restored from an image")
	}
	if what := b.parked.differs(req, now); what != "" {
		return nil, nil, unclaimable(id, "the sandbox was parked with another "+what)
	}
	c := &claimed{box: b, was: b.status.Parked}
	ctx, c.making = newPhase(ctx)
	delete(k.boxes, id)
	k.boxes[req.As] = b
	b.making = c.making
	b.status.ID, b.status.Parked, b.status.Generation = req.As, "", req.Hello.Generation
	k.change()
	return c, ctx, nil
}

func unclaimable(id sandbox.ID, why string) error {
	return sandbox.Errorf(sandbox.Conflict, "%s", why).WithField("id", string(id))
}

// differs tells what of a claim is not as the box was parked, "" for nothing.
func (p *parking) differs(req *wire.Claim, now node) string {
	switch {
	case p.root.Path != req.Root.Path || p.node != now || p.root.Shifted != req.Root.Shifted ||
		p.root.Setuid != req.Root.Setuid || !slices.Equal(p.root.Binds, req.Root.Binds):
		return "root"
	case p.guest != req.Guest:
		return "guest"
	case p.limits != req.Limits || p.explicit != req.Explicit:
		return "limit"
	}
	return ""
}

// run has the claimed box start, where it has not, and says hello to it.
func (c *claimed) run(ctx context.Context, req *wire.Claim, t *timeline) (*guest.HelloReply, error) {
	if c.was == wire.Ready {
		return c.greet(ctx, c.inst, &req.Hello, t)
	}
	step := t.start("queue")
	release, err := c.k.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	step()
	return c.boot(ctx, c.inst, &req.Hello, req.Image, t)
}

// removeParked removes every parked sandbox: nobody will claim it.
func (k *keeper) removeParked() {
	var wg sync.WaitGroup
	for _, b := range k.all() {
		if b.snapshot().Parked != "" {
			wg.Go(func() { _ = b.remove(k.life) }) // what fails stays listed, and the keeper with it
		}
	}
	wg.Wait()
}

// idle reports whether nobody needs this keeper: k.mu is held. Parked sandboxes
// are of no use to anybody but a client.
func (k *keeper) idle() bool {
	if k.conns > 0 {
		return false
	}
	for _, b := range k.boxes {
		if b.snapshot().Parked == "" {
			return false
		}
	}
	return true
}
