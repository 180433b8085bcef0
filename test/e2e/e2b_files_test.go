package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/gen/e2b/filesystem"
)

const octets = "application/octet-stream"

func TestE2BFilesystem(t *testing.T) {
	codecs(t, func(t *testing.T, w *wire) {
		t.Run("entries", w.entries)
		t.Run("refusals", w.fileRefusals)
		t.Run("watch", w.watches)
		t.Run("watchers", w.watchers)
	})
}

// inside runs a shell line as the default user, by the wire itself.
func (w *wire) inside(line string) {
	w.t.Helper()
	if r := w.exec("-u", "user", "-w", "/home/user", "--", "sh", "-ec", line); r.Code != 0 {
		w.t.Fatalf("%s: %d %s", line, r.Code, r.Stderr)
	}
}

func (w *wire) entries(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	w.inside("rm -rf d; mkdir -p d/a/b d/z; echo hi >d/f; chmod 640 d/f; ln -s f d/link; ln -s ../d/a d/to; ln -s none d/dangling; mkfifo d/fifo; touch d/a/b/deep")
	stat, err := w.files.Stat(ctx, &filesystem.StatRequest{Path: "d/f"})
	if err != nil {
		t.Fatal(err)
	}
	e := stat.Entry
	if e.Name != "f" || e.Path != "/home/user/d/f" || e.Type != filesystem.FileType_FILE_TYPE_FILE || e.Size != 3 || e.Mode != 0o640 ||
		e.Permissions != "-rw-r-----" || e.Owner != "user" || e.Group != "user" || e.SymlinkTarget != nil || time.Since(e.ModifiedTime.AsTime()).Abs() > 10*time.Minute {
		t.Errorf("got %v", e)
	}
	list := func(path string, depth uint32) (out []string) {
		t.Helper()
		got, err := w.files.ListDir(ctx, &filesystem.ListDirRequest{Path: path, Depth: depth})
		if err != nil {
			t.Fatalf("ListDir %q: %v", path, err)
		}
		for _, e := range got.Entries {
			out = append(out, fmt.Sprintf("%s %d %s %s", e.Path, e.Type, e.Permissions, e.GetSymlinkTarget()))
		}
		return out
	}
	want := []string{
		"/home/user/d/a 2 drwxr-xr-x ",
		"/home/user/d/dangling 0 Lrwxrwxrwx /home/user/d/none",
		"/home/user/d/f 1 -rw-r----- ",
		"/home/user/d/fifo 0 ?rw-r--r-- ",
		"/home/user/d/link 1 Lrwxrwxrwx /home/user/d/f",
		"/home/user/d/to 2 Lrwxrwxrwx /home/user/d/a",
		"/home/user/d/z 2 drwxr-xr-x ",
	}
	if got := list("d", 0); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := list("~/d", 3); !slices.Equal(got[:3], []string{"/home/user/d/a 2 drwxr-xr-x ", "/home/user/d/a/b 2 drwxr-xr-x ", "/home/user/d/a/b/deep 1 -rw-r--r-- "}) {
		t.Errorf("depth first: got %q", got)
	}
	// What lies behind a link is shown under the path that was asked for.
	if got := list("d/to", 1); !slices.Equal(got, []string{"/home/user/d/to/b 2 drwxr-xr-x "}) {
		t.Errorf("through a link: got %q", got)
	}
	made, err := w.files.MakeDir(ctx, &filesystem.MakeDirRequest{Path: "d/new/ž"})
	if err != nil || made.Entry.Path != "/home/user/d/new/ž" || made.Entry.Owner != "user" {
		t.Errorf("MakeDir: got %v, %v", made, err)
	}
	moved, err := w.files.Move(ctx, &filesystem.MoveRequest{Source: "d/f", Destination: "d/far/away/g"})
	if err != nil || moved.Entry.Path != "/home/user/d/far/away/g" {
		t.Errorf("Move: got %v, %v", moved, err)
	}
	for range 2 { // what is not there is no error
		if _, err := w.files.Remove(ctx, &filesystem.RemoveRequest{Path: "d/a"}); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	root, err := w.files.MakeDir(as(ctx, "root"), &filesystem.MakeDirRequest{Path: "/rooted-" + fmt.Sprint(time.Now().UnixNano())})
	if err != nil || root.Entry.Owner != "root" {
		t.Errorf("as root: got %v, %v", root, err)
	}
}

func (w *wire) fileRefusals(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	w.inside("rm -rf r; mkdir -p r/dir; echo x >r/f; ln -s loop r/loop")
	stat := func(ctx context.Context, p string) error {
		_, err := w.files.Stat(ctx, &filesystem.StatRequest{Path: p})
		return err
	}
	list := func(p string, depth uint32) error {
		_, err := w.files.ListDir(ctx, &filesystem.ListDirRequest{Path: p, Depth: depth})
		return err
	}
	mkdir := func(p string) error {
		_, err := w.files.MakeDir(ctx, &filesystem.MakeDirRequest{Path: p})
		return err
	}
	watch := func(p string) error {
		s, err := w.files.WatchDir(ctx, &filesystem.WatchDirRequest{Path: p})
		if err == nil {
			s.Receive()
			err = s.Err()
			s.Close()
		}
		return err
	}
	create := func(p string) error {
		_, err := w.files.CreateWatcher(ctx, &filesystem.CreateWatcherRequest{Path: p})
		return err
	}
	_, move := w.files.Move(ctx, &filesystem.MoveRequest{Source: "r/none", Destination: "r/x"})
	_, events := w.files.GetWatcherEvents(ctx, &filesystem.GetWatcherEventsRequest{WatcherId: "none"})
	_, remove := w.files.RemoveWatcher(ctx, &filesystem.RemoveWatcherRequest{WatcherId: "none"})
	_, denied := w.files.Remove(ctx, &filesystem.RemoveRequest{Path: "/etc/passwd"})
	for _, tt := range []struct {
		what string
		err  error
		code connect.Code
	}{
		{"stat of nothing", stat(ctx, "r/none"), connect.CodeNotFound},
		{"unknown user", stat(as(ctx, "nobody-here"), "r"), connect.CodeUnauthenticated},
		{"other home", stat(ctx, "~root"), connect.CodeInvalidArgument},
		{"NUL", stat(ctx, "a\x00b"), connect.CodeInvalidArgument},
		{"long", stat(ctx, strings.Repeat("a/", 4096)), connect.CodeInvalidArgument},
		{"list nothing", list("r/none", 1), connect.CodeNotFound},
		{"list a file", list("r/f", 1), connect.CodeInvalidArgument},
		{"list a loop", list("r/loop", 1), connect.CodeFailedPrecondition},
		{"list too deep", list("r", 1000), connect.CodeInvalidArgument},
		{"mkdir again", mkdir("r/dir"), connect.CodeAlreadyExists},
		{"mkdir on a file", mkdir("r/f"), connect.CodeInvalidArgument},
		{"mkdir below a file", mkdir("r/f/x"), connect.CodeInvalidArgument},
		{"move nothing", move, connect.CodeNotFound},
		{"remove what is not one's own", denied, connect.CodePermissionDenied},
		{"watch nothing", watch("r/none"), connect.CodeNotFound},
		{"watch a file", watch("r/f"), connect.CodeInvalidArgument},
		{"watcher on nothing", create("r/none"), connect.CodeNotFound},
		{"watcher on a file", create("r/f"), connect.CodeInvalidArgument},
		{"no such watcher", events, connect.CodeNotFound},
		{"no such watcher to remove", remove, connect.CodeNotFound},
	} {
		wantCode(t, tt.what, tt.err, tt.code)
	}
}

func (w *wire) watches(t *testing.T) {
	w = w.with(t)
	w.inside("rm -rf w; mkdir -p w/old")
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	defer cancel()
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set("Keepalive-Ping-Interval", "1")
	s, err := w.files.WatchDir(ctx, &filesystem.WatchDirRequest{Path: "w", Recursive: true, IncludeEntry: true})
	if err != nil || !s.Receive() || s.Msg().GetStart() == nil {
		t.Fatalf("got %v, %v, want a start", s, err)
	}
	w.inside("echo x >w/one; chmod 600 w/one; mkdir w/sub; sleep 0.2; echo y >w/sub/two; mv w/one w/three; rm w/three; echo z >w/old/four")
	wanted := []string{"1 one e", "2 one e", "5 one ", "1 sub ", "1 sub/two ", "4 one ", "1 three ", "3 three ", "1 old/four "}
	kept := false
	for !kept || len(wanted) > 0 {
		if !s.Receive() {
			t.Fatalf("the stream ended: %v; still wanted: %q", s.Err(), wanted)
		}
		kept = kept || s.Msg().GetKeepalive() != nil
		ev := s.Msg().GetFilesystem()
		line := fmt.Sprintf("%d %s ", ev.GetType(), ev.GetName())
		if ev.GetEntry() != nil && (ev.Type == filesystem.EventType_EVENT_TYPE_REMOVE || ev.Type == filesystem.EventType_EVENT_TYPE_RENAME || ev.Entry.Path != "/home/user/w/"+ev.Name) {
			t.Errorf("got entry %v with %v", ev.Entry, ev.Type)
		}
		// What an event is about may be gone again when it is looked at.
		wanted = slices.DeleteFunc(wanted, func(x string) bool { return strings.TrimSuffix(x, "e") == line })
	}
}

func (w *wire) watchers(t *testing.T) {
	w = w.with(t)
	ctx := within(t, time.Minute)
	w.inside("rm -rf v; mkdir v")
	made, err := w.files.CreateWatcher(ctx, &filesystem.CreateWatcherRequest{Path: "v"})
	if err != nil {
		t.Fatal(err)
	}
	get := func() []string {
		t.Helper()
		got, err := w.files.GetWatcherEvents(ctx, &filesystem.GetWatcherEventsRequest{WatcherId: made.WatcherId})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, ev := range got.Events {
			out = append(out, fmt.Sprintf("%d %s", ev.Type, ev.Name))
		}
		return out
	}
	if got := get(); len(got) != 0 {
		t.Errorf("before anything: got %q", got)
	}
	w.inside("touch v/a; rm v/a")
	var got []string
	eventually(t, func() bool {
		got = append(got, get()...)
		return slices.Contains(got, "1 a") && slices.Contains(got, "3 a")
	})
	if again := get(); len(again) != 0 {
		t.Errorf("events come twice: %q", again)
	}
	var extra []string
	for {
		m, err := w.files.CreateWatcher(ctx, &filesystem.CreateWatcherRequest{Path: "v"})
		if err != nil {
			wantCode(t, "one watcher too many", err, connect.CodeResourceExhausted)
			break
		}
		if extra = append(extra, m.WatcherId); len(extra) > 100 {
			t.Fatal("there is no end to watchers")
		}
	}
	for _, id := range append(extra, made.WatcherId) {
		if _, err := w.files.RemoveWatcher(ctx, &filesystem.RemoveWatcherRequest{WatcherId: id}); err != nil {
			t.Errorf("RemoveWatcher: %v", err)
		}
	}
	_, err = w.files.GetWatcherEvents(ctx, &filesystem.GetWatcherEventsRequest{WatcherId: made.WatcherId})
	wantCode(t, "a removed watcher", err, connect.CodeNotFound)
}

// eventually polls until ok.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	end := time.After(20 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("not within 20 s")
		}
	}
}

