package roles

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver/gvisor"
)

// stageTrees attaches the detached trees of the plan in the gofer's own mount
// namespace, where gVisor's code will find them.
func stageTrees(getenv func(string) string) error {
	var plan gvisor.GoferPlan
	if err := json.Unmarshal([]byte(getenv(gvisor.GoferPlanEnv)), &plan); err != nil {
		return fmt.Errorf("gofer plan: %w", err)
	}
	// Nothing from here is seen outside of this namespace.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("gofer: detach from the host's mounts: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("belljar", gvisor.GoferStage, "tmpfs", flags, "mode=0755"); err != nil {
		return fmt.Errorf("gofer: stage: %w", err)
	}
	if err := os.Mkdir(gvisor.GoferStageRoot, 0o755); err != nil {
		return err
	}
	if err := unix.MoveMount(plan.Root, "", unix.AT_FDCWD, gvisor.GoferStageRoot, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("gofer: attach root: %w", err)
	}
	root, err := unix.Open(gvisor.GoferStageRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for _, b := range plan.Binds {
		if err := attach(root, b); err != nil {
			return fmt.Errorf("gofer: bind %q: %w", b.Target, err)
		}
	}
	if err := coverTmp(root); err != nil {
		return fmt.Errorf("gofer: /tmp: %w", err)
	}
	for n, s := range plan.Shares {
		if err := stageShare(gvisor.GoferStageShare(n), s); err != nil {
			return fmt.Errorf("gofer: share %d: %w", n, err)
		}
	}
	return unix.Close(root)
}

// stageShare attaches a caller's directory or file.
func stageShare(path string, s gvisor.GoferShare) error {
	if s.Dir {
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
	} else if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := unix.MoveMount(s.FD, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Close(s.FD)
}

// coverTmp lays over an empty /tmp one that everybody may write to and that is
// not empty: over an empty one gVisor would mount a file system in memory, and
// what a program puts into /tmp would count against its memory.
func coverTmp(root int) error {
	how := &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(root, "tmp", how)
	if err != nil {
		return nil // none, or none that can be read: gVisor makes one
	}
	tmp := os.NewFile(uintptr(fd), "tmp")
	defer tmp.Close()
	if names, err := tmp.Readdirnames(1); len(names) > 0 || err != io.EOF {
		return nil
	}
	const path = gvisor.GoferStage + "/tmp"
	for _, dir := range []string{path, path + "/.X11-unix"} { // as on any Linux with a display
		if err := os.Mkdir(dir, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// attach puts a tree over its target, which is resolved inside root: a link in
// a template leads nowhere else.
func attach(root int, b gvisor.GoferBind) error {
	target, err := unix.Openat2(root, b.Target, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if err := unix.MoveMount(b.FD, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Close(b.FD)
}
