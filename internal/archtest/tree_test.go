package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/belljar-sh/belljar"

// source is one parsed Go file.
type source struct {
	Path      string // from the root of the repository, with slashes
	Test      bool   // name ends in _test.go
	Generated bool
	Text      string
	AST       *ast.File
	Fset      *token.FileSet
}

// Dir is the package directory from the root; "." is the root.
func (s *source) Dir() string { return path.Dir(s.Path) }

// Main reports whether the file belongs to a program.
func (s *source) Main() bool { return s.AST.Name.Name == "main" }

// At names a place in the file.
func (s *source) At(p token.Pos) string {
	pos := s.Fset.Position(p)
	return s.Path + ":" + strconv.Itoa(pos.Line)
}

// Imports lists import paths; those of this module begin with "./".
func (s *source) Imports() []string {
	var out []string
	for _, imp := range s.AST.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		if rest, ok := strings.CutPrefix(p, module+"/"); ok {
			p = "./" + rest
		}
		out = append(out, p)
	}
	return out
}

var generatedRE = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func parseSource(name, text string) (*source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{
		Path:      name,
		Test:      strings.HasSuffix(name, "_test.go"),
		Generated: generatedRE.MatchString(text),
		Text:      text,
		AST:       f,
		Fset:      fset,
	}, nil
}

// planted parses text as if it stood at name; tests of the rules use it.
func planted(t *testing.T, name, text string) *source {
	t.Helper()
	s, err := parseSource(name, text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// textFile is a file of any kind that people read.
type textFile struct{ Path, Text string }

type repository struct {
	Root    string
	Sources []*source
	Texts   []textFile
}

var loadOnce = sync.OnceValues(load)

// tree returns the repository that the test runs in.
func tree(t *testing.T) *repository {
	t.Helper()
	r, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func load() (*repository, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	r := &repository{Root: filepath.Dir(filepath.Dir(wd))}
	err = filepath.WalkDir(r.Root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(r.Root, p)
		if err != nil {
			return err
		}
		return r.add(filepath.ToSlash(rel), d)
	})
	return r, err
}

// skippedDirs hold nothing of ours that is read: build results and history.
var skippedDirs = map[string]bool{".git": true, "bin": true, "dist": true}

func (r *repository) add(rel string, d fs.DirEntry) error {
	name := d.Name()
	if d.IsDir() {
		if skippedDirs[rel] || strings.HasPrefix(name, "_") { // as the go command does
			return fs.SkipDir
		}
		return nil
	}
	if !d.Type().IsRegular() || !readable(rel) {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(r.Root, rel))
	if os.IsNotExist(err) {
		return nil // an editor's file that has gone meanwhile
	}
	if err != nil {
		return err
	}
	r.Texts = append(r.Texts, textFile{rel, string(data)})
	if strings.HasSuffix(name, ".go") && !strings.Contains("/"+rel, "/testdata/") {
		s, err := parseSource(rel, string(data))
		if err != nil {
			return err
		}
		r.Sources = append(r.Sources, s)
	}
	return nil
}

var readableExt = map[string]bool{
	".go": true, ".md": true, ".sh": true, ".txt": true, ".yaml": true, ".yml": true, ".json": true,
	".mod": true, ".proto": true, ".py": true, ".js": true, "": true,
}

// readable leaves out what is not written by people: checksums, fuzz corpora
// and data.
func readable(rel string) bool {
	return readableExt[path.Ext(rel)] && !strings.Contains("/"+rel, "/testdata/fuzz/")
}

// match reports whether the package directory dir is covered by pattern:
// "a/b" is itself, "a/b/..." is it and everything beneath.
func match(pattern, dir string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return dir == base || strings.HasPrefix(dir, base+"/")
	}
	return dir == pattern
}

// report fails t with every finding, or passes.
func report(t *testing.T, findings []string) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}
