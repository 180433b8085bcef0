package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// bannedCall is a use of a name that has a better replacement here.
type bannedCall struct {
	Names   []string // "importpath.Name"; "Name" alone is a builtin or a declaration
	Where   func(*source) bool
	Instead string
	Allow   map[string]string // file: reason
}

func everywhere(*source) bool       { return true }
func inProduct(s *source) bool      { return !s.Test && inPackages(productDirs, s.Dir()) }
func inTests(s *source) bool        { return s.Test }
func inLibrary(s *source) bool      { return inProduct(s) && !s.Main() }
func outsideMain(s *source) bool    { return !s.Test && !s.Main() && !testingPackage(s) }
func testingPackage(s *source) bool { return inPackages(testingDirs, s.Dir()) }

var productDirs = []string{"cmd/...", "internal/...", "sandbox", "client/..."}

// testingDirs are packages whose ordinary files are part of tests.
var testingDirs = []string{"internal/driver/drivertest/...", "internal/testenv/...", "test/..."}

// The names of the standard library's placeholder context and of marks for
// work left undone are put together here so that a search for them finds
// neither this file.
const undone = "TO" + "DO"

var bannedCalls = []bannedCall{
	{
		Names: []string{"context.Background", "context." + undone}, Where: outsideMain,
		Instead: "take a ctx from the caller, or context.WithoutCancel(ctx) for work that must be finished; a program's main makes the first one",
	},
	{
		Names: []string{"os.Exit", "log.Fatal", "log.Fatalf", "log.Fatalln", "syscall.Exit", "golang.org/x/sys/unix.Exit"}, Where: outsideMain,
		Instead: "return an error; main alone turns it into an exit code, after deferred calls have run",
	},
	{
		Names: []string{"time.Sleep"}, Where: inTests,
		Instead: "wait for what you mean (a channel, an event, the end of a process), or use testing/synctest with a timer",
	},
	{
		Names: []string{"os.Create"}, Where: inProduct,
		Instead: "os.OpenFile with O_CREATE|O_EXCL and a mode, or openat2 beneath a directory: os.Create follows a link that a guest may have planted, truncates what it finds and leaves the mode to umask",
	},
	{
		Names: []string{"fmt.Print", "fmt.Printf", "fmt.Println", "print", "println"}, Where: inLibrary,
		Instead: "write to the io.Writer that was handed in; standard output belongs to the command that a sandbox runs",
	},
	{
		Names: []string{"net/http.Get", "net/http.Post", "net/http.PostForm", "net/http.Head", "net/http.DefaultClient", "net/http.DefaultTransport"}, Where: everywhere,
		Instead: "a client of your own with a timeout and a transport that says where it may go; the default ones follow HTTP_PROXY and redirects and never give up",
	},
	{
		Names: []string{"net/http.Handle", "net/http.HandleFunc", "net/http.ListenAndServe", "net/http.DefaultServeMux"}, Where: everywhere,
		Instead: "a mux and an http.Server of your own with ReadHeaderTimeout: the default mux is shared with every imported package",
	},
	{
		Names: []string{"io/ioutil.ReadAll", "io/ioutil.ReadFile", "io/ioutil.WriteFile"}, Where: everywhere,
		Instead: "io and os have them",
	},
	{
		Names: []string{"os.Setenv", "os.Unsetenv", "os.Chdir", "syscall.Umask", "golang.org/x/sys/unix.Umask"}, Where: outsideMain,
		Instead: "pass it: exec.Cmd has Env and Dir, files have a mode; a process-wide setting is seen by every goroutine",
		Allow: map[string]string{
			"internal/guest/init.go": "PID 1 sets the mask that all processes inside inherit, before it serves",
		},
	},
	{
		Names: []string{"func init"}, Where: inProduct,
		Instead: "a value that main builds and hands over: what runs before main costs every start and cannot be tested",
	},
}

// secretName matches identifiers that hold what must not be printed.
var secretName = regexp.MustCompile(`(?i)(token|secret|password|passphrase|credential|privatekey)$`)

// printers are functions that turn their arguments into text for people.
var printers = map[string][]string{
	"fmt":      {"Print", "Printf", "Println", "Fprint", "Fprintf", "Fprintln", "Sprint", "Sprintf", "Sprintln", "Errorf"},
	"log":      {"Print", "Printf", "Println", "Fatal", "Fatalf", "Panic", "Panicf"},
	"log/slog": {"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "String", "Any"},
}

// importNames maps the name by which a file speaks of a package to its path.
func importNames(s *source) map[string]string {
	out := map[string]string{}
	for _, imp := range s.AST.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		name := p[strings.LastIndex(p, "/")+1:]
		if imp.Name != nil {
			name = imp.Name.Name
		}
		out[name] = p
	}
	return out
}

// qualified returns "importpath.Name" for an expression like pkg.Name, and
// "Name" for a plain identifier.
func qualified(names map[string]string, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		if !ok {
			return ""
		}
		if p, ok := names[x.Name]; ok {
			return p + "." + e.Sel.Name
		}
	}
	return ""
}

// use is one place where a file uses a qualified name.
type use struct {
	Name string
	Pos  token.Pos
}

// uses lists selectors of imported packages, calls of builtins, and inits.
func uses(s *source) []use {
	names := importNames(s)
	var out []use
	ast.Inspect(s.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			out = append(out, use{qualified(names, n), n.Pos()})
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok {
				out = append(out, use{id.Name, n.Pos()})
			}
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				out = append(out, use{"func init", n.Pos()})
			}
		}
		return true
	})
	return out
}

