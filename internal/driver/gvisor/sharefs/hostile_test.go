package sharefs

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/unet"
)

// request is any of the protocol's.
type request interface {
	SizeBytes() int
	MarshalBytes([]byte) []byte
}

// bytesOf marshals a request as a sentry does.
func bytesOf(m request) []byte {
	b := make([]byte, m.SizeBytes())
	m.MarshalBytes(b)
	return b
}

// rawCall sends any bytes as a message and drops the answer.
func rawCall(c *lisafs.Client, mid lisafs.MID, payload []byte) error {
	var fds [2]int
	err := c.SndRcvMessage(mid, uint32(len(payload)),
		func(dst []byte) []byte { return dst[copy(dst, payload):] },
		func(src []byte) ([]byte, bool) { return nil, true },
		fds[:], func() string { return "" }, func() string { return "" })
	if err == nil {
		for _, fd := range fds {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}
	return err
}

// hostileState is a server, what it serves and what it must not reach.
type hostileState struct {
	dir, outside string
	client       *lisafs.Client
	root         lisafs.ClientFD
	err          error
}

// startHostile starts the server for all inputs of a fuzzing process.
func startHostile(base string) *hostileState {
	h := &hostileState{}
	h.dir, h.outside = filepath.Join(base, "share"), filepath.Join(base, "canary")
	if h.err = errors.Join(os.Mkdir(h.dir, 0o755), os.WriteFile(h.outside, []byte("host"), 0o644),
		os.WriteFile(filepath.Join(h.dir, ".envrc"), []byte("old"), 0o644), os.Mkdir(filepath.Join(h.dir, "d"), 0o755)); h.err != nil {
		return h
	}
	procFD, err := openProcFD("/proc/self/fd")
	if h.err = err; err != nil {
		return h
	}
	ours, theirs, err := unet.SocketPair(false)
	if h.err = err; err != nil {
		return h
	}
	srv := lisafs.NewServer()
	self := Owner{uint32(unix.Geteuid()), uint32(unix.Getegid())}
	lc, err := srv.CreateConnection(ours, h.dir, connOpts(protected), newConn(protected, procFD, self, newMadeDirs()))
	if h.err = err; err != nil {
		return h
	}
	srv.StartConnection(lc)
	client, in, _, err := lisafs.NewClient(theirs)
	if h.err = err; err != nil {
		return h
	}
	h.client, h.root = client, client.NewFD(in.ControlFD)
	return h
}

// FuzzMessages sends a server what a sentry that was taken over could send. It
// must go on serving, and keep what it promises.
func FuzzMessages(f *testing.F) {
	base := f.TempDir()
	target := sync.OnceValue(func() *hostileState { return startHostile(base) })
	name := lisafs.SizedString("x")
	rename := &lisafs.RenameAt2Req{Flags: unix.RENAME_EXCHANGE}
	rename.OldDir, rename.NewDir, rename.OldName, rename.NewName = 1, 1, name, "../canary"
	create, mkdir := &lisafs.OpenCreateAtReq{Name: name, Flags: unix.O_RDWR}, &lisafs.MkdirAtReq{Name: name}
	mknod, symlink := &lisafs.MknodAtReq{Name: name}, &lisafs.SymlinkAtReq{Name: name, Target: "../canary"}
	create.DirFD, mkdir.DirFD, mknod.DirFD, symlink.DirFD = 1, 1, 1, 1
	create.Mode, mkdir.Mode, mknod.Mode = 0o6777, 0o6777, linux.S_IFCHR|0o6777
	for mid, m := range map[lisafs.MID]request{
		lisafs.Walk:         &lisafs.WalkReq{DirFD: 1, Path: []string{"d", "x"}},
		lisafs.WalkStat:     &lisafs.WalkReq{DirFD: 1, Path: []string{"", "..", "canary"}},
		lisafs.OpenAt:       &lisafs.OpenAtReq{FD: 1, Flags: unix.O_RDWR | unix.O_TRUNC},
		lisafs.OpenCreateAt: create,
		lisafs.MkdirAt:      mkdir,
		lisafs.MknodAt:      mknod,
		lisafs.SymlinkAt:    symlink,
		lisafs.LinkAt:       &lisafs.LinkAtReq{DirFD: 1, Target: 2, Name: name},
		lisafs.UnlinkAt:     &lisafs.UnlinkAtReq{DirFD: 1, Name: name},
		lisafs.RenameAt2:    rename,
		lisafs.FSetXattr:    &lisafs.FSetXattrReq{FD: 1, Name: "security.capability", Value: "x"},
		lisafs.SetStat:      &lisafs.SetStatReq{FD: 1, Mask: unix.STATX_MODE, Mode: 0o6777},
		lisafs.PRead:        &lisafs.PReadReq{FD: 2, Count: 1<<32 - 1},
		lisafs.Getdents64:   &lisafs.Getdents64Req{DirFD: 2, Count: -1 << 31},
		lisafs.FAllocate:    &lisafs.FAllocateReq{FD: 2, Mode: 1, Length: 1 << 63},
		lisafs.Close:        &lisafs.CloseReq{FDs: []lisafs.FDID{1, 1, 77}},
	} {
		f.Add(uint16(mid), bytesOf(m))
	}
	f.Add(uint16(lisafs.Mount), []byte{})
	f.Fuzz(func(t *testing.T, mid uint16, payload []byte) {
		if lisafs.MID(mid) == lisafs.Channel { // its answer belongs to a protocol of its own
			return
		}
		h := target()
		if h.err != nil {
			t.Fatal(h.err)
		}
		if lisafs.MID(mid) != lisafs.Close { // the root must stay open for the next input
			_ = rawCall(h.client, lisafs.MID(mid), payload)
		}
		h.check(t)
	})
}

// check looks at the promises after each message.
func (h *hostileState) check(t *testing.T) {
	var st lisafs.Statx
	if err := h.root.StatTo(context.Background(), &st); err != nil {
		t.Fatalf("the server does not answer any more: %v", err)
	}
	if b, err := os.ReadFile(h.outside); err != nil || string(b) != "host" {
		t.Fatalf("the file outside: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(h.dir, ".envrc")); err != nil || string(b) != "old" {
		t.Fatalf("the protected file: %q, %v", b, err)
	}
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			continue
		}
		if m := fi.Mode(); m&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice|os.ModeNamedPipe|os.ModeSocket) != 0 {
			t.Fatalf("%s has mode %v", e.Name(), m)
		}
	}
}

