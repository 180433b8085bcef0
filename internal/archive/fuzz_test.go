package archive

import (
	"bytes"
	"os"
	"testing"
)

// FuzzUnpack gives arbitrary bytes to the reader: whatever they hold, nothing
// outside the directory changes and every error is one of ours.
func FuzzUnpack(f *testing.F) {
	f.Add(makeTar(f, dir("./"), file("./a/b", "x"), link("l", "a"), hard("h", "a/b")))
	f.Add(makeTar(f, file("../evil", "x")))
	f.Add(makeTar(f, link("l", "/"), file("l/tmp/evil", "x")))
	f.Add(makeTar(f, entry{file("f", "").Header, "body"})[:700])
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		j := newJail(t)
		root, err := os.Open(j.root)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		o := Options{Limits: Limits{Entries: 100, Bytes: 1 << 20, Depth: 16}, Links: LinksRooted, Devices: DevicesSkip}
		Unpack(t.Context(), root, bytes.NewReader(raw), o)
		j.check(t)
		if err := Remove(openDir(t, j.outer), "a"); err != nil {
			t.Fatal(err)
		}
	})
}
