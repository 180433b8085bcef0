package httpapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/belljar-sh/belljar/api"
	"github.com/belljar-sh/belljar/internal/driver"
	gen "github.com/belljar-sh/belljar/internal/gen/api"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/manager"
	"github.com/belljar-sh/belljar/sandbox"
)

// document is what these tests read of api/openapi.yaml.
type document struct {
	Paths      map[string]map[string]any `yaml:"paths"`
	Components struct {
		Schemas map[string]schema `yaml:"schemas"`
	} `yaml:"components"`
}

type schema struct {
	Type       string         `yaml:"type"`
	GoType     string         `yaml:"x-go-type"`
	Required   []string       `yaml:"required"`
	Properties map[string]any `yaml:"properties"`
	Enum       []string       `yaml:"enum"`
}

type parameter struct {
	Name string `yaml:"name"`
	In   string `yaml:"in"`
}

type operation struct {
	Parameters  []parameter `yaml:"parameters"`
	RequestBody struct {
		Content map[string]any `yaml:"content"`
	} `yaml:"requestBody"`
}

func load(t testing.TB) document {
	t.Helper()
	var d document
	if err := yaml.Unmarshal(api.Document, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// operations returns the operations of the document by "METHOD path".
func (d document) operations(t testing.TB) map[string]operation {
	t.Helper()
	out := map[string]operation{}
	for path, item := range d.Paths {
		for method, raw := range item {
			if method == "parameters" {
				continue
			}
			b, err := yaml.Marshal(raw)
			if err != nil {
				t.Fatal(err)
			}
			var op operation
			if err := yaml.Unmarshal(b, &op); err != nil {
				t.Fatal(err)
			}
			out[strings.ToUpper(method)+" "+path] = op
		}
	}
	return out
}

func TestRoutesAreThoseOfTheDocument(t *testing.T) {
	got := slices.Sorted(maps.Keys((&Server{}).routes()))
	want := slices.Sorted(maps.Keys(load(t).operations(t)))
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// known are the types that the document names by x-go-type.
var known = []any{
	sandbox.Sandbox{}, sandbox.Command{}, sandbox.Spec{}, sandbox.Limits{}, sandbox.Mount{}, sandbox.Isolation{}, sandbox.LimitStatus{},
	sandbox.Snapshot{}, sandbox.Restore{}, gen.SnapshotRequest{}, gen.ForkRequest{}, gen.Forked{}, gen.SnapshotList{},
	sandbox.Step{}, sandbox.Exit{}, sandbox.Event{}, sandbox.Template{}, sandbox.Error{},
	guest.Process{}, guest.PTYSize{}, guest.Counts{}, guest.Ack{}, guest.StdinReply{}, guest.Signal{}, guest.Entry{},
	guest.WatchEvent{}, guest.Metrics{}, guest.LogMark{},
	driver.Report{}, driver.Check{}, driver.Capabilities{},
	// Generated: that they are up to date is checked here, too.
	gen.CreateRequest{}, gen.Created{}, gen.Start{}, gen.Stats{}, gen.Info{}, gen.TimeoutRequest{}, gen.ErrorBody{},
	gen.SandboxList{}, gen.ProcessList{}, gen.EntryList{}, gen.TemplateList{},
	gen.PoolRequest{}, gen.PoolList{}, sandbox.Pool{},
	sandbox.DiskItem{}, sandbox.DiskUse{}, sandbox.DiskQuota{}, sandbox.Pruned{}, gen.PruneRequest{}, gen.QuotaRequest{},
}

func TestFieldsAreThoseOfTheDocument(t *testing.T) {
	schemas := load(t).Components.Schemas
	seen := map[string]bool{}
	for _, v := range known {
		typ := reflect.TypeOf(v)
		s, ok := schemas[typ.Name()]
		if !ok {
			t.Errorf("%s is not in the document", typ)
			continue
		}
		seen[typ.Name()] = true
		var fields, required []string
		for _, f := range reflect.VisibleFields(typ) {
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			fields = append(fields, name)
			if !strings.Contains(opts, "omit") {
				required = append(required, name)
			}
		}
		slices.Sort(fields)
		slices.Sort(required)
		if want := slices.Sorted(maps.Keys(s.Properties)); !slices.Equal(fields, want) {
			t.Errorf("%s: got the fields %v, the document has %v", typ, fields, want)
		}
		if !slices.Equal(required, slices.Sorted(slices.Values(s.Required))) {
			t.Errorf("%s: always there are %v, the document says %v", typ, required, s.Required)
		}
	}
	for name, s := range schemas {
		if s.Type == "object" && !seen[name] {
			t.Errorf("the document's %s is not compared with a Go type", name)
		}
	}
}

func TestKindsAreThoseOfTheDocument(t *testing.T) {
	kinds := load(t).Components.Schemas["Kind"].Enum
	var got []string
	for _, k := range sandbox.Kinds() {
		got = append(got, string(k))
	}
	slices.Sort(got)
	slices.Sort(kinds)
	if !slices.Equal(got, kinds) {
		t.Errorf("got %v, want %v", got, kinds)
	}
}

// empty is the API over a manager without sandboxes.
func empty(t testing.TB) *Server {
	t.Helper()
	m, err := manager.Open(t.Context(), manager.Options{Keepers: noKeepers{}, Templates: noTemplates{}, LogDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return New(Options{Manager: m, Build: "b", Mode: "in-process"})
}

// values are good values of the document's parameters.
var values = map[string]string{
	"path": "/tmp/x", "to": "/tmp/y", "user": "root", "mode": "644", "depth": "2", "recursive": "1",
	"all": "1", "follow": "0", "since": "3", "stdout": "1", "stderr": "2", "offset": "9", "process": "p1", "probe": "0", "kill": "0",
	"from": "p1", "output": "1", "background": "1", "command": "1",
	"name": "n", "move": "1", "verify": "full", "memory": "0",
}

var bodies = map[string]string{
	"POST /sandboxes/{ref}/processes":                  `{"id":"p1","argv":["/bin/true"]}`,
	"POST /sandboxes":                                  `{"spec":{"template":"host"}}`,
	"POST /sandboxes/{ref}/snapshots":                  `{"name":"a:b"}`,
	"POST /sandboxes/{ref}/fork":                       `{"count":2}`,
	"PUT /sandboxes/{ref}/timeout":                     `{"timeout":5}`,
	"PUT /pools/{template}":                            `{"ready":1}`,
	"POST /system/prune":                               `{"dry_run":true}`,
	"PUT /system/quota":                                `{"kept_bytes":0}`,
	"POST /sandboxes/{ref}/processes/{process}/ack":    `{"stdout":1,"stderr":0}`,
	"POST /sandboxes/{ref}/processes/{process}/resize": `{"cols":80,"rows":24}`,
	"POST /sandboxes/{ref}/processes/{process}/signal": `{"signal":15}`,
}

func ask(s *Server, method, target, body string) (int, *sandbox.Error) {
	r := httptest.NewRequest(method, Base+target, strings.NewReader(body))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	var e guest.ErrorBody
	_ = json.Unmarshal(w.Body.Bytes(), &e) // an answer without an error has none
	if e.Error == nil {
		e.Error = &sandbox.Error{}
	}
	return w.Code, e.Error
}

// Every parameter of the document is understood, and no other.
func TestParametersAreThoseOfTheDocument(t *testing.T) {
	s := empty(t)
	for name, op := range load(t).operations(t) {
		method, path, _ := strings.Cut(name, " ")
		path = strings.NewReplacer("{ref}", "nobody", "{process}", "p1", "{snapshot}", "nothing", "{name}", "n", "{template}", "host").Replace(path)
		q := url.Values{}
		for _, p := range op.Parameters {
			if p.In == "query" {
				if values[p.Name] == "" {
					t.Errorf("no value for the parameter %s", p.Name)
				}
				q.Set(p.Name, values[p.Name])
			}
		}
		if code, e := ask(s, method, path+"?"+q.Encode(), bodies[name]); e.Kind == sandbox.Invalid || code == http.StatusInternalServerError {
			t.Errorf("%s?%s: got %d %v", name, q.Encode(), code, e)
		}
		q.Set("bogus", "1")
		if _, e := ask(s, method, path+"?"+q.Encode(), bodies[name]); e.Kind != sandbox.Invalid || e.Value != "bogus" {
			t.Errorf("%s with an unknown parameter: got %v, want invalid", name, e)
		}
		if _, hasJSON := op.RequestBody.Content["application/json"]; hasJSON {
			body := strings.Replace(bodies[name], "{", `{"bogus":1,`, 1)
			if _, e := ask(s, method, path, body); e.Kind != sandbox.Invalid || e.Value != "bogus" {
				t.Errorf("%s with an unknown field: got %v, want invalid", name, e)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	s := empty(t)
	big := `{"spec":{"name":"` + strings.Repeat("a", maxBody) + `"}}`
	for _, tt := range []struct {
		name, method, target, body string
		want                       sandbox.Kind
		field                      string
	}{
		{"no JSON", "POST", "/sandboxes", "hello", sandbox.Invalid, ""},
		{"no body", "POST", "/sandboxes", "", sandbox.Invalid, ""},
		{"two values", "POST", "/sandboxes", `{"spec":{}} {}`, sandbox.Invalid, ""},
		{"wrong type", "POST", "/sandboxes", `{"spec":{"timeout":"5s"}}`, sandbox.Invalid, "spec.timeout"},
		{"too big", "POST", "/sandboxes", big, sandbox.Invalid, ""},
		{"bad name", "POST", "/sandboxes", `{"spec":{"name":"a/b"}}`, sandbox.Invalid, "name"},
		{"low limit", "POST", "/sandboxes", `{"spec":{"limits":{"memory_bytes":1}}}`, sandbox.Invalid, "memory"},
		{"unknown boundary", "POST", "/sandboxes", `{"spec":{"boundary":"vault"}}`, sandbox.Invalid, "boundary"},
		{"boundary that is not there", "POST", "/sandboxes", `{"spec":{"boundary":"microvm"}}`, sandbox.Unsupported, "boundary"},
		{"mount without a file", "POST", "/sandboxes", `{"spec":{"boundary":"gvisor","mounts":[{"handle":"/etc","target":"/x"}]}}`, sandbox.Unsupported, "boundary"},
		{"no such route", "GET", "/nothing", "", sandbox.NotFound, "path"},
		{"wrong method", "PATCH", "/sandboxes", "", sandbox.NotFound, "path"},
		{"dots in the path", "GET", "/sandboxes/../info", "", sandbox.NotFound, "path"},
		{"relative path", "GET", "/sandboxes/x/stat?path=etc", "", sandbox.Invalid, "path"},
		{"NUL in the path", "GET", "/sandboxes/x/stat?path=/a%00b", "", sandbox.Invalid, "path"},
		{"a parameter twice", "GET", "/sandboxes/x/stat?path=/a&path=/b", "", sandbox.Invalid, "path"},
		{"negative offset", "GET", "/sandboxes/x/processes/p/output?stdout=-1", "", sandbox.Invalid, "stdout"},
		{"bad process ID", "GET", "/sandboxes/x/processes/P%2f", "", sandbox.Invalid, "process"},
		{"no timeout", "PUT", "/sandboxes/x/timeout", "{}", sandbox.Invalid, "timeout"},
		{"no program", "POST", "/sandboxes/x/processes", `{"argv":[]}`, sandbox.Invalid, "argv"},
		{"signal 0", "POST", "/sandboxes/x/processes/p/signal", `{"signal":0}`, sandbox.Invalid, "signal"},
		{"stop without a daemon", "POST", "/stop", "", sandbox.Unsupported, ""},
		{"unknown sandbox", "GET", "/sandboxes/x", "", sandbox.NotFound, "sandbox"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, e := ask(s, tt.method, tt.target, tt.body)
			if e.Kind != tt.want || e.Field != tt.field || code != guest.Status(tt.want) {
				t.Errorf("got %d %q %q (%v), want %q %q", code, e.Kind, e.Field, e, tt.want, tt.field)
			}
		})
	}
}

// Whatever is sent, the answer is one of ours and takes no memory to speak of.
func FuzzCreate(f *testing.F) {
	f.Add([]byte(`{"spec":{"name":"a","limits":{"cpus":1},"env":{"A":"b"}},"start":{"argv":["x"],"pty":{"cols":1,"rows":1}}}`))
	f.Add([]byte(`{"spec":{"mounts":[{"handle":"x","target":"/a"}]}}`))
	f.Add([]byte(`{"spec":{"limits":{"cpus":1e999}}}`))
	f.Add([]byte("{\"spec\":{\"name\":\"\xff\"}}"))
	s := empty(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest(http.MethodPost, Base+"/sandboxes", bytes.NewReader(body))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		var e guest.ErrorBody
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error == nil || guest.Status(e.Error.Kind) != w.Code || w.Code == 500 {
			t.Fatalf("%q: got %d %s", body, w.Code, w.Body)
		}
	})
}

func FuzzTarget(f *testing.F) {
	f.Add("GET", "/sandboxes/a/files?path=/x")
	f.Add("PUT", "/sandboxes/a/files?path=/x&mode=9")
	f.Add("GET", "/sandboxes/%2e%2e/processes/%00/output?stdout=1")
	s := empty(f)
	f.Fuzz(func(t *testing.T, method, target string) {
		u, err := url.ParseRequestURI(Base + "/" + strings.TrimPrefix(target, "/"))
		if err != nil || !slices.Contains([]string{"GET", "PUT", "POST", "DELETE", "PATCH"}, method) {
			return
		}
		r := httptest.NewRequest(method, "/", nil)
		r.URL = u
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= 500 && w.Code != guest.Status(sandbox.Unsupported) {
			t.Fatalf("%s %q: got %d %s", method, target, w.Code, w.Body)
		}
	})
}
