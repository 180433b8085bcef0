package paths

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/sandbox"
)

// entry is one entry of an archive: a directory when its name ends in a slash,
// a link or hard link when it has a target, else a file unless kind says
// otherwise.
type entry struct {
	name, body, link, hard string
	mode                   int64
	kind                   byte
	mtime                  time.Time
	xattr                  map[string]string
}

func archiveOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.body)), ModTime: e.mtime, Typeflag: tar.TypeReg, PAXRecords: map[string]string{}}
		switch {
		case e.kind != 0:
			h.Typeflag = e.kind
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		case e.hard != "":
			h.Typeflag, h.Linkname = tar.TypeLink, e.hard
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1e9, 0)
		}
		for k, v := range e.xattr {
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if h.Typeflag == tar.TypeChar {
			h.Devmajor, h.Devminor = 1, 3
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("%q: %v", e.name, err)
		}
		io.WriteString(w, e.body)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func withStdin(cmd *exec.Cmd, raw []byte) *exec.Cmd {
	cmd.Stdin = bytes.NewReader(raw)
	return cmd
}

// extract unpacks raw in every place where archives are unpacked: in the
// sandbox through the API and through cp, on the host as a template, and on the
// host as what a guest sends to be copied out.
func (c *caseRun) extract(raw []byte) {
	c.t.Helper()
	c.mkdir()
	c.try("api tar", func(ctx context.Context) (string, error) {
		return "", c.api.PutTar(ctx, c.name, c.dir+"/api", "", bytes.NewReader(raw))
	})
	c.mischief("mkdir", c.dir+"/cp")
	c.cli("cp - in", bytes.NewReader(raw), "cp", "-", c.name+":"+c.dir+"/cp")
	c.importTemplate("import", raw)
	c.place(raw)
}

// importTemplate imports raw; what fails leaves nothing.
func (c *caseRun) importTemplate(way string, raw []byte, flags ...string) *attempt {
	c.t.Helper()
	name := "v-" + strings.ToLower(strings.ReplaceAll(path.Base(c.dir), "_", "-"))
	a := c.cli("template "+way, bytes.NewReader(raw), append(append([]string{"template", "import"}, flags...), name, "-")...)
	root := filepath.Join(c.State, "templates", name)
	if a.err != nil {
		if _, err := os.Lstat(root); err == nil {
			c.t.Errorf("a template is left after %v", a.err)
		}
		left, err := filepath.Glob(filepath.Join(c.State, "templates", ".tmp-*"))
		if err != nil || len(left) > 0 {
			c.t.Errorf("left after a failed import: %v, %v", left, err)
		}
		return a
	}
	c.checkTree(root, true)
	if r := c.Belljar("template", "rm", name); r.Code != 0 {
		c.t.Errorf("rm: %s", r.Stderr)
	}
	return a
}

// place unpacks raw on the host as cp does with what comes out of a sandbox: an
// honest guest never sends such a stream, so it is given to the code itself.
func (c *caseRun) place(raw []byte) {
	c.t.Helper()
	dst := path.Join(c.tmp, "placed")
	c.try("unpack on host", func(ctx context.Context) (string, error) {
		_, _, err := archive.Place(ctx, dst, bytes.NewReader(raw), archive.Options{Links: archive.LinksSkip, Devices: archive.DevicesSkip, Umask: 0o022})
		return "", err
	})
	if _, err := os.Lstat(dst); err == nil {
		c.checkTree(dst, false)
	}
	left, err := filepath.Glob(path.Join(c.tmp, ".belljar-tmp-*"))
	if err != nil || len(left) > 0 {
		c.t.Errorf("left: %v, %v", left, err)
	}
}

// checkTree looks at what an archive left on the host: no device, FIFO, socket
// or capability, no set-id bit outside a template of root's, no time out of
// bounds.
func (c *caseRun) checkTree(root string, template bool) {
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK:
		default:
			c.t.Errorf("%s has mode %o", p, st.Mode)
		}
		if !template && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && st.Mode&unix.S_IFMT == unix.S_IFREG {
			c.t.Errorf("%s has mode %o", p, st.Mode)
		}
		if !template && int(st.Uid) != os.Geteuid() {
			c.t.Errorf("%s belongs to %d", p, st.Uid)
		}
		if n, err := unix.Lgetxattr(p, "security.capability", nil); err == nil {
			c.t.Errorf("%s has a capability of %d bytes", p, n)
		}
		if st.Mtim.Sec > time.Now().Unix()+60 {
			c.t.Errorf("%s has a time of %d", p, st.Mtim.Sec)
		}
		return nil
	})
	c.must(err)
	if info, err := os.Stat(root); template && (err != nil || info.Mode().Perm() != 0o700) {
		c.t.Errorf("a template's directory has mode %v, %v: its set-id files can be reached", info.Mode(), err)
	}
}

// extractNames unpacks a file of this name.
func extractNames(name string) scenario {
	return func(c *caseRun) {
		name := name
		if strings.HasPrefix(c.fill(name), "/") || strings.Contains(name, "HOST_") {
			name = "/" + strings.TrimPrefix(c.fill(name), "/")
		}
		c.extract(archiveOf(c.t, entry{name: "first", body: "x"}, entry{name: name, body: "evil"}))
	}
}

func extractHardLink(target string) scenario {
	return func(c *caseRun) {
		c.extract(archiveOf(c.t, entry{name: "h", hard: c.fill(target)}, entry{name: "h", body: "evil"}))
	}
}

