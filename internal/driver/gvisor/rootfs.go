package gvisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/lisafs"
)

// rootServer is the sentry's server for the root file system. gVisor would run
// a gofer process for it; but with directfs a gofer does no more than hand over
// a descriptor of the root and, each time the root itself is opened, another.
// That is all this server does. It costs a goroutine instead of a process, and
// the descriptor is of a detached tree, from which no path leads anywhere else.
//
// The sentry may be in the hands of its guest: whatever is not one of the two
// requests ends the connection, upon which an honest sentry ends itself.
type rootServer struct {
	conn *net.UnixConn
	tree *os.File
	ids  idPlan

	window time.Time // of requests that are counted together
	served int
}

// maxPerSecond bounds what a sentry can make the keeper do for it, outside of
// the limits that bind the sentry.
const maxPerSecond = 1000

// slow waits where requests come too fast.
func (s *rootServer) slow() {
	now := time.Now()
	if left := s.window.Add(time.Second).Sub(now); left <= 0 {
		s.window, s.served = now, 0
	} else if s.served >= maxPerSecond {
		time.Sleep(left)
	}
	s.served++
}

// The frame around lisafs messages: length of the payload, message, two bytes
// of padding.
const (
	lisafsHeader  = 8
	lisafsRequest = 16 // the payload of an OpenAt, the longest that is served
	lisafsMax     = 1 << 12
)

// serveRoot serves until the sentry is gone or misbehaves; it owns conn and
// tree.
func serveRoot(conn *net.UnixConn, tree *os.File, ids idPlan) {
	s := &rootServer{conn: conn, tree: tree, ids: ids}
	defer conn.Close()
	defer tree.Close()
	for s.serveOne() == nil {
		s.slow()
	}
}

func (s *rootServer) serveOne() error {
	var req [lisafsHeader + lisafsRequest]byte
	if _, err := io.ReadFull(s.conn, req[:lisafsHeader]); err != nil {
		return err
	}
	size := binary.NativeEndian.Uint32(req[:])
	if size > lisafsRequest {
		return fmt.Errorf("request of %d bytes", size)
	}
	payload := req[lisafsHeader : lisafsHeader+size]
	if _, err := io.ReadFull(s.conn, payload); err != nil {
		return err
	}
	switch m := lisafs.MID(binary.NativeEndian.Uint16(req[4:])); m {
	case lisafs.Mount:
		return s.mount()
	case lisafs.OpenAt:
		return s.open(payload)
	default:
		return fmt.Errorf("request %d", m)
	}
}

// rootFDID is what the root is called on the connection. Other names have no
// meaning: nothing is ever closed.
const rootFDID = 1

func (s *rootServer) mount() error {
	var st unix.Statx_t
	if err := unix.Statx(int(s.tree.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st); err != nil {
		return err
	}
	resp := &lisafs.MountResp{
		Root: lisafs.Inode{ControlFD: rootFDID, Stat: lisafs.Statx{
			Mask: st.Mask, Mode: st.Mode, Nlink: st.Nlink, Ino: st.Ino, Size: st.Size, Blocks: st.Blocks, Blksize: st.Blksize,
			UID: inside(s.ids.UIDs, st.Uid), GID: inside(s.ids.GIDs, st.Gid),
			DevMajor: st.Dev_major, DevMinor: st.Dev_minor,
			Atime: lisafsTime(st.Atime), Mtime: lisafsTime(st.Mtime), Ctime: lisafsTime(st.Ctime),
		}},
		MaxMessageSize: lisafsMax,
		SupportedMs:    []lisafs.MID{lisafs.Mount, lisafs.OpenAt},
	}
	fd, err := s.openRoot()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	payload := make([]byte, resp.SizeBytes())
	resp.MarshalBytes(payload)
	return s.reply(lisafs.Mount, payload, fd)
}

func lisafsTime(t unix.StatxTimestamp) lisafs.StatxTimestamp {
	return lisafs.StatxTimestamp{Sec: t.Sec, Nsec: t.Nsec}
}

// open opens the root directory anew, for reading whatever was asked for.
func (s *rootServer) open(payload []byte) error {
	var req lisafs.OpenAtReq
	if len(payload) != req.SizeBytes() {
		return errors.New("short request")
	}
	req.UnmarshalUnsafe(payload)
	if req.FD != rootFDID || req.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return errors.New("not the root, or not for reading")
	}
	fd, err := s.openRoot()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	resp := &lisafs.OpenAtResp{OpenFD: rootFDID + 1}
	out := make([]byte, resp.SizeBytes())
	resp.MarshalUnsafe(out)
	return s.reply(lisafs.OpenAt, out, fd)
}

func (s *rootServer) openRoot() (int, error) {
	return unix.Openat(int(s.tree.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func (s *rootServer) reply(m lisafs.MID, payload []byte, fd int) error {
	msg := binary.NativeEndian.AppendUint32(nil, uint32(len(payload)))
	msg = binary.NativeEndian.AppendUint16(msg, uint16(m))
	msg = append(append(msg, 0, 0), payload...)
	_, _, err := s.conn.WriteMsgUnix(msg, unix.UnixRights(fd), nil)
	return err
}

// inside returns what the sandbox calls an id that the keeper sees.
func inside(ranges []idRange, id uint32) uint32 {
	for _, r := range ranges {
		if id >= r.Outside && id-r.Outside < r.Size {
			return r.Inside + id - r.Outside
		}
	}
	return 65534
}
