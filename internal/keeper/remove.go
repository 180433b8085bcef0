package keeper

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"

	"github.com/belljar-sh/belljar/sandbox"
)

// removeTree removes dir, and refuses when anything is mounted beneath it:
// what is mounted there may be a caller's directory.
func removeTree(dir string) error {
	at, err := mountBeneath(dir)
	if err != nil {
		return err
	}
	if at != "" {
		return sandbox.Errorf(sandbox.Conflict, "something is still mounted here").WithField("dir", at)
	}
	if err := os.RemoveAll(dir); err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot remove: %w", err).WithField("dir", dir)
	}
	return nil
}

// mountBeneath returns the first mount point at or beneath dir, "" for none.
func mountBeneath(dir string) (string, error) {
	real, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", sandbox.Errorf(sandbox.Internal, "cannot resolve: %w", err).WithField("dir", dir)
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", sandbox.Errorf(sandbox.Internal, "cannot read the mount table: %w", err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) < 5 {
			continue
		}
		if at := unescape.Replace(fields[4]); at == real || strings.HasPrefix(at, real+"/") {
			return at, nil
		}
	}
	if err := sc.Err(); err != nil {
		return "", sandbox.Errorf(sandbox.Internal, "cannot read the mount table: %w", err)
	}
	return "", nil
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
