package precompiled

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
)

// Sources names what the programs of all architectures are made of: gVisor's
// version in a go.mod, and the text that lists the calls of sharefs. Generator
// and test agree on it.
func Sources(goMod, calls []byte) (string, error) {
	for line := range bytes.Lines(goMod) {
		f := bytes.Fields(line)
		if len(f) >= 2 && string(f[0]) == "gvisor.dev/gvisor" {
			return fmt.Sprintf("Made of gvisor.dev/gvisor %s and sharefs/extension.go %x.", f[1], sha256.Sum256(calls)), nil
		}
	}
	return "", errors.New("go.mod does not require gvisor.dev/gvisor")
}
