package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/gen/e2b/process"
)

// events is what a stream of Start and one of Connect have in common.
type events interface {
	Receive() bool
	Err() error
	Close() error
}

// stream reads the events of one process.
type stream struct {
	t    testing.TB
	s    events
	next func() *process.ProcessEvent
	pid  uint32
}

func (w *wire) start(ctx context.Context, req *process.StartRequest) *stream {
	w.t.Helper()
	s, err := w.procs.Start(ctx, req)
	if err != nil {
		w.t.Fatalf("start: %v", err)
	}
	return begun(w.t, s, func() *process.ProcessEvent { return s.Msg().GetEvent() })
}

func (w *wire) connect(ctx context.Context, sel *process.ProcessSelector) *stream {
	w.t.Helper()
	s, err := w.procs.Connect(ctx, &process.ConnectRequest{Process: sel})
	if err != nil {
		w.t.Fatalf("connect: %v", err)
	}
	return begun(w.t, s, func() *process.ProcessEvent { return s.Msg().GetEvent() })
}

// begun reads the first event, which is the start.
func begun(t testing.TB, s events, next func() *process.ProcessEvent) *stream {
	t.Helper()
	if !s.Receive() {
		t.Fatalf("no first event: %v", s.Err())
	}
	start := next().GetStart()
	if start.GetPid() == 0 {
		t.Fatalf("the first event is %v, want a start with a pid", next())
	}
	return &stream{t, s, next, start.GetPid()}
}

// outcome is everything that came after the start.
type outcome struct {
	stdout, stderr, pty bytes.Buffer
	end                 *process.ProcessEvent_EndEvent
	keepalives          int
	err                 error
}

// rest reads to the end of the stream, or until the output holds text.
func (s *stream) rest(text string) *outcome {
	s.t.Helper()
	o := &outcome{}
	for s.s.Receive() {
		ev := s.next()
		switch {
		case o.end != nil:
			s.t.Errorf("%v came after the end", ev)
		case ev.GetStart() != nil:
			s.t.Error("a second start")
		case ev.GetKeepalive() != nil:
			o.keepalives++
		case ev.GetEnd() != nil:
			o.end = ev.GetEnd()
		default:
			o.stdout.Write(ev.GetData().GetStdout())
			o.stderr.Write(ev.GetData().GetStderr())
			o.pty.Write(ev.GetData().GetPty())
		}
		if text != "" && strings.Contains(o.stdout.String()+o.pty.String(), text) {
			return o
		}
	}
	o.err = s.s.Err()
	s.s.Close()
	return o
}

// shell is a command as SDKs send it.
func shell(line string) *process.ProcessConfig {
	return &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", line}}
}

func ptr[T any](v T) *T { return &v }

func byPID(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

func byTag(tag string) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: tag}}
}

// wantEnd fails the test unless the process ended so.
func wantEnd(t testing.TB, o *outcome, code int32, exited bool, status string) {
	t.Helper()
	failed := ""
	if code != 0 {
		failed = status
	}
	if e := o.end; o.err != nil || e == nil || e.ExitCode != code || e.Exited != exited || e.Status != status || e.GetError() != failed || (e.Error == nil) != (code == 0) {
		t.Errorf("got end %v, %v, want %d, %v, %q", e, o.err, code, exited, status)
	}
}

func TestE2BProcesses(t *testing.T) {
	codecs(t, func(t *testing.T, w *wire) {
		t.Run("streams and exit", w.streams)
		t.Run("input", w.input)
		t.Run("terminal", w.terminal)
		t.Run("connect", w.connects)
		t.Run("list", w.lists)
		t.Run("signals", w.signals)
		t.Run("deadline", w.deadline)
		t.Run("refusals", w.refusals)
		t.Run("large output", w.large)
		t.Run("keepalive", w.keepalive)
	})
}

// for tests that are methods.
func (w *wire) with(t *testing.T) *wire {
	c := *w
	b := *w.box
	b.t = t
	c.box = &b
	return &c
}