// extractThroughLink has links and then entries behind them.
func extractThroughLink(c *caseRun) {
	for _, to := range []string{c.base, "..", "../../../../../../../.." + c.base, "."} {
		c.extract(archiveOf(c.t, entry{name: "l", link: to}, entry{name: "l/absent", body: "evil"}))
	}
	c.extract(archiveOf(c.t, entry{name: "l", link: c.absent}, entry{name: "l", kind: tar.TypeReg, body: "x"}, entry{name: "m", link: "l"}, entry{name: "m/absent", body: "evil"}))
}

// extractLinkOut has links that lead out, which nothing follows.
func extractLinkOut(c *caseRun) {
	for _, to := range []string{c.canary, "../../../../../../../.." + c.canary} {
		n := len(c.tries)
		c.extract(archiveOf(c.t, entry{name: "d/", mode: 0o755}, entry{name: "d/l", link: to}, entry{name: "d/f", body: "x"}))
		for i := n; i < len(c.tries); i++ {
			// A template is somebody's root, in which absolute links stay; what is
			// copied out leaves such links behind.
			if a := &c.tries[i]; strings.HasPrefix(a.way, "template") || strings.HasPrefix(a.way, "unpack") {
				a.want = "ok_or_invalid"
			}
		}
	}
}

func extractMetadata(c *caseRun) {
	attributes := []entry{
		{name: "t/", mode: 0o7777},
		{name: "t/suid", body: "#!", mode: 0o6755, mtime: time.Unix(1e18, 0), xattr: map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00"}},
	}
	device := entry{name: "t/null", kind: tar.TypeChar, mode: 0o666}
	fifo := entry{name: "t/fifo", kind: tar.TypeFifo, mode: 0o666}
	all := archiveOf(c.t, append(attributes, device, fifo)...)
	c.mkdir()
	c.try("api tar", func(ctx context.Context) (string, error) {
		return "", c.api.PutTar(ctx, c.name, c.dir+"/api", "", bytes.NewReader(all))
	})
	c.checkInside(c.dir + "/api/t")
	c.mischief("mkdir", c.dir+"/cp")
	c.cli("cp - in", bytes.NewReader(all), "cp", "-", c.name+":"+c.dir+"/cp")
	c.checkInside(c.dir + "/cp/t")
	c.importTemplate("import", archiveOf(c.t, attributes...))
	c.importTemplate("import --skip-devices", all, "--skip-devices")
	a := c.importTemplate("import of a device", all)
	a.want, a.note = "invalid", "refused unless --skip-devices is given"
	c.place(all)

	// The same things made inside, as root, and copied out by the real guest.
	inside := c.dir + "/made"
	for _, args := range [][]string{{"mkdir", inside}, {"write", inside + "/suid", "#!"}, {"mode", inside + "/suid", "6755"}, {"fifo", inside + "/fifo"}, {"socket", inside + "/sock"}, {"node", inside + "/null"}} {
		if out, err := c.mischiefAs(c.name, "root", args...); err != nil {
			c.t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	out := c.hostFile()
	c.cli("cp tree out", nil, "cp", c.name+":"+inside, out)
	c.checkTree(out, false)
	if _, err := os.Stat(out + "/suid"); err != nil {
		c.t.Error(err)
	}
}

// checkInside looks at what an archive left in the sandbox.
func (c *caseRun) checkInside(dir string) {
	entries, err := c.api.ReadDir(c.t.Context(), c.name, dir, "", 1)
	c.must(err)
	for _, e := range entries {
		if e.Name != "suid" || e.Mode&0o7000 != 0 || e.Owner != "user" || e.ModTime.After(time.Now().Add(time.Minute)) {
			c.t.Errorf("inside there is %+v", e)
		}
	}
}

// extractBomb is small and grows very large.
func extractBomb(c *caseRun) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	const size = 400 << 20
	c.must(w.WriteHeader(&tar.Header{Name: "bomb", Size: size, Mode: 0o644, Typeflag: tar.TypeReg}))
	block := make([]byte, 1<<20)
	for range size >> 20 {
		_, err := w.Write(block)
		c.must(err)
	}
	c.must(w.Close())
	c.must(z.Close())
	c.importTemplate("import", b.Bytes())
	c.place(b.Bytes())
	for i := range c.tries {
		c.tries[i].want = "limit"
	}
}

// extractMany has more entries than are taken.
func extractMany(n int64) scenario {
	return func(c *caseRun) {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			var err error
			for i := int64(0); i < n && err == nil; i++ {
				err = tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("t/%d/%d", i/1000, i), Mode: 0o644, Typeflag: tar.TypeReg})
			}
			w.CloseWithError(err)
		}()
		defer r.Close()
		a := c.try("unpack on host", func(ctx context.Context) (string, error) {
			o := archive.Options{Limits: archive.Limits{Entries: min(n/2, 10_000)}}
			_, _, err := archive.Place(ctx, path.Join(c.tmp, "placed"), r, o)
			return "", err
		})
		a.want, a.note = "limit", "with a limit of half as many, at most 10,000"
	}
}

func extractTruncated(c *caseRun) {
	raw := archiveOf(c.t, entry{name: "t/"}, entry{name: "t/f", body: strings.Repeat("x", 100<<10)})
	c.extract(raw[:len(raw)/2])
	for i := range c.tries {
		if sandbox.KindOf(c.tries[i].err) == sandbox.Canceled { // the stream broke off
			c.tries[i].want = "error"
		}
	}
}