func zipped(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return b.Bytes()
}

// form is a multipart body as fetch writes it: file names go as they are.
func form(t testing.TB, parts ...[3]string) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	for _, p := range parts {
		h := textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf(`form-data; name="%s"; filename="%s"`, p[0], p[1])}, "Content-Type": {octets}}
		f, err := m.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(f, p[2])
	}
	m.Close()
	return m.FormDataContentType(), b.Bytes()
}

func TestE2BFileRoutes(t *testing.T) {
	w := reach(t, create(t, setup(t), "routes", "-e", "A=b"))
	t.Run("get", w.gets)
	t.Run("post", w.posts)
	t.Run("form", w.forms)
	t.Run("compose", w.composes)
	t.Run("other routes", w.otherRoutes)
	t.Run("full disk", fullDisk)
}

func (w *wire) gets(t *testing.T) {
	w = w.with(t)
	w.inside("printf 0123456789 >ten; : >empty; mkdir dir; printf html >a.html")
	got := w.ask("GET", "/files?path=ten", nil)
	if got.status != 200 || got.body != "0123456789" || got.header.Get("Content-Length") != "10" || got.header.Get("Content-Encoding") != "" ||
		got.header.Get("Content-Disposition") != "inline; filename=ten" || got.header.Get("Vary") != "Accept-Encoding" || got.header.Get("Content-Type") != octets {
		t.Errorf("got %+v", got)
	}
	modified := got.header.Get("Last-Modified")
	if _, err := time.Parse(time.RFC1123, modified); err != nil {
		t.Errorf("Last-Modified: %v", err)
	}
	if got := w.ask("GET", "/files?path=empty", nil, "Accept-Encoding", "gzip"); got.status != 200 || got.body != "" || got.header.Get("Content-Length") != "0" {
		t.Errorf("empty: got %+v", got)
	}
	for _, tt := range []struct {
		headers []string
		status  int
		body    string
		rng     string
	}{
		{[]string{"Range", "bytes=2-4"}, 206, "234", "bytes 2-4/10"},
		{[]string{"Range", "bytes=-3"}, 206, "789", "bytes 7-9/10"},
		{[]string{"Range", "bytes=7-"}, 206, "789", "bytes 7-9/10"},
		{[]string{"Range", "bytes=2-4", "Accept-Encoding", "gzip, identity"}, 206, "234", "bytes 2-4/10"},
		{[]string{"Range", "bytes=10-"}, 416, "invalid range: failed to overlap\n", "bytes */10"},
		{[]string{"Range", "bytes=0-0", "If-Range", modified}, 206, "0", "bytes 0-0/10"},
		{[]string{"Range", "bytes=0-0", "If-Range", "Mon, 01 Jan 2001 00:00:00 GMT"}, 200, "0123456789", ""},
		{[]string{"If-Modified-Since", modified}, 304, "", ""},
		{[]string{"If-Unmodified-Since", "Mon, 01 Jan 2001 00:00:00 GMT"}, 412, "", ""},
		{[]string{"Accept-Encoding", "identity"}, 200, "0123456789", ""},
		{[]string{"Accept-Encoding", "br"}, 406, `{"code":406,"message":"only gzip and identity are spoken here"}`, ""},
	} {
		if got := w.ask("GET", "/files?path=ten", nil, tt.headers...); got.status != tt.status || got.body != tt.body || got.header.Get("Content-Range") != tt.rng {
			t.Errorf("%q: got %d %q %q, want %d %q %q", tt.headers, got.status, got.body, got.header.Get("Content-Range"), tt.status, tt.body, tt.rng)
		}
	}
	if got := w.ask("GET", "/files?path=ten", nil, "Range", "bytes=0-0,5-6"); got.status != 206 || !strings.Contains(got.body, "\r\n\r\n56\r\n") {
		t.Errorf("two ranges: got %+v", got)
	}
	got = w.ask("GET", "/files?path=ten", nil, "Accept-Encoding", "gzip, deflate")
	if got.status != 200 || got.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("gzip: got %+v", got)
	}
	z, err := gzip.NewReader(strings.NewReader(got.body))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || string(b) != "0123456789" {
		t.Errorf("gzip: got %q, %v", b, err)
	}
	wantAnswer(t, "missing", w.ask("GET", "/files?path=none", nil), 404, `{"code":404,"message":"path '/home/user/none' does not exist"}`)
	wantAnswer(t, "directory", w.ask("GET", "/files?path=dir", nil), 400, `{"code":400,"message":"path '/home/user/dir' is a directory"}`)
	wantAnswer(t, "no path is the home", w.ask("GET", "/files", nil), 400, `{"code":400,"message":"path '/home/user' is a directory"}`)
	if got := w.ask("GET", "/files?path=ten&username=nobody-here", nil); got.status != 401 || !strings.Contains(got.body, `"code":401`) {
		t.Errorf("unknown user: got %+v", got)
	}
	if got := w.ask("GET", "/files?path=/etc/shadow", nil); got.status != 403 && got.status != 404 {
		t.Errorf("what is not the user's: got %+v", got)
	}
	// Files of the kernel do not say how long they are.
	if got := w.ask("GET", "/files?path=/proc/self/cmdline", nil); got.status != 200 || got.body == "" {
		t.Errorf("/proc: got %+v", got)
	}
}

