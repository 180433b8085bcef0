package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belljar-sh/belljar/sandbox"
)

// limitFlags are the flags that bound a sandbox.
type limitFlags struct {
	cpus                      float64
	memory, disk, outputLimit byteSize
	pids, openFiles           int64
}

func (l *limitFlags) add(f *pflag.FlagSet) {
	f.Float64Var(&l.cpus, "cpus", 0, "CPU time per wall time, in cores (default: all)")
	f.VarP(&l.memory, "memory", "m", "memory of the whole sandbox (default 1GiB)")
	f.Int64Var(&l.pids, "pids", 0, "processes and threads inside (default 1024)")
	f.Var(&l.disk, "disk", "bytes that it may write to its file system (default 2GiB)")
	f.Int64Var(&l.openFiles, "open-files", 0, "open files per process inside (default 4096)")
	f.Var(&l.outputLimit, "output-limit", "output that waits for its reader, per process and stream (default 8MiB); with -o json, what the result holds (default 64KiB)")
}

// typed tells sizes as they were written.
func (l *limitFlags) typed() map[string]string {
	return map[string]string{"memory": l.memory.typed, "disk": l.disk.typed, "output-limit": l.outputLimit.typed}
}

func (l *limitFlags) values(cmd *cobra.Command) (sandbox.Limits, error) {
	for name, zero := range map[string]bool{"cpus": l.cpus == 0, "pids": l.pids == 0, "open-files": l.openFiles == 0} {
		if zero && cmd.Flags().Changed(name) {
			return sandbox.Limits{}, usagef("leave --"+name+" out for the default", "--%s 0: a limit of nothing cannot work", name)
		}
	}
	return sandbox.Limits{
		CPUs: l.cpus, MemoryBytes: l.memory.n, Processes: l.pids,
		DiskBytes: l.disk.n, OpenFiles: l.openFiles, OutputBytes: l.outputLimit.n,
	}, nil
}
