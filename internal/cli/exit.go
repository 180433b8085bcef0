package cli

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// status says on standard error what the exit code alone does not, and returns
// the code. memory and timeout are for the hints; zero when not known.
func (a *app) status(exit sandbox.Exit, memory int64, timeout time.Duration) exitStatus {
	switch {
	case exit.OOM:
		limit := ""
		if memory > 0 {
			limit = " of " + formatSize(memory)
		}
		printError(a.err, fmt.Sprintf("the sandbox used more memory than its limit%s and was killed", limit), memoryHint(memory))
		return exitKilled
	case exit.TimedOut:
		after := ""
		if timeout > 0 {
			after = fmt.Sprintf(" of %v", timeout)
		}
		printError(a.err, fmt.Sprintf("the time%s was over: the command was killed with all that it had started", after), "allow more time with --timeout")
		return exitTimeout
	case exit.Reason == endedBy(sandbox.EndFault), exit.Reason == endedBy(sandbox.EndLost), exit.Reason == endedBy(sandbox.EndFailed):
		printError(a.err, exit.Reason, "the sandbox did not end by its own will; what it wrote before was printed")
		return exitFailure
	case exit.Reason != "" && exit.Signal != 0:
		printError(a.err, exit.Reason, "")
	}
	return exitStatus(exit.Status())
}

func endedBy(reason string) string { return "the sandbox ended: " + reason }

// memoryHint proposes twice the limit.
func memoryHint(memory int64) string {
	if memory <= 0 {
		return "allow more memory with --memory when the sandbox is created"
	}
	return "allow more memory, for instance --memory " + formatSize(2*memory)
}

// startFailure gives the error of a command that could not be started the exit
// code that a shell would give it.
func (a *app) startFailure(err error) error {
	var e *sandbox.Error
	if err == nil || !errors.As(err, &e) || e.Field != "argv[0]" && e.Field != "argv" {
		return err
	}
	switch e.Kind {
	case sandbox.NotFound:
		report(a.err, err)
		return exitStatus(exitNotFound)
	case sandbox.Denied, sandbox.Invalid:
		report(a.err, err)
		return exitStatus(exitNotExecutable)
	}
	return err
}

// finish turns the end of an attached command into what Main returns.
func (a *app) finish(ctx context.Context, exit sandbox.Exit, err error, memory int64, timeout time.Duration) error {
	if status, ok := interrupted(ctx); ok {
		return status
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitStatus(exitPipe) // our reader has gone away: nothing to say, as cat and grep do
	}
	if err != nil {
		return err
	}
	if s := a.status(exit, memory, timeout); s != 0 {
		return s
	}
	return nil
}

// oomKills asks how many processes of a sandbox the host has killed for want
// of memory. Not every host ends the whole sandbox then: where it does not, the
// guest sees only that somebody was killed.
func oomKills(ctx context.Context, c *client.Client, ref string) int64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if st, err := c.Stats(ctx, ref); err == nil {
		return st.OOMKills
	}
	// It is ending or has ended, and its end says why.
	for ctx.Err() == nil {
		sb, err := c.Get(ctx, ref)
		if err != nil {
			return 0
		}
		if sb.EndReason == sandbox.EndOOM {
			return 1
		}
		if sb.State != sandbox.Running {
			return 0
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return 0
}

// blameMemory marks an exit whose signal was the host's for want of memory.
func blameMemory(exit *sandbox.Exit, kills int64) {
	if kills > 0 && exit.Signal == int(syscall.SIGKILL) && exit.Reason == "" && !exit.TimedOut {
		exit.OOM = true
	}
}
