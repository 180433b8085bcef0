package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/e2b"
	"github.com/belljar-sh/belljar/internal/gen/e2b/filesystem"
	"github.com/belljar-sh/belljar/internal/gen/e2b/filesystem/filesystemconnect"
	"github.com/belljar-sh/belljar/internal/gen/e2b/process"
	"github.com/belljar-sh/belljar/internal/gen/e2b/process/processconnect"
	"github.com/belljar-sh/belljar/sandbox"
)

// toSandbox sends requests to the daemon's socket for one sandbox.
type toSandbox struct {
	id sandbox.ID
	rt http.RoundTripper
}

func (s toSandbox) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(e2b.HeaderID, string(s.id))
	r.Header.Set(e2b.HeaderPort, fmt.Sprint(e2b.Port))
	return s.rt.RoundTrip(r)
}

// TestE2BWire: many callers of the wire at once, on the daemon's socket. The
// wire itself is tested end to end elsewhere; here daemon, keeper and guest can
// run under the race detector.
func TestE2BWire(t *testing.T) {
	in := install(t)
	sb := create(t, in.dial(), sandbox.Spec{User: "root", Workdir: "/"})
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", in.dirs.DaemonSocket())
	}}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: toSandbox{sb.ID, tr}}
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			opts := []connect.ClientOption{}
			if i%2 == 0 {
				opts = append(opts, connect.WithProtoJSON())
			}
			if err := useWire(t.Context(), hc, filepath.Join(dir, fmt.Sprint(i)), opts); err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// useWire writes a file, has a process read it while another call follows, and
// watches the directory.
func useWire(ctx context.Context, hc *http.Client, dir string, opts []connect.ClientOption) error {
	const base = "http://daemon"
	files, procs := filesystemconnect.NewFilesystemClient(hc, base, opts...), processconnect.NewProcessClient(hc, base, opts...)
	if _, err := files.MakeDir(ctx, &filesystem.MakeDirRequest{Path: dir}); err != nil {
		return err
	}
	w, err := files.CreateWatcher(ctx, &filesystem.CreateWatcherRequest{Path: dir})
	if err != nil {
		return err
	}
	text := strings.Repeat("0123456789abcdef", 64<<10)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/files?path="+dir+"/f", strings.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := hc.Do(req)
	if err != nil {
		return err
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("upload: %s", resp.Status)
	}
	s, err := procs.Start(ctx, &process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", "read go; cat f; exit 3"}, Cwd: &dir}, Tag: &dir})
	if err != nil {
		return err
	}
	defer s.Close()
	if !s.Receive() {
		return fmt.Errorf("no start: %w", s.Err())
	}
	sel := &process.ProcessSelector{Selector: &process.ProcessSelector_Tag{Tag: dir}}
	second, err := procs.Connect(ctx, &process.ConnectRequest{Process: sel})
	if err != nil {
		return err
	}
	defer second.Close()
	if !second.Receive() {
		return fmt.Errorf("no start: %w", second.Err())
	}
	both := make(chan error)
	go func() { both <- readAll(second, func() *process.ProcessEvent { return second.Msg().GetEvent() }, text) }()
	_, err = procs.SendInput(ctx, &process.SendInputRequest{Process: sel, Input: &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: []byte("\n")}}})
	if err == nil {
		err = readAll(s, func() *process.ProcessEvent { return s.Msg().GetEvent() }, text)
	}
	if other := <-both; err == nil {
		err = other
	}
	if err != nil {
		return err
	}
	events, err := files.GetWatcherEvents(ctx, &filesystem.GetWatcherEventsRequest{WatcherId: w.WatcherId})
	if err != nil || len(events.Events) == 0 {
		return fmt.Errorf("events: %v, %w", events, err)
	}
	_, err = files.RemoveWatcher(ctx, &filesystem.RemoveWatcherRequest{WatcherId: w.WatcherId})
	return err
}

// readAll checks that a stream holds the text and ends with 3.
func readAll(s interface {
	Receive() bool
	Err() error
}, next func() *process.ProcessEvent, want string) error {
	var got strings.Builder
	for s.Receive() {
		got.Write(next().GetData().GetStdout())
		if end := next().GetEnd(); end != nil && (end.ExitCode != 3 || got.String() != want) {
			return fmt.Errorf("%d bytes and %v, want %d bytes and 3", got.Len(), end, len(want))
		}
	}
	if got.Len() != len(want) {
		return fmt.Errorf("%d bytes, want %d: %w", got.Len(), len(want), s.Err())
	}
	return s.Err()
}
