package guest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// FuzzResolve: a path is refused or becomes a clean absolute one in which
// nothing was decoded.
func FuzzResolve(f *testing.F) {
	for _, s := range []string{"", "~", "~/x", "~x", "/a/../b//c/.", "..", "a\x00b", "%2e%2e/x", "\xff", strings.Repeat("a/", 3000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := resolve("path", raw, "/home/user")
		if err != nil {
			if sandbox.KindOf(err) != sandbox.Invalid {
				t.Fatalf("%q: got %v", raw, err)
			}
			return
		}
		if p[0] != '/' || len(p) >= sandbox.MaxPath || strings.Contains(p, "//") || strings.HasSuffix(p, "/..") ||
			strings.Contains(p, "/../") || strings.Contains(p, "/./") || strings.IndexByte(p, 0) >= 0 {
			t.Fatalf("%q became %q", raw, p)
		}
		if strings.Count(p, "%") > strings.Count(raw, "%") {
			t.Fatalf("%q became %q", raw, p)
		}
	})
}

// FuzzRange: a range that is taken lies inside the file.
func FuzzRange(f *testing.F) {
	f.Add("bytes=0-3", int64(10))
	f.Add("bytes=-5", int64(3))
	f.Add("bytes=9223372036854775807-", int64(3))
	f.Fuzz(func(t *testing.T, h string, size int64) {
		if size <= 0 {
			return
		}
		from, n, part, err := byteRange(h, size)
		if err != nil {
			return
		}
		if from < 0 || n <= 0 || from+n > size || !part && (from != 0 || n != size) {
			t.Fatalf("%q of %d: from %d, %d bytes", h, size, from, n)
		}
	})
}

// FuzzUsers: whatever guest code writes into /etc/passwd, a user has a home
// and ids that can be become.
func FuzzUsers(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\nbad\nx:x:-1:0:::\ny:y:1:2::relative:"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, id := range parsePasswd(bytes.Split(b, []byte{'\n'})) {
			if id.name == "" || id.uid == 1<<32-1 || id.gid == 1<<32-1 || id.home[0] != '/' || id.shell == "" {
				t.Fatalf("got %+v", id)
			}
		}
		for _, g := range parseGroup(bytes.Split(b, []byte{'\n'})) {
			if g.name == "" || g.gid == 1<<32-1 {
				t.Fatalf("got %+v", g)
			}
		}
	})
}

// TestRing writes and reads a stream's ring in every phase and size.
func TestRing(t *testing.T) {
	for _, size := range []int{5, 64, 1000} {
		o := &outputs{readers: map[*reader]struct{}{}}
		s := &stream{o: o, kind: wire.Stdout, max: size, target: -1, space: make(chan struct{}, 1), hits: new(hitCounter)}
		var want, got []byte
		for i := range 500 {
			room, ok := s.room()
			if !ok {
				t.Fatalf("size %d: held back without a reader", size)
			}
			n := min(len(room), i%7+1)
			for k := range n {
				room[k] = byte(len(want))
				want = append(want, room[k])
			}
			s.commit(n, false)
			if i%3 == 0 {
				continue
			}
			off := int64(len(got))
			if off < s.start {
				got = append(got, want[off:s.start]...) // a gap
				off = s.start
			}
			buf := make([]byte, 11)
			got = append(got, buf[:s.copyFrom(buf, off)]...)
			s.ack(int64(len(got)))
		}
		if !bytes.HasPrefix(want, got) || len(got) == 0 {
			t.Errorf("size %d: read other bytes than were written", size)
		}
		if len(s.ring) > size || s.end != int64(len(want)) {
			t.Errorf("size %d: ring of %d, end %d of %d", size, len(s.ring), s.end, len(want))
		}
	}
}
