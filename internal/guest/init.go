package guest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// Prepare makes the process fit to serve, before New: children of dead parents
// come to it, and what it makes has the usual modes.
func Prepare() error {
	unix.Umask(0o022)
	if os.Getpid() == 1 {
		return nil // orphans come to PID 1 anyway
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// initSettle does the duties of PID 1 that depend on the identity, and returns
// the boot ID. What a boundary does not allow is left as it is: nothing here is
// a promise to the host.
func (s *Server) initSettle(h *wire.Hello) string {
	s.setHostname(h.Hostname)
	hostClock(h)
	first := false
	s.initOnce.Do(func() {
		first = true
		s.furnish()
	})
	s.trees.limit(h.Limits.Processes)
	s.notes.renew()
	s.note("generation", strconv.FormatUint(h.Generation, 10)+"\n")
	if h.Token != "" {
		s.note("token", h.Token+"\n")
	}
	s.setMachineID(h.MachineID)
	// gVisor draws a boot ID at every boot, and only what is restored from a
	// checkpoint has that of another; under the host's kernel it is the host's.
	if h.Restored || first && !ownKernel() {
		s.bindBootID(newBootID())
	}
	if s.bootID == "" {
		s.bootID = readBootID()
	}
	return s.bootID
}

// setHostname names the host, for programs that ask the kernel and for those
// that read the file.
func (s *Server) setHostname(name string) {
	if name == "" || name == s.hostname {
		return
	}
	s.hostname = name
	unix.Sethostname([]byte(name))
	if s.cfg.HostnameFile != "" {
		replaceID(s.cfg.HostnameFile, name, false)
	}
}

// bindBootID has programs find id in the place of the kernel's boot ID.
func (s *Server) bindBootID(id string) {
	s.bootID = id
	s.note("boot_id", id+"\n")
	if !s.bootBound {
		s.bootBound = unix.Mount(filepath.Join(s.cfg.RunDir, "boot_id"), "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "") == nil
	}
}

// prepareRestore does ahead, as the guest comes to rest, what would cost time
// after each restore.
func (s *Server) prepareRestore() {
	s.drawAtRest()
	if s.cfg.Init && !s.bootBound {
		s.bindBootID(readBootID())
	}
}

// ownKernel tells whether the sandbox has gVisor's kernel to itself.
var ownKernel = sync.OnceValue(func() bool {
	var u unix.Utsname
	return unix.Uname(&u) == nil && bytes.Contains(u.Release[:], []byte("gvisor"))
})

// initFirst is done once per boot.
func (s *Server) initFirst() {
	if unix.Mkdir(s.cfg.RunDir, 0o755) != nil {
		os.RemoveAll(s.cfg.RunDir) // an earlier boot's: its token and all that it noted are over
		os.MkdirAll(s.cfg.RunDir, 0o755)
	}
	// gVisor covers a /tmp in which an earlier boot has left nothing with one
	// that is memory.
	var fs unix.Statfs_t
	if ownKernel() && unix.Statfs("/tmp", &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
		unix.Unmount("/tmp", unix.MNT_DETACH)
	}
	var st unix.Stat_t
	if unix.Stat("/tmp", &st) != nil || st.Mode&0o7777 != 0o1777 {
		os.MkdirAll("/tmp", 0o777)
		unix.Chmod("/tmp", 0o1777)
	}
	s.mountCgroup()
}

// mountCgroup gives every process tree a cgroup of its own to be in. Where that
// fails trees are walked.
func (s *Server) mountCgroup() {
	dir := filepath.Join(s.cfg.RunDir, "cgroup")
	if err := unix.Mkdir(dir, 0o700); err != nil && err != unix.EEXIST {
		return
	}
	f, ok := openForest(dir)
	if !ok {
		unix.Rmdir(dir)
		return
	}
	s.trees = f
}

func newBootID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// ensureHome makes the home of a user whose template has none. Only PID 1 does
// so: elsewhere the file system is not ours.
func (s *Server) ensureHome(id identity) {
	if !s.cfg.Init || id.home == "/" {
		return
	}
	if _, done := s.homes.LoadOrStore(id.name, true); done {
		return
	}
	var st unix.Stat_t
	if unix.Lstat(id.home, &st) != unix.ENOENT {
		return
	}
	os.MkdirAll(path.Dir(id.home), 0o755)
	if os.Mkdir(id.home, 0o755) == nil {
		os.Lchown(id.home, int(id.uid), int(id.gid))
	}
}