func (w *wire) posts(t *testing.T) {
	w = w.with(t)
	put := func(path string, body []byte, headers ...string) answerOf {
		t.Helper()
		return w.ask("POST", "/files?path="+path, body, append([]string{"Content-Type", octets}, headers...)...)
	}
	read := func(path, want string) {
		t.Helper()
		if got := w.ask("GET", "/files?path="+path, nil); got.status != 200 || got.body != want {
			t.Errorf("%s: got %d %q, want %q", path, got.status, clip(got.body), clip(want))
		}
	}
	wantAnswer(t, "octets", put("new/dir/f", []byte("plain")), 200, `[{"path":"/home/user/new/dir/f","name":"f","type":"file"}]`)
	read("new/dir/f", "plain")
	put("new/dir/f", zipped("zipped"), "Content-Encoding", "gzip")
	read("new/dir/f", "zipped")
	if got := put("new/dir/f", []byte("not zipped"), "Content-Encoding", "gzip"); got.status != 400 {
		t.Errorf("a lie about gzip: got %+v", got)
	}
	if got := put("new/dir/f", zipped(strings.Repeat("half", 1<<16))[:100], "Content-Encoding", "gzip"); got.status != 400 {
		t.Errorf("half of gzip: got %+v", got)
	}
	read("new/dir/f", "zipped") // the old content is still there
	r := w.exec("--", "stat", "-c", "%a %U %G", "/home/user/new/dir", "/home/user/new/dir/f")
	if r.Stdout != "755 user user\n644 user user\n" {
		t.Errorf("modes and owners: got %q %s", r.Stdout, r.Stderr)
	}
	wantAnswer(t, "a directory", put("new/dir", []byte("x")), 400, `{"code":400,"message":"path '/home/user/new/dir' is a directory"}`)
	if got := w.ask("POST", "/files", []byte("x"), "Content-Type", octets); got.status != 400 {
		t.Errorf("without a path: got %+v", got)
	}
	if got := w.ask("POST", "/files?path=x", []byte("x"), "Content-Type", "text/plain"); got.status != 400 {
		t.Errorf("another type: got %+v", got)
	}
	if got := put("x&username=nobody-here", []byte("x")); got.status != 401 {
		t.Errorf("unknown user: got %+v", got)
	}
	meta := func() map[string]string {
		t.Helper()
		s, err := w.files.Stat(within(t, time.Minute), &filesystem.StatRequest{Path: "meta"})
		if err != nil {
			t.Fatal(err)
		}
		return s.Entry.Metadata
	}
	wantAnswer(t, "metadata", put("meta", []byte("x"), "X-Metadata-Some-Key", "a <value>", "X-Metadata-B", "2"), 200,
		`[{"path":"/home/user/meta","name":"meta","type":"file","metadata":{"b":"2","some-key":"a \u003cvalue\u003e"}}]`)
	if got := meta(); len(got) != 2 || got["some-key"] != "a <value>" || got["b"] != "2" {
		t.Errorf("metadata: got %v", got)
	}
	put("meta", []byte("y"))
	if got := meta(); len(got) != 0 {
		t.Errorf("an upload without metadata leaves %v", got)
	}
	if got := put("meta", []byte("x"), "X-Metadata-Big", strings.Repeat("x", 4096)); got.status != 400 {
		t.Errorf("too much metadata: got %+v", got)
	}
	if got := put("meta", []byte("x"), "X-Metadata-Bad", "caf\u00e9"); got.status != 400 {
		t.Errorf("metadata beyond ASCII: got %+v", got)
	}
	if got := put("meta", []byte("x"), "X-Metadata-Quoted", strings.Repeat(`"\`, 2000)); got.status != 200 || meta()["quoted"] != strings.Repeat(`"\`, 2000) {
		t.Errorf("metadata that doubles in JSON: got %d", got.status)
	}
}

func (w *wire) forms(t *testing.T) {
	w = w.with(t)
	send := func(query string, parts ...[3]string) answerOf {
		t.Helper()
		kind, body := form(t, parts...)
		return w.ask("POST", "/files"+query, body, "Content-Type", kind)
	}
	wantAnswer(t, "paths as names", send("", [3]string{"file", "form/ž/one two.txt", "1"}, [3]string{"other", "skipped", "x"}, [3]string{"file", "/tmp/form/2", "2"}), 200,
		`[{"path":"/home/user/form/ž/one two.txt","name":"one two.txt","type":"file"},{"path":"/tmp/form/2","name":"2","type":"file"}]`)
	if got := w.ask("GET", "/files?path=form/%C5%BE/one%20two.txt", nil); got.body != "1" {
		t.Errorf("got %+v", got)
	}
	wantAnswer(t, "a path in the query", send("?path=form/query", [3]string{"file", "ignored", "q"}), 200, `[{"path":"/home/user/form/query","name":"query","type":"file"}]`)
	wantAnswer(t, "one path twice", send("", [3]string{"file", "form/a", "1"}, [3]string{"file", "form/a", "2"}), 400, `{"code":400,"message":"path 'form/a' is given twice"}`)
	wantAnswer(t, "one path for two", send("?path=form/b", [3]string{"file", "x", "1"}, [3]string{"file", "y", "2"}), 400, `{"code":400,"message":"path 'form/b' is given twice"}`)
	if got := send("", [3]string{"file", "", "1"}); got.status != 400 {
		t.Errorf("no name: got %+v", got)
	}
	wantAnswer(t, "no part", send("", [3]string{"other", "x", "1"}), 200, `[]`)
	kind, body := form(t, [3]string{"file", "form/cut", strings.Repeat("x", 10000)})
	if got := w.ask("POST", "/files", body[:5000], "Content-Type", kind); got.status != 400 {
		t.Errorf("a form that breaks off: got %+v", got)
	}
	if got := w.ask("GET", "/files?path=form/cut", nil); got.status != 404 {
		t.Errorf("half a file was left: %+v", got)
	}
	if got := w.ask("POST", "/files", body, "Content-Type", "multipart/form-data"); got.status != 400 {
		t.Errorf("no boundary: got %+v", got)
	}
}

func (w *wire) composes(t *testing.T) {
	w = w.with(t)
	w.inside("mkdir parts; printf one >parts/1; printf two >parts/2; : >parts/3")
	compose := func(v any) answerOf {
		t.Helper()
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return w.ask("POST", "/files/compose", b, "Content-Type", "application/json")
	}
	wantAnswer(t, "compose", compose(map[string]any{"source_paths": []string{"parts/1", "parts/3", "parts/2"}, "destination": "parts/whole"}), 200,
		`{"path":"/home/user/parts/whole","name":"whole","type":"file"}`)
	if got := w.ask("GET", "/files?path=parts/whole", nil); got.body != "onetwo" {
		t.Errorf("got %+v", got)
	}
	if got := w.ask("GET", "/files?path=parts/1", nil); got.status != 404 {
		t.Errorf("a source is left: %+v", got)
	}
	wantAnswer(t, "a missing source", compose(map[string]any{"source_paths": []string{"parts/whole", "parts/none"}, "destination": "parts/x"}), 404, `{"code":404,"message":"path '/home/user/parts/none' does not exist"}`)
	if got := w.ask("GET", "/files?path=parts/whole", nil); got.body != "onetwo" {
		t.Errorf("a source is gone although nothing was made of it: %+v", got)
	}
	if got := compose(map[string]any{"destination": "x"}); got.status != 400 {
		t.Errorf("no sources: got %+v", got)
	}
}

func (w *wire) otherRoutes(t *testing.T) {
	w = w.with(t)
	wantAnswer(t, "health", w.ask("GET", "/health", nil), 204, "")
	wantAnswer(t, "envs", w.ask("GET", "/envs", nil), 200, `{"A":"b"}`)
	wantAnswer(t, "init", w.ask("POST", "/init", []byte("{}")), 404, `{"code":404,"message":"there is no such route"}`)
	var m map[string]float64
	decode(t, w.ask("GET", "/metrics", nil).body, &m)
	for _, k := range []string{"ts", "cpu_count", "mem_total", "mem_used", "disk_used", "disk_total", "mem_total_mib", "mem_used_mib"} {
		if m[k] <= 0 {
			t.Errorf("%s: got %v", k, m[k])
		}
	}
	if _, ok := m["cpu_used_pct"]; !ok || m["mem_used"] > m["mem_total"] {
		t.Errorf("got %v", m)
	}
	// As the JavaScript SDK sends a unary call.
	got := w.ask("POST", "/filesystem.Filesystem/Stat", []byte(`{"path":"/home/user/nothing-here"}`), "Content-Type", "application/json", "Connect-Protocol-Version", "1")
	var e struct{ Code, Message string }
	decode(t, got.body, &e)
	if got.status != 404 || e.Code != "not_found" || !strings.Contains(e.Message, "nothing-here") {
		t.Errorf("got %+v", got)
	}
	other := *w
	for _, tt := range []struct {
		what, id, port string
		status         int
		body           string
	}{
		{"another port", w.id, "8000", 502, `{"sandboxId":"` + w.id + `","message":"The sandbox is running but port is not open","port":8000,"code":502}`},
		{"unknown sandbox", strings.Repeat("a", 20), "49983", 502, `{"sandboxId":"` + strings.Repeat("a", 20) + `","message":"The sandbox was not found","code":502}`},
		{"a name is no ID", w.name, "49983", 502, `{"sandboxId":"` + w.name + `","message":"The sandbox was not found","code":502}`},
		{"bad ID", "../x", "49983", 400, `{"code":400,"message":"Invalid sandbox ID"}`},
		{"no port", w.id, "", 400, `{"code":400,"message":"missing header"}`},
		{"no ID", "", "49983", 400, `{"code":400,"message":"missing header"}`},
		{"bad port", w.id, "x", 400, `{"code":400,"message":"Invalid sandbox port"}`},
	} {
		other.http = w.plain(t)
		wantAnswer(t, tt.what, other.ask("GET", "/health", nil, "E2b-Sandbox-Id", tt.id, "E2b-Sandbox-Port", tt.port), tt.status, tt.body)
	}
}

// fullDisk: a file that does not fit is refused, and leaves nothing.
func fullDisk(t *testing.T) {
	b := create(t, setup(t), "full", "--disk", "16M")
	w := reach(t, b)
	got := w.ask("POST", "/files?path=big", make([]byte, 32<<20), "Content-Type", octets)
	if got.status != 507 || !strings.Contains(got.body, `"code":507`) {
		t.Errorf("got %d %s", got.status, clip(got.body))
	}
	if got := w.ask("GET", "/files?path=big", nil); got.status != 404 {
		t.Errorf("half a file was left: %d", got.status)
	}
}
