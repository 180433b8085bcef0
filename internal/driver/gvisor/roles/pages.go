package roles

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// span is a part of the address space.
type span struct{ from, to uintptr }

// ownPages returns where the program's file is mapped unchanged: its code and
// constants. Pages that differ from the file are of no such part.
func ownPages() []span {
	exe, err := os.Stat("/proc/self/exe")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	return parsePages(bufio.NewScanner(f), inode(exe))
}

func inode(fi os.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// parsePages reads smaps (proc_pid_smaps(5)).
func parsePages(lines *bufio.Scanner, ino uint64) (out []span) {
	var at span
	ours := false
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 {
			continue
		}
		if from, to, ok := strings.Cut(f[0], "-"); ok && len(f) >= 5 {
			a, aerr := strconv.ParseUint(from, 16, 64)
			b, berr := strconv.ParseUint(to, 16, 64)
			n, nerr := strconv.ParseUint(f[4], 10, 64)
			ours = aerr == nil && berr == nil && nerr == nil && n == ino && n != 0 && !strings.Contains(f[1], "w")
			at = span{uintptr(a), uintptr(b)}
			continue
		}
		if ours && f[0] == "Anonymous:" && f[1] == "0" {
			out = append(out, at)
		}
	}
	return out
}

// drop unmaps pages; those that are used again come back from the page cache.
func drop(spans []span) {
	for _, s := range spans {
		// A refusal leaves them where they are.
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED)
	}
}