func (w *wire) streams(t *testing.T) {
	w = w.with(t)
	o := w.start(within(t, time.Minute), &process.StartRequest{Process: shell("echo out; echo err >&2; exit 3"), Stdin: ptr(false)}).rest("")
	if o.stdout.String() != "out\n" || o.stderr.String() != "err\n" {
		t.Errorf("got %q and %q", o.stdout.String(), o.stderr.String())
	}
	wantEnd(t, o, 3, true, "exit status 3")

	c := shell(`echo "$FROM_SANDBOX $OWN $USER $HOME $LOGNAME"; pwd; echo 'žluťoučký 🐎'`)
	c.Envs, c.Cwd = map[string]string{"OWN": "a\nb"}, ptr("/tmp")
	o = w.start(within(t, time.Minute), &process.StartRequest{Process: c}).rest("")
	if got, want := o.stdout.String(), "yes a\nb user /home/user user\n/tmp\nžluťoučký 🐎\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	wantEnd(t, o, 0, true, "exit status 0")

	o = w.start(as(within(t, time.Minute), "root"), &process.StartRequest{Process: shell("id -un; pwd")}).rest("")
	if o.stdout.String() != "root\n/root\n" {
		t.Errorf("as root: got %q", o.stdout.String())
	}
	// What a shell leaves in the background does not hold the end, and lives on.
	began := time.Now()
	o = w.start(within(t, time.Minute), &process.StartRequest{Process: shell("sleep 30 & echo $!")}).rest("")
	wantEnd(t, o, 0, true, "exit status 0")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a background child held the end for %v", took)
	}
	o = w.start(within(t, time.Minute), &process.StartRequest{Process: shell("kill " + strings.TrimSpace(o.stdout.String()))}).rest("")
	wantEnd(t, o, 0, true, "exit status 0")
}

func (w *wire) input(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	s := w.start(ctx, &process.StartRequest{Process: shell("cat; echo over")})
	send := func(text string) {
		t.Helper()
		_, err := w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(s.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte(text)}}})
		if err != nil {
			t.Fatalf("SendInput: %v", err)
		}
	}
	send("one\n")
	s.rest("one\n")
	in, err := w.procs.StreamInput(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pieces := []*process.StreamInputRequest{
		{Event: &process.StreamInputRequest_Start{Start: &process.StreamInputRequest_StartEvent{Process: byPID(s.pid)}}},
		{Event: &process.StreamInputRequest_Keepalive{Keepalive: &process.StreamInputRequest_KeepAlive{}}},
	}
	for _, text := range []string{"two ", "three\n"} {
		pieces = append(pieces, &process.StreamInputRequest{Event: &process.StreamInputRequest_Data{Data: &process.StreamInputRequest_DataEvent{
			Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte(text)}},
		}}})
	}
	for _, p := range pieces {
		if err := in.Send(p); err != nil {
			t.Fatalf("StreamInput: %v", err)
		}
	}
	if _, err := in.CloseAndReceive(); err != nil {
		t.Fatalf("StreamInput: %v", err)
	}
	for range 2 { // twice is no error
		if _, err := w.procs.CloseStdin(ctx, &process.CloseStdinRequest{Process: byPID(s.pid)}); err != nil {
			t.Errorf("CloseStdin: %v", err)
		}
	}
	o := s.rest("")
	if o.stdout.String() != "two three\nover\n" {
		t.Errorf("got %q", o.stdout.String())
	}
	wantEnd(t, o, 0, true, "exit status 0")

	s = w.start(ctx, &process.StartRequest{Process: shell("cat; sleep 30"), Stdin: ptr(false)})
	_, err = w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(s.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("x")}}})
	wantCode(t, "input without stdin", err, connect.CodeInternal)
	_, err = w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(s.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte("x")}}})
	wantCode(t, "terminal input without a terminal", err, connect.CodeInternal)
	_, err = w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(s.pid)})
	wantCode(t, "no input", err, connect.CodeInvalidArgument)
	w.kill(ctx, s)
}

// kill ends a process and reads its end.
func (w *wire) kill(ctx context.Context, s *stream) {
	w.t.Helper()
	if _, err := w.procs.SendSignal(ctx, &process.SendSignalRequest{Process: byPID(s.pid), Signal: process.Signal_SIGNAL_SIGKILL}); err != nil {
		w.t.Fatalf("SendSignal: %v", err)
	}
	wantEnd(w.t, s.rest(""), -1, false, "signal: killed")
}

