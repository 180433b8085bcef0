package cli

import (
	"bytes"
	"encoding/base64"
	"os"
	"strings"
	"testing"
)

func captured(t *testing.T, limit, fileCap int64, step int, in []byte) outputResult {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	c := newCapture("out-*", limit)
	c.cap = fileCap
	for len(in) > 0 {
		n := min(step, len(in))
		if _, err := c.Write(in[:n]); err != nil {
			t.Fatal(err)
		}
		in = in[n:]
	}
	return c.result()
}

func TestCapture(t *testing.T) {
	digits := []byte(strings.Repeat("0123456789", 10))
	for _, step := range []int{1, 3, 7, 50, 1000} {
		t.Run("fits", func(t *testing.T) {
			r := captured(t, 100, 1000, step, digits)
			if r.Head != string(digits) || r.Tail != "" || r.File != "" || r.Omitted != 0 || r.Bytes != 100 {
				t.Errorf("step %d: %+v", step, r)
			}
		})
		t.Run("head, tail and file", func(t *testing.T) {
			r := captured(t, 20, 1000, step, digits)
			if r.Head != "0123456789" || r.Tail != "0123456789" || r.Omitted != 80 || r.Bytes != 100 {
				t.Errorf("step %d: %+v", step, r)
			}
			if b, err := os.ReadFile(r.File); err != nil || !bytes.Equal(b, digits) {
				t.Errorf("step %d: file has %q, %v", step, b, err)
			}
			if fi, err := os.Stat(r.File); err != nil || fi.Mode().Perm() != 0o600 {
				t.Errorf("mode of the file: %v, %v", fi.Mode(), err)
			}
		})
		t.Run("file is capped", func(t *testing.T) {
			r := captured(t, 20, 33, step, digits)
			if b, err := os.ReadFile(r.File); err != nil || !bytes.Equal(b, digits[:33]) || r.FileBytes != 33 {
				t.Errorf("step %d: file has %q, %v; %+v", step, b, err, r)
			}
		})
	}
}

func TestCaptureCutsBetweenCharacters(t *testing.T) {
	r := captured(t, 8, 1000, 5, []byte("aé漢漢漢é"))
	if r.Encoding != "utf-8" || r.Head != "aé" || r.Tail != "é" {
		t.Errorf("%+v", r)
	}
	if got := int64(len(r.Head)+len(r.Tail)) + r.Omitted; got != r.Bytes {
		t.Errorf("head, tail and omitted make %d of %d bytes", got, r.Bytes)
	}
}

func TestCaptureOfBytes(t *testing.T) {
	in := []byte{0, 0xff, 0xfe, 'a'}
	r := captured(t, 8, 1000, 5, in)
	if b, err := base64.StdEncoding.DecodeString(r.Head); r.Encoding != "base64" || err != nil || !bytes.Equal(b, in) {
		t.Errorf("%+v", r)
	}
}

// TestCaptureWithoutAFile keeps head and tail when no file can be made.
func TestCaptureWithoutAFile(t *testing.T) {
	t.Setenv("TMPDIR", "/nonexistent/belljar")
	c := newCapture("out-*", 8)
	if n, err := c.Write([]byte("0123456789")); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	if r := c.result(); r.Head != "0123" || r.Tail != "6789" || r.FileError == "" {
		t.Errorf("%+v", r)
	}
}
