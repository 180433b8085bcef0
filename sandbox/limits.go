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

// The least that can work, and the defaults. A memory limit bounds the guest
// kernel too, so it cannot be as small as for a bare process.
const (
	MinCPUs        = 0.05
	MinMemoryBytes = 64 << 20
	MinProcesses   = 16
	MinDiskBytes   = 1 << 20
	MinOpenFiles   = 64
	MinOutputBytes = 4 << 10

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

// Validate checks that every limit that was asked for can work.
func (l Limits) Validate() error {
	bad := func(field string, value any, least any) error {
		return Errorf(Invalid, "a limit below %v cannot work", least).
			WithField(field, sprint(value)).WithHint("ask for %v or more, or leave it out", least)
	}
	switch {
	case l.CPUs != 0 && !(l.CPUs >= MinCPUs):
		return bad("cpus", l.CPUs, MinCPUs)
	case l.MemoryBytes != 0 && l.MemoryBytes < MinMemoryBytes:
		return bad("memory", l.MemoryBytes, "64MiB")
	case l.Processes != 0 && l.Processes < MinProcesses:
		return bad("pids", l.Processes, MinProcesses)
	case l.DiskBytes != 0 && l.DiskBytes < MinDiskBytes:
		return bad("disk", l.DiskBytes, "1MiB")
	case l.OpenFiles != 0 && l.OpenFiles < MinOpenFiles:
		return bad("open-files", l.OpenFiles, MinOpenFiles)
	case l.OutputBytes != 0 && l.OutputBytes < MinOutputBytes:
		return bad("output-limit", l.OutputBytes, "4KiB")
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
