package roles

import (
	"encoding/json"
	"fmt"
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
	for n, s := range plan.Shares {
		if err := stageShare(gvisor.GoferStageShare(n), s); err != nil {
			return fmt.Errorf("gofer: share %d: %w", n, err)
		}
	}
	return nil
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
