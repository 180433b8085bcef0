package sandbox

import "time"

// Limits bounds what a sandbox may use. Zero means "not asked for": the
// default of the installation applies and may be reported as not enforced. A
// limit that was asked for and cannot be enforced is an error.
type Limits struct {
	CPUs        float64 `json:"cpus,omitempty"`         // CPU time per wall time, in cores
	MemoryBytes int64   `json:"memory_bytes,omitempty"` // memory of the whole sandbox, swap excluded
	Processes   int64   `json:"processes,omitempty"`    // processes and threads inside
	DiskBytes   int64   `json:"disk_bytes,omitempty"`   // bytes that the sandbox may write to its file system
	OpenFiles   int64   `json:"open_files,omitempty"`   // descriptors per process inside
	OutputBytes int64   `json:"output_bytes,omitempty"` // bytes of output kept per process and stream
}

// The least that can work, the most that can be set, and the defaults. A memory limit bounds the guest
// kernel too, so it cannot be as small as for a bare process.
const (
	MinCPUs        = 0.05
	MinMemoryBytes = 64 << 20
	MinProcesses   = 16
	MinDiskBytes   = 1 << 20
	MinOpenFiles   = 64
	MinOutputBytes = 4 << 10

	MaxCPUs      = 4096
	MaxProcesses = 1_000_000 // the kernel has 4194304 numbers for all of the machine
	MaxOpenFiles = 1 << 20   // fs.nr_open
	MaxBytes     = 1 << 50   // of memory, disk and output: 1 PiB

	DefaultMemoryBytes = 1 << 30
	DefaultProcesses   = 1024
	DefaultDiskBytes   = 2 << 30
	DefaultOpenFiles   = 4096
	DefaultOutputBytes = 8 << 20
)

// DefaultLimits returns what applies where a [Spec] is silent. CPUs is the
// number of cores of the host.
func DefaultLimits(hostCPUs int) Limits {
	return Limits{
		CPUs:        float64(max(1, hostCPUs)),
		MemoryBytes: DefaultMemoryBytes,
		Processes:   DefaultProcesses,
		DiskBytes:   DefaultDiskBytes,
		OpenFiles:   DefaultOpenFiles,
		OutputBytes: DefaultOutputBytes,
	}
}

// Merge returns l with zero fields taken from def.
func (l Limits) Merge(def Limits) Limits {
	pick := func(a, b int64) int64 {
		if a != 0 {
			return a
		}
		return b
	}
	if l.CPUs == 0 {
		l.CPUs = def.CPUs
	}
	l.MemoryBytes = pick(l.MemoryBytes, def.MemoryBytes)
	l.Processes = pick(l.Processes, def.Processes)
	l.DiskBytes = pick(l.DiskBytes, def.DiskBytes)
	l.OpenFiles = pick(l.OpenFiles, def.OpenFiles)
	l.OutputBytes = pick(l.OutputBytes, def.OutputBytes)
	return l
}

// Validate checks that every limit that was asked for can work and can be set.
// Its errors are [Invalid] and name field, value and remedy.
func (l Limits) Validate() error {
	for _, r := range []struct {
		field                 string
		value, least, most    float64 // exact: the bounds are below 2^53
		given                 any
		shownLeast, shownMost string
	}{
		{"cpus", l.CPUs, MinCPUs, MaxCPUs, l.CPUs, "0.05", "4096"},
		{"memory", float64(l.MemoryBytes), MinMemoryBytes, MaxBytes, l.MemoryBytes, "64MiB", "1PiB"},
		{"pids", float64(l.Processes), MinProcesses, MaxProcesses, l.Processes, "16", "1000000"},
		{"disk", float64(l.DiskBytes), MinDiskBytes, MaxBytes, l.DiskBytes, "1MiB", "1PiB"},
		{"open-files", float64(l.OpenFiles), MinOpenFiles, MaxOpenFiles, l.OpenFiles, "64", "1048576"},
		{"output-limit", float64(l.OutputBytes), MinOutputBytes, MaxBytes, l.OutputBytes, "4KiB", "1PiB"},
	} {
		switch {
		case r.value == 0:
		case !(r.value >= r.least): // also what is not a number
			return Errorf(Invalid, "a limit below %s cannot work", r.shownLeast).
				WithField(r.field, sprint(r.given)).WithHint("ask for %s or more, or leave it out", r.shownLeast)
		case r.value > r.most:
			return Errorf(Invalid, "a limit above %s cannot be set", r.shownMost).
				WithField(r.field, sprint(r.given)).WithHint("ask for %s or less, or leave it out", r.shownMost)
		}
	}
	return nil
}

// LimitName names one limit in records and events.
type LimitName string

// The limits. LimitTime is the wall time of a process or of the sandbox.
const (
	LimitCPU       LimitName = "cpu"
	LimitMemory    LimitName = "memory"
	LimitProcesses LimitName = "processes"
	LimitDisk      LimitName = "disk"
	LimitOpenFiles LimitName = "open_files"
	LimitOutput    LimitName = "output"
	LimitTime      LimitName = "time"
)

// LimitStatus is one limit as it is in force.
type LimitStatus struct {
	Name     LimitName `json:"name"`
	Value    string    `json:"value"`            // for people: "2", "1GiB"
	Explicit bool      `json:"explicit"`         // asked for by the caller
	Enforced bool      `json:"enforced"`         // held by this host
	By       string    `json:"by,omitempty"`     // what holds it, for instance "cgroup v2 memory.max"
	Reason   string    `json:"reason,omitempty"` // why it is not enforced
	Seen     string    `json:"seen,omitempty"`   // what a program inside sees, where it differs
}

// EventKind classes an [Event].
type EventKind string

// The kinds of event.
const (
	EventState EventKind = "state" // the life cycle moved on
	EventLimit EventKind = "limit" // a limit was hit
	EventExit  EventKind = "exit"  // a process ended
	// EventOrphan: a process was killed because its client did not come back
	// in time; its exit follows.
	EventOrphan EventKind = "orphan"
	// EventRestore: something that was to make a restored sandbox another one
	// than its image did not go well.
	EventRestore EventKind = "restore"
)

// Event is one thing that happened to a sandbox, in the order of Seq.
type Event struct {
	Seq     int64     `json:"seq"`
	Time    time.Time `json:"time"`
	Kind    EventKind `json:"kind"`
	State   State     `json:"state,omitempty"`
	Limit   LimitName `json:"limit,omitempty"`
	Process string    `json:"process,omitempty"`
	Message string    `json:"message"`
}