// checkBanned returns findings and the exceptions that were used.
func checkBanned(rules []bannedCall, s *source) (findings, used []string) {
	if s.Generated {
		return nil, nil
	}
	for _, u := range uses(s) {
		for _, r := range rules {
			if !slices.Contains(r.Names, u.Name) || !r.Where(s) {
				continue
			}
			if _, ok := r.Allow[s.Path]; ok {
				used = append(used, u.Name+" "+s.Path)
				continue
			}
			findings = append(findings, fmt.Sprintf("%s: %s is banned here; instead: %s", s.At(u.Pos), u.Name, r.Instead))
		}
	}
	return findings, used
}

// checkSecrets finds identifiers that name a secret among the arguments of a
// printer.
func checkSecrets(s *source) []string {
	if s.Test || s.Generated {
		return nil
	}
	names := importNames(s)
	var out []string
	ast.Inspect(s.AST, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		pkg, fn, ok := cutLast(qualified(names, call.Fun), ".")
		if !ok || !slices.Contains(printers[pkg], fn) {
			return true
		}
		for _, arg := range call.Args {
			if name := lastName(arg); secretName.MatchString(name) {
				out = append(out, fmt.Sprintf("%s: %s is printed; a secret has a type that cannot print itself, and messages name it by its ID", s.At(arg.Pos()), name))
			}
		}
		return true
	})
	return out
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+len(sep):], true
}

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return lastName(e.X)
	}
	return ""
}

// checkSkips: a skipped test names the probe that said no.
func checkSkips(s *source) []string {
	if !s.Test && !testingPackage(s) {
		return nil
	}
	var out []string
	ast.Inspect(s.AST, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
			return true
		}
		if _, ok := sel.X.(*ast.Ident); !ok || len(call.Args) == 0 && sel.Sel.Name != "SkipNow" {
			return true // a method of something else
		}
		if !saysWhy(call) {
			out = append(out, s.At(call.Pos())+`: a skip says which probe said no: t.Skip("probe: ...")`)
		}
		return true
	})
	return out
}

func saysWhy(call *ast.CallExpr) bool {
	why := regexp.MustCompile(`(?i)probe|-short`)
	found := false
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && why.MatchString(lit.Value) {
				found = true
			}
			return true
		})
	}
	return found
}

func TestBannedCalls(t *testing.T) {
	var used []string
	for _, s := range tree(t).Sources {
		if strings.HasPrefix(s.Path, "internal/archtest/") {
			continue
		}
		findings, u := checkBanned(bannedCalls, s)
		report(t, findings)
		used = append(used, u...)
		report(t, checkSecrets(s))
		report(t, checkSkips(s))
	}
	for _, r := range bannedCalls {
		for file := range r.Allow {
			if !slices.ContainsFunc(r.Names, func(n string) bool { return slices.Contains(used, n+" "+file) }) {
				t.Errorf("%s needs its exception for %v no longer: remove it from the table", file, r.Names)
			}
		}
	}
}

func TestBannedCallsFire(t *testing.T) {
	tests := []struct {
		name, at, text string
		want           string // "" for no finding
	}{
		{"background in a package", "internal/x/x.go", "package x\nimport \"context\"\nvar c = context.Background()", "context.Background"},
		{"background in main", "cmd/x/main.go", "package main\nimport \"context\"\nvar c = context.Background()", ""},
		{"background in a test", "internal/x/x_test.go", "package x\nimport \"context\"\nvar c = context.Background()", ""},
		{"renamed import", "internal/x/x.go", "package x\nimport o \"os\"\nfunc f() { o.Exit(1) }", "os.Exit"},
		{"another package called os", "internal/x/x.go", "package x\nimport \"example.org/os\"\nfunc f() { os.Exit(1) }", ""},
		{"sleep in a test", "internal/x/x_test.go", "package x\nimport \"time\"\nfunc f() { time.Sleep(1) }", "time.Sleep"},
		{"create", "internal/x/x.go", "package x\nimport \"os\"\nvar f, _ = os.Create(\"a\")", "os.Create"},
		{"print", "internal/x/x.go", "package x\nimport \"fmt\"\nfunc f() { fmt.Println() }", "fmt.Println"},
		{"print in an example", "examples/x.go", "package main\nimport \"fmt\"\nfunc f() { fmt.Println() }", ""},
		{"builtin print", "internal/x/x.go", "package x\nfunc f() { println() }", "println"},
		{"init", "internal/x/x.go", "package x\nfunc init() {}", "func init"},
		{"default client", "internal/x/x.go", "package x\nimport \"net/http\"\nvar c = http.DefaultClient", "net/http.DefaultClient"},
		{"secret", "internal/x/x.go", "package x\nimport \"fmt\"\nfunc f(h struct{ Token string }) string { return fmt.Sprintf(\"%s\", h.Token) }", "Token is printed"},
		{"skip without a probe", "internal/x/x_test.go", "package x\nimport \"testing\"\nfunc TestX(t *testing.T) { t.Skip(\"later\") }", "probe"},
		{"skip with a probe", "internal/x/x_test.go", "package x\nimport \"testing\"\nfunc TestX(t *testing.T) { t.Skipf(\"probe: %v\", 1) }", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := planted(t, tt.at, tt.text)
			got, _ := checkBanned(bannedCalls, s)
			got = slices.Concat(got, checkSecrets(s), checkSkips(s))
			switch {
			case tt.want == "" && len(got) != 0:
				t.Errorf("got %q, want no finding", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("got %q, want one finding of %q", got, tt.want)
			}
		})
	}
}
