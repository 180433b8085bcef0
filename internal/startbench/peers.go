package startbench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// The other programs.
const (
	nameBwrap = "bwrap"
	nameRunc  = "runc run"
	nameRunsc = "runsc run"
)

// peers returns the starts of other programs that are installed, and notes those
// that are not.
func (h *home) peers(r *Report) []*start {
	const what = "whole process, the host's files read-only"
	var out []*start
	for _, p := range []struct {
		name, program string
		once          func(path string) func(context.Context) (time.Duration, error)
	}{
		{nameBwrap, "bwrap", bwrap},
		{nameRunc, "runc", func(path string) func(context.Context) (time.Duration, error) { return h.bundled(path, "runc", nil) }},
		{nameRunsc, "runsc", func(path string) func(context.Context) (time.Duration, error) {
			return h.bundled(path, "runsc", runscFlags())
		}},
	} {
		path, err := exec.LookPath(p.program)
		if err != nil {
			r.Missing = append(r.Missing, Missing{p.name, p.program + " is not in PATH"})
			continue
		}
		out = append(out, &start{name: p.name, what: what, once: p.once(path)})
	}
	return out
}

func bwrap(path string) func(context.Context) (time.Duration, error) {
	args := append([]string{"--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"}, echo...)
	return func(ctx context.Context) (time.Duration, error) {
		return timed(exec.CommandContext(ctx, path, args...))
	}
}

func runscFlags() []string {
	flags := []string{"--network=none"}
	if os.Geteuid() != 0 {
		flags = append(flags, "--rootless", "--ignore-cgroups")
	}
	return flags
}

// bundled runs a bundle with a program that takes the OCI command line.
func (h *home) bundled(path, name string, flags []string) func(context.Context) (time.Duration, error) {
	n := 0
	return func(ctx context.Context) (time.Duration, error) {
		n++
		id := "belljar-bench-" + filepath.Base(h.dir) + "-" + strconv.Itoa(n)
		dir := filepath.Join(h.dir, name)
		if err := writeBundle(dir); err != nil {
			return 0, err
		}
		command := func(ctx context.Context, args ...string) *exec.Cmd {
			args = append(append([]string{"--root", filepath.Join(h.dirs.Runtime, name)}, flags...), args...)
			cmd := exec.CommandContext(ctx, path, args...)
			// It may leave mounts beneath its root: these go with it.
			if os.Geteuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
			}
			return cmd
		}
		took, err := timed(command(ctx, "run", "--bundle", dir, id))
		if err != nil {
			_ = quietly(command(context.WithoutCancel(ctx), "delete", "--force", id)) // it may not have come to be
		}
		return took, err
	}
}

// The parts of the OCI runtime specification that a bundle needs here.
type (
	bundle struct {
		Version string        `json:"ociVersion"`
		Process bundleProcess `json:"process"`
		Root    bundleRoot    `json:"root"`
		Host    string        `json:"hostname"`
		Mounts  []bundleMount `json:"mounts"`
		Linux   bundleLinux   `json:"linux"`
	}
	bundleProcess struct {
		Args            []string   `json:"args"`
		Env             []string   `json:"env"`
		Cwd             string     `json:"cwd"`
		User            bundleUser `json:"user"`
		NoNewPrivileges bool       `json:"noNewPrivileges"`
	}
	bundleUser struct {
		UID int `json:"uid"`
		GID int `json:"gid"`
	}
	bundleRoot struct {
		Path     string `json:"path"`
		Readonly bool   `json:"readonly"`
	}
	bundleMount struct {
		Destination string   `json:"destination"`
		Type        string   `json:"type"`
		Source      string   `json:"source"`
		Options     []string `json:"options,omitempty"`
	}
	bundleLinux struct {
		Namespaces []bundleNamespace `json:"namespaces"`
		UIDs       []bundleIDs       `json:"uidMappings,omitempty"`
		GIDs       []bundleIDs       `json:"gidMappings,omitempty"`
	}
	bundleNamespace struct {
		Type string `json:"type"`
	}
	bundleIDs struct {
		Inside int `json:"containerID"`
		Host   int `json:"hostID"`
		Size   int `json:"size"`
	}
)

// shown are the directories of the host that a bundle shows, as far as they are
// there: what echo and its libraries need.
var shown = []string{"bin", "lib", "lib32", "lib64", "sbin", "usr"}

// writeBundle makes a bundle that runs the command on the host's programs, unless
// it is there.
func writeBundle(dir string) error {
	root := filepath.Join(dir, "root")
	if _, err := os.Lstat(root); err == nil {
		return nil
	}
	b := bundle{
		Version: "1.0.2",
		Process: bundleProcess{Args: echo, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/", NoNewPrivileges: true},
		Root:    bundleRoot{Path: root, Readonly: true}, Host: "bench",
		Mounts: []bundleMount{
			{"/proc", "proc", "proc", nil},
			{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
		},
	}
	err := os.MkdirAll(root, 0o755)
	for _, d := range []string{"proc", "dev"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(root, d), 0o755))
	}
	for _, name := range shown {
		err = errors.Join(err, b.show(root, name))
	}
	for _, ns := range []string{"pid", "ipc", "uts", "mount", "network"} {
		b.Linux.Namespaces = append(b.Linux.Namespaces, bundleNamespace{ns})
	}
	if uid := os.Geteuid(); uid != 0 {
		b.Linux.Namespaces = append(b.Linux.Namespaces, bundleNamespace{"user"})
		b.Linux.UIDs, b.Linux.GIDs = []bundleIDs{{0, uid, 1}}, []bundleIDs{{0, os.Getegid(), 1}}
	}
	data, merr := json.Marshal(b)
	if err = errors.Join(err, merr); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600)
}

// show has a directory of the host, or a link to one, appear in the bundle.
func (b *bundle) show(root, name string) error {
	from, at := "/"+name, filepath.Join(root, name)
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSymlink != 0:
		to, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(to, at)
	}
	b.Mounts = append(b.Mounts, bundleMount{from, "bind", from, []string{"rbind", "ro"}})
	return os.Mkdir(at, 0o755)
}
