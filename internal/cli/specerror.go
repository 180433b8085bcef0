package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/belljar-sh/belljar/sandbox"
)

// flagOf names the flag of a field of a sandbox.Spec where the two differ.
var flagOf = map[string]string{"volume target": "volume", "mounts": "volume", "cwd": "workdir", "on_timeout": "on-timeout"}

// flagHints are the remedies for flags whose errors have none of their own.
var flagHints = map[string]string{
	"name":     "choose another, for instance --name work",
	"template": "`belljar template ls` lists the templates",
	"hostname": "choose another, for instance --hostname work",
	"workdir":  "write a path inside the sandbox that begins with /, for instance --workdir /workspace",
	"volume":   "give each -v a target of its own, at most 64 of them",
	"env":      "write -e KEY=VALUE, or leave some out",
	"timeout":  "ask for 365 days (8760h) or less, or leave it out",
	"user":     "name a user of the template, for instance --user root; numbers and uid:gid are not taken",
}

// checkSpec refuses, as wrong usage, the values that no host would take. typed
// has the values that were written otherwise than the spec has them.
func checkSpec(spec *sandbox.Spec, typed map[string]string) error {
	if isNumbers(spec.User) {
		return usagef(flagHints["user"], "--user %q: this is not the name of a user", spec.User)
	}
	err := spec.Validate()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != sandbox.Invalid {
		return err
	}
	flag, ok := flagOf[e.Field]
	if !ok {
		flag = e.Field
	}
	value, hint := e.Value, e.Hint
	if typed[flag] != "" {
		value = typed[flag]
	}
	if hint == "" {
		hint = flagHints[flag]
	}
	return &usageError{err: fmt.Errorf("--%s %q: %s", flag, value, e.Message), hint: hint}
}

// isNumbers reports whether a user is given as docker takes it: uid, uid:gid
// or user:group.
func isNumbers(user string) bool {
	return user != "" && (strings.Contains(user, ":") || strings.Trim(user, "0123456789") == "")
}