// TestSwappedDirectories: the host's side of a path changes between a directory
// and a link out while a guest uses it.
func TestSwappedDirectories(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "canary"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.onHost("real/canary=inside")
	if err := os.Symlink(outside, r.host("link")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, name := range []string{"real", "link"} {
				_ = os.Rename(r.host(name), r.host("d"))
				_ = os.Rename(r.host("d"), r.host(name))
			}
		}
	})
	reached := 0
	for range 3000 {
		if got, err := r.read("d/canary"); err == nil {
			reached++
			if got != "inside" {
				t.Errorf("read %q", got)
			}
		}
		_ = r.create("d/new", "x")
		_ = r.write("d/canary", "inside")
		_ = r.unlink("d/new")
		if st, err := r.root.WalkStat(r.ctx, []string{"d", "canary"}); err == nil && len(st) == 2 && st[1].Size != 6 {
			t.Errorf("WalkStat shows a file of %d bytes", st[1].Size)
		}
	}
	close(stop)
	swaps.Wait()
	if reached == 0 {
		t.Error("the directory was never reached: nothing was tested")
	}
	if b, err := os.ReadFile(filepath.Join(outside, "canary")); err != nil || string(b) != "host" {
		t.Errorf("the file outside: %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(outside, "new")); err == nil {
		t.Error("a file was made outside")
	}
}

// TestConcurrentUse: many goroutines on one tree, renames among them.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.onHost("a/", "b/", "a/.vscode/x=old")
	var wg sync.WaitGroup
	for i := range 8 {
		name := string(rune('a' + i))
		wg.Go(func() {
			for range 100 {
				_ = r.mkdir("a/" + name)
				_ = r.create("a/"+name+"/.envrc", name)
				_ = r.rename("a/"+name, "b/"+name)
				_ = r.rename("b", "c")
				_ = r.rename("c", "b")
				_ = r.chmod("b/"+name, 0o4777)
				_ = r.link("b/"+name+"/.envrc", "a/.envrc")
				_ = r.rename("b/"+name+"/.envrc", "a/.vscode/x")
				_ = r.unlink("b/" + name + "/.envrc")
				_ = r.rmdir("b/" + name)
			}
		})
	}
	wg.Wait()
	if r.content("a/.vscode/x") != "old" || r.content("a/.envrc") != "absent" {
		t.Error("a protected name changed")
	}
}

// TestForeignDescriptors: numbers of descriptors of other kinds, or of none.
func TestForeignDescriptors(t *testing.T) {
	t.Parallel()
	r := newRig(t, protected)
	r.onHost("f=x")
	fd, in := r.must("f")
	open, hostFD, err := fd.OpenAt(r.ctx, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(hostFD)
	for _, id := range []lisafs.FDID{0, open, 1 << 40} {
		bad := r.client.NewFD(id)
		if _, err := bad.Walk(r.ctx, "x"); err == nil {
			t.Errorf("walked from %d", id)
		}
		if _, err := bad.MkdirAt(r.ctx, "x", 0o755, 0, 0); err == nil {
			t.Errorf("made a directory in %d", id)
		}
		if err := r.root.RenameAt(r.ctx, "f", id, "g", 0); err == nil {
			t.Errorf("renamed into %d", id)
		}
		if _, err := r.root.LinkAt(r.ctx, id, "g"); err == nil {
			t.Errorf("linked %d", id)
		}
	}
	file := r.client.NewFD(in.ControlFD)
	if _, err := file.MkdirAt(r.ctx, "x", 0o755, 0, 0); err == nil {
		t.Error("made a directory in a file")
	}
	readable := r.client.NewFD(open)
	if _, err := readable.Write(r.ctx, []byte("y"), 0); err == nil {
		t.Error("wrote through a descriptor for reading")
	}
	if _, _, _, err := r.root.OpenCreateAt(r.ctx, "h", unix.O_RDWR|unix.O_DIRECTORY|unix.O_PATH, linux.FileMode(0o644), 0, 0); err != nil {
		t.Errorf("flags that do not count: %v", err)
	}
}
