package roles

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/fsgofer/extension"

	"github.com/belljar-sh/belljar/internal/driver/gvisor"
	"github.com/belljar-sh/belljar/internal/driver/gvisor/hostfilter"
	"github.com/belljar-sh/belljar/internal/driver/gvisor/sharefs"
)

// engineFD is the program's own descriptor, inherited by a role because it was
// run through it (see package gvisor).
const engineFD = 3

// Run plays the role that args (as os.Args) name and reports whether they name
// one. For the sentry and the gofer it does not return unless something is
// wrong before gVisor's code runs: that code ends the process.
func Run(args []string) (bool, error) {
	switch args[0] {
	case "runsc-sandbox":
		DeferGC()
		if err := begin(gvisor.RoleSentry); err != nil {
			return true, err
		}
		if err := confine(); err != nil {
			return true, err
		}
		addSentryProgram()
		play(new(sentrycmd.Boot))
	case "runsc-gofer":
		DeferGC()
		if err := begin(gvisor.RoleGofer); err != nil {
			return true, err
		}
		if err := stageTrees(os.Getenv); err != nil {
			return true, err
		}
		if err := confine(); err != nil {
			return true, err
		}
		extension.Register(sharefs.Extension())
		addGoferProgram()
		play(new(cmd.Gofer))
	default:
		return false, nil
	}
	return true, errors.New("the role ended without ending its process")
}

// begin gives the process its name and closes the descriptor by which it was
// run. It never dumps core: that would be the guest's memory.
func begin(name string) error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
		return fmt.Errorf("name the process: %w", err)
	}
	return unix.Close(engineFD)
}

// play runs one of gVisor's commands, which ends the process.
func play(c util.SubCommand) {
	cli.Run(nil, map[util.SubCommand]string{c: ""}, nil)
}

// confine takes what gVisor's code will not need and would take later, and more
// slowly.
func confine() error {
	if err := hostfilter.Install(); err != nil {
		return err
	}
	return dropSetPCap()
}
