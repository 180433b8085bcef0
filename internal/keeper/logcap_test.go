package keeper

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCapLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), LogName)
	if err := capLog(path); err != nil {
		t.Errorf("no log: %v", err)
	}
	short := strings.Repeat("x", maxLog)
	if err := os.WriteFile(path, []byte(short), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := capLog(path); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != short {
		t.Errorf("a log of %d bytes was changed: %v", maxLog, err)
	}

	// A descriptor that appends, as the keeper's own, goes on after the cut.
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.WriteString("how it began\n" + strings.Repeat("noise ", 4<<20/6) + "what happened last\n")
	if err := capLog(path); err != nil {
		t.Fatal(err)
	}
	w.WriteString("and then\n")
	b, err := os.ReadFile(path)
	if err != nil || len(b) > logHead+logTail+200 {
		t.Fatalf("%d bytes are left, %v", len(b), err)
	}
	if !bytes.HasPrefix(b, []byte("how it began\n")) || !bytes.HasSuffix(b, []byte("what happened last\nand then\n")) || !bytes.Contains(b, []byte("bytes were cut out here")) {
		t.Errorf("kept %q ... %q", b[:40], b[len(b)-60:])
	}

	// A link in its place is not followed.
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, bytes.Repeat([]byte("y"), 2*maxLog), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), LogName)
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	if err := capLog(link); err == nil {
		t.Error("a link was followed")
	}
	if fi, err := os.Stat(other); err != nil || fi.Size() != 2*maxLog {
		t.Errorf("the file behind the link: %v, %v", fi, err)
	}
}
