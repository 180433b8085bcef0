package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Names of the checks of resources.
const (
	CheckMemory = "memory"
	CheckSwap   = "swap"
	CheckDisk   = "disk"
)

// A sandbox with the default limit wants this much free before it starts.
const (
	enoughMemory = 512 << 20
	enoughDisk   = 1 << 30
)

func resourceChecks(o Options) []driver.Check {
	out := []driver.Check{memoryCheck(meminfo()), swapCheck(meminfo())}
	if o.StateDir != "" {
		out = append(out, diskCheck(o.StateDir))
	}
	return out
}

// meminfo returns /proc/meminfo in bytes; nil when it cannot be read.
func meminfo() map[string]int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	return parseMeminfo(b)
}

func parseMeminfo(b []byte) map[string]int64 {
	out := map[string]int64{}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		key, rest, ok := strings.Cut(sc.Text(), ":")
		f := strings.Fields(rest)
		if !ok || len(f) == 0 {
			continue
		}
		n, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			continue
		}
		if len(f) > 1 && f[1] == "kB" {
			n <<= 10
		}
		out[key] = n
	}
	return out
}

func memoryCheck(m map[string]int64) driver.Check {
	free, ok := m["MemAvailable"]
	switch {
	case !ok:
		return unsure(CheckMemory, "/proc/meminfo does not tell", "")
	case free < enoughMemory:
		return no(CheckMemory, fmt.Sprintf("%s available, a sandbox may want %s", size(free), size(enoughMemory)),
			"end programs that are not needed, or start sandboxes with a smaller --memory")
	}
	return yes(CheckMemory, fmt.Sprintf("%s of %s available", size(free), size(m["MemTotal"])))
}

// swapCheck answers yes when there is no swap to leak a sandbox's memory to.
func swapCheck(m map[string]int64) driver.Check {
	total, ok := m["SwapTotal"]
	switch {
	case !ok:
		return unsure(CheckSwap, "/proc/meminfo does not tell", "")
	case total == 0:
		return yes(CheckSwap, "none: a memory limit is the whole limit")
	}
	return yes(CheckSwap, fmt.Sprintf("%s on the host; sandboxes get none where a cgroup holds them to it", size(total)))
}

func diskCheck(dir string) driver.Check {
	at := dir
	for {
		if _, err := os.Stat(at); err == nil || at == "/" || at == "." {
			break
		}
		at = filepath.Dir(at)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return unsure(CheckDisk, at+": "+errno(err), "")
	}
	free := int64(st.Bavail) * st.Bsize
	if free < enoughDisk {
		return no(CheckDisk, fmt.Sprintf("%s free at %s", size(free), at), "free some space, or set BELLJAR_STATE_DIR to another file system")
	}
	return yes(CheckDisk, fmt.Sprintf("%s free at %s", size(free), at))
}

// size prints a byte count as people write it.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n), -1
	for f >= unit && i < 4 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGTP"[i])
}
