package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// between checks the number of arguments; most below zero is no bound.
func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, argv []string) error {
		if len(argv) >= least && (most < 0 || len(argv) <= most) {
			return nil
		}
		takes := fmt.Sprintf("%d", least)
		switch {
		case most == 0:
			takes = "no"
		case most < 0:
			takes = fmt.Sprintf("at least %d", least)
		case most > least:
			takes = fmt.Sprintf("%d to %d", least, most)
		}
		noun := "arguments"
		if least == 1 && most <= 1 && most != 0 {
			noun = "argument"
		}
		return usagef("usage: "+cmd.UseLine(), "`%s` takes %s %s, not %d", cmd.CommandPath(), takes, noun, len(argv))
	}
}

// habit is the remedy for a word of other tools: a command that is called
// otherwise here, or that there is not.
func habit(command string) string {
	switch command {
	case "stop", "remove", "delete", "destroy":
		return "`belljar kill` ends a sandbox and removes what is left of it"
	case "images", "image":
		return "`belljar template ls` lists what sandboxes start from"
	case "pull", "load":
		return "`belljar template import` makes a template of a root file system"
	case "build":
		return "`belljar template build` makes a template"
	case "attach":
		return "`belljar logs -f` follows a detached command, `belljar exec -it SANDBOX sh` opens a shell"
	case "top":
		return "`belljar stats` shows what sandboxes use, `belljar exec SANDBOX ps` what runs in one"
	case "start", "restart":
		return "a sandbox that has ended is gone: `belljar create` makes another"
	case "snapshot", "commit", "fork":
		return "this version cannot do that yet; `belljar --help` lists the commands"
	}
	return ""
}

// flagHabit is habit for flags.
func flagHabit(name string) string {
	switch name {
	case "p", "publish", "expose":
		return "no port of a sandbox is published: run the client inside too, with belljar exec"
	case "net", "network":
		return "a sandbox has no network: in this version nothing leaves it"
	case "mount":
		return "mount with -v SRC:DST or -v SRC:DST:ro"
	case "entrypoint":
		return "name the program behind --"
	case "privileged", "cap-add", "security-opt":
		return "root inside has what it can have: --user root"
	case "memory-swap", "shm-size":
		return "--memory bounds all memory of a sandbox; it has no swap"
	case "image":
		return "a sandbox starts from a template: --template, see `belljar template ls`"
	}
	return ""
}

// imageHabit is the remedy for an image in the place of the command; "" when a
// name does not look like one.
func imageHabit(argv0 string) string {
	name, _, tagged := strings.Cut(argv0, ":")
	switch name {
	case "alpine", "ubuntu", "debian", "fedora", "busybox", "python", "node", "golang":
		tagged = true
	}
	if !tagged {
		return ""
	}
	return "the first argument is the command: what a sandbox starts from is chosen with --template, see `belljar template ls`"
}
