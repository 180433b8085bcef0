package guest

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds of one watch.
const (
	maxWatched = 8192 // directories
	maxQueued  = 4096 // events that the reader has not taken yet
)

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// watcher watches one directory for one request.
type watcher struct {
	s         *Server
	id        identity
	root      string
	recursive bool
	f         *os.File // inotify
	raw       syscall.RawConn

	dirs   map[int32]string // by watch descriptor
	rename struct {         // an upload that is being renamed, see watcher.upload
		cookie  uint32
		existed bool
	}

	mu      sync.Mutex
	queue   []wire.WatchEvent
	dropped int64
	ended   bool
	wake    chan struct{}
}

func (s *Server) getWatch(q *request) error {
	t, err := q.target(s)
	if err != nil {
		return err
	}
	if t.query.Get("local") == "1" {
		if err := s.as(t.id, func() error { return mustBeLocal(t.path) }); err != nil {
			return err
		}
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fsError("path", t.path, err)
	}
	w := &watcher{
		s: s, id: t.id, root: t.path, recursive: t.query.Get("recursive") == "true" || t.query.Get("recursive") == "1",
		f: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]string{}, wake: make(chan struct{}, 1),
	}
	w.raw, err = w.f.SyscallConn()
	if err == nil {
		err = s.as(t.id, func() error { return w.add(t.path, 0, false) })
	}
	if err != nil {
		w.f.Close()
		return err
	}
	q.w.Header().Set("Content-Type", "application/octet-stream")
	q.w.WriteHeader(http.StatusOK)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.read()
	}()
	err = w.send(q)
	w.f.Close()
	<-done
	return err
}

// remote are file systems that somebody else may change without a word to the
// kernel here.
var remote = map[int64]bool{
	unix.NFS_SUPER_MAGIC: true, unix.FUSE_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true,
	unix.CIFS_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true,
}

func mustBeLocal(p string) error {
	var st unix.Statfs_t
	if unix.Statfs(p, &st) == nil && remote[int64(st.Type)] {
		return sandbox.Errorf(sandbox.Invalid, "the path is on a mount that others change unseen").WithField("path", p)
	}
	return nil // what is not there is told by what comes next
}

// add watches dir and, in a recursive watch, what is below it. With announce
// set, what is found there is told: it came before the watch.
func (w *watcher) add(dir string, dev uint64, announce bool) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fsError("path", dir, err)
	}
	if uint64(st.Dev) != dev && dev != 0 && pathVirtual(dir) {
		return nil
	}
	if len(w.dirs) >= maxWatched {
		return sandbox.Errorf(sandbox.ResourceExhausted, "more than %d directories to watch", maxWatched).WithField("path", w.root).
			WithHint("watch a smaller part of the tree")
	}
	wd := -1
	err := unix.EBADF
	w.raw.Control(func(fd uintptr) { wd, err = addWatch(int(fd), dir) })
	if err != 0 {
		if err == unix.ENOTDIR {
			return sandbox.Errorf(sandbox.Invalid, "not a directory").WithField("path", dir)
		}
		return fsError("path", dir, err)
	}
	w.dirs[int32(wd)] = dir
	if !w.recursive {
		return nil
	}
	return w.addBelow(dir, uint64(st.Dev), announce)
}

func addWatch(fd int, dir string) (int, unix.Errno) {
	wd, err := unix.InotifyAddWatch(fd, dir, watchMask)
	errno, _ := err.(unix.Errno)
	return wd, errno
}

func (w *watcher) addBelow(dir string, dev uint64, announce bool) error {
	d, err := os.Open(dir)
	if err != nil {
		return nil // not the user's to read, or gone
	}
	entries, _ := d.ReadDir(-1)
	d.Close()
	for _, e := range entries {
		p := path.Join(dir, e.Name())
		if announce {
			w.push("create", p)
		}
		if !e.IsDir() {
			continue
		}
		if err := w.add(p, dev, announce); sandbox.KindOf(err) == sandbox.ResourceExhausted {
			return err
		}
	}
	return nil
}

func pathVirtual(p string) bool {
	var st unix.Statfs_t
	return unix.Statfs(p, &st) == nil && virtual[int64(st.Type)]
}

// read takes events from the kernel until the watch ends, so that its queue
// does not overflow while the reader is slow.
func (w *watcher) read() {
	buf := make([]byte, 16<<10)
	for {
		n, err := w.f.Read(buf)
		if err != nil {
			w.end()
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			ev := rawEvent{
				wd: int32(binary.NativeEndian.Uint32(b)), mask: binary.NativeEndian.Uint32(b[4:]),
				cookie: binary.NativeEndian.Uint32(b[8:]),
			}
			size := int(binary.NativeEndian.Uint32(b[12:]))
			b = b[unix.SizeofInotifyEvent:]
			if size > len(b) {
				break
			}
			ev.name = strings.TrimRight(string(b[:size]), "\x00")
			b = b[size:]
			if w.event(ev) {
				w.end()
				return
			}
		}
	}
}

