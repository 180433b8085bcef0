// Package cli is the command line of Belljar: it reads arguments, speaks the
// public API through package client and renders what comes back.
//
// # Exit codes
//
// run and exec pass the command's own exit code through. 124 means that the
// time allowed was over, 125 that Belljar failed or that the sandbox ended under
// the command, 126 that the command could not be executed, 127 that there is no
// such command, 137 that it was killed, for instance for using more memory than
// it may. Wrong usage is 2, everywhere, and so is a value that no host would take.
//
// # What is printed
//
// The command's own standard output and error pass byte by byte. Everything
// else that may come from a guest (names, messages, logs on a terminal) is
// escaped: see package terminal. Results go to standard output; errors, hints,
// warnings and progress go to standard error. Under -o json an error is one
// line, {"error":{"kind","message","field","value","hint"}}, and a warning
// {"warning":{"message"}}; under -o yaml each is a document.
package cli
