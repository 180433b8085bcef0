package host

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Names of the checks of installed programs.
const (
	CheckRunc        = "runc"
	CheckCrun        = "crun"
	CheckFirecracker = "firecracker"
	CheckQEMU        = "qemu"
	CheckNode        = "node"
	CheckMmdebstrap  = "mmdebstrap"
	CheckNewuidmap   = "newuidmap"
	CheckSubuid      = "subordinate ids"
)

const programTimeout = 2 * time.Second

func programChecks(ctx context.Context) []driver.Check {
	return []driver.Check{
		programCheck(ctx, CheckRunc, "runc", "install runc: it is one of two programs that the container boundary would drive"),
		programCheck(ctx, CheckCrun, "crun", "install crun: it is one of two programs that the container boundary would drive"),
		programCheck(ctx, CheckFirecracker, "firecracker", "install firecracker: it is one of two programs that the microvm boundary would drive"),
		programCheck(ctx, CheckQEMU, qemuName(), "install qemu: it is one of two programs that the microvm boundary would drive"),
		programCheck(ctx, CheckNode, "node", "install node: the host template then offers it to sandboxes"),
		programCheck(ctx, CheckMmdebstrap, "mmdebstrap", "install mmdebstrap: `belljar template build debian` uses it"),
		newuidmapCheck(),
		subuidCheck(),
	}
}

func qemuName() string {
	switch runtime.GOARCH {
	case "arm64":
		return "qemu-system-aarch64"
	default:
		return "qemu-system-x86_64"
	}
}

// programCheck looks for a program on PATH and asks it for its version.
func programCheck(ctx context.Context, name, program, remedy string) driver.Check {
	path, err := exec.LookPath(program)
	if err != nil {
		return no(name, program+" is not on PATH", remedy)
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if ctx.Err() == context.DeadlineExceeded {
		return unsure(name, fmt.Sprintf("%s is there and did not answer --version in %v", path, programTimeout), "")
	}
	if err != nil {
		return unsure(name, fmt.Sprintf("%s is there and does not tell its version: %v", path, err), "")
	}
	return yes(name, path+", "+firstLine(out))
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	const most = 80
	return string(line[:min(len(line), most)])
}

func newuidmapCheck() driver.Check {
	const remedy = "install the package uidmap: an ordinary user then gets sandboxes with more than one user inside"
	for _, p := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(p); err != nil {
			return no(CheckNewuidmap, p+" is not on PATH", remedy)
		}
	}
	return yes(CheckNewuidmap, "newuidmap and newgidmap are there")
}

func subuidCheck() driver.Check {
	uid := fmt.Sprint(os.Getuid())
	name := uid
	if u, err := user.LookupId(uid); err == nil {
		name = u.Username
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		b, err := os.ReadFile(file)
		if err == nil && hasSubordinate(b, name, uid) {
			continue
		}
		if uid == "0" {
			return yes(CheckSubuid, "root needs none")
		}
		return no(CheckSubuid, fmt.Sprintf("%s has no range for %s", file, name),
			fmt.Sprintf("as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", name))
	}
	return yes(CheckSubuid, "a range is set aside for "+name)
}

// hasSubordinate reports whether a file like /etc/subuid names the user.
func hasSubordinate(b []byte, name, uid string) bool {
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		owner, rest, ok := strings.Cut(strings.TrimSpace(sc.Text()), ":")
		if ok && (owner == name || owner == uid) && strings.Contains(rest, ":") {
			return true
		}
	}
	return false
}
