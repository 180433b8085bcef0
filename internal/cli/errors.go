package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/sandbox"
)

// Exit codes that are Belljar's own.
const (
	exitUsage         = 2
	exitTimeout       = 124
	exitFailure       = 125
	exitNotExecutable = 126
	exitNotFound      = 127
	exitKilled        = 137
	exitPipe          = 141
)

// usageError is a command line that cannot be understood.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(hint, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), hint: hint}
}

// exitStatus ends the program with a code, everything having been said.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// report prints err and returns the exit code that it means.
func report(w io.Writer, err error) int {
	var status exitStatus
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		printError(w, usage.Error(), usage.hint)
		return exitUsage
	}
	message, hint := describe(err)
	printError(w, message, hint)
	return exitFailure
}

// describe returns the sentence and the hint of an error.
func describe(err error) (message, hint string) {
	message = err.Error()
	var e *sandbox.Error
	if errors.As(err, &e) {
		hint = e.Hint
		if e.Kind == sandbox.Internal && e.Unwrap() != nil {
			// Without an API in between the cause is our own and tells more.
			if cause := e.Unwrap().Error(); !strings.Contains(message, cause) {
				message += ": " + cause
			}
		}
	}
	if hint == "" && e != nil && e.Field == "cwd" {
		hint = "name a directory that is inside the sandbox with --workdir; a directory of yours gets there with -v"
	}
	if hint == "" {
		hint = fallbackHint(err)
	}
	return message, hint
}

func fallbackHint(err error) string {
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case errors.Is(err, fs.ErrPermission):
		return "check the permissions of the file for this user"
	}
	switch sandbox.KindOf(err) {
	case sandbox.Unavailable, sandbox.ResourceExhausted:
		return "try again in a moment; `belljar doctor` tells what this machine lacks"
	case sandbox.Unsupported:
		return "`belljar doctor` tells what this machine offers and why not more"
	}
	return ""
}

// printError writes one line for the error and one for the hint.
func printError(w io.Writer, message, hint string) {
	fmt.Fprintf(w, "belljar: %s\n", terminal.Escape(message))
	if hint != "" {
		fmt.Fprintf(w, "hint: %s\n", terminal.Escape(hint))
	}
}

// warn writes a line that does not change the outcome.
func warn(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "belljar: warning: %s\n", terminal.Escape(fmt.Sprintf(format, args...)))
}

// pathCause drops the operation and the path from a file error: the caller
// names the path as its user wrote it.
func pathCause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
