package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestTableAlignsAndEscapes(t *testing.T) {
	tab := newTable("NAME", "STATE")
	tab.add("a\x1b[31m", "running")
	tab.add("漢字", "dead")
	tab.add("x", "\u202egnp.exe")
	var b bytes.Buffer
	if err := tab.write(&b); err != nil {
		t.Fatal(err)
	}
	want := "NAME      STATE\n" +
		`a\x1b[31m  running` + "\n" +
		"漢字       dead\n" +
		`x          \u202egnp.exe` + "\n"
	want = strings.Replace(want, "NAME      STATE", "NAME       STATE", 1)
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestEncodeCannotActOnATerminal checks that hostile text survives a round
// trip and that nothing unprintable is written.
func TestEncodeCannotActOnATerminal(t *testing.T) {
	in := map[string]string{"k": "a\x1b]0;x\x07\u009b\u202e\U000e0041 ok 漢\n2"}
	for _, f := range []format{formatJSON, formatYAML} {
		var b bytes.Buffer
		if err := encode(&b, f, in); err != nil {
			t.Fatal(err)
		}
		if !printable(b.Bytes()) {
			t.Errorf("%s: unprintable characters in %q", f, b.String())
		}
		var out map[string]string
		err := json.Unmarshal(b.Bytes(), &out)
		if f == formatYAML {
			err = yaml.Unmarshal(b.Bytes(), &out)
		}
		if err != nil || out["k"] != in["k"] {
			t.Errorf("%s: %q came back as %q (%v)", f, in["k"], out["k"], err)
		}
	}
}

func TestReport(t *testing.T) {
	field := sandbox.Errorf(sandbox.Invalid, "no").WithField("template", "x\ny").WithHint("choose")
	for _, tc := range []struct {
		name   string
		format format
		err    error
		code   int
		want   string
	}{
		{"none", "", nil, 0, ""},
		{"status", "", exitStatus(7), 7, ""},
		{"usage", "", usagef("do this", "bad %q", "x"), 2, "belljar: bad \"x\"\nhint: do this\n"},
		{"field", "table", field, 125, "belljar: template \"x\\ny\": no\nhint: choose\n"},
		{"hostile", "", sandbox.Errorf(sandbox.Denied, "a\x1b[2J\nb"), 125, `belljar: a\x1b[2J\nb` + "\n"},
		{"usage as JSON", "json", usagef("do this", "bad %q", "x"), 2, `{"error":{"kind":"invalid","message":"bad \"x\"","hint":"do this"}}` + "\n"},
		{"field as JSON", "json", field, 125, `{"error":{"kind":"invalid","message":"no","field":"template","value":"x\ny","hint":"choose"}}` + "\n"},
		{"wrapped as JSON", "json", fmt.Errorf("-v a: %w", field), 125, `{"error":{"kind":"invalid","message":"-v a: template \"x\\ny\": no","hint":"choose"}}` + "\n"},
		{"hostile as JSON", "json", sandbox.Errorf(sandbox.Denied, "a\x1b[2J"), 125, `{"error":{"kind":"denied","message":"a\u001b[2J"}}` + "\n"},
		{"not ours as JSON", "json", fs.ErrPermission, 125, `{"error":{"kind":"denied","message":"permission denied","hint":"check the permissions of the file for this user"}}` + "\n"},
		{"field as YAML", "yaml", field, 125, "---\nerror:\n  kind: invalid\n  message: \"no\"\n  field: template\n  value: |-\n    x\n    y\n  hint: choose\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, said := saying(t)
			a.format = tc.format
			if code := a.report(tc.err); code != tc.code || said() != tc.want {
				t.Errorf("got %d, %q, want %d, %q", code, said(), tc.code, tc.want)
			}
		})
	}
}

// saying returns an app and what it has said on standard error.
func saying(t *testing.T) (a *app, said func() string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &app{err: f}, func() string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

func TestFormatOf(t *testing.T) {
	for line, want := range map[string]format{
		"ls --bogus -o json": "json", "ls --bogus -ojson": "json", "ls -o=yaml --bogus": "yaml", "ls --bogus --output yaml": "yaml",
		"ls --bogus --output=json": "json", "ls --bogus": "", "run --bogus -- x -o json": "", "ls -o xml": "", "ls -o": "",
	} {
		if got := formatOf(strings.Fields(line)); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
