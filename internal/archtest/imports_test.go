package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// importRule says what the packages in From may import. Patterns of our own
// packages begin with "./"; "std" stands for the standard library. Exactly one
// of Only and Never is set.
type importRule struct {
	Name   string
	From   []string
	Except []string // packages among From that the rule does not bind
	Only   []string
	Never  []string
	Tests  bool // binds test files too
	Reason string
}

const drivers = "internal/driver/"

// concreteDrivers are the packages behind one boundary each.
var concreteDrivers = []string{
	"./internal/driver/fake/...", "./internal/driver/gvisor/...", "./internal/driver/process/...",
	"./internal/driver/container/...", "./internal/driver/microvm/...", "./internal/driver/isolate/...",
	"./internal/driver/wasm/...",
}

var importRules = []importRule{
	{
		Name: "sandbox-is-the-domain", From: []string{"sandbox"}, Only: []string{"std"}, Tests: true,
		Reason: "every other package speaks in its words, so it can depend on none of them, nor on a third party",
	},
	{
		Name: "driver-contract", From: []string{"internal/driver"}, Only: []string{"std", "./sandbox"},
		Reason: "a contract that imports an implementation is no contract",
	},
	{
		Name: "guest-wire", From: []string{"internal/guest/wire"}, Only: []string{"std", "./sandbox"},
		Reason: "both ends of a hostile channel link it: what it imports is linked into the guest and the keeper",
	},
	{
		Name: "keeper-wire", From: []string{"internal/keeper/wire"},
		Only:   []string{"std", "./sandbox", "./internal/driver", "./internal/guest/wire"},
		Reason: "it carries the contracts' types and nothing else",
	},
	{
		Name: "build", From: []string{"internal/build"}, Only: []string{"std"}, Tests: true,
		Reason: "all three programs link it to compare builds",
	},
	{
		Name: "drivers-stand-alone", From: []string{"internal/driver/..."},
		Except: []string{"internal/driver"},
		Never: []string{
			"./internal/manager/...", "./internal/store/...", "./internal/keeper/...", "./internal/cli/...",
			"./internal/api/...", "./client/...", "./internal/e2b/...", "./internal/guest/guestclient/...",
		},
		Reason: "a driver knows its boundary only: who calls it, and what the guest says, is the keeper's business",
	},
	{
		Name: "manager-knows-contracts", From: []string{"internal/manager/..."},
		Never: append([]string{
			"./internal/keeper", "./internal/guest", "./internal/e2b/...", "./internal/cli/...", "./client/...",
		}, concreteDrivers...),
		Reason: "a new driver or API must not touch the life cycle; wiring is the programs' act",
	},
	{
		Name: "policy-is-pure", From: []string{"internal/policy/..."},
		Never:  []string{"net/http", "os", "os/exec", "database/sql", "./internal/egress/...", "./internal/store/..."},
		Reason: "a decision that reads nothing but its input can be tested by table and explained afterwards",
	},
	{
		Name: "guest-is-small", From: []string{"internal/guest/..."},
		Except: []string{"internal/guest/guestclient", "internal/guest/capture"},
		Only: []string{
			"std", "./sandbox", "./internal/build", "./internal/guest/...", "./internal/channel/...",
			"./internal/tarstream/...", "golang.org/x/sys/unix", "golang.org/x/net/...", "golang.org/x/sync/...",
			"github.com/fsnotify/fsnotify",
		},
		Reason: "every sandbox runs it as PID 1: each import costs start time and memory in every sandbox",
	},
	{
		Name: "guest-off-the-host", From: []string{"internal/keeper/...", "internal/manager/...", "internal/store/...", "internal/cli/..."},
		Never:  []string{"./internal/guest"},
		Reason: "the host talks to a guest over its wire; code that runs inside does not run in our own processes",
	},
	{
		Name: "outer-edges", From: []string{"internal/e2b/...", "internal/kube/...", "client/..."},
		Never:  append([]string{"./internal/keeper", "./internal/manager/...", "./internal/store/..."}, concreteDrivers...),
		Reason: "they translate the public API and have no back door",
	},
	{
		Name: "client-is-public", From: []string{"client/..."},
		Only: []string{
			"std", "./sandbox", "./client/...", "golang.org/x/net/...", "./internal/gen/...",
			"./internal/driver", "./internal/guest/wire", // types of the API
			"./internal/config", "./internal/daemon/ondemand", // finding the daemon
			"./internal/daemon/fdpass", "./internal/keeper/wire", // mounts, as descriptors
		},
		Reason: "the SDK must be usable, and reviewable, on its own",
	},
	{
		Name: "store-is-durable-records", From: []string{"internal/store/..."},
		Never:  append([]string{"./internal/manager/...", "./internal/keeper", "./internal/cli/...", "./client/..."}, concreteDrivers...),
		Reason: "records outlive the code that wrote them",
	},
	{
		Name: "nothing-imports-programs", From: []string{"..."}, Never: []string{"./cmd/...", "./examples/...", "./bench/..."},
		Except: []string{"bench/..."}, Tests: true,
		Reason: "only the programs in cmd wire things; what is worth importing belongs in a package",
	},
	{
		Name: "test-packages-stay-in-tests", From: []string{"cmd/...", "internal/...", "sandbox", "client/..."},
		Except: []string{"internal/driver/drivertest/...", "internal/testenv/...", "internal/archtest"},
		Never:  []string{"testing", "./internal/testenv/...", "./internal/driver/drivertest/...", "./internal/archtest", "./test/..."},
		Reason: "a program that links package testing gains its flags and its start-up time",
	},
	{
		Name: "no-cgo", From: []string{"..."}, Never: []string{"C"}, Tests: true,
		Reason: "the programs are static: gVisor's boot role runs where no shared library can be found",
	},
	{
		Name: "random-is-crypto", From: []string{"cmd/...", "internal/...", "sandbox", "client/..."},
		Except: []string{"internal/driver/drivertest/...", "internal/testenv/..."},
		Never:  []string{"math/rand", "math/rand/v2"},
		Reason: "an ID or token that can be predicted is an authority given away; use crypto/rand",
	},
	{
		Name: "unsafe-is-rare", From: []string{"..."}, Never: []string{"unsafe"},
		Except: []string{"internal/driver/gvisor/...", "internal/driver/process/...", "internal/guest/...", "internal/host", "internal/gen/e2b/..."},
		Reason: "golang.org/x/sys/unix wraps nearly every call; where it does not, the fence is widened by review",
	},
}

