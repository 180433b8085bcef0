package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want int64 // -1: an error
	}{
		{"1024", 1024}, {"1b", 1}, {"512m", 512 << 20}, {"512M", 512 << 20}, {"1.5g", 3 << 29},
		{"2GiB", 2 << 30}, {"2 gb", 2 << 30}, {"1k", 1024}, {"1t", 1 << 40},
		{"", -1}, {"m", -1}, {"-1", -1}, {"0", -1}, {"1x", -1}, {"1e3", -1}, {"9999999t", -1}, {"1.2.3", -1}, {"nan", -1},
	} {
		t.Run(tc.in, func(t *testing.T) {
			got, err := parseSize(tc.in)
			if err != nil {
				got = -1
			}
			if got != tc.want {
				t.Errorf("parseSize(%q) = %d (%v), want %d", tc.in, got, err, tc.want)
			}
		})
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 1 << 30: "1GiB", 5 << 40: "5TiB"} {
		if got := formatSize(n); got != want {
			t.Errorf("formatSize(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want time.Duration // 0: an error
	}{
		{"90", 90 * time.Second}, {"1.5", 1500 * time.Millisecond}, {"2m", 2 * time.Minute}, {"1h30m", 90 * time.Minute},
		{"0", 0}, {"-3s", 0}, {"soon", 0}, {"", 0}, {"nan", 0}, {"1e300", 0},
	} {
		t.Run(tc.in, func(t *testing.T) {
			var d span
			if err := d.Set(tc.in); (err != nil) != (tc.want == 0) || time.Duration(d) != tc.want {
				t.Errorf("Set(%q) = %v, %v, want %v", tc.in, time.Duration(d), err, tc.want)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "env")
	content := "\ufeff# comment\n\nA=1\n  B=two words \nC=\"quoted\"\nHOME\nNOPE\nEMPTY=\r\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("A=1\n=x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lookup := func(k string) (string, bool) {
		v, ok := map[string]string{"HOME": "/home/me", "TOKEN": "s3cret"}[k]
		return v, ok
	}
	for _, tc := range []struct {
		name         string
		pairs, files []string
		want         map[string]string
		err          string
	}{
		{"none", nil, nil, nil, ""},
		{"values", []string{"A=b=c", "E=", "N=line\nline"}, nil, map[string]string{"A": "b=c", "E": "", "N": "line\nline"}, ""},
		{"from ours", []string{"TOKEN", "NOPE"}, nil, map[string]string{"TOKEN": "s3cret"}, ""},
		{"file, and -e wins", []string{"A=9"}, []string{file}, map[string]string{"A": "9", "B": "two words ", "C": `"quoted"`, "HOME": "/home/me", "EMPTY": ""}, ""},
		{"empty name", []string{"=x"}, nil, nil, "the name is empty"},
		{"space in name", []string{"a b=x"}, nil, nil, "white space"},
		{"bad line", nil, []string{bad}, nil, "line 2"},
		{"no file", nil, []string{filepath.Join(dir, "none")}, nil, "no such file"},
		{"directory", nil, []string{dir}, nil, "is a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := environment(tc.pairs, tc.files, lookup)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}
