package sandbox

import (
	"strings"
	"testing"
)

func TestCheckName(t *testing.T) {
	tests := []struct {
		name string
		good bool
	}{
		{"a", true}, {"A9", true}, {"work_1.2-x", true}, {strings.Repeat("a", 63), true},
		{"", false}, {strings.Repeat("a", 64), false}, {"-a", false}, {".a", false}, {"_a", false},
		{"a b", false}, {"a/b", false}, {"a\n", false}, {"é", false}, {"a\x00", false}, {"..", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := CheckName("name", tt.name)
			if got := err == nil; got != tt.good {
				t.Errorf("CheckName(%q): got %v, want good=%v", tt.name, err, tt.good)
			}
			if err != nil && KindOf(err) != Invalid {
				t.Errorf("kind: got %v, want %v", KindOf(err), Invalid)
			}
		})
	}
}

func TestIDs(t *testing.T) {
	seen := map[ID]bool{}
	for range 1000 {
		id := NewID()
		if _, err := ParseID(string(id)); err != nil {
			t.Fatalf("ParseID of a fresh ID: %v", err)
		}
		if seen[id] {
			t.Fatalf("%s was drawn twice", id)
		}
		seen[id] = true
	}
	for _, bad := range []string{"", "abc", strings.Repeat("A", IDLength), strings.Repeat("a", IDLength+1), strings.Repeat("a", IDLength-1) + "-"} {
		if _, err := ParseID(bad); KindOf(err) != Invalid {
			t.Errorf("ParseID(%q): got %v, want an invalid error", bad, err)
		}
	}
}
