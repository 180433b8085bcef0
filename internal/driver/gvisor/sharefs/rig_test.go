package sharefs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/unet"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/hostfilter"
)

const (
	guestUID = 1000
	guestGID = 1001
)

// howEnv says how the tests run; they run once in each way.
const howEnv = "SHAREFS_TEST_HOW"

const (
	filtered = "filtered" // under the filter that confines our roles
	confined = "confined" // the server in a process of its own, under gVisor's filter for gofers too
)

// TestMain gives the process what gVisor gives its gofer.
func TestMain(m *testing.M) {
	unix.Umask(0)
	log.SetLevel(log.Warning)
	if raw := os.Getenv(serveEnv); raw != "" {
		if err := serveChild(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(howEnv) == filtered {
		if err := hostfilter.Install(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// TestAgain runs every test of this package again, as a user without rights and
// in confinement.
func TestAgain(t *testing.T) {
	t.Parallel()
	if os.Getenv(howEnv) != "" {
		t.Skip("probe: this is one of the other runs")
	}
	const uid, gid = 12345, 12346
	for _, tt := range []struct {
		name, how string
		user      bool
	}{
		{"confined", confined, false}, {"filtered", filtered, false},
		{"user", "user", true}, {"user confined", confined, true}, {"user filtered", filtered, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/proc/self/exe", "-test.timeout=5m")
			dir, err := os.MkdirTemp("", "sharefs-again-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if tt.user {
				if err := os.Chown(dir, uid, gid); err != nil {
					t.Skipf("probe: no process can be started as another user: %v", err)
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
			}
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), howEnv+"="+tt.how, "TMPDIR="+dir, "HOME="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

// rig is a share served over a real socket, and the client that a sentry uses.
type rig struct {
	t      *testing.T
	dir    string
	client *lisafs.Client
	root   lisafs.ClientFD
	ctx    context.Context
}

func newRig(t *testing.T, sh Share) *rig {
	t.Helper()
	return serve(t, t.TempDir(), sh)
}

// protected is the share that most tests use.
var protected = Share{Source: "x", UID: guestUID, GID: guestGID, Protect: true, Donate: true}

func serve(t *testing.T, dir string, sh Share) *rig {
	t.Helper()
	ours, theirs, err := unet.SocketPair(false)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(howEnv) == confined {
		startChild(t, dir, sh, ours)
	} else {
		startServer(t, dir, sh, ours, newMadeDirs())
	}
	return newRigOn(t, dir, theirs)
}

// serveKnowing serves dir in this process, by what is known in made.
func serveKnowing(t *testing.T, dir string, made *madeDirs) *rig {
	t.Helper()
	ours, theirs, err := unet.SocketPair(false)
	if err != nil {
		t.Fatal(err)
	}
	startServer(t, dir, protected, ours, made)
	return newRigOn(t, dir, theirs)
}

// newRigOn mounts what is served at the other end of a socket.
func newRigOn(t *testing.T, dir string, theirs *unet.Socket) *rig {
	t.Helper()
	client, root, hostFD, err := lisafs.NewClient(theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if hostFD >= 0 {
		t.Errorf("the mount donated descriptor %d", hostFD)
	}
	if err := client.StartChannels(); err != nil {
		t.Fatal(err)
	}
	// What is made from here on is younger than the server, by the coarse clock
	// that file systems take.
	for now, ts := time.Now(), (unix.Timespec{}); !time.Unix(ts.Unix()).After(now); {
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
			t.Fatal(err)
		}
	}
	return &rig{t: t, dir: dir, client: client, root: client.NewFD(root.ControlFD), ctx: context.Background()}
}

// startServer serves a share in this process.
func startServer(t testing.TB, dir string, sh Share, sock *unet.Socket, made *madeDirs) {
	t.Helper()
	procFD, err := openProcFD("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	server := lisafs.NewServer()
	impl := newConn(sh, procFD, Owner{uint32(unix.Geteuid()), uint32(unix.Getegid())}, made)
	lc, err := server.CreateConnection(sock, dir, connOpts(sh), impl)
	if err != nil {
		t.Fatal(err)
	}
	server.StartConnection(lc)
	t.Cleanup(func() {
		server.Wait()
		server.Destroy()
		unix.Close(procFD)
	})
}

// host is the path of a file on the host.
func (r *rig) host(path string) string { return filepath.Join(r.dir, path) }

// onHost makes files as the host does: a name that ends in a slash is a
// directory.
func (r *rig) onHost(files ...string) {
	r.t.Helper()
	for _, f := range files {
		path, content, _ := strings.Cut(f, "=")
		if err := os.MkdirAll(filepath.Dir(r.host(path)+"x"), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if strings.HasSuffix(path, "/") {
			if err := os.MkdirAll(r.host(path), 0o755); err != nil {
				r.t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(r.host(path), []byte(content), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
}

// content reads a file on the host; "absent" when there is none.
func (r *rig) content(path string) string {
	b, err := os.ReadFile(r.host(path))
	if errors.Is(err, os.ErrNotExist) {
		return "absent"
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

func (r *rig) lstat(path string) unix.Stat_t {
	r.t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(r.host(path), &st); err != nil {
		r.t.Fatal(err)
	}
	return st
}

// walk walks to a path; "" is the root.
func (r *rig) walk(path string) (lisafs.ClientFD, lisafs.Inode, error) {
	if path == "" || path == "." {
		var st lisafs.Statx
		err := r.root.StatTo(r.ctx, &st)
		return r.root, lisafs.Inode{ControlFD: r.root.ID(), Stat: st}, err
	}
	names := strings.Split(path, "/")
	status, inodes, err := r.root.WalkMultiple(r.ctx, names)
	if err != nil {
		return lisafs.ClientFD{}, lisafs.Inode{}, err
	}
	for _, in := range inodes[:max(len(inodes)-1, 0)] {
		r.client.CloseFD(r.ctx, in.ControlFD, false)
	}
	if status != lisafs.WalkSuccess || len(inodes) != len(names) {
		return lisafs.ClientFD{}, lisafs.Inode{}, unix.ENOENT
	}
	last := inodes[len(inodes)-1]
	return r.client.NewFD(last.ControlFD), last, nil
}

func (r *rig) must(path string) (lisafs.ClientFD, lisafs.Inode) {
	r.t.Helper()
	fd, in, err := r.walk(path)
	if err != nil {
		r.t.Fatalf("walk to %q: %v", path, err)
	}
	return fd, in
}

// in calls f with the directory of a path and its last name.
func (r *rig) in(path string, f func(dir *lisafs.ClientFD, name string) error) error {
	dir, _, err := r.walk(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("walk to the directory: %w", err)
	}
	return f(&dir, filepath.Base(path))
}

func (r *rig) create(path, content string) error {
	return r.createMode(path, content, 0o644)
}

func (r *rig) createMode(path, content string, mode linux.FileMode) error {
	return r.in(path, func(dir *lisafs.ClientFD, name string) error {
		_, open, hostFD, err := dir.OpenCreateAt(r.ctx, name, unix.O_RDWR, mode, guestUID, guestGID)
		if err != nil {
			return err
		}
		if hostFD >= 0 {
			unix.Close(hostFD)
		}
		fd := r.client.NewFD(open)
		defer fd.Close(r.ctx, true)
		_, err = fd.Write(r.ctx, []byte(content), 0)
		return err
	})
}

// setID gives a file of the host a mode that only the host may give it.
func (r *rig) setID(path string, mode uint32) {
	r.t.Helper()
	if err := unix.Chmod(r.host(path), mode); err == nil && r.lstat(path).Mode&0o7777 == mode {
		return
	}
	r.t.Skip("probe: no set-ID bit can be given here, by the file system or under the filter")
}

// write opens an existing file with O_TRUNC and writes.
func (r *rig) write(path, content string) error {
	fd, _, err := r.walk(path)
	if err != nil {
		return err
	}
	open, hostFD, err := fd.OpenAt(r.ctx, unix.O_WRONLY|unix.O_TRUNC)
	if err != nil {
		return err
	}
	if hostFD >= 0 {
		unix.Close(hostFD)
	}
	file := r.client.NewFD(open)
	defer file.Close(r.ctx, true)
	_, err = file.Write(r.ctx, []byte(content), 0)
	return err
}

func (r *rig) read(path string) (string, error) {
	fd, _, err := r.walk(path)
	if err != nil {
		return "", err
	}
	open, hostFD, err := fd.OpenAt(r.ctx, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	if hostFD >= 0 {
		unix.Close(hostFD)
	}
	file := r.client.NewFD(open)
	defer file.Close(r.ctx, true)
	buf := make([]byte, 1<<16)
	n, err := file.Read(r.ctx, buf, 0)
	if n == 0 && err != nil && err.Error() == "EOF" {
		err = nil
	}
	return string(buf[:n]), err
}

func (r *rig) mkdir(path string) error { return r.mkdirMode(path, 0o755) }

func (r *rig) mkdirMode(path string, mode linux.FileMode) error {
	return r.in(path, func(dir *lisafs.ClientFD, name string) error {
		_, err := dir.MkdirAt(r.ctx, name, mode, guestUID, guestGID)
		return err
	})
}

func (r *rig) symlink(target, path string) error {
	return r.in(path, func(dir *lisafs.ClientFD, name string) error {
		_, err := dir.SymlinkAt(r.ctx, name, target, guestUID, guestGID)
		return err
	})
}

func (r *rig) link(oldPath, newPath string) error {
	old, _, err := r.walk(oldPath)
	if err != nil {
		return err
	}
	return r.in(newPath, func(dir *lisafs.ClientFD, name string) error {
		_, err := dir.LinkAt(r.ctx, old.ID(), name)
		return err
	})
}

func (r *rig) unlink(path string) error {
	return r.in(path, func(dir *lisafs.ClientFD, name string) error { return dir.UnlinkAt(r.ctx, name, 0) })
}

func (r *rig) rmdir(path string) error {
	return r.in(path, func(dir *lisafs.ClientFD, name string) error {
		return dir.UnlinkAt(r.ctx, name, unix.AT_REMOVEDIR)
	})
}

func (r *rig) rename(oldPath, newPath string) error { return r.renameFlags(oldPath, newPath, 0) }

func (r *rig) renameFlags(oldPath, newPath string, flags uint32) error {
	return r.in(oldPath, func(from *lisafs.ClientFD, oldName string) error {
		return r.in(newPath, func(to *lisafs.ClientFD, newName string) error {
			return from.RenameAt(r.ctx, oldName, to.ID(), newName, flags)
		})
	})
}

func (r *rig) mknod(path string, mode linux.FileMode) error {
	return r.in(path, func(dir *lisafs.ClientFD, name string) error {
		_, err := dir.MknodAt(r.ctx, name, mode, guestUID, guestGID, 1, 3)
		return err
	})
}

func (r *rig) setStat(path string, st linux.Statx) error {
	fd, _, err := r.walk(path)
	if err != nil {
		return err
	}
	_, failure, err := fd.SetStat(r.ctx, &st)
	if err != nil {
		return err
	}
	return failure
}

func (r *rig) chmod(path string, mode uint16) error {
	return r.setStat(path, linux.Statx{Mask: unix.STATX_MODE, Mode: mode})
}

func (r *rig) chown(path string, uid, gid uint32) error {
	return r.setStat(path, linux.Statx{Mask: unix.STATX_UID | unix.STATX_GID, UID: uid, GID: gid})
}

func (r *rig) truncate(path string, size uint64) error {
	return r.setStat(path, linux.Statx{Mask: unix.STATX_SIZE, Size: size})
}

func (r *rig) setxattr(path, name, value string) error {
	fd, _, err := r.walk(path)
	if err != nil {
		return err
	}
	return fd.SetXattr(r.ctx, name, value, 0)
}

// expect compares an error with an errno; 0 means success.
func (r *rig) expect(what string, err error, want unix.Errno) {
	r.t.Helper()
	if want == 0 && err == nil {
		return
	}
	if want == 0 || !errors.Is(err, want) {
		r.t.Errorf("%s: got %v, want %v", what, err, unix.ErrnoName(want))
	}
}