// rawEvent is one event as the kernel tells it.
type rawEvent struct {
	wd     int32
	mask   uint32
	cookie uint32
	name   string
}

// event handles one event and reports whether it is the last.
func (w *watcher) event(ev rawEvent) (last bool) {
	if ev.mask&unix.IN_Q_OVERFLOW != 0 {
		w.drop(1)
		w.s.as(w.id, func() error { return w.add(w.root, 0, false) }) // directories may have been missed
		return false
	}
	dir, ok := w.dirs[ev.wd]
	if ev.mask&unix.IN_IGNORED != 0 {
		delete(w.dirs, ev.wd)
		return len(w.dirs) == 0
	}
	if !ok {
		return false
	}
	if ev.name == "" {
		if ev.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0 && dir == w.root {
			w.push("remove", dir)
			return true
		}
		if ev.mask&unix.IN_ATTRIB != 0 && dir == w.root {
			w.push("chmod", dir)
		}
		return false
	}
	w.named(ev, path.Join(dir, ev.name))
	return false
}

func (w *watcher) named(ev rawEvent, p string) {
	if strings.HasPrefix(ev.name, tempPrefix) {
		if ev.mask&unix.IN_MOVED_FROM != 0 {
			w.rename.cookie, w.rename.existed = ev.cookie, w.s.replaced(ev.name)
		}
		return
	}
	isDir := ev.mask&unix.IN_ISDIR != 0
	switch {
	case ev.mask&unix.IN_MOVED_TO != 0 && ev.cookie != 0 && ev.cookie == w.rename.cookie:
		// A file that arrived by an upload of ours.
		if !w.rename.existed {
			w.push("create", p)
		}
		w.push("write", p)
	case ev.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		w.push("create", p)
		if isDir && w.recursive {
			w.s.as(w.id, func() error {
				if err := w.add(p, 0, true); sandbox.KindOf(err) == sandbox.ResourceExhausted {
					w.drop(1)
				}
				return nil
			})
		}
	case ev.mask&unix.IN_MODIFY != 0:
		w.push("write", p)
	case ev.mask&unix.IN_DELETE != 0:
		w.push("remove", p)
	case ev.mask&unix.IN_MOVED_FROM != 0:
		w.push("rename", p)
		if isDir {
			w.forget(p)
		}
	case ev.mask&unix.IN_ATTRIB != 0:
		w.push("chmod", p)
	}
}

// forget ends the watches at and below a directory that has moved away.
func (w *watcher) forget(p string) {
	for wd, dir := range w.dirs {
		if dir == p || strings.HasPrefix(dir, p+"/") {
			w.raw.Control(func(fd uintptr) { unix.InotifyRmWatch(int(fd), uint32(wd)) })
			delete(w.dirs, wd)
		}
	}
}

// push queues an event, or counts it when there is no room.
func (w *watcher) push(op, p string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) >= maxQueued {
		w.dropped++
		return
	}
	if n := len(w.queue); n > 0 && op == "write" && w.queue[n-1].Op == op && w.queue[n-1].Path == p {
		return // one write in many pieces
	}
	w.queue = append(w.queue, wire.WatchEvent{Op: op, Path: p, RawPath: rawPath(p)})
	w.poke()
}

func (w *watcher) drop(n int64) {
	w.mu.Lock()
	w.dropped += n
	w.mu.Unlock()
	w.poke()
}

func (w *watcher) end() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.poke()
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// send writes events until the watch or the request ends.
func (w *watcher) send(q *request) error {
	flush := http.NewResponseController(q.w).Flush
	silence := time.NewTimer(keepaliveEvery)
	defer silence.Stop()
	for {
		if err := flush(); err != nil {
			return errBroken
		}
		silence.Reset(keepaliveEvery)
		var frames []byte
		select {
		case <-w.wake:
			w.mu.Lock()
			queue, ended := w.queue, w.ended
			w.queue = nil
			if w.dropped > 0 { // what was lost came after all of these
				queue = append(queue, wire.WatchEvent{Op: "overflow", Path: w.root, RawPath: rawPath(w.root), Dropped: w.dropped})
				w.dropped = 0
			}
			w.mu.Unlock()
			frames = encodeEvents(queue)
			if ended && len(queue) == 0 {
				return nil
			}
			if ended {
				w.poke()
			}
		case <-silence.C:
			frames = make([]byte, wire.HeaderLen)
			wire.Frame{Type: wire.FrameKeepalive}.Put(frames)
		case <-q.ctx.Done():
			return errBroken
		}
		if _, err := q.w.Write(frames); err != nil {
			return errBroken
		}
	}
}

func encodeEvents(events []wire.WatchEvent) []byte {
	var out []byte
	for _, e := range events {
		body, err := json.Marshal(e)
		if err != nil {
			continue
		}
		var head [wire.HeaderLen]byte
		wire.Frame{Type: wire.FrameJSON, Len: uint32(len(body))}.Put(head[:])
		out = append(append(out, head[:]...), body...)
	}
	return out
}
