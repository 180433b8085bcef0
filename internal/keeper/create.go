package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// create builds a sandbox. It is undone when the caller goes away before the
// answer: nobody would know of it.
func (k *keeper) create(w http.ResponseWriter, r *http.Request) {
	var req wire.Create
	if err := readJSON(r, &req); err != nil {
		writeError(w, err)
		return
	}
	t := &timeline{begin: time.Now()}
	b, ctx, err := k.reserve(r.Context(), &req)
	if err != nil {
		writeError(w, err)
		return
	}
	making := b.making // a claim has its own
	reply, err := b.build(ctx, &req, t)
	close(making.over)
	b.answer(w, r, reply, err, t)
}

// answer tells the caller of a create or a claim how it went, and gives
// everything back when it has failed.
func (b *box) answer(w http.ResponseWriter, r *http.Request, reply *guest.HelloReply, err error, t *timeline) {
	if err == nil && r.Context().Err() != nil {
		err = sandbox.Errorf(sandbox.Canceled, "the caller went away")
	}
	if err != nil {
		if rerr := b.remove(b.k.life); rerr != nil {
			err = sandbox.AsError(err).WithHint("%s; and what was made could not be removed: %v", sandbox.AsError(err).Hint, rerr)
		}
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, wire.Created{Status: b.snapshot(), Reply: *reply, Timeline: t.steps()})
}

// reserve checks a request and takes its ID. The context that it returns ends
// with the caller or with a DELETE.
func (k *keeper) reserve(ctx context.Context, req *wire.Create) (*box, context.Context, error) {
	if _, err := sandbox.ParseID(string(req.ID)); err != nil {
		return nil, nil, err
	}
	if len(req.Mounts) > sandbox.MaxMounts {
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "at most %d mounts", sandbox.MaxMounts)
	}
	if err := mayPark(req); err != nil {
		return nil, nil, err
	}
	d, err := pick(k.opts.Drivers, req.Boundary)
	if err != nil {
		return nil, nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.draining:
		return nil, nil, errEnding()
	case k.boxes[req.ID] != nil:
		return nil, nil, errHasIt(req.ID)
	case len(k.boxes) >= k.opts.MaxSandboxes:
		return nil, nil, sandbox.Errorf(sandbox.Unavailable, "this keeper has its %d sandboxes", k.opts.MaxSandboxes).WithHint("try again later, or kill some")
	}
	ctx, making := newPhase(ctx)
	b := &box{
		k: k, driver: d, making: making,
		dir:   filepath.Join(k.opts.Dir, sandboxesDir, string(req.ID)),
		ended: make(chan struct{}), removed: make(chan struct{}),
		status: wire.Status{ID: req.ID, Boundary: req.Boundary, Generation: req.Hello.Generation},
	}
	k.boxes[req.ID] = b
	k.change()
	return b, ctx, nil
}

func errEnding() error {
	return sandbox.Errorf(sandbox.Unavailable, "this keeper is ending").WithHint("try again: another keeper takes its place")
}

func errHasIt(id sandbox.ID) error {
	return sandbox.Errorf(sandbox.AlreadyExists, "this keeper has the sandbox already").WithField("id", string(id))
}

// turn waits for one of the slots for creates.
func (k *keeper) turn(ctx context.Context) (release func(), err error) {
	release = func() { <-k.creates }
	select {
	case k.creates <- struct{}{}:
		return release, nil
	default:
	}
	k.mu.Lock()
	if k.waiting >= k.opts.MaxWaiting {
		k.mu.Unlock()
		return nil, sandbox.Errorf(sandbox.Unavailable, "too many sandboxes are being created at once").WithHint("try again in a moment")
	}
	k.waiting++
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.waiting--
		k.mu.Unlock()
	}()
	select {
	case k.creates <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, sandbox.Errorf(sandbox.Canceled, "the create was given up while it waited for its turn").WithCause(ctx.Err())
	}
}

