package workspace

import "slices"

// Class says what is done about a name.
type Class uint8

// The classes. Locked names are read-only inside a sandbox and listed when they
// changed; Watched ones, which agents change in the course of honest work, are
// listed only.
const (
	Unlisted Class = iota
	Locked
	Watched
)

// String names the class for people.
func (c Class) String() string {
	switch c {
	case Locked:
		return "locked"
	case Watched:
		return "watched"
	default:
		return "unlisted"
	}
}

// Rule is one line of the list.
type Rule struct {
	// Pattern is a name, or names joined by slashes, that is looked for at any
	// depth; it covers everything below. A '*' in the last name stands for any
	// characters, one at least.
	Pattern string
	Class   Class
	// Reason tells what on the host executes or trusts it, in a few words.
	Reason string
}

// Rules returns the list, in order of its groups. The rules for git directories
// are code and described in the package's documentation; here stand only the
// entries by which reports name them.
func Rules() []Rule {
	return slices.Concat([]Rule{gitRule, worktreeRule, hooksRule, madeRule, rebaseRule}, rules)
}

// The rules for git, which sit in the matcher.
var (
	gitRule      = Rule{".git/config", Locked, "git runs programs that it names on any command"}
	worktreeRule = Rule{"config.worktree", Locked, "git runs programs that it names on any command"}
	hooksRule    = Rule{".git/hooks", Locked, "git runs them"}
	madeRule     = Rule{".git", Watched, "a repository: git looks for its configuration there"}
	rebaseRule   = Rule{".git/rebase-merge", Watched, "git rebase --continue runs the commands in it"}
)

