// Package workspace knows which names in a caller's directory the host later
// executes or trusts, and finds what a run left of them. It is pure but for
// [Take] and [Scan], which read a directory through a descriptor.
//
// # The promise
//
// A sandbox that may write to a caller's directory must not be able to leave
// something behind that runs by itself when the caller goes on working there: a
// git hook, a direnv file, an editor's task, an agent's tool server, a shell's
// start-up file. Those names ([Rules], class [Locked]) are read-only inside,
// even when absent, wherever a directory existed before the sandbox did. What
// the sandbox makes of them elsewhere, and what it makes of the names of class
// [Watched], is listed when the run ends ([Scan]), with links that lead out of
// the directory.
//
// Code that the caller starts on purpose (make, npm test, python app.py) is no
// part of this promise: an agent is there to change it.
//
// # Directories that the sandbox made
//
// A git clone brings .vscode and .envrc with it, and packages are published
// with .idea in them. In a directory that the sandbox itself made, a locked name
// may therefore be created, and is listed. Nothing that the caller had opened,
// entered or trusted before lies there. A directory that takes the path of one
// that the sandbox removed or renamed does not count as made by it. Inside
// dependency directories such as node_modules, which nobody opens as a project,
// only the rules for git hold.
//
// # Git
//
// Git runs what its configuration names as soon as somebody, or their prompt or
// editor, asks for a status anywhere below; so there is no place where a
// repository's configuration may be written freely. In a repository that was
// there before, config and hooks are read-only. In one that the sandbox made,
// config may only be replaced as git itself does it, by a rename of the finished
// file, and only when every key in it is on a list of keys that execute nothing
// and point nowhere dangerous ([CheckGitConfig]); hooks may hold *.sample files
// only. So git init, clone, submodule, worktree, commit and push work.
//
// A directory is a repository to git when it has objects and refs in it,
// whatever its name: bare repositories and directories that a .git file names
// are covered by the same rules from the moment they become one.
//
// # Names
//
// Names are compared as a case-insensitive file system would, with what HFS+
// and NTFS ignore left out ([Fold]): the directory may be one.
package workspace
