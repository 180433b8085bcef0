package template

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// furniture is what every root has, whatever it came from.
var furniture = []struct {
	dir  string
	mode fs.FileMode
	must bool // something is mounted there, so a link will not do
}{
	{"proc", 0o555, true},
	{"sys", 0o555, true},
	{"dev", 0o755, true},
	{"etc", 0o755, false},
	{"run", 0o755, false},
	{"tmp", 0o777 | fs.ModeSticky, false},
	{"var", 0o755, false},
	{"var/tmp", 0o777 | fs.ModeSticky, false},
	{"root", 0o700, false},
	{"home", 0o755, false},
}

// furnish adds to an unpacked root what every sandbox needs and is missing:
// directories to mount on, the users root and user, an empty machine ID. The
// tree is hostile. It is reached through an os.Root, so no link in it leads
// out, and what exists is left alone, links included.
func furnish(dir string, shifted, setuid bool) error {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return storeError("open", err)
	}
	defer r.Close()
	for _, f := range furniture {
		if err := addDir(r, f.dir, f.mode, f.must); err != nil {
			return err
		}
	}
	if err := addHome(r, shifted); err != nil {
		return err
	}
	if !isKind(r, "etc", fs.ModeDir) {
		return nil // the guest knows root and user without it
	}
	if err := addAccounts(r); err != nil {
		return err
	}
	if setuid {
		if err := addSudo(r); err != nil {
			return err
		}
	}
	if isKind(r, "etc/machine-id", 0) || !exists(r, "etc/machine-id") {
		return replaceFile(r, "etc/machine-id", "", 0o444)
	}
	return nil
}

// isKind reports whether name is there and is of this type itself: fs.ModeDir,
// fs.ModeSymlink, or 0 for a regular file.
func isKind(r *os.Root, name string, kind fs.FileMode) bool {
	info, err := r.Lstat(name)
	return err == nil && info.Mode().Type() == kind
}

func addDir(r *os.Root, name string, mode fs.FileMode, must bool) error {
	info, err := r.Lstat(name)
	switch {
	case err == nil && must && !info.IsDir():
		return sandbox.Errorf(sandbox.Invalid, "this is not a directory, so nothing can be mounted there").
			WithField("entry", name).WithHint("sandboxes need /proc, /sys and /dev as directories")
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil // below a link or a file: the template's own affair
	}
	if err := r.Mkdir(name, 0o700); err != nil {
		if parent := path.Dir(name); parent != "." && !isKind(r, parent, fs.ModeDir) {
			return nil
		}
		return furnishError(name, err)
	}
	return furnishErrorOrNil(name, r.Chmod(name, mode))
}

// addHome makes the home of user. Where owners cannot be set the guest makes it
// itself, and an existing one is opened to everybody: in the sandbox it will
// seem to belong to root.
func addHome(r *os.Root, shifted bool) error {
	home := strings.TrimPrefix(userHome, "/")
	switch {
	case shifted && !exists(r, home) && isKind(r, "home", fs.ModeDir):
		if err := addDir(r, home, 0o755, false); err != nil {
			return err
		}
		return furnishErrorOrNil(home, r.Lchown(home, userID, userID))
	case !shifted && isKind(r, home, fs.ModeDir):
		return furnishErrorOrNil(home, r.Chmod(home, 0o777))
	}
	return nil
}

func exists(r *os.Root, name string) bool {
	_, err := r.Lstat(name)
	return err == nil
}

// addAccounts adds root and user to the user databases that are there, and
// makes passwd and group where they are missing.
func addAccounts(r *os.Root) error {
	shell := "/bin/sh"
	if _, err := r.Stat("bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	lines := []struct {
		file string
		make bool // when missing
		mode fs.FileMode
		add  []string
	}{
		{"etc/passwd", true, 0o644, []string{
			"root:x:0:0:root:/root:" + shell,
			fmt.Sprintf("%s:x:%d:%d:%s:%s:%s", userName, userID, userID, userName, userHome, shell),
		}},
		{"etc/group", true, 0o644, []string{"root:x:0:", fmt.Sprintf("%s:x:%d:", userName, userID)}},
		{"etc/shadow", false, 0o640, []string{"root:*:19000:0:99999:7:::", userName + ":*:19000:0:99999:7:::"}},
		{"etc/gshadow", false, 0o640, []string{"root:*::", userName + ":!::"}},
	}
	for _, l := range lines {
		if exists(r, l.file) || l.make {
			if err := addLines(r, l.file, l.mode, l.add); err != nil {
				return err
			}
		}
	}
	return nil
}

// addLines puts those lines first whose first field no line has: with two
// users of one id it is the first that gives the id its name.
func addLines(r *os.Root, file string, mode fs.FileMode, add []string) error {
	old, ok, err := readOwn(r, file)
	if err != nil || !ok {
		return err
	}
	var missing []string
	for _, line := range add {
		key, _, _ := strings.Cut(line, ":")
		if !slices.ContainsFunc(strings.Split(old, "\n"), func(l string) bool { return strings.HasPrefix(l, key+":") }) {
			missing = append(missing, line+"\n")
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return replaceFile(r, file, strings.Join(missing, "")+old, mode)
}

// readOwn reads a small regular file. ok is false for what is none, a link for
// instance: it is left alone. A missing one is empty.
func readOwn(r *os.Root, file string) (text string, ok bool, err error) {
	info, err := r.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", true, nil
	}
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxPasswd {
		return "", false, nil
	}
	b, err := r.ReadFile(file)
	if err != nil {
		return "", false, furnishError(file, err)
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return string(b), true, nil
}

// replaceFile replaces file by a new one with its owner and mode, or gives a
// new one this mode. It is not written through: another name of the same file
// may be a program.
func replaceFile(r *os.Root, file, text string, mode fs.FileMode) error {
	var owner [2]int
	if info, err := r.Lstat(file); err == nil {
		mode = info.Mode().Perm()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			owner = [2]int{int(st.Uid), int(st.Gid)}
		}
	} else {
		owner = [2]int{os.Geteuid(), os.Getegid()}
	}
	temp := path.Join(path.Dir(file), ".belljar-new")
	if err := r.RemoveAll(temp); err != nil {
		return furnishError(file, err)
	}
	f, err := r.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return furnishError(file, err)
	}
	_, werr := f.WriteString(text)
	err = errors.Join(werr, f.Chown(owner[0], owner[1]), f.Chmod(mode), f.Close())
	if err != nil {
		return furnishError(file, err)
	}
	return furnishErrorOrNil(file, r.Rename(temp, file))
}

// addSudo lets user become root where sudo is installed.
func addSudo(r *os.Root) error {
	const file = "etc/sudoers.d/belljar"
	if !isKind(r, "etc/sudoers.d", fs.ModeDir) || exists(r, file) {
		return nil
	}
	return replaceFile(r, file, userName+" ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440)
}

func furnishError(name string, err error) error {
	return sandbox.Errorf(sandbox.Invalid, "the template cannot be completed: %w", err).WithField("entry", name)
}

func furnishErrorOrNil(name string, err error) error {
	if err == nil {
		return nil
	}
	return furnishError(name, err)
}
