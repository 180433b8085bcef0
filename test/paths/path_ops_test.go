package paths

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// plain takes the argument for a path, as it is and below the home.
func plain(c *caseRun) {
	forms := []string{c.arg}
	if c.arg != "" && !strings.HasPrefix(c.arg, "/") {
		forms = append(forms, home+"/"+c.arg)
	}
	for _, p := range forms {
		c.plainPath(p)
	}
	if strings.Contains(c.arg, "%") { // as it would stand in a URL
		c.rawQuery(home + "/" + c.arg)
	}
}

func (c *caseRun) plainPath(p string) {
	switch c.v.Request.Op {
	case "read":
		c.read(p)
	case "write":
		c.writeTo(p)
	case "list":
		c.list(p)
	case "delete":
		c.try("api delete", func(ctx context.Context) (string, error) { return "", c.api.Remove(ctx, c.name, p, "") })
		c.e2bCall("e2b delete", "Remove", p)
	case "stat":
		c.e2bCall("e2b stat", "Stat", p)
		c.try("api stat", func(ctx context.Context) (string, error) {
			e, err := c.api.Stat(ctx, c.name, p, "")
			return e.Path, err
		})
	}
}

func (c *caseRun) list(p string) *attempt {
	c.e2bCall("e2b list", "ListDir", p)
	return c.try("api list", func(ctx context.Context) (string, error) {
		entries, err := c.api.ReadDir(ctx, c.name, p, "", 1)
		return strconv.Itoa(len(entries)), err
	})
}

// rawQuery sends a path without escaping it.
func (c *caseRun) rawQuery(p string) {
	method := map[string]string{"read": http.MethodGet, "write": http.MethodPut, "delete": http.MethodDelete}[c.v.Request.Op]
	if method == "" {
		return
	}
	c.try("http", func(ctx context.Context) (string, error) {
		return c.http(ctx, method, "/files?path="+p, "", strings.NewReader("evil"))
	})
}

