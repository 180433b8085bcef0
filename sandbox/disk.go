package sandbox

// DiskKind is what a thing on the disk of an installation is of.
type DiskKind string

// The kinds of things on disk.
const (
	DiskPaused    DiskKind = "paused"         // memory and files of a paused sandbox
	DiskSnapshot  DiskKind = "snapshot"       // a kept state, named or not
	DiskPrepared  DiskKind = "template-image" // what sandboxes of a template with a start command begin from
	DiskFork      DiskKind = "fork"           // what copies are being made from
	DiskLogs      DiskKind = "logs"           // captured output and the record of a sandbox
	DiskJournal   DiskKind = "journal"        // the daemon's records of all sandboxes
	DiskTemplates DiskKind = "template"       // an imported or built root
)

// DiskItem is one thing on disk.
type DiskItem struct {
	Kind DiskKind `json:"kind"`
	ID   string   `json:"id,omitempty"`
	Name string   `json:"name,omitempty"`
	// SizeBytes is what it takes of the disk; SharedBytes is what it has in common
	// with things that stand before it and is counted there.
	SizeBytes   int64 `json:"size_bytes"`
	SharedBytes int64 `json:"shared_bytes,omitempty"`
	// Reason says why nobody needs it; empty: somebody does. All tells that only a
	// prune of everything that is not in use removes it.
	Reason string `json:"reason,omitempty"`
	All    bool   `json:"all,omitempty"`
	// ReclaimableBytes is what is free once it has gone, with all else that can go.
	ReclaimableBytes int64 `json:"reclaimable_bytes,omitempty"`
}

// DiskUse is what takes disk.
type DiskUse struct {
	Items []DiskItem `json:"items"`
	// TemplatesInUse are those that a sandbox, a snapshot or a pool needs.
	TemplatesInUse []string `json:"templates_in_use"`
	FreeBytes      int64    `json:"free_bytes"` // of the disk
	// KeptBytes is what paused sandboxes and snapshots take, which the quota bounds.
	KeptBytes int64     `json:"kept_bytes"`
	Quota     DiskQuota `json:"quota"`
}

// Pruned is what a prune has removed, or would.
type Pruned struct {
	Items          []DiskItem `json:"items"`
	ReclaimedBytes int64      `json:"reclaimed_bytes"`
	// Problems say what was to go and did not.
	Problems []string `json:"problems,omitempty"`
}

// DiskQuota bounds what is saved on disk.
type DiskQuota struct {
	// KeptBytes is what paused sandboxes and snapshots may take together; 0: no
	// bound but the disk.
	KeptBytes int64 `json:"kept_bytes"`
	// FreeBytes is what stays free: nothing is saved that might leave less.
	FreeBytes int64 `json:"free_bytes"`
}