// rules is the list.
var rules = []Rule{
	// version control
	{".gitconfig", Locked, "git runs programs that it names on any command"},
	{".config/git", Locked, "git runs programs that it names on any command"},
	{".hg/hgrc", Locked, "mercurial runs hooks from it"},
	{".hg/hgrc-not-shared", Locked, "mercurial runs hooks from it"},
	{".hgrc", Locked, "mercurial runs hooks from it"},
	{".jj/repo/config.toml", Locked, "jujutsu runs programs that it names"},
	{".husky", Locked, "git hooks of the project"},
	{".githooks", Locked, "git hooks of the project"},
	{".git-hooks", Locked, "git hooks of the project"},
	{".pre-commit-config.yaml", Locked, "an installed git hook runs the commands in it"},
	{"lefthook.yml", Locked, "an installed git hook runs the commands in it"},
	{".lefthook.yml", Locked, "an installed git hook runs the commands in it"},
	{"lefthook.yaml", Locked, "an installed git hook runs the commands in it"},
	{".lefthook.yaml", Locked, "an installed git hook runs the commands in it"},
	{"lefthook.toml", Locked, "an installed git hook runs the commands in it"},
	{"lefthook-local.yml", Locked, "an installed git hook runs the commands in it"},
	{".lefthook-local.yml", Locked, "an installed git hook runs the commands in it"},
	{".lefthook", Locked, "an installed git hook runs the scripts in it"},
	{".overcommit.yml", Locked, "an installed git hook runs the commands in it"},
	{".lfsconfig", Watched, "git sends credentials to the server that it names"},

	// environments that a shell loads on entering a directory
	{".envrc", Locked, "direnv runs it on entering the directory"},
	{".mise.toml", Locked, "mise loads it on entering the directory"},
	{"mise.toml", Locked, "mise loads it on entering the directory"},
	{"mise.*.toml", Locked, "mise loads it on entering the directory"},
	{".mise.*.toml", Locked, "mise loads it on entering the directory"},
	{"mise/config.toml", Locked, "mise loads it on entering the directory"},
	{"mise/config.*.toml", Locked, "mise loads it on entering the directory"},
	{"mise/conf.d", Locked, "mise loads it on entering the directory"},
	{".mise", Locked, "mise loads it on entering the directory"},
	{".rtx.toml", Locked, "mise loads it on entering the directory"},
	{".autoenv.zsh", Locked, "the shell runs it on entering the directory"},
	{".env", Watched, "tools load their environment from it"},

	// editors
	{".vscode", Locked, "VS Code runs tasks and programs that it names"},
	{"*.code-workspace", Locked, "VS Code runs tasks and programs that it names"},
	{".devcontainer", Locked, "editors run its commands on the host"},
	{".devcontainer.json", Locked, "editors run its commands on the host"},
	{".idea", Locked, "JetBrains IDEs run configurations and tools from it"},
	{".fleet", Locked, "Fleet runs programs that it names"},
	{".zed", Locked, "Zed runs tasks and programs that it names"},
	{".vs", Locked, "Visual Studio runs tasks from it"},
	{".helix", Locked, "Helix runs language servers that it names"},
	{".vimrc", Locked, "vim runs it"},
	{".gvimrc", Locked, "vim runs it"},
	{".exrc", Locked, "vi runs it"},
	{".nvimrc", Locked, "neovim runs it"},
	{".nvim.lua", Locked, "neovim runs it"},
	{".lvimrc", Locked, "vim runs it"},
	{".vim", Locked, "vim runs it"},
	{".config/nvim", Locked, "neovim runs it"},
	{".local/share/nvim/site", Locked, "neovim runs it"},
	{".config/Code/User", Locked, "VS Code runs tasks and programs that it names"},
	{".config/VSCodium/User", Locked, "VSCodium runs tasks and programs that it names"},
	{".config/Cursor/User", Locked, "Cursor runs tasks and programs that it names"},
	{".config/zed", Locked, "Zed runs tasks and programs that it names"},
	{".config/emacs", Locked, "emacs runs it"},
	{".config/helix", Locked, "Helix runs language servers that it names"},
	{".emacs", Locked, "emacs runs it"},
	{".emacs.d", Locked, "emacs runs it"},
	{".dir-locals.el", Locked, "emacs evaluates it"},
	{".dir-locals-2.el", Locked, "emacs evaluates it"},
	{"*.sublime-project", Watched, "Sublime Text runs build systems from it"},
	{".cargo/config.toml", Locked, "cargo and rust-analyzer run programs that it names"},
	{".cargo/config", Locked, "cargo and rust-analyzer run programs that it names"},
	{".venv", Watched, "editors run the python in it on opening the project"},
	{"venv", Watched, "editors run the python in it on opening the project"},

	// agents
	{".mcp.json", Locked, "agents start the servers that it names"},
	{".claude", Locked, "Claude Code runs hooks and takes permissions from it"},
	{".claude.json", Locked, "Claude Code starts servers and takes trust from it"},
	{".cursor", Locked, "Cursor starts servers and takes rules from it"},
	{".codex", Locked, "Codex takes settings and servers from it"},
	{".gemini", Locked, "Gemini CLI takes settings and servers from it"},
	{".opencode", Locked, "opencode runs plugins from it"},
	{"opencode.json", Locked, "opencode starts servers that it names"},
	{"opencode.jsonc", Locked, "opencode starts servers that it names"},
	{".crush.json", Locked, "Crush starts servers that it names"},
	{"crush.json", Locked, "Crush starts servers that it names"},
	{".aider.conf.yml", Locked, "aider runs commands that it names"},
	{".continue", Locked, "Continue starts servers that it names"},
	{".windsurf", Locked, "Windsurf takes rules and workflows from it"},
	{".roo", Locked, "Roo starts servers that it names"},
	{".kilocode", Locked, "Kilo Code starts servers that it names"},
	{".amazonq", Locked, "Amazon Q starts servers that it names"},
	{".kiro", Locked, "Kiro runs hooks and starts servers from it"},
	{".qwen", Locked, "Qwen Code takes settings and servers from it"},
	{".trae", Locked, "Trae starts servers that it names"},
	{".junie", Locked, "Junie takes settings from it"},
	{".goose", Locked, "Goose takes settings from it"},
	{"CLAUDE.md", Watched, "agents on the host follow it"},
	{"CLAUDE.local.md", Watched, "agents on the host follow it"},
	{"AGENTS.md", Watched, "agents on the host follow it"},
	{"GEMINI.md", Watched, "agents on the host follow it"},
	{".cursorrules", Watched, "agents on the host follow it"},
	{".windsurfrules", Watched, "agents on the host follow it"},
	{".clinerules", Watched, "agents on the host follow it"},
	{".goosehints", Watched, "agents on the host follow it"},

	// shells and what starts with a session
	{".bashrc", Locked, "the shell runs it"},
	{".bash_profile", Locked, "the shell runs it"},
	{".bash_login", Locked, "the shell runs it"},
	{".bash_logout", Locked, "the shell runs it"},
	{".bash_aliases", Locked, "the shell runs it"},
	{".profile", Locked, "the shell runs it"},
	{".zshrc", Locked, "the shell runs it"},
	{".zshenv", Locked, "the shell runs it"},
	{".zprofile", Locked, "the shell runs it"},
	{".zlogin", Locked, "the shell runs it"},
	{".zlogout", Locked, "the shell runs it"},
	{".kshrc", Locked, "the shell runs it"},
	{".mkshrc", Locked, "the shell runs it"},
	{".shrc", Locked, "the shell runs it"},
	{".cshrc", Locked, "the shell runs it"},
	{".tcshrc", Locked, "the shell runs it"},
	{".login", Locked, "the shell runs it"},
	{".logout", Locked, "the shell runs it"},
	{".inputrc", Locked, "the shell binds keys to commands from it"},
	{".config/fish", Locked, "the shell runs it"},
	{".local/share/fish", Locked, "the shell runs it"},
	{".oh-my-zsh", Locked, "the shell runs it"},
	{".config/nushell", Locked, "the shell runs it"},
	{".config/powershell", Locked, "the shell runs it"},
	{".direnvrc", Locked, "direnv runs it"},
	{".config/direnv", Locked, "direnv runs it"},
	{".config/mise", Locked, "mise loads it on entering a directory"},
	{".config/autostart", Locked, "the desktop starts it"},
	{".config/systemd", Locked, "systemd starts it"},
	{".config/i3", Locked, "the window manager runs programs that it names"},
	{".config/sway", Locked, "the window manager runs programs that it names"},
	{".config/hypr", Locked, "the window manager runs programs that it names"},
	{".config/kitty", Locked, "the terminal runs programs that it names"},
	{".config/environment.d", Locked, "systemd takes the session's environment from it"},
	{".local/bin", Locked, "it is on PATH"},
	{".local/share/systemd", Locked, "systemd starts it"},
	{".local/share/applications", Locked, "the desktop starts programs from it"},
	{".pam_environment", Locked, "the session's environment comes from it"},
	{".xprofile", Locked, "the session runs it"},
	{".xinitrc", Locked, "the session runs it"},
	{".xsession", Locked, "the session runs it"},
	{".xserverrc", Locked, "the session runs it"},
	{".xsessionrc", Locked, "the session runs it"},
	{".screenrc", Locked, "screen runs commands from it"},
	{".tmux.conf", Locked, "tmux runs commands from it"},
	{".config/tmux", Locked, "tmux runs commands from it"},

	// clients that run or trust what their configuration names
	{".ssh", Locked, "ssh trusts and runs what it names"},
	{".gnupg", Locked, "gpg trusts and runs what it names"},
	{".rhosts", Locked, "remote shells trust the hosts that it names"},
	{".shosts", Locked, "remote shells trust the hosts that it names"},
	{".forward", Locked, "the mail server runs programs that it names"},
	{".netrc", Locked, "clients take credentials from it"},
	{".aws", Locked, "the AWS tools run credential programs from it"},
	{".kube", Locked, "kubectl runs credential programs from it"},
	{".docker/config.json", Locked, "docker runs credential programs that it names"},
	{".docker/cli-plugins", Locked, "docker runs them"},
	{".curlrc", Locked, "curl takes options from it"},
	{".wgetrc", Locked, "wget takes options from it"},
	{".npmrc", Locked, "npm takes its shell, git and registry from it"},
	{".yarnrc", Locked, "yarn runs the program that it names"},
	{".yarnrc.yml", Watched, "yarn runs the program that it names"},
	{".pnpmfile.cjs", Watched, "pnpm runs it"},
	{".pypirc", Locked, "uploads trust it"},
	{".config/pip", Locked, "pip takes its index from it"},
	{".pip", Locked, "pip takes its index from it"},
	{".gdbinit", Locked, "gdb runs it"},
	{".lldbinit", Locked, "lldb runs it"},
	{".pdbrc", Locked, "pdb runs it"},
	{".psqlrc", Locked, "psql runs it"},
	{".sqliterc", Locked, "sqlite3 runs it"},
	{".irbrc", Locked, "irb runs it"},
	{".pryrc", Locked, "pry runs it"},
	{".ghci", Locked, "ghci runs it"},
	{".Rprofile", Locked, "R runs it"},
	{".gradle/init.d", Locked, "gradle runs it"},
	{".gradle/init.gradle", Locked, "gradle runs it"},

	// continuous integration, which runs with the project's secrets
	{".github", Watched, "continuous integration runs it"},
	{".gitlab-ci.yml", Watched, "continuous integration runs it"},
	{".gitlab", Watched, "continuous integration runs it"},
	{".circleci", Watched, "continuous integration runs it"},
	{".buildkite", Watched, "continuous integration runs it"},
	{".drone.yml", Watched, "continuous integration runs it"},
	{".woodpecker", Watched, "continuous integration runs it"},
	{".woodpecker.yml", Watched, "continuous integration runs it"},
	{".forgejo", Watched, "continuous integration runs it"},
	{".gitea", Watched, "continuous integration runs it"},
	{".travis.yml", Watched, "continuous integration runs it"},
	{"azure-pipelines.yml", Watched, "continuous integration runs it"},
	{"bitbucket-pipelines.yml", Watched, "continuous integration runs it"},
	{"Jenkinsfile", Watched, "continuous integration runs it"},
}

// dependencyDirs hold packages that tools unpack and nobody opens as a project
// or uses as a home directory.
var dependencyDirs = map[string]bool{
	"node_modules": true, "bower_components": true, ".pnpm-store": true,
	"site-packages": true, "dist-packages": true,
}