// fence keeps a heavy third party in the packages that exist for it.
type fence struct {
	Prefix string
	In     []string
	Tests  bool // test files anywhere may import it
	Reason string
}

var fences = []fence{
	{"gvisor.dev/", []string{"internal/driver/gvisor/...", "cmd/belljar-engine/...", "bench/runsc/...", "internal/guest/capture"}, false,
		"it costs every process that links it 17 ms of package initialisation; the user-space network stack alone is small"},
	{"github.com/opencontainers/runtime-spec", []string{"internal/driver/gvisor/...", "internal/driver/container/...", "bench/runsc/..."}, false,
		"our own words for roots and mounts are in internal/driver"},
	{"k8s.io/", []string{"internal/kube/..."}, false, "its client is larger than the rest of the product"},
	{"modernc.org/", []string{"internal/store/..."}, false, "only the daemon writes the journal"},
	{"github.com/spf13/", []string{"internal/cli/...", "cmd/belljar"}, false, "a command line is not a library's business"},
	{"golang.org/x/term", []string{"internal/cli/...", "cmd/belljar", "examples/..."}, true, "only the command line owns a terminal"},
	{"github.com/goccy/go-yaml", []string{"internal/cli/...", "internal/config/..."}, true, "the wire is JSON; YAML is for people"},
	{"github.com/rogpeppe/go-internal", nil, true, "scripts that specify the command line are tests"},
	{"connectrpc.com/connect", []string{"internal/gen/...", "internal/e2b/..."}, true, "the E2B wire is a translation at the edge"},
	{"google.golang.org/protobuf", []string{"internal/gen/...", "internal/e2b/..."}, true, "the E2B wire is a translation at the edge"},
	{"github.com/stretchr/", []string{}, false, "the standard library compares and reports well enough, got before want"},
	{"github.com/golang/mock", []string{}, false, "a fake that ships with the product is tested by the conformance suite; a generated mock is not"},
	{"go.uber.org/mock", []string{}, false, "a fake that ships with the product is tested by the conformance suite; a generated mock is not"},
}

func isStd(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.HasPrefix(imp, "./") && !strings.Contains(first, ".")
}

// importMatch is match over import paths, with "std" for the library.
func importMatch(patterns []string, imp string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		return p == "std" && isStd(imp) && imp != "C" || match(p, imp)
	})
}

func inPackages(patterns []string, dir string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return p == "..." || match(p, dir) })
}