// build takes the sandbox from nothing to a guest that has answered hello, or
// parks it, which has no answer. What it leaves after an error, remove gives back.
func (b *box) build(ctx context.Context, req *wire.Create, t *timeline) (*guest.HelloReply, error) {
	step := t.start("queue")
	release, err := b.k.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	step()

	step = t.start("handle")
	mounts, err := b.k.tickets.take(req.Mounts)
	if err != nil {
		return nil, err
	}
	defer closeMounts(mounts)
	if req.Park != "" {
		b.parked = parking{root: req.Root, guest: req.Guest, limits: req.Limits, explicit: req.Explicit}
		if b.parked.node, err = nodeOf(req.Root.Path); err != nil {
			return nil, err
		}
	}
	if req.Files != "" {
		if err := sock.CheckDir(req.Files); err != nil {
			return nil, err
		}
	}
	dreq := b.request(req, mounts, t)
	if err := b.writeHandle(dreq); err != nil {
		return nil, err
	}
	step()

	step = t.start("create")
	inst, err := b.driver.Create(ctx, dreq)
	if err != nil {
		return nil, err
	}
	step()
	b.k.crash(AfterCreate)
	if err := b.adopt(inst); err != nil {
		return nil, err
	}
	if req.Park != "" {
		return &guest.HelloReply{}, b.park(ctx, inst, req, t)
	}
	return b.boot(ctx, inst, &req.Hello, req.Image, t)
}

func (b *box) request(req *wire.Create, mounts []driver.Mount, t *timeline) *driver.CreateRequest {
	return &driver.CreateRequest{
		ID:       req.ID,
		Dir:      filepath.Join(b.dir, driverDir),
		Root:     req.Root,
		Guest:    req.Guest,
		Mounts:   mounts,
		Limits:   req.Limits,
		Explicit: req.Explicit,
		Hostname: req.Hello.Hostname,
		User:     req.User,
		Files:    req.Files,
		Trace:    t.add,
	}
}

// writeHandle makes the sandbox's directory and writes down what the driver is
// about to acquire.
func (b *box) writeHandle(req *driver.CreateRequest) error {
	if err := b.makeDirs(); err != nil {
		return err
	}
	b.k.crash(BeforeHandle)
	h, err := b.driver.Handle(req)
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(b.dir, handleName), h); err != nil {
		return err
	}
	b.handle = h
	b.k.crash(AfterHandle)
	return nil
}

// boot starts the guest, or restores it from an image, and says hello to it.
func (b *box) boot(ctx context.Context, inst driver.Instance, h *guest.Hello, image string, t *timeline) (*guest.HelloReply, error) {
	step := t.start("start")
	if err := b.begin(ctx, inst, image); err != nil {
		return nil, err
	}
	step()
	b.k.crash(AfterStart)
	return b.greet(ctx, inst, h, t)
}

// greet says hello: from then on the sandbox runs.
func (b *box) greet(ctx context.Context, inst driver.Instance, h *guest.Hello, t *timeline) (*guest.HelloReply, error) {
	step := t.start("hello")
	reply, err := b.sayHello(ctx, b.down, h)
	if err != nil {
		return nil, b.explain(err, h.Start != nil)
	}
	step()
	b.k.crash(AfterHello)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status.Running = b.status.Exit == nil
	b.status.StartedAt = time.Now()
	b.status.Limits = inst.Limits()
	b.status.CPUsSeen = inst.CPUsSeen()
	return reply, nil
}

// begin starts an instance, or restores it from an image.
func (b *box) begin(ctx context.Context, inst driver.Instance, image string) error {
	if image == "" {
		return inst.Start(ctx)
	}
	if err := sock.CheckDir(image); err != nil {
		return err
	}
	r, ok := inst.(driver.Restorer)
	if !ok {
		return sandbox.Errorf(sandbox.Unsupported, "this boundary cannot restore a sandbox").WithField("image", image)
	}
	if err := r.Restore(ctx, image); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.restored = r
	return nil
}

