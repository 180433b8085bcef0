package gvisor

import (
	"bufio"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// Host ids of sandboxes come from a part of the id space that nobody else uses:
// useradd hands out subordinate ids below 600,100,000, systemd-nspawn below
// 0x70000000, and ids from 0x80000000 on upset programs that take them for
// signed. One range has as many ids as a root file system may hold.
const (
	rangeFirst = 0x70000000
	rangeSize  = 1 << 16
	rangeCount = 0x0ffe
)

// idPlan tells which host ids stand for the ids inside a sandbox.
type idPlan struct {
	UIDs, GIDs []idRange
	// OwnRange tells that the ids belong to this sandbox alone, so files of
	// the host must be mapped to be owned by anybody inside.
	OwnRange bool
	// DropGroups tells that supplementary groups can be given up.
	DropGroups bool
}

// idRange maps Size ids from Inside on to ids from Outside on; Outside is as
// seen by the keeper.
type idRange struct {
	Inside, Outside, Size uint32
}

// identity is what the kernel says of the keeper's own ids.
type identity struct {
	uids, gids []idRange
	setgroups  bool
}

// readIdentity reads the calling process's id maps.
func readIdentity() (identity, error) {
	var id identity
	for file, into := range map[string]*[]idRange{"uid_map": &id.uids, "gid_map": &id.gids} {
		f, err := os.Open("/proc/self/" + file)
		if err != nil {
			return id, err
		}
		*into, err = parseIDMap(f)
		f.Close()
		if err != nil {
			return id, fmt.Errorf("/proc/self/%s: %w", file, err)
		}
	}
	b, err := os.ReadFile("/proc/self/setgroups")
	if err != nil {
		return id, err
	}
	id.setgroups = strings.TrimSpace(string(b)) == "allow"
	return id, nil
}

func parseIDMap(r io.Reader) ([]idRange, error) {
	var out []idRange
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		var m idRange
		if _, err := fmt.Sscan(sc.Text(), &m.Inside, &m.Outside, &m.Size); err != nil {
			return nil, fmt.Errorf("line %q: %w", sc.Text(), err)
		}
		out = append(out, m)
	}
	return out, sc.Err()
}

// covers reports whether all ids of [first, first+size) exist in ranges.
func covers(ranges []idRange, first, size uint32) bool {
	for _, r := range ranges {
		if first >= r.Inside && uint64(first)+uint64(size) <= uint64(r.Inside)+uint64(r.Size) {
			return true
		}
	}
	return false
}

// ownRanges reports whether the keeper may give each sandbox ids of its own:
// it is root in a namespace that has the ids.
func (id identity) ownRanges() bool {
	const all = rangeCount * rangeSize
	return os.Geteuid() == 0 && id.setgroups && covers(id.uids, rangeFirst, all) && covers(id.gids, rangeFirst, all)
}

// plan returns the ids for a sandbox whose own range, if it gets one, is slot.
func (id identity) plan(slot uint32) idPlan {
	if id.ownRanges() {
		r := []idRange{{Inside: 0, Outside: rangeFirst + slot*rangeSize, Size: rangeSize}}
		return idPlan{UIDs: r, GIDs: r, OwnRange: true, DropGroups: true}
	}
	return idPlan{UIDs: sameIDs(id.uids), GIDs: sameIDs(id.gids), DropGroups: id.setgroups && os.Geteuid() == 0}
}

// runsRoles reports whether roles may have a user id, as this process sees it.
// They have the keeper's own until they enter their namespace, where they are
// root from then on: the first of a range of theirs, or the root of here.
func (id identity) runsRoles(uid string) bool {
	n, err := strconv.ParseUint(uid, 10, 32)
	if err != nil {
		return false
	}
	if n == 0 || int(n) == os.Geteuid() {
		return true
	}
	return id.ownRanges() && n >= rangeFirst && n < rangeFirst+rangeCount*rangeSize
}

// sameIDs maps the ids that exist here to themselves, up to 65535: a root file
// system holds no others.
func sameIDs(ranges []idRange) []idRange {
	var out []idRange
	for _, r := range ranges {
		if r.Inside >= rangeSize {
			continue
		}
		out = append(out, idRange{Inside: r.Inside, Outside: r.Inside, Size: min(r.Size, rangeSize-r.Inside)})
	}
	return out
}

// count is the number of ids in ranges.
func count(ranges []idRange) (n uint64) {
	for _, r := range ranges {
		n += uint64(r.Size)
	}
	return n
}

func sysMap(ranges []idRange) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(ranges))
	for i, r := range ranges {
		out[i] = syscall.SysProcIDMap{ContainerID: int(r.Inside), HostID: int(r.Outside), Size: int(r.Size)}
	}
	return out
}

// slotLock keeps a range of ids for one sandbox. It is a lock on a file: the
// kernel frees it with the process, so no range is ever left to reap. The file
// stays, for whoever unlinked it could leave two with a lock each.
type slotLock struct {
	slot uint32
	fd   int
}

// slotDir holds a file for each range. It is the same for all keepers of root,
// whatever their runtime directories, as they share the ids; nobody else may
// look into it, so nobody else can hold a lock.
const slotDir = "/run/belljar-ids"

// lockSlot finds a range that no living sandbox of this host uses, beginning
// where the ID's hash points.
func lockSlot(id sandbox.ID) (*slotLock, error) { return lockSlotIn(slotDir, id) }

func lockSlotIn(path string, id sandbox.ID) (*slotLock, error) {
	dir, err := openSlotDir(path)
	if err != nil {
		return nil, slotError(path, err)
	}
	defer unix.Close(dir)
	h := fnv.New32a()
	io.WriteString(h, string(id))
	first := h.Sum32() % rangeCount // IDs are random, and so is this
	for i := range uint32(rangeCount) {
		slot := (first + i) % rangeCount
		fd, err := tryLock(dir, strconv.FormatUint(uint64(slot), 10))
		if err == nil {
			return &slotLock{slot: slot, fd: fd}, nil
		}
		if err != unix.EWOULDBLOCK {
			return nil, slotError(path, err)
		}
	}
	return nil, sandbox.Errorf(sandbox.ResourceExhausted, "all %d ranges of user ids are in use", rangeCount).
		WithHint("end some sandboxes and try again")
}

// openSlotDir opens the directory of the locks, and makes it if need be. One
// that another user owns or may enter is refused.
func openSlotDir(path string) (fd int, err error) {
	if err := unix.Mkdir(path, 0o700); err != nil && err != unix.EEXIST {
		return -1, err
	}
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = fmt.Errorf("it has owner %d and mode %#o, not %d and 0700", st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// tryLock locks a file of the directory; EWOULDBLOCK means that another has
// it. No child inherits the descriptor, so none prolongs the lock.
func tryLock(dir int, name string) (fd int, err error) {
	fd, err = unix.Openat(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func slotError(path string, err error) error {
	return sandbox.Errorf(sandbox.Unsupported, "cannot lock a range of user ids in %s: %v", path, err).
		WithHint("%s must be a directory of root's with mode 0700, on a file system that root can write", path)
}

// release frees the range. It is safe on nil.
func (l *slotLock) release() {
	if l != nil {
		unix.Close(l.fd)
	}
}