func checkImports(rules []importRule, s *source) []string {
	var out []string
	for _, r := range rules {
		if s.Test && !r.Tests || !inPackages(r.From, s.Dir()) || inPackages(r.Except, s.Dir()) {
			continue
		}
		for _, imp := range s.Imports() {
			if own := "./" + s.Dir(); imp == own {
				continue // the external test of a package
			}
			if bad := r.Only != nil && !importMatch(r.Only, imp) || importMatch(r.Never, imp); bad {
				out = append(out, fmt.Sprintf("%s imports %s: rule %s: %s", s.Path, imp, r.Name, r.Reason))
			}
		}
	}
	return out
}

// checkDriversApart: a driver imports no other driver.
func checkDriversApart(s *source) []string {
	rest, ok := strings.CutPrefix(s.Dir(), drivers)
	if !ok || s.Test {
		return nil
	}
	own, _, _ := strings.Cut(rest, "/")
	var out []string
	for _, imp := range s.Imports() {
		other, ok := strings.CutPrefix(imp, "./"+drivers)
		if !ok {
			continue
		}
		if name, _, _ := strings.Cut(other, "/"); name != own {
			out = append(out, fmt.Sprintf("%s imports %s: drivers never import each other; what two need goes into a package beside them", s.Path, imp))
		}
	}
	return out
}

func checkFences(fences []fence, s *source) []string {
	var out []string
	for _, imp := range s.Imports() {
		for _, f := range fences {
			if !strings.HasPrefix(imp, f.Prefix) || f.Tests && s.Test || inPackages(f.In, s.Dir()) {
				continue
			}
			out = append(out, fmt.Sprintf("%s imports %s, which may be imported in %v only: %s", s.Path, imp, f.In, f.Reason))
		}
	}
	return out
}

func TestImports(t *testing.T) {
	for _, s := range tree(t).Sources {
		if strings.HasPrefix(s.Path, "tools/") {
			continue // a module of its own
		}
		report(t, checkImports(importRules, s))
		report(t, checkDriversApart(s))
		report(t, checkFences(fences, s))
	}
}

func TestImportRulesFire(t *testing.T) {
	const own = module + "/"
	tests := []struct{ at, imports, want string }{
		{"sandbox/x.go", own + "internal/build", "sandbox-is-the-domain"},
		{"sandbox/x_test.go", "golang.org/x/sys/unix", "sandbox-is-the-domain"},
		{"internal/driver/x.go", own + "internal/host", "driver-contract"},
		{"internal/driver/gvisor/x.go", own + "internal/driver/fake", "drivers never import each other"},
		{"internal/driver/gvisor/boot/x.go", own + "internal/manager", "drivers-stand-alone"},
		{"internal/manager/x.go", own + "internal/driver/gvisor", "manager-knows-contracts"},
		{"internal/policy/x.go", "os", "policy-is-pure"},
		{"internal/guest/x.go", "github.com/spf13/cobra", "guest-is-small"},
		{"client/x.go", own + "internal/keeper", "outer-edges"},
		{"internal/host/x.go", own + "cmd/belljar", "nothing-imports-programs"},
		{"internal/cli/x.go", "testing", "test-packages-stay-in-tests"},
		{"internal/host/x.go", "C", "no-cgo"},
		{"internal/host/x.go", "math/rand/v2", "random-is-crypto"},
		{"internal/cli/x.go", "unsafe", "unsafe-is-rare"},
		{"internal/cli/x.go", "gvisor.dev/gvisor/pkg/log", "gvisor.dev"},
		{"internal/manager/x.go", "modernc.org/sqlite", "modernc.org"},
	}
	for _, tt := range tests {
		t.Run(tt.at+" "+tt.imports, func(t *testing.T) {
			s := planted(t, tt.at, "package x\n\nimport _ \""+tt.imports+"\"\n")
			got := slices.Concat(checkImports(importRules, s), checkDriversApart(s), checkFences(fences, s))
			if !slices.ContainsFunc(got, func(f string) bool { return strings.Contains(f, tt.want) }) {
				t.Errorf("got %q, want a finding of %q", got, tt.want)
			}
		})
	}
	ok := planted(t, "internal/driver/gvisor/x.go",
		"package x\n\nimport _ \"gvisor.dev/gvisor/pkg/log\"\nimport _ \""+own+"internal/driver\"\n")
	if got := slices.Concat(checkImports(importRules, ok), checkDriversApart(ok), checkFences(fences, ok)); len(got) != 0 {
		t.Errorf("what a driver is meant to import: got %q, want no finding", got)
	}
}
