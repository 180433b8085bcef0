package gvisor

import (
	"bufio"
	"fmt"
	"hash/fnv"
	"io"
	"os"
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

// slotLock keeps a range of ids for one sandbox. It is an abstract socket's
// name: the kernel frees it with the process, so nothing is ever left to reap.
type slotLock struct {
	slot uint32
	fd   int
}

// slotTries bounds the search for a free range. Whoever bound a name first has
// it, so another user of the host could squat on some, though not usefully.
const slotTries = 64

// lockSlot finds a range that no living sandbox of this host uses, beginning
// where the ID's hash points.
func lockSlot(id sandbox.ID) (*slotLock, error) {
	h := fnv.New32a()
	io.WriteString(h, string(id))
	first := h.Sum32()
	for i := range uint32(slotTries) {
		slot := (first + i*2654435761) % rangeCount
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@belljar-ids-%d", slot)})
		if err == nil {
			return &slotLock{slot: slot, fd: fd}, nil
		}
		unix.Close(fd)
		if err != unix.EADDRINUSE {
			return nil, err
		}
	}
	return nil, sandbox.Errorf(sandbox.ResourceExhausted, "no free range of user ids after %d tries", slotTries).
		WithHint("end some sandboxes and try again")
}

// release frees the range. It is safe on nil.
func (l *slotLock) release() {
	if l != nil {
		unix.Close(l.fd)
	}
}