func (w *wire) terminal(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	s := w.start(ctx, &process.StartRequest{
		Process: &process.ProcessConfig{Cmd: "/bin/bash", Args: []string{"--norc", "-i"}, Envs: map[string]string{"TERM": "dumb", "PS1": "$ "}},
		Pty:     &process.PTY{Size: &process.PTY_Size{Cols: 91, Rows: 17}},
	})
	typed := func(text string) {
		t.Helper()
		_, err := w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(s.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte(text)}}})
		if err != nil {
			t.Fatalf("SendInput: %v", err)
		}
	}
	typed("stty size\n")
	s.rest("17 91")
	if _, err := w.procs.Update(ctx, &process.UpdateRequest{Process: byPID(s.pid), Pty: &process.PTY{Size: &process.PTY_Size{Cols: 120, Rows: 40}}}); err != nil {
		t.Errorf("Update: %v", err)
	}
	typed("stty size\n")
	s.rest("40 120")
	_, err := w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(s.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("x")}}})
	wantCode(t, "stdin of a terminal", err, connect.CodeInternal)
	_, err = w.procs.CloseStdin(ctx, &process.CloseStdinRequest{Process: byPID(s.pid)})
	wantCode(t, "closing a terminal", err, connect.CodeInternal)
	typed("exit 7\n")
	wantEnd(t, s.rest(""), 7, true, "exit status 7")
}

func (w *wire) connects(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	first, goAway := context.WithCancel(ctx)
	s := w.start(first, &process.StartRequest{Process: shell("echo before; read line; echo after $line; exit 4"), Tag: ptr("mine")})
	s.rest("before\n")
	goAway() // the process goes on
	s.rest("")

	again := w.connect(ctx, byTag("mine"))
	if again.pid != s.pid {
		t.Errorf("pid %d, want %d", again.pid, s.pid)
	}
	if _, err := w.procs.SendInput(ctx, &process.SendInputRequest{Process: byTag("mine"), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("x\n")}}}); err != nil {
		t.Fatalf("SendInput: %v", err)
	}
	o := again.rest("")
	if o.stdout.String() != "after x\n" {
		t.Errorf("got %q, want live data only", o.stdout.String())
	}
	wantEnd(t, o, 4, true, "exit status 4")
	// The end is kept for those who come late.
	wantEnd(t, w.connect(ctx, byPID(s.pid)).rest(""), 4, true, "exit status 4")
}

func (w *wire) lists(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	native := w.Command("exec", w.name, "--", "sleep", "77")
	if err := native.Start(); err != nil {
		t.Fatal(err)
	}
	defer native.Wait()
	defer native.Process.Kill()
	c := shell("sleep 60")
	c.Envs, c.Cwd = map[string]string{"K": "v"}, ptr("/tmp")
	s := w.start(ctx, &process.StartRequest{Process: c, Tag: ptr("listed")})
	list, err := w.procs.List(ctx, &process.ListRequest{})
	if err != nil || len(list.Processes) != 1 {
		t.Fatalf("got %v, %v, want the one that was begun here", list, err)
	}
	p := list.Processes[0]
	if p.Pid != s.pid || p.GetTag() != "listed" || p.Config.Cmd != "/bin/bash" || len(p.Config.Args) != 3 || p.Config.Envs["K"] != "v" || p.Config.GetCwd() != "/tmp" {
		t.Errorf("got %v", p)
	}
	w.kill(ctx, s)
	if list, err := w.procs.List(ctx, &process.ListRequest{}); err != nil || len(list.Processes) != 0 {
		t.Errorf("after the end: got %v, %v", list, err)
	}
}

func (w *wire) signals(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	s := w.start(ctx, &process.StartRequest{Process: shell("trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done")})
	s.rest("ready")
	_, err := w.procs.SendSignal(ctx, &process.SendSignalRequest{Process: byPID(s.pid)})
	wantCode(t, "no signal", err, connect.CodeUnimplemented)
	if _, err := w.procs.SendSignal(ctx, &process.SendSignalRequest{Process: byPID(s.pid), Signal: process.Signal_SIGNAL_SIGTERM}); err != nil {
		t.Fatal(err)
	}
	o := s.rest("")
	if o.stdout.String() != "caught\n" {
		t.Errorf("got %q", o.stdout.String())
	}
	wantEnd(t, o, 9, true, "exit status 9")
	_, err = w.procs.SendSignal(ctx, &process.SendSignalRequest{Process: byPID(s.pid), Signal: process.Signal_SIGNAL_SIGKILL})
	wantCode(t, "kill of what has ended", err, connect.CodeNotFound)
	for what, sel := range map[string]*process.ProcessSelector{"unknown pid": byPID(999999), "unknown tag": byTag("none")} {
		_, err := w.procs.SendSignal(ctx, &process.SendSignalRequest{Process: sel, Signal: process.Signal_SIGNAL_SIGKILL})
		wantCode(t, what, err, connect.CodeNotFound)
		_, err = w.procs.SendInput(ctx, &process.SendInputRequest{Process: sel, Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("x")}}})
		wantCode(t, what, err, connect.CodeNotFound)
		_, err = w.procs.CloseStdin(ctx, &process.CloseStdinRequest{Process: sel})
		wantCode(t, what, err, connect.CodeNotFound)
		_, err = w.procs.Update(ctx, &process.UpdateRequest{Process: sel})
		wantCode(t, what, err, connect.CodeNotFound)
		late, err := w.procs.Connect(ctx, &process.ConnectRequest{Process: sel})
		if err == nil {
			late.Receive()
			err = late.Err()
		}
		wantCode(t, what, err, connect.CodeNotFound)
	}
	_, err = w.procs.SendSignal(ctx, &process.SendSignalRequest{Signal: process.Signal_SIGNAL_SIGKILL})
	wantCode(t, "no process", err, connect.CodeInvalidArgument)
}