// explain says how the guest ended instead of answering hello, where it did.
// The first command begins with hello: it may have ended the guest.
func (b *box) explain(err error, command bool) error {
	select {
	case <-b.ended:
	case <-time.After(100 * time.Millisecond): // its end may be a moment away
		return err
	}
	s := b.snapshot()
	switch {
	case s.Exit.OOM:
		return sandbox.Errorf(sandbox.ResourceExhausted, "the memory limit ended the sandbox as it started").WithHint("ask for more memory").WithCause(err)
	case s.Fault != "":
		return sandbox.Errorf(sandbox.Internal, "the guest did what no guest of ours does: %s", s.Fault).WithCause(err)
	}
	how := howEnded(s.Exit)
	if command {
		return sandbox.Errorf(sandbox.Conflict, "process 1 of the sandbox ended (%s) before it had answered, and the sandbox with it", how).
			WithHint("does the command end process 1 or the whole system? If not, allow more memory with --memory, or try again").WithCause(err)
	}
	return sandbox.Errorf(sandbox.Internal, "process 1 of the sandbox ended (%s) before it had answered", how).
		WithHint("allow more memory with --memory, or try again; `belljar doctor` tells what this machine lacks").WithCause(err)
}

func howEnded(x *sandbox.Exit) string {
	how := "exit code " + strconv.Itoa(x.Code)
	if x.Signal != 0 {
		how = "signal " + strconv.Itoa(x.Signal)
	}
	if x.Reason != "" {
		how += ": " + x.Reason
	}
	return how
}

func (b *box) sayHello(ctx context.Context, down *channel.Host, h *guest.Hello) (*guest.HelloReply, error) {
	ctx, cancel := context.WithTimeout(ctx, b.k.opts.HelloTimeout)
	defer cancel()
	h.Protocol, h.Build, h.SandboxID = guest.Protocol, build.ID(), b.name()
	h.Restored, h.Entropy, h.Clock = b.sources()
	if h.Time.IsZero() {
		h.Time = time.Now()
	}
	body, err := json.Marshal(h)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Invalid, "the hello cannot be encoded: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://guest/v1/hello", bytes.NewReader(body))
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "cannot make the hello: %w", err)
	}
	setGeneration(r.Header, h.Generation)
	sent := time.Now()
	resp, err := down.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answered := time.Now()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, guest.MaxHelloReply+1))
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "the guest broke off its hello: %w", err)
	}
	reply, err := checkHello(resp.StatusCode, answer, h.Start)
	if err != nil {
		return nil, err
	}
	return reply, b.came(reply.Restore, h, sent, answered)
}

// checkHello reads what a guest answered to a hello with start. Nothing of it
// is passed on before it has been bounded and checked.
func checkHello(status int, answer []byte, start *guest.Start) (*guest.HelloReply, error) {
	if len(answer) > guest.MaxHelloReply {
		return nil, badHello("more than %d bytes", guest.MaxHelloReply)
	}
	if status != http.StatusOK {
		var e guest.ErrorBody
		if guest.Decode(answer, &e) == nil {
			if told := guest.CheckError(e.Error); told != nil {
				return nil, told
			}
		}
		return nil, badHello("status %d without saying why", status)
	}
	var reply guest.HelloReply
	if err := guest.Decode(answer, &reply); err != nil {
		return nil, badHello("%v", err)
	}
	if reply.Protocol != guest.Protocol || reply.Build != build.ID() {
		return nil, sandbox.Errorf(sandbox.Conflict, "belljar-guest is of another build than belljar-engine (%s)", build.ID()).
			WithField("build", reply.Build).WithHint("install the programs together: make install")
	}
	if err := reply.Check(start); err != nil {
		return nil, badHello("%v", err)
	}
	return &reply, nil
}

// badHello is the error of an answer that no honest guest gives.
func badHello(format string, args ...any) error {
	return sandbox.Errorf(sandbox.Internal, "the guest answered hello with "+format, args...)
}

// timeline collects the steps of a create. It is safe for concurrent use.
type timeline struct {
	begin time.Time
	mu    sync.Mutex
	list  []sandbox.Step
}

func (t *timeline) start(name string) (end func()) {
	at := time.Now()
	return func() { t.add(name, at, time.Since(at)) }
}

func (t *timeline) add(name string, start time.Time, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, sandbox.Step{Name: name, Start: start.Sub(t.begin), Took: took})
}

func (t *timeline) steps() []sandbox.Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list
}
