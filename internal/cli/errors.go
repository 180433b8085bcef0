package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
func (a *app) report(err error) int {
	var status exitStatus
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		a.say(&sandbox.Error{Kind: sandbox.Invalid, Message: usage.Error(), Hint: usage.hint})
		return exitUsage
	}
	a.say(public(err))
	return exitFailure
}

// public returns what is printed of an error.
func public(err error) *sandbox.Error {
	message, hint := describe(err)
	e := &sandbox.Error{Kind: sandbox.KindOf(err), Message: message, Hint: hint}
	var known *sandbox.Error
	switch {
	case errors.As(err, &known):
		e.Field, e.Value = known.Field, known.Value
		e.Message = strings.TrimPrefix(message, fmt.Sprintf("%s %q: ", e.Field, e.Value))
		if e.Message == message && e.Field != "" { // named in the middle of the sentence
			e.Field, e.Value = "", ""
		}
	case errors.Is(err, context.Canceled):
		e.Kind = sandbox.Canceled
	case errors.Is(err, fs.ErrPermission):
		e.Kind = sandbox.Denied
	case errors.Is(err, fs.ErrNotExist):
		e.Kind = sandbox.NotFound
	}
	return e
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

// say prints an error: one line for it and one for the hint, or an object for
// programs.
func (a *app) say(e *sandbox.Error) {
	if a.format.machine() {
		a.object(map[string]any{"error": e})
		return
	}
	// Wrong usage begins with the command's path: once is enough.
	fmt.Fprintf(a.err, "belljar: %s\n", terminal.Escape(strings.TrimPrefix(e.Error(), "belljar ")))
	if e.Hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", terminal.Escape(e.Hint))
	}
}

// fail says what an exit code alone does not.
func (a *app) fail(kind sandbox.Kind, message, hint string) {
	a.say(&sandbox.Error{Kind: kind, Message: message, Hint: hint})
}

// warn prints a line that does not change the outcome.
func (a *app) warn(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if a.format.machine() {
		a.object(map[string]any{"warning": map[string]string{"message": message}})
		return
	}
	fmt.Fprintf(a.err, "belljar: warning: %s\n", terminal.Escape(message))
}

// object prints v on standard error: JSON on one line of its own, YAML as a
// document of its own.
func (a *app) object(v any) {
	var b bytes.Buffer
	if a.format == formatYAML {
		b.WriteString("---\n")
	}
	if err := encode(&b, a.format, v); err != nil {
		fmt.Fprintf(a.err, "belljar: %s\n", terminal.Escape(err.Error()))
		return
	}
	if a.format == formatJSON {
		var line bytes.Buffer
		if json.Compact(&line, b.Bytes()) == nil {
			line.WriteByte('\n')
			b = line
		}
	}
	a.err.Write(b.Bytes()) // there is nobody else to tell
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