// deadline: the time of a call bounds the process with all its descendants.
func (w *wire) deadline(t *testing.T) {
	w = w.with(t)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	mark := fmt.Sprintf("sleep 3%03d", time.Now().UnixNano()%1000)
	s, err := w.procs.Start(ctx, &process.StartRequest{Process: shell("setsid " + mark + " & echo up; exec sleep 60")})
	if err != nil {
		t.Fatal(err)
	}
	for s.Receive() {
	}
	wantCode(t, "the time is over", s.Err(), connect.CodeDeadlineExceeded)
	o := w.start(within(t, time.Minute), &process.StartRequest{Process: shell("for i in 1 2 3 4 5 6 7 8 9; do pgrep -f '^" + mark + "' >/dev/null || exit 0; sleep 0.2; done; exit 1")}).rest("")
	wantEnd(t, o, 0, true, "exit status 0")
}

func (w *wire) refusals(t *testing.T) {
	w = w.with(t)
	refused := func(what string, ctx context.Context, req *process.StartRequest, code connect.Code, text string) {
		t.Helper()
		s, err := w.procs.Start(ctx, req)
		if err == nil {
			if s.Receive() {
				t.Errorf("%s: got %v first", what, s.Msg())
			}
			err = s.Err()
		}
		wantCode(t, what, err, code)
		if err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %q does not say %q", what, err, text)
		}
	}
	ctx := within(t, time.Minute)
	c := shell("true")
	c.Cwd = ptr("/no/such")
	refused("cwd", ctx, &process.StartRequest{Process: c}, connect.CodeInvalidArgument, "cwd '/no/such' does not exist")
	refused("no command", ctx, &process.StartRequest{}, connect.CodeInvalidArgument, "command")
	refused("no such program", ctx, &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/no/such"}}, connect.CodeInvalidArgument, "/no/such")
	refused("unknown user", as(ctx, "nobody-here"), &process.StartRequest{Process: shell("true")}, connect.CodeUnauthenticated, "nobody-here")
	refused("other home", ctx, &process.StartRequest{Process: &process.ProcessConfig{Cmd: "true", Cwd: ptr("~root")}}, connect.CodeInvalidArgument, "~")
	refused("terminal", ctx, &process.StartRequest{Process: shell("true"), Pty: &process.PTY{Size: &process.PTY_Size{Cols: 1 << 20}}}, connect.CodeInvalidArgument, "65535")
	o := w.start(ctx, &process.StartRequest{Process: &process.ProcessConfig{Cmd: "pwd", Cwd: ptr("~")}}).rest("")
	if o.stdout.String() != "/home/user\n" {
		t.Errorf("in the home: got %q", o.stdout.String())
	}
}

