package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Names of the checks of our own programs.
const (
	CheckEngine = "belljar-engine"
	CheckGuest  = "belljar-guest"
)

// Program names beside the command line.
const (
	Engine = "belljar-engine"
	Guest  = "belljar-guest"
)

// Dir returns the directory of the running program, links resolved: where the
// other two programs must be.
func Dir() (string, error) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSuffix(exe, " (deleted)")), nil
}

func (o Options) dir() string {
	if o.Dir != "" {
		return o.Dir
	}
	d, err := Dir()
	if err != nil {
		return ""
	}
	return d
}

func installChecks(ctx context.Context, o Options) []driver.Check {
	return []driver.Check{
		ownCheck(ctx, CheckEngine, filepath.Join(o.dir(), Engine), o.Build),
		ownCheck(ctx, CheckGuest, filepath.Join(o.dir(), Guest), o.Build),
	}
}

// ownCheck runs a program of ours with "version" and compares its build.
func ownCheck(ctx context.Context, name, path, build string) driver.Check {
	const remedy = "install the three programs together: go install ./cmd/... or make install"
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return no(name, path+" does not exist", remedy)
	case err != nil:
		return unsure(name, path+": "+errno(err), "")
	case !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0:
		return no(name, path+" is not an executable file", remedy)
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "version").Output()
	if err != nil {
		return no(name, fmt.Sprintf("%s does not tell its version: %v", path, err), remedy)
	}
	if got := buildOf(out); got != build {
		return no(name, fmt.Sprintf("%s is build %q, this program is %q", path, got, build), remedy)
	}
	return yes(name, path+", same build")
}

// buildOf returns the last word of the first line, where our programs print
// their build.
func buildOf(out []byte) string {
	f := strings.Fields(firstLine(out))
	if len(f) == 0 {
		return ""
	}
	return f[len(f)-1]
}
