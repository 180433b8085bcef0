package roles

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/precompiled"
)

// sentryPrograms and goferPrograms are gVisor's own tables of precompiled
// programs, which the module leaves empty. A name that is gone after an upgrade
// fails the link.
//
//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

// addSentryProgram puts our precompiled program into gVisor's table. A sentry
// whose options it does not match builds its own.
func addSentryProgram() {
	filter.GetPrecompiled("") // makes the table, once and for all
	if p := precompiled.Sentry; p != nil {
		sentryPrograms[p.Key] = program(p)
	}
}

// addGoferProgram is [addSentryProgram] for a gofer with the extension of
// sharefs, and no other: gVisor's key does not tell extensions apart.
func addGoferProgram() {
	gofer.GetPrecompiled("")
	if p := precompiled.Gofer; p != nil {
		goferPrograms[p.Key] = program(p)
	}
}

func program(p *precompiled.Program) precompiledseccomp.Program {
	vars := make(map[string][]int, len(p.Vars))
	for _, v := range p.Vars {
		vars[v.Name] = v.Words
	}
	return precompiledseccomp.Program{Name: p.Key, Bytecode32: p.Code, VarOffsets: vars}
}