// http sends a request to the daemon's socket as it stands.
func (c *caseRun) http(ctx context.Context, method, pathAndQuery, contentType string, body io.Reader) (string, error) {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(c.Run, "daemon.sock"))
	}}
	defer tr.CloseIdleConnections()
	if method == http.MethodGet {
		body = nil
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://belljar"+client.Base+"/sandboxes/"+c.name+pathAndQuery, body)
	if err != nil {
		return "", sandbox.Errorf(sandbox.Invalid, "%w", err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode >= 400 {
		return string(b), sandbox.Errorf(kindOf(resp.StatusCode), "%s", resp.Status)
	}
	return string(b), nil
}

func kindOf(status int) sandbox.Kind {
	switch {
	case status == http.StatusForbidden:
		return sandbox.Denied
	case status == http.StatusNotFound:
		return sandbox.NotFound
	case status == http.StatusConflict:
		return sandbox.Conflict
	case status == http.StatusTooManyRequests, status == http.StatusInsufficientStorage, status == http.StatusRequestEntityTooLarge:
		return sandbox.ResourceExhausted
	case status < 500:
		return sandbox.Invalid
	}
	return sandbox.Internal
}

// each carries the operation out for several paths; '*' stands for any name.
func each(paths ...string) scenario {
	return func(c *caseRun) {
		for _, p := range paths {
			p = strings.ReplaceAll(p, "*", "memory.max")
			c.plainPath(p)
		}
	}
}

// eachOfArg takes the paths from the argument.
func eachOfArg(c *caseRun) {
	var paths []string
	for p := range strings.SplitSeq(c.arg, ",") {
		paths = append(paths, strings.TrimSpace(p))
	}
	each(paths...)(c)
}

// users tries the users that the argument names, and others like them. This
// version has no policy that forbids root inside, so root is none of them.
func users(c *caseRun) {
	for _, u := range []string{"../root", "nobody\n", "root\x00", "/root", "user;id", strings.Repeat("u", 300), "0", "1000"} {
		c.try(fmt.Sprintf("api user %.12q", u), func(ctx context.Context) (string, error) { return c.get(ctx, home+"/ok.txt", u) })
		c.try(fmt.Sprintf("e2b user %.12q", u), func(ctx context.Context) (string, error) { return c.e2bGet(ctx, home+"/ok.txt", u) })
	}
	c.cli("cp out", nil, "cp", "-u", "../root", c.name+":ok.txt", c.hostFile())
	c.tries[0].note = "no policy of this version forbids root inside"
}

// multipartName sends a multipart body whose part names a path: the API takes
// bodies as they are and only its own parameter for a path.
func multipartName(c *caseRun) {
	c.mkdir()
	for _, name := range []string{"../../tmp/HOST_WRITE_CANARY", c.absent, "../../../.." + c.absent} {
		var b bytes.Buffer
		m := multipart.NewWriter(&b)
		part, err := m.CreateFormFile("file", name)
		c.must(err)
		io.WriteString(part, "evil")
		c.must(m.Close())
		c.try("http multipart", func(ctx context.Context) (string, error) {
			return c.http(ctx, http.MethodPut, "/files?path="+c.dir+"/ok.txt", m.FormDataContentType(), &b)
		})
		if out, err := c.mischiefAs(c.name, "root", "cat", "/tmp/HOST_WRITE_CANARY", c.absent); err == nil {
			c.t.Errorf("the part's name was a path inside: %s", out)
		}
		c.e2bMultipart(name, c.dir+"/ok.txt")
	}
}

// throughLink makes a link inside and goes through it.
func throughLink(name, target string) scenario {
	return func(c *caseRun) {
		c.mkdir()
		name, target := path.Base(name), c.fill(target)
		p := c.dir + "/" + name
		if target == name { // a loop
			target = p
		}
		c.mischief("link", target, p)
		switch c.v.Request.Op {
		case "read":
			c.read(p)
			c.copyTree()
		case "write":
			c.writeTo(p)
			c.writeTo(p + "/evil")
		case "list":
			c.list(p)
		case "delete":
			c.deleteLink(p, target)
		default:
			c.t.Fatalf("no way to %s through a link", c.v.Request.Op)
		}
	}
}

// copyTree copies the directory with the link out: the link may come along or
// be left out, never what it leads to on the host.
func (c *caseRun) copyTree() {
	out := c.hostFile()
	a := c.cli("cp tree out", nil, "cp", c.name+":"+c.dir, out)
	a.want = "ok_or_invalid"
	filepath.WalkDir(out, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSymlink == 0 {
			return err
		}
		to, err := os.Readlink(p)
		if err == nil && (path.IsAbs(to) || strings.HasPrefix(path.Join(path.Dir(strings.TrimPrefix(p, out+"/")), to), "..")) {
			c.t.Errorf("a link out of the copied tree was made: %s -> %s", p, to)
		}
		return err
	})
	c.checkOut()
}

func (c *caseRun) deleteLink(p, target string) {
	// The same tree inside: it stays too.
	c.mischief("mkdir", target+"/below")
	c.try("api delete", func(ctx context.Context) (string, error) { return "", c.api.Remove(ctx, c.name, p, "") })
	ctx := c.t.Context()
	if _, err := c.api.Stat(ctx, c.name, p, ""); sandbox.KindOf(err) != sandbox.NotFound {
		c.t.Errorf("the link is still there: %v", err)
	}
	if _, err := c.api.Stat(ctx, c.name, target+"/below", ""); err != nil {
		c.t.Errorf("what the link led to is gone: %v", err)
	}
}

// chained goes through a chain of links.
func chained(n int, target string) scenario {
	return func(c *caseRun) {
		c.mkdir()
		if target == "" {
			target = home + "/ok.txt"
		}
		c.mischief("chain", c.dir+"/c", strconv.Itoa(n), c.fill(target))
		c.plainPath(c.dir + "/c")
	}
}

func listLinks(n int64, target string) scenario {
	return func(c *caseRun) {
		c.mkdir()
		c.mischief("links", c.dir, strconv.FormatInt(n, 10), c.fill(target))
		for range 6 { // the time is that of the machine when it is not busy
			a := c.list(c.dir)
			if a.err == nil && a.out != strconv.FormatInt(n, 10) {
				c.t.Errorf("listed %s links, want %d", a.out, n)
			}
			if ms := c.v.Expect.MaxMS; ms == 0 || a.took.Milliseconds() <= ms {
				return
			}
		}
	}
}

func readFIFO(c *caseRun) {
	c.mkdir()
	c.mischief("fifo", c.dir+"/fifo")
	c.read(c.dir + "/fifo")
}

func writeFIFO(c *caseRun) {
	c.mkdir()
	c.mischief("fifo", c.dir+"/fifo")
	c.writeTo(c.dir + "/fifo")
}

func readSocket(c *caseRun) {
	c.mkdir()
	c.mischief("socket", c.dir+"/socket")
	c.read(c.dir + "/socket")
}

// readSparse streams the beginning of a huge file, and copies out as much as
// the time allows of it: memory must not grow either way.
func readSparse(size int64) scenario {
	return func(c *caseRun) {
		c.mkdir()
		c.mischief("sparse", c.dir+"/sparse", strconv.FormatInt(size, 10))
		const enough = 512 << 20
		for _, from := range []int64{0, size - enough} {
			c.try("api read", func(ctx context.Context) (string, error) {
				f, err := c.api.GetFile(ctx, c.name, c.dir+"/sparse", "", max(0, from))
				if err != nil {
					return "", err
				}
				defer f.Close()
				n, err := io.Copy(io.Discard, io.LimitReader(f, enough))
				if err == nil && n != min(enough, size) {
					c.t.Errorf("read %d bytes, want %d", n, min(enough, size))
				}
				return "", err
			}).note = "512 MiB from each end"
		}
		a := c.cli("cp out", nil, "cp", c.name+":"+c.dir+"/sparse", c.hostFile())
		a.note = "over the limit of an unpacking"
		if size > 64<<30 && a.err == nil {
			c.t.Error("more than the limit was copied out")
		}
		c.mischief("sparse", c.dir+"/sparse", "0")
	}
}

// execCwd starts a process in every descriptor that could have been left open.
func execCwd(c *caseRun) {
	for n := 3; n <= 255; n++ {
		if n > 32 && n%16 != 15 { // all of the low ones, then samples
			continue
		}
		execIn(fmt.Sprintf("/proc/self/fd/%d", n))(c)
	}
	c.tries[0].note = "3 to 32, then every 16th"
}

func execIn(dir string) scenario {
	return func(c *caseRun) {
		c.try("api exec", func(ctx context.Context) (string, error) {
			var out bytes.Buffer
			_, err := c.api.Exec(ctx, c.name, client.ExecOptions{
				Argv: []string{home + "/mischief", "cat", "canary", "../canary", "." + c.canary}, Cwd: dir,
				Streams: client.Streams{Stdout: &out},
			})
			return out.String(), err
		})
	}
}

// watchMany watches more directories than a watch takes. Making a million of
// them would take all of the sandbox's memory, so they are as many as the
// guest's own limit needs.
func watchMany(n int64) scenario {
	const over = 9000 // the guest watches 8192
	return func(c *caseRun) {
		c.mkdir()
		c.mischief("dirs", c.dir, strconv.FormatInt(min(n, over), 10))
		a := c.try("api watch", func(ctx context.Context) (string, error) {
			watch, err := c.api.Watch(ctx, c.name, c.dir, "", true)
			if err != nil {
				return "", err
			}
			return "", watch.Close()
		})
		a.note = fmt.Sprintf("%d directories: the limit is 8192", min(n, over))
		c.slowReader()
	}
}

// slowReader watches a directory and reads nothing while very much happens.
func (c *caseRun) slowReader() {
	dir := c.dir + "/slow"
	c.mischief("mkdir", dir)
	a := c.try("api watch, not read", func(ctx context.Context) (string, error) {
		watch, err := c.api.Watch(ctx, c.name, dir, "", true)
		if err != nil {
			return "", err
		}
		defer watch.Close()
		if out, err := c.mischiefAs(c.name, "", "links", dir, "20000", "/"); err != nil {
			return out, err
		}
		// Then it is told what it missed, if it missed anything.
		for range 20000 {
			ev, err := watch.Next()
			if err != nil || ev.Dropped > 0 {
				return "", err
			}
		}
		return "", nil
	})
	a.want, a.note = "ok_or_limit", "20,000 events"
}

// nameOf writes a file whose name has n bytes.
func nameOf(n int64) scenario {
	return func(c *caseRun) {
		c.mkdir()
		c.writeTo(c.dir + "/" + strings.Repeat("n", int(n)))
	}
}

func pathOf(n int64) scenario {
	return func(c *caseRun) {
		p := home + "/" + strings.Repeat("d/", int(n)/2) + "f"
		c.rawQuery(p)
		if n < 100<<10 { // more does not fit into an argument of a program
			c.cli("cp out", nil, "cp", c.name+":"+p, c.hostFile())
		}
	}
}

// names writes files of these names and finds every one of them again, byte by
// byte, in a listing and on the host.
func names(all ...string) scenario {
	return func(c *caseRun) {
		c.mkdir()
		for _, n := range all {
			p := c.dir + "/" + n
			c.try("api write", func(ctx context.Context) (string, error) {
				_, err := c.putFile(ctx, p, n)
				return "", err
			})
			c.try("e2b write", func(ctx context.Context) (string, error) { return c.e2bPut(ctx, p, n) })
			src := path.Join(c.tmp, "src")
			c.must(os.WriteFile(src, []byte(n), 0o644))
			c.cli("cp in", nil, "cp", src, c.name+":"+c.dir+"/cp."+n)
			c.oneLine(p)
		}
		entries, err := c.api.ReadDir(c.t.Context(), c.name, c.dir, "", 1)
		c.must(err)
		var got []string
		for _, e := range entries {
			raw := e.Path
			if e.RawPath != nil {
				raw = string(e.RawPath)
			}
			got = append(got, path.Base(raw))
		}
		out := c.hostFile()
		c.cli("cp tree out", nil, "cp", c.name+":"+c.dir, out)
		c.checkNames(all, got, out)
	}
}

func (c *caseRun) checkNames(all, got []string, out string) {
	for _, n := range all {
		for _, name := range []string{n, "cp." + n} {
			if !slices.Contains(got, name) {
				c.t.Errorf("%q is not in the listing %q", name, got)
			}
			if b, err := os.ReadFile(out + "/" + name); err != nil || string(b) != n {
				c.t.Errorf("%q was copied out as %q, %v", name, b, err)
			}
		}
	}
	if c.v.Expect.Files > 0 && len(all) != c.v.Expect.Files {
		c.t.Errorf("%d files, want %d", len(all), c.v.Expect.Files)
	}
	back := path.Join(c.dir, "back")
	c.cli("cp tree in", nil, "cp", out, c.name+":"+back)
	entries, err := c.api.ReadDir(c.t.Context(), c.name, back, "", 1)
	if err != nil || len(entries) != 2*len(all) {
		c.t.Errorf("%d files came back, want %d (%v)", len(entries), 2*len(all), err)
	}
}

// oneLine has the command line complain of a path: it does so in one line, with
// nothing in it that drives a terminal.
func (c *caseRun) oneLine(p string) {
	r := c.Belljar("cp", c.name+":"+p+"/none", c.hostFile())
	c.checkPrinted("cp", r.Stderr)
	lines := strings.Split(strings.TrimSpace(r.Stderr), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "hint: ") })
	if r.Code == 0 || len(lines) != max(1, c.v.Expect.Lines) {
		c.t.Errorf("code %d and %d lines about %q: %q", r.Code, len(lines), p, r.Stderr)
	}
}