func (w *wire) large(t *testing.T) {
	w = w.with(t)
	const size = 24 << 20
	o := w.start(within(t, 2*time.Minute), &process.StartRequest{Process: shell(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' 'a'; echo end >&2", size))}).rest("")
	wantEnd(t, o, 0, true, "exit status 0")
	if o.stdout.Len() != size || strings.Trim(o.stdout.String(), "a") != "" || o.stderr.String() != "end\n" {
		t.Errorf("%d bytes came, want %d", o.stdout.Len(), size)
	}
}

// TestE2BReaders: two callers read all that one process writes, and one who does
// not read holds neither memory of the daemon's nor, for long, the other up, and
// learns what was lost.
func TestE2BReaders(t *testing.T) {
	// Compressed, everything would fit into the sockets' buffers.
	w := reach(t, create(t, setup(t), "readers"), connect.WithAcceptCompression("gzip", nil, nil))
	const size = 64 << 20
	ctx := within(t, 2*time.Minute)
	begin := func() (first, second *stream) {
		t.Helper()
		first = w.start(ctx, &process.StartRequest{Process: shell(fmt.Sprintf("read go; head -c %d /dev/zero", size))})
		second = w.connect(ctx, byPID(first.pid))
		if _, err := w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(first.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("\n")}}}); err != nil {
			t.Fatal(err)
		}
		return first, second
	}
	whole := func(what string, o *outcome) {
		t.Helper()
		wantEnd(t, o, 0, true, "exit status 0")
		if o.stdout.Len() != size {
			t.Errorf("%s got %d bytes, want %d", what, o.stdout.Len(), size)
		}
	}
	first, second := begin()
	both := make(chan *outcome)
	go func() { both <- first.rest("") }()
	whole("the second", second.rest(""))
	whole("the first", <-both)

	slow, fast := begin()
	before := daemonMemory(t, w.box)
	whole("the fast one", fast.rest(""))
	if grown := daemonMemory(t, w.box) - before; grown > 32<<10 {
		t.Errorf("the daemon grew by %d KiB", grown)
	}
	if o := slow.rest(""); connect.CodeOf(o.err) != connect.CodeDataLoss || o.stdout.Len() >= size {
		t.Errorf("the slow one got %d bytes and %v, want an error that says what was lost", o.stdout.Len(), o.err)
	}
}

// daemonMemory is the resident memory of the daemon, in KiB.
func daemonMemory(t testing.TB, b *box) int64 {
	t.Helper()
	var status struct{ PID int }
	decode(t, want(t, b.Belljar("daemon", "status", "-o", "json"), 0).Stdout, &status)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", status.PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

func (w *wire) keepalive(t *testing.T) {
	w = w.with(t)
	ctx, info := connect.NewClientContext(within(t, time.Minute))
	info.RequestHeader().Set("Keepalive-Ping-Interval", "1")
	o := w.start(ctx, &process.StartRequest{Process: shell("sleep 2.6")}).rest("")
	wantEnd(t, o, 0, true, "exit status 0")
	if o.keepalives < 1 || o.keepalives > 3 {
		t.Errorf("%d keepalives in 2.6 s, want about 2", o.keepalives)
	}
}

// TestE2BSandboxEnds: streams of a sandbox that is killed end, and then it is
// not found.
func TestE2BSandboxEnds(t *testing.T) {
	w := reach(t, create(t, setup(t), "ends"))
	s := w.start(within(t, time.Minute), &process.StartRequest{Process: shell("echo up; sleep 60")})
	s.rest("up")
	want(t, w.Belljar("kill", w.name), 0)
	o := s.rest("")
	if code := connect.CodeOf(o.err); o.end != nil || code != connect.CodeUnavailable {
		t.Errorf("got %v, %v, want unavailable", o.end, o.err)
	}
	wantAnswer(t, "health", w.ask("GET", "/health", nil), 502, `{"sandboxId":"`+w.id+`","message":"The sandbox was not found","code":502}`)
	_, err := w.procs.List(within(t, time.Minute), &process.ListRequest{})
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != connect.CodeUnavailable {
		t.Errorf("list: got %v, want unavailable", err)
	}
}

// TestE2BDaemonRestarts: processes outlive the daemon and are listed and
// reached again.
func TestE2BDaemonRestarts(t *testing.T) {
	w := reach(t, create(t, setup(t), "again"))
	s := w.start(within(t, time.Minute), &process.StartRequest{Process: shell("read line; echo got $line"), Tag: ptr("kept")})
	want(t, w.Belljar("daemon", "stop"), 0)
	if o := s.rest(""); o.end != nil || o.err == nil {
		t.Errorf("got %v, %v, want a stream that breaks", o.end, o.err)
	}
	want(t, w.Belljar("ls"), 0) // starts it
	ctx := within(t, time.Minute)
	list, err := w.procs.List(ctx, &process.ListRequest{})
	if err != nil || len(list.Processes) != 1 || list.Processes[0].Pid != s.pid || list.Processes[0].GetTag() != "kept" || list.Processes[0].Config.Cmd != "/bin/bash" {
		t.Fatalf("got %v, %v", list, err)
	}
	again := w.connect(ctx, byPID(s.pid))
	if _, err := w.procs.SendInput(ctx, &process.SendInputRequest{Process: byPID(s.pid), Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("it\n")}}}); err != nil {
		t.Fatal(err)
	}
	o := again.rest("")
	if o.stdout.String() != "got it\n" {
		t.Errorf("got %q", o.stdout.String())
	}
	wantEnd(t, o, 0, true, "exit status 0")
}
