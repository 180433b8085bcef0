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
		a.fail(sandbox.ResourceExhausted, fmt.Sprintf("the sandbox used more memory than its limit%s and was killed", limit), memoryHint(memory))
		return exitKilled
	case exit.TimedOut:
		after := ""
		if timeout > 0 {
			after = fmt.Sprintf(" of %v", timeout)
		}
		a.fail(sandbox.DeadlineExceeded, fmt.Sprintf("the time%s was over: the command was killed with all that it had started", after), "allow more time with --timeout")
		return exitTimeout
	case sandboxEnd(exit) != "":
		a.fail(sandbox.Conflict, sandboxEnd(exit), endHint(exit))
		return exitFailure
	case exit.Reason != "" && exit.Signal != 0:
		a.fail(sandbox.Canceled, exit.Reason, "")
	}
	return exitStatus(exit.Status())
}

// endSentences say what an EndReason means for a command that still ran.
var endSentences = map[string]string{
	sandbox.EndExited:   "the first process inside ended, and the sandbox with it",
	sandbox.EndFault:    "the sandbox was ended by the host: something inside broke the protocol",
	sandbox.EndLost:     "the sandbox's keeper died, and the sandbox with it",
	sandbox.EndFailed:   "the sandbox could not be made",
	sandbox.EndKilled:   "the sandbox was killed",
	sandbox.EndFinished: "the sandbox's first command ended, and the sandbox with it (--rm)",
	sandbox.EndStopped:  "the daemon was stopped, and the sandbox with it",
}

// sandboxEnd says how the sandbox has ended under its command; "" when the
// command ended by itself.
func sandboxEnd(exit sandbox.Exit) string {
	reason, message := exit.EndOf()
	s := endSentences[reason]
	switch {
	case reason == "":
		return ""
	case s == "":
		return exit.Reason
	case message != "":
		return s + ": " + message
	}
	return s
}

func endHint(exit sandbox.Exit) string {
	switch reason, _ := exit.EndOf(); reason {
	case sandbox.EndExited:
		return "does the command end process 1? What was written before was printed; run it in a new sandbox"
	case sandbox.EndFault, sandbox.EndLost:
		return "what was written before was printed; run it again in a new sandbox, and report it if it happens again"
	}
	return "what was written before was printed; run it again in a new sandbox"
}

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
		if h := imageHabit(e.Value); h != "" {
			err = e.WithHint("%s", h)
		}
		a.report(err)
		return exitStatus(exitNotFound)
	case sandbox.Denied, sandbox.Invalid:
		a.report(err)
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
