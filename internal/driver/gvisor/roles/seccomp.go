package roles

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/precompiled"
)

// filterPrograms is gVisor's own table of precompiled programs, which the
// module leaves empty. A name that is gone after an upgrade fails the link.
//
//go:linkname filterPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var filterPrograms map[string]precompiledseccomp.Program

// addPrograms puts our precompiled programs into gVisor's table. A sentry whose
// options they do not match builds its own.
func addPrograms() {
	filter.GetPrecompiled("") // makes the table, once and for all
	for _, p := range precompiled.Programs {
		filterPrograms[p.Key] = program(p)
	}
}

func program(p precompiled.Program) precompiledseccomp.Program {
	vars := make(map[string][]int, len(p.Vars))
	for _, v := range p.Vars {
		vars[v.Name] = v.Words
	}
	return precompiledseccomp.Program{Name: p.Key, Bytecode32: p.Code, VarOffsets: vars}
}
