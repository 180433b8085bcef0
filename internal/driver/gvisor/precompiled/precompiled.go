// Package precompiled holds the seccomp programs of sentry and gofer as gVisor
// builds them, so that they need not be built at every start: that takes 10 to
// 50 ms of CPU, and much more on a busy machine. gVisor's own releases do the
// same; the module from which we build leaves it out.
//
// Only the variants that this driver uses are here, per architecture; the roles
// build others, and those of an architecture for which none was generated,
// themselves. A test in package roles builds the programs anew and compares
// every byte, so neither a new gVisor nor a new call of sharefs can come with an
// old program.
package precompiled

//go:generate go run gen.go

// Program is a seccomp program with holes for values that are only known when
// it is installed.
type Program struct {
	Key  string   // what gVisor calls this set of options
	Code []uint32 // BPF instructions, two words each
	Vars []Var
}

// Var is a value and the words of the code in which it stands. It may stand in
// none.
type Var struct {
	Name  string
	Words []int
}
