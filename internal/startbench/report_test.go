package startbench

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/host"
	"github.com/belljar-sh/belljar/sandbox"
)

func millis(values ...int) []time.Duration {
	var out []time.Duration
	for _, v := range values {
		out = append(out, time.Duration(v)*time.Millisecond)
	}
	return out
}

func TestCompare(t *testing.T) {
	run, bwrap, runsc := newStart("belljar run", "", true, millis(50)), newStart(nameBwrap, "", false, millis(5)), newStart(nameRunsc, "", false, millis(100))
	tests := []struct {
		name      string
		starts    []Start
		reference string
		ratio     float64 // of the first
	}{
		{"runsc is there", []Start{run, bwrap, runsc}, nameRunsc, 0.5},
		{"bwrap alone", []Start{run, bwrap}, nameBwrap, 10},
		{"neither", []Start{run}, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &Report{Starts: tt.starts}
			r.compare()
			if r.Reference != tt.reference || r.Starts[0].Ratio != tt.ratio {
				t.Errorf("got %v times %q, want %v times %q", r.Starts[0].Ratio, r.Reference, tt.ratio, tt.reference)
			}
		})
	}
}

func TestNewStart(t *testing.T) {
	s := newStart("x", "y", false, millis(4, 1, 3, 2, 100))
	if s.Median != 3 || s.P99 != 100 || s.Least != 1 || len(s.Times) != 5 || s.Times[0] != 4 {
		t.Errorf("got %+v", s)
	}
}

// TestPlot: the drawing is XML whatever the names are, and has a bar for each
// start, inside its frame.
func TestPlot(t *testing.T) {
	tests := []struct {
		name   string
		starts []Start
	}{
		{"none", nil},
		{"one", []Start{newStart("a", "b", true, millis(3))}},
		{"hostile names", []Start{newStart("<b>&\"'", "]]><script>", true, millis(3, 5)), newStart("x", "", false, millis(4000))}},
		{"nothing took time", []Start{newStart("a", "b", true, millis(0))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			r := Report{Machine: host.System{Kernel: "6.1 & <more>", CPUs: 2}, Template: "host", Rounds: 2, Starts: tt.starts}
			if err := r.WritePlot(&b); err != nil {
				t.Fatal(err)
			}
			bars := 0
			for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
				tok, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatalf("not XML: %v\n%s", err, b.String())
				}
				if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "rect" {
					bars++
				}
			}
			if bars != len(tt.starts) {
				t.Errorf("got %d bars, want %d", bars, len(tt.starts))
			}
			if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
				t.Errorf("no number:\n%s", b.String())
			}
		})
	}
}

func TestBundle(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "b")
	for range 2 { // the second finds it there
		if err := writeBundle(dir); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var b bundle
	if err := json.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	for _, m := range b.Mounts {
		if _, err := os.Stat(filepath.Join(b.Root.Path, m.Destination)); err != nil {
			t.Errorf("nothing to mount on: %v", err)
		}
		if m.Type == "bind" && (len(m.Options) != 2 || m.Options[1] != "ro") {
			t.Errorf("%s can be written: %v", m.Destination, m.Options)
		}
	}
	if !b.Root.Readonly {
		t.Error("the root can be written")
	}
}

func TestRounds(t *testing.T) {
	for _, n := range []int{-1, 0, MaxRounds + 1} {
		if _, err := Run(t.Context(), Options{Rounds: n}); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%d rounds: got %v, want it refused", n, err)
		}
	}
}
