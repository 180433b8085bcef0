package main

import (
	"debug/elf"
	"fmt"
	"slices"
)

// static refuses to work as a dynamically linked program: the sentry would fail
// much later, inside its empty root, with "no such file or directory".
func static() error {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("this program was built dynamically linked and cannot start sandboxes: build it with CGO_ENABLED=0")
	}
	return nil
}
