package gvisor

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// rootClient is a sentry's end of the root's connection.
func rootClient(t testing.TB) *net.UnixConn {
	t.Helper()
	tree, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, b, err := socketpair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	ours, err := net.FileConn(a)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := net.FileConn(b)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveRoot(theirs.(*net.UnixConn), tree, idPlan{UIDs: []idRange{{0, 100, 10}}, GIDs: []idRange{{0, 100, 10}}})
	}()
	t.Cleanup(func() {
		ours.Close()
		<-done
	})
	return ours.(*net.UnixConn)
}

func frame(m lisafs.MID, payload []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(len(payload)))
	b = binary.NativeEndian.AppendUint16(b, uint16(m))
	return append(append(b, 0, 0), payload...)
}

func openAt(fd lisafs.FDID, flags uint32) []byte {
	r := lisafs.OpenAtReq{FD: fd, Flags: flags}
	b := make([]byte, r.SizeBytes())
	r.MarshalUnsafe(b)
	return frame(lisafs.OpenAt, b)
}

// answer reads one answer: its message and the descriptors that came with it.
func answer(t *testing.T, c *net.UnixConn) (lisafs.MID, int) {
	t.Helper()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	buf, oob := make([]byte, lisafsMax), make([]byte, 64)
	n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil || n < lisafsHeader {
		t.Fatalf("answer of %d bytes, %v", n, err)
	}
	fds := 0
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs {
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range got {
			fds++
			unix.Close(fd)
		}
	}
	return lisafs.MID(binary.NativeEndian.Uint16(buf[4:])), fds
}

// TestRootServer: a descriptor for the mount and each time the root is opened.
func TestRootServer(t *testing.T) {
	c := rootClient(t)
	for _, req := range [][]byte{frame(lisafs.Mount, nil), openAt(rootFDID, unix.O_RDONLY), openAt(rootFDID, unix.O_RDONLY|unix.O_DIRECTORY)} {
		if _, err := c.Write(req); err != nil {
			t.Fatal(err)
		}
		m, fds := answer(t, c)
		if want := lisafs.MID(binary.NativeEndian.Uint16(req[4:])); m != want || fds != 1 {
			t.Errorf("answer %d with %d descriptors to request %d", m, fds, want)
		}
	}
}

// TestRootServerRefuses: whatever else is asked ends the connection.
func TestRootServerRefuses(t *testing.T) {
	for name, req := range map[string][]byte{
		"another file":   openAt(2, unix.O_RDONLY),
		"for writing":    openAt(rootFDID, unix.O_RDWR),
		"short":          frame(lisafs.OpenAt, make([]byte, 3)),
		"walk":           frame(lisafs.Walk, make([]byte, 16)),
		"unlink":         frame(lisafs.UnlinkAt, make([]byte, 16)),
		"long":           frame(lisafs.OpenAt, make([]byte, 17)),
		"longer than it": frame(lisafs.Mount, nil)[:4],
	} {
		t.Run(name, func(t *testing.T) {
			c := rootClient(t)
			if _, err := c.Write(req); err != nil {
				t.Fatal(err)
			}
			c.CloseWrite()
			c.SetDeadline(time.Now().Add(10 * time.Second))
			if b, err := io.ReadAll(c); len(b) > 0 || err != nil && os.IsTimeout(err) {
				t.Errorf("answer %x, %v", b, err)
			}
		})
	}
}

// FuzzRootServer: no bytes of a sentry's do more than end its connection.
func FuzzRootServer(f *testing.F) {
	f.Add(frame(lisafs.Mount, nil))
	f.Add(append(openAt(rootFDID, 0), openAt(rootFDID, unix.O_RDWR)...))
	f.Add(frame(lisafs.Close, make([]byte, 12)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := rootClient(t)
		c.SetDeadline(time.Now().Add(10 * time.Second))
		go c.Write(b[:min(len(b), 1<<10)])
		c.CloseWrite()
		if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
			t.Error("the server hangs")
		}
	})
}

// FuzzControl: no answer of a sentry's does more than fail a call.
func FuzzControl(f *testing.F) {
	f.Add([]byte(`{"success":true,"err":"","result":null}`))
	f.Add([]byte(`{"success":false,"err":"no"}{}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, z, err := socketpair()
		if err != nil {
			t.Fatal(err)
		}
		ours, oerr := net.FileConn(a)
		theirs, terr := net.FileConn(z)
		if err := errors.Join(oerr, terr, a.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		defer ours.Close()
		go func() {
			io.ReadFull(theirs, make([]byte, 1))
			go io.Copy(io.Discard, theirs)
			theirs.Write(b)
			theirs.Close()
		}()
		c := &control{conn: ours.(*net.UnixConn)}
		_ = c.call(t.Context(), methodStartRoot, "x")
	})
}