func withNUL(c *caseRun) {
	p := home + "/ok.txt\x00.jpg"
	if c.v.Request.Op == "write" {
		c.try("api write", func(ctx context.Context) (string, error) {
			_, err := c.putFile(ctx, p, "evil")
			return "", err
		})
		return
	}
	c.try("api read", func(ctx context.Context) (string, error) { return c.get(ctx, p, "") })
	c.try("http", func(ctx context.Context) (string, error) {
		return c.http(ctx, http.MethodGet, "/files?path="+home+"/ok.txt%00.jpg", "", nil)
	})
	c.try("e2b read", func(ctx context.Context) (string, error) { return c.e2bGet(ctx, p, "") })
}

// diskFull overwrites a file while the disk is full.
func diskFull(c *caseRun) {
	const box, size = "full", 4 << 20
	c.create(c.t, box, sandbox.Spec{Limits: sandbox.Limits{DiskBytes: 64 << 20}})
	defer c.api.Kill(c.t.Context(), box)
	old := strings.Repeat("old", size/3)
	c.put(c.t, box, home+"/old", old)
	if out, err := c.mischiefAs(box, "", "fill", home+"/filler"); err != nil {
		c.t.Fatalf("fill: %v: %s", err, out)
	}
	fresh := strings.Repeat("new", size/3)
	c.try("api write", func(ctx context.Context) (string, error) {
		_, err := c.api.PutFile(ctx, box, home+"/old", "", 0, strings.NewReader(fresh), int64(len(fresh)))
		return "", err
	})
	src := path.Join(c.tmp, "src")
	c.must(os.WriteFile(src, []byte(fresh), 0o644))
	c.cli("cp in", nil, "cp", src, box+":"+home+"/old")
	f, err := c.api.GetFile(c.t.Context(), box, home+"/old", "", 0)
	c.must(err)
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != old {
		c.t.Errorf("the old content is gone: %d bytes, %v", len(got), err)
	}
	entries, err := c.api.ReadDir(c.t.Context(), box, home, "", 1)
	c.must(err)
	for _, e := range entries {
		if !slices.Contains([]string{"old", "filler", "mischief"}, e.Name) && !strings.HasPrefix(e.Name, ".bash") && e.Name != ".profile" {
			c.t.Errorf("a half file was left: %s", e.Name)
		}
	}
}
