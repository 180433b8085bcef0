package cli

import (
	"bytes"
	"encoding/json"
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
	for _, tc := range []struct {
		name string
		err  error
		code int
		want string
	}{
		{"none", nil, 0, ""},
		{"status", exitStatus(7), 7, ""},
		{"usage", usagef("do this", "bad %q", "x"), 2, "belljar: bad \"x\"\nhint: do this\n"},
		{"field", sandbox.Errorf(sandbox.Invalid, "no").WithField("template", "x\ny").WithHint("choose"), 125, "belljar: template \"x\\ny\": no\nhint: choose\n"},
		{"hostile", sandbox.Errorf(sandbox.Denied, "a\x1b[2J\nb"), 125, `belljar: a\x1b[2J\nb` + "\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b bytes.Buffer
			if code := report(&b, tc.err); code != tc.code || b.String() != tc.want {
				t.Errorf("got %d, %q, want %d, %q", code, b.String(), tc.code, tc.want)
			}
		})
	}
}
