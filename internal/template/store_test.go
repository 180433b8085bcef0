package template

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

func TestStoreErrorOfAFullDisk(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		dir  string
	}{
		{"in the work", &fs.PathError{Op: "write", Path: "/state/templates/.tmp-X/new/root/etc/passwd", Err: unix.ENOSPC}, "/state/templates"},
		{"a quota", &fs.PathError{Op: "open", Path: "/state/templates/.lock", Err: unix.EDQUOT}, "/state/templates"},
		{"a rename", &os.LinkError{Op: "rename", Old: "/a", New: "/state/templates/t", Err: unix.ENOSPC}, "/state/templates"},
		{"no path", unix.ENOSPC, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var e *sandbox.Error
			if !errors.As(storeError("write", tc.err), &e) || e.Kind != sandbox.ResourceExhausted {
				t.Fatalf("storeError = %#v", e)
			}
			if e.Value != tc.dir || !strings.Contains(e.Message, "full") || !strings.Contains(e.Hint, "BELLJAR_STATE_DIR") {
				t.Errorf("storeError = %v, hint %q; want the directory %q", e, e.Hint, tc.dir)
			}
		})
	}
}
