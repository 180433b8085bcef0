package workspace

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// callerDir is a directory of the caller's.
type callerDir struct {
	t    *testing.T
	path string
	dir  *os.File
}

func newPlace(t *testing.T) *callerDir {
	t.Helper()
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return &callerDir{t, path, dir}
}

// put writes files; a name that ends in a slash is a directory.
func (p *callerDir) put(files ...string) {
	p.t.Helper()
	for _, f := range files {
		name, content, _ := strings.Cut(f, "=")
		full := filepath.Join(p.path, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(full, 0o755); err != nil {
				p.t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			p.t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *callerDir) link(target, name string) {
	p.t.Helper()
	if err := os.Symlink(target, filepath.Join(p.path, name)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *callerDir) take() Baseline {
	p.t.Helper()
	b, err := Take(p.t.Context(), p.dir)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// scan returns the findings as "kind path".
func (p *callerDir) scan(b Baseline) []string {
	p.t.Helper()
	r, err := Scan(p.t.Context(), p.dir, b)
	if err != nil || r.Incomplete != "" {
		p.t.Fatalf("Scan: %v, incomplete %q", err, r.Incomplete)
	}
	var got []string
	for _, f := range r.Findings {
		got = append(got, string(f.Kind)+" "+f.Path)
	}
	worstFirst := func(a, b Finding) int {
		return cmp.Or(danger(b.Kind)-danger(a.Kind), strings.Compare(a.Path, b.Path))
	}
	if !slices.IsSortedFunc(r.Findings, worstFirst) {
		p.t.Errorf("the findings are not in order: %q", got)
	}
	slices.Sort(got)
	return got
}

const plainConfig = "[core]\n\tbare = false\n"

func TestScan(t *testing.T) {
	t.Parallel()
	old := []string{
		".git/objects/", ".git/refs/", ".git/config=[alias]\n\tx = !y\n", ".git/hooks/pre-commit=x", ".vscode/settings.json=x",
		".envrc=x", "src/main.go=x", ".github/workflows/ci.yml=x", "sub/.npmrc=x", "node_modules/a/.vscode/x=1",
	}
	tests := []struct {
		name string
		do   func(*callerDir)
		want []string
	}{
		{"nothing", func(*callerDir) {}, nil},
		{"honest work", func(p *callerDir) {
			p.put("src/main.go=y", "src/new.go=y", ".git/index=x", ".git/refs/heads/main=0", ".git/objects/ab/cd=x", "node_modules/b/.vscode/x=1")
			p.link("main.go", "src/link")
			p.link("../src", "src/up")
			p.link("missing", "src/dangling")
			p.link("loop", "src/loop")
		}, nil},
		{"locked files", func(p *callerDir) { p.put(".envrc=y", "sub/.npmrc=y", ".bashrc=y") },
			[]string{"changed .envrc", "changed sub/.npmrc", "made .bashrc"}},
		{"locked directories", func(p *callerDir) {
			p.put(".idea/a=1", ".idea/b/c=1", ".vscode/settings.json=y", ".vscode/tasks.json=y")
		},
			[]string{"changed .vscode/settings.json", "made .idea", "made .vscode/tasks.json"}},
		{"watched names", func(p *callerDir) {
			p.put(".github/workflows/ci.yml=y", "AGENTS.md=y", ".venv/bin/python=y", ".venv/bin/x=y")
		},
			[]string{"changed .github/workflows/ci.yml", "made .venv", "made AGENTS.md"}},
		{"hooks", func(p *callerDir) { p.put(".git/hooks/pre-commit=y", ".git/hooks/post-commit=y") },
			[]string{"changed .git/hooks/pre-commit", "made .git/hooks/post-commit"}},
		{"config", func(p *callerDir) { p.put(".git/config=" + plainConfig) }, []string{"changed .git/config"}},
		{"unsafe config", func(p *callerDir) { p.put(".git/config=[core]\n\tfsmonitor = x\n") }, []string{"unsafe-config .git/config"}},
		{"rebase", func(p *callerDir) { p.put(".git/rebase-merge/git-rebase-todo=exec x") }, []string{"made .git/rebase-merge"}},
		{"new repositories", func(p *callerDir) {
			p.put("a/.git/objects/", "a/.git/refs/", "a/.git/config="+plainConfig, "a/.git/hooks/x.sample=x", "a/.vscode/x=1",
				"b.git/objects/", "b.git/refs/", "b.git/config=[core]\n\tfsmonitor = x\n", "c/.git=gitdir: ../a/.git\n")
		}, []string{"made a/.vscode", "made c/.git", "repository a/.git", "repository b.git", "unsafe-config b.git/config"}},
		{"links out", func(p *callerDir) {
			p.link("/etc/passwd", "src/abs")
			p.link("../../x", "src/up")
			p.link("..", "up")
			p.link("src/up", "twice")
			p.link("/proc/self/root", "proc")
		}, []string{"link-out proc", "link-out src/abs", "link-out src/up", "link-out twice", "link-out up"}},
		{"special files", func(p *callerDir) {
			if err := unix.Mkfifo(filepath.Join(p.path, "fifo"), 0o600); err != nil {
				p.t.Fatal(err)
			}
			l, err := net.Listen("unix", filepath.Join(p.path, "sock"))
			if err != nil {
				p.t.Fatal(err)
			}
			p.t.Cleanup(func() { l.Close() })
		}, []string{"special-file fifo", "special-file sock"}},
	}
	for _, tt := range tests {
		for _, clock := range []string{"by time", "by comparison"} {
			t.Run(tt.name+" "+clock, func(t *testing.T) {
				t.Parallel()
				p := newPlace(t)
				p.put(old...)
				p.link("/etc", "old-link")
				b := p.take()
				if clock == "by comparison" { // as on a remote file system
					b = Baseline{seen: make(map[string]int64)}
					w := walker{ctx: t.Context(), visit: func(e *entry) { b.seen[e.path] = e.ctime() }}
					if err := w.run(p.dir); err != nil {
						t.Fatal(err)
					}
				}
				tt.do(p)
				if got := p.scan(b); !slices.Equal(got, tt.want) {
					t.Errorf("got %q\nwant %q", got, tt.want)
				}
			})
		}
	}
}

func TestScanOfABareRepository(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.put("objects/", "refs/", "config="+plainConfig)
	b := p.take()
	p.put("hooks/update=x", "config=[core]\n\tpager = x\n")
	if got, want := p.scan(b), []string{"made hooks", "unsafe-config config"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestScanKeepsTheWorst: however much there is of what is harmless, what is
// dangerous is listed, and first.
func TestScanKeepsTheWorst(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	b := p.take()
	const links = MaxFindings + 300
	for i := range links {
		p.link("/etc", fmt.Sprintf("a%04d", i))
	}
	p.put("z/.git/config=[core]\n\tpager = x\n", "z/.git/HEAD=x", "z/.git/objects/", "z/.git/refs/", "z/.envrc=x")
	if err := unix.Mkfifo(filepath.Join(p.path, "z/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Scan(t.Context(), p.dir, b)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []FindingKind
	for _, f := range r.Findings[:4] {
		kinds = append(kinds, f.Kind)
	}
	if want := []FindingKind{ConfigUnsafe, RepositoryMade, NameMade, LinkOut}; !slices.Equal(kinds, want) {
		t.Errorf("the list begins with %q, want %q", kinds, want)
	}
	if len(r.Findings) != MaxFindings || r.More != links+4-MaxFindings {
		t.Errorf("%d findings and %d more", len(r.Findings), r.More)
	}
	if last := r.Findings[MaxFindings-1]; last.Kind != LinkOut {
		t.Errorf("the list ends with %v", last)
	}
}

func TestScanIsBounded(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for i := range MaxFindings + 10 {
		p.put(fmt.Sprintf("d%d/.envrc=x", i))
	}
	r, err := Scan(t.Context(), p.dir, Baseline{})
	if err != nil || len(r.Findings) != MaxFindings || r.More != 10 {
		t.Errorf("%d findings and %d more, %v", len(r.Findings), r.More, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err = Scan(ctx, p.dir, Baseline{})
	if err != nil || r.Incomplete == "" {
		t.Errorf("a scan that was cut short: %+v, %v", r.Incomplete, err)
	}
	deep := newPlace(t)
	at := int(deep.dir.Fd())
	for range maxDepth + 10 {
		if err := unix.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		at = fd
	}
	r, err = Scan(t.Context(), deep.dir, Baseline{})
	if err != nil || r.Incomplete == "" {
		t.Errorf("a deep tree: %+v, %v", r, err)
	}
}

func TestFindingIsEscaped(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a/b": "a/b", "日本": "日本", "a b": "a b", "": `""`, "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "a\u202eb": `"a\u202eb"`, "\xff": `"\xff"`, `a"b`: `"a\"b"`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %s, want %s", in, got, want)
		}
	}
	f := Finding{Kind: LinkOut, Path: "x\x1b", Target: "/\n", Reason: "it leads out of the directory"}
	if got := f.String(); strings.ContainsAny(got, "\x1b\n") {
		t.Errorf("a finding prints %q", got)
	}
	if _, err := json.Marshal(Report{Findings: []Finding{f}}); err != nil {
		t.Error(err)
	}
}

// BenchmarkScan is what a run of 50,000 files costs at its end.
func BenchmarkScan(b *testing.B) {
	dir := b.TempDir()
	for i := range 500 {
		sub := filepath.Join(dir, "node_modules", fmt.Sprint(i))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 100 {
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprint(j)), nil, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	base := Baseline{at: time.Now()}
	for b.Loop() {
		if _, err := Scan(b.Context(), f, base); err != nil {
			b.Fatal(err)
		}
	}
}
