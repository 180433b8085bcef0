package precompiled

import (
	"bytes"
	"os"
	"testing"
)

// TestGeneratedFromTheSame: the programs of every architecture are made of the
// gVisor and the calls that the tree has now. That they are equal to fresh ones
// is tested, in package roles, where the architecture is at hand.
func TestGeneratedFromTheSame(t *testing.T) {
	mod, err := os.ReadFile("../../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	calls, err := os.ReadFile("../sharefs/extension.go")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Sources(mod, calls)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		b, err := os.ReadFile("program_" + arch + ".go")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(b, []byte("\n// "+want+"\n")) {
			t.Errorf("%s: not generated anew since gVisor or sharefs changed; gen.go says how", arch)
		}
	}
}
