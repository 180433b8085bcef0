package template

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// account is one line of /etc/passwd.
type account struct {
	name        string
	uid, gid    uint32
	home, shell string
}

// builtin are the users that the guest knows even where /etc/passwd does not
// name them.
var builtin = []account{
	{"root", 0, 0, "/root", "/bin/sh"},
	{"user", userID, userID, userHome, "/bin/sh"},
}

const (
	userName = "user"
	userID   = 1000
	userHome = "/home/user"
)

// maxPasswd bounds the user database of a template, which is hostile.
const maxPasswd = 4 << 20

// User returns the identity of the user called name in root: "" is "user". An
// unknown one is [sandbox.Invalid].
func User(root driver.Root, name string) (driver.User, error) {
	if name == "" {
		name = userName
	}
	for _, list := range [][]account{parsePasswd(readInRoot(root.Path, "etc/passwd")), builtin} {
		for _, a := range list {
			if a.name == name {
				return driver.User{UID: a.uid, GID: a.gid}, nil
			}
		}
	}
	return driver.User{}, sandbox.Errorf(sandbox.Invalid, "no such user in the template").WithField("user", name).
		WithHint("users are the names in the template's /etc/passwd, for instance root and user")
}

// readInRoot reads a file of a template as a process in it would: links are
// resolved inside. What cannot be read is empty.
func readInRoot(root, name string) string {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return ""
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPasswd+1))
	if err != nil || len(b) > maxPasswd {
		return ""
	}
	return string(b)
}

// parsePasswd passes over lines that make no sense, as the guest does.
func parsePasswd(s string) []account {
	var out []account
	for line := range strings.SplitSeq(s, "\n") {
		f := strings.Split(line, ":")
		if len(f) < 7 || f[0] == "" {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil || uid == 1<<32-1 || gid == 1<<32-1 {
			continue
		}
		out = append(out, account{f[0], uint32(uid), uint32(gid), f[5], f[6]})
	}
	return out
}
