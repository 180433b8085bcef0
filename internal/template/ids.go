package template

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxID is the largest owner that a root file system holds.
const maxID = 65535

// canChown reports whether the calling process may give files to any of the
// owners that a root file system holds.
func canChown() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if os.Geteuid() != 0 || unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_CHOWN) != 0 && coversIDs("/proc/self/uid_map") && coversIDs("/proc/self/gid_map")
}

// coversIDs reports whether ids 0 to maxID all exist in a user namespace, as
// its map says.
func coversIDs(file string) bool {
	b, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	return coversMap(string(b))
}

func coversMap(idMap string) bool {
	next := uint64(0)
	// Lines are in no particular order: each round finds the one that goes on.
	for range strings.Count(idMap, "\n") + 1 {
		for line := range strings.SplitSeq(idMap, "\n") {
			var inside, outside, size uint64
			if _, err := fmt.Sscan(line, &inside, &outside, &size); err != nil {
				continue
			}
			if inside <= next && next < inside+size {
				next = inside + size
			}
		}
	}
	return next > maxID
}
