package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// archive makes a tar archive of headers; a regular file's content is its
// Linkname.
func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tiny imports a template that holds one static program and nothing else: no
// shell, no library, no /etc/passwd.
func tiny(t testing.TB, e *testenv.Env) {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(e.Bin, "belljar"))
	if err != nil {
		t.Fatal(err)
	}
	a := archive(t, tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "bin/program", Typeflag: tar.TypeReg, Mode: 0o755, Linkname: string(program)})
	cmd := e.Command("template", "import", "tiny", "-")
	cmd.Stdin = bytes.NewReader(a)
	want(t, e.Finish(cmd), 0)
}

// TestTemplateWithoutShell: a template with neither /bin/sh nor any other
// program works for what it has and says what is missing.
func TestTemplateWithoutShell(t *testing.T) {
	e := setup(t)
	tiny(t, e)
	r := want(t, e.Belljar("run", "--template", "tiny", "--", "/bin/program", "version"), 0)
	if !strings.HasPrefix(r.Stdout, "belljar 0.") {
		t.Errorf("%q", r.Stdout)
	}
	want(t, e.Belljar("run", "--template", "tiny", "-u", "root", "--", "program", "version"), 0)
	r = want(t, e.Belljar("run", "--template", "tiny", "--", "/bin/sh", "-c", "true"), 127)
	contains(t, r.Stderr, `"/bin/sh"`, "no such program in the sandbox")
	b := create(t, e, "work", "--template", "tiny")
	want(t, b.exec("sh"), 127)
	want(t, e.Belljar("cp", "work:/bin/program", filepath.Join(e.Home, "p")), 0)
}

// TestTemplateInUse: a template that a sandbox uses cannot be removed; ls, rm
// and names behave.
func TestTemplateInUse(t *testing.T) {
	e := setup(t)
	tiny(t, e)
	create(t, e, "work", "--template", "tiny")
	r := want(t, e.Belljar("template", "rm", "tiny"), 125)
	contains(t, r.Stderr, `template "tiny"`)
	contains(t, want(t, e.Belljar("template", "ls"), 0).Stdout, "tiny", "imported", "host")
	cmd := e.Command("template", "import", "tiny", "-")
	cmd.Stdin = bytes.NewReader(archive(t, tar.Header{Name: "x", Typeflag: tar.TypeReg}))
	contains(t, want(t, e.Finish(cmd), 125).Stderr, "the name is taken")
	want(t, e.Belljar("kill", "work"), 0)
	want(t, e.Belljar("template", "rm", "tiny"), 0)
	want(t, e.Belljar("template", "rm", "tiny"), 125)
	contains(t, want(t, e.Belljar("run", "--template", "tiny", "--", "true"), 125).Stderr, `template "tiny": no such template`)
	want(t, e.Belljar("template", "rm", "host"), 125)
}

// TestTemplateImportHostile: an archive that reaches out of its root is
// refused with the name of the entry, and nothing is left of it.
func TestTemplateImportHostile(t *testing.T) {
	e := testenv.New(t)
	canary := filepath.Join(e.Home, "canary")
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Linkname: "x"}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
	}
	for name, headers := range map[string][]tar.Header{
		"dot dot":             {file("ok"), file("../canary")},
		"dot dot inside":      {file("a/../../canary")},
		"absolute":            {file(canary)},
		"hard link out":       {{Name: "l", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}},
		"through a link":      {link("d", filepath.Dir(canary)), file("d/canary")},
		"through a chain":     {link("a", "b"), link("b", ".."), file("a/canary")},
		"block device":        {{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666}},
		"character device":    {{Name: "mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666}},
		"nothing in it":       {},
		"escape in the name":  {file("ok"), file("../\x1b[31mred")},
		"file over directory": {{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}, file("d/x"), link("d", "/tmp"), file("d/y")},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := e.Command("template", "import", "evil", "-")
			cmd.Stdin = bytes.NewReader(archive(t, headers...))
			r := e.Finish(cmd)
			if r.Code != 125 || !strings.HasPrefix(r.Stderr, "belljar: ") || strings.ContainsRune(r.Stderr, 0x1b) {
				t.Errorf("%d, %q", r.Code, r.Stderr)
			}
			if _, err := os.Lstat(canary); err == nil {
				t.Error("the canary was written")
			}
			if ls := want(t, e.Belljar("template", "ls"), 0); strings.Contains(ls.Stdout, "evil") {
				t.Errorf("something is left: %s", ls.Stdout)
			}
		})
	}
	for name, in := range map[string][]byte{
		"not an archive": []byte("hello, this is no archive at all"),
		"cut off":        archive(t, file("a"), file("b"))[:1100],
		"empty":          nil,
		"gzip cut off":   gzipped(t, archive(t, file("a"), file("b")))[:60],
	} {
		t.Run(name, func(t *testing.T) {
			cmd := e.Command("template", "import", "evil", "-")
			cmd.Stdin = bytes.NewReader(in)
			if r := want(t, e.Finish(cmd), 125); !strings.HasPrefix(r.Stderr, "belljar: ") {
				t.Errorf("%q", r.Stderr)
			}
		})
	}
	for _, tc := range [][]string{
		{"template", "import", "x", "/no/such"}, {"template", "import", "../x", "."}, {"template", "import", "host", "."},
		{"template", "import", "x", "/dev/null"}, {"template", "build", "gentoo"},
	} {
		r := want(t, e.Belljar(tc...), 125)
		if !strings.HasPrefix(r.Stderr, "belljar: ") {
			t.Errorf("%v: %q", tc, r.Stderr)
		}
	}
	left, err := os.ReadDir(filepath.Join(e.State, "templates"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range left {
		if !strings.HasPrefix(n.Name(), ".lock") && n.Name() != ".host" {
			t.Errorf("%s is left", n.Name())
		}
	}
}

func gzipped(t testing.TB, in []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(in); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDemo: every example ends as its table says.
func TestDemo(t *testing.T) {
	e := setup(t)
	cmd := exec.CommandContext(t.Context(), "go", "run", "-p", "2", "./examples", "--bin", e.Bin, "--quiet")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
