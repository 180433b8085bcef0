// Package terminal is the command line's end of a terminal: raw mode that is
// undone on every way out, a record of the modes that a program inside has
// switched on so that they can be switched off again, and the escaping that
// text from a guest gets before a person sees it.
package terminal
