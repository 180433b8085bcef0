package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// FindingKind says what was found.
type FindingKind string

// The kinds of findings.
const (
	// NameMade and NameChanged are about names of the list.
	NameMade    FindingKind = "made"
	NameChanged FindingKind = "changed"
	// RepositoryMade is a directory that git takes for a repository.
	RepositoryMade FindingKind = "repository"
	// ConfigUnsafe is a repository's configuration that names something to run
	// or trust.
	ConfigUnsafe FindingKind = "unsafe-config"
	// LinkOut is a symbolic link that leads out of the directory.
	LinkOut FindingKind = "link-out"
	// SpecialFile is a device, FIFO or socket.
	SpecialFile FindingKind = "special-file"
)

// Finding is one file that a run left, as far as the host can tell from it: who
// changed it is not written in it, so what the caller did meanwhile is listed
// too. Path and Target are raw bytes of a guest's choosing; [Finding.String]
// escapes them.
type Finding struct {
	Kind   FindingKind `json:"kind"`
	Path   string      `json:"path"` // beneath the directory
	Class  string      `json:"class,omitempty"`
	Rule   string      `json:"rule,omitempty"` // pattern of the list
	Reason string      `json:"reason"`
	Target string      `json:"target,omitempty"` // of a link
}

// String is one line for a terminal.
func (f Finding) String() string {
	if f.Kind == LinkOut {
		return fmt.Sprintf("%s -> %s: %s", Escape(f.Path), Escape(f.Target), f.Reason)
	}
	return fmt.Sprintf("%s: %s: %s", Escape(f.Path), f.Kind, f.Reason)
}

// Escape returns s as it is when a terminal shows it as it is, and quoted
// otherwise.
func Escape(s string) string {
	if q := strconv.Quote(s); q[1:len(q)-1] != s || s == "" {
		return q
	}
	return s
}

// Report is what [Scan] found.
type Report struct {
	// Findings are the most dangerous first, and then in order of their paths.
	Findings []Finding `json:"findings"`
	// More counts findings beyond [MaxFindings]. None of those is of a more
	// dangerous kind than any of Findings.
	More int `json:"more,omitempty"`
	// Entries is how many directory entries were looked at.
	Entries int `json:"entries"`
	// Incomplete tells, when not empty, why not everything was looked at.
	Incomplete string `json:"incomplete,omitempty"`
}

// Bounds of a scan.
const (
	MaxFindings = 500
	MaxEntries  = 2_000_000
	maxDepth    = 512
)

// Baseline is how a directory stood before a run. The zero value stands for an
// empty directory.
type Baseline struct {
	at   time.Time
	seen map[string]int64 // where the file system's clock is not this host's
}

// remote are file systems whose times come from another machine's clock.
var remote = map[int64]bool{
	unix.NFS_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true, unix.CIFS_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true,
	unix.FUSE_SUPER_MAGIC: true, unix.V9FS_MAGIC: true, unix.CEPH_SUPER_MAGIC: true, unix.AFS_SUPER_MAGIC: true,
}

// Take notes how dir stands. It takes as long as the clock of files needs to
// move on, a few milliseconds, except on file systems of other machines, where
// it has to look at every name.
func Take(ctx context.Context, dir *os.File) (Baseline, error) {
	at, err := fileClock(ctx)
	if err != nil {
		return Baseline{}, err
	}
	b := Baseline{at: at}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &fs); err != nil {
		return Baseline{}, fmt.Errorf("examine the file system: %w", err)
	}
	if !remote[int64(fs.Type)] {
		return b, nil
	}
	b.seen = make(map[string]int64)
	w := walker{ctx: ctx, visit: func(e *entry) { b.seen[e.path] = e.ctime() }}
	if err := w.run(dir); err != nil {
		return Baseline{}, err
	}
	return b, nil
}

// maxTick bounds how long [Take] waits for the clock of files.
const maxTick = 100 * time.Millisecond

// fileClock returns a time that no file has that changed before the call, and
// that every file will have or surpass that changes after it. The kernel takes
// the times of files from a coarse clock, and sometimes from a fine one; so it
// waits until the coarse one has passed the time of the call.
func fileClock(ctx context.Context) (time.Time, error) {
	var ts unix.Timespec
	for now := time.Now(); ; time.Sleep(500 * time.Microsecond) {
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
			return time.Time{}, fmt.Errorf("clock: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		if at := time.Unix(ts.Unix()); at.After(now) || time.Since(now) > maxTick {
			return at, nil
		}
	}
}

// since tells whether an entry changed after the baseline.
func (b *Baseline) since(e *entry) bool {
	if b.seen != nil {
		old, ok := b.seen[e.path]
		return !ok || old != e.ctime()
	}
	return e.ctime() >= b.at.UnixNano()
}

// fresh tells whether an entry was made after the baseline; where the file
// system does not tell, whether it changed.
func (b *Baseline) fresh(e *entry) bool {
	if b.seen != nil {
		_, ok := b.seen[e.path]
		return !ok
	}
	if e.st.Mask&unix.STATX_BTIME == 0 {
		return b.since(e)
	}
	return e.st.Btime.Sec*1e9+int64(e.st.Btime.Nsec) >= b.at.UnixNano()
}

// Scan lists what changed beneath dir since the baseline and is executed or
// trusted by programs of the host, or leads out of it. It follows no link and
// enters no other mount, opens regular files only to check a repository's
// configuration, and needs no more rights than reading; it belongs into the
// caller's own process. A directory that is too large, or a context that ends,
// makes the report incomplete, which it says.
func Scan(ctx context.Context, dir *os.File, since Baseline) (Report, error) {
	s := scanner{root: dir, base: since}
	w := walker{ctx: ctx, visit: s.visit}
	err := w.run(dir)
	s.report.Entries = w.entries
	slices.SortFunc(s.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(danger(b.Kind), danger(a.Kind)), cmp.Compare(a.Path, b.Path))
	})
	switch {
	case w.incomplete != "":
		s.report.Incomplete = w.incomplete
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		s.report.Incomplete = "it took too long"
		err = nil
	}
	return s.report, err
}

type scanner struct {
	root   *os.File
	base   Baseline
	report Report
	kinds  [6]int // how many of report's findings there are of each of dangers
}

// dangers are the kinds from the least dangerous on: what only the unwary walk
// into, what a program reads when it comes by, what it runs without being told.
var dangers = []FindingKind{SpecialFile, LinkOut, NameChanged, NameMade, RepositoryMade, ConfigUnsafe}

func danger(k FindingKind) int { return slices.Index(dangers, k) }

// add adds a finding. When there is no more room, the least dangerous gives way:
// thousands of links do not hide a hook.
func (s *scanner) add(f Finding) {
	all := &s.report.Findings
	s.kinds[danger(f.Kind)]++
	if len(*all) < MaxFindings {
		*all = append(*all, f)
		return
	}
	s.report.More++
	least := 0
	for s.kinds[least] == 0 {
		least++
	}
	s.kinds[least]-- // the new one, or one that gives way to it
	if least == danger(f.Kind) {
		return
	}
	n := slices.IndexFunc(*all, func(o Finding) bool { return danger(o.Kind) == least })
	(*all)[n] = f
}

// visit looks at one entry that is worth it.
func (s *scanner) visit(e *entry) {
	if !s.base.since(e) {
		return
	}
	switch e.typ() {
	case unix.S_IFLNK:
		s.link(e)
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		s.add(Finding{Kind: SpecialFile, Path: e.path, Reason: "programs of the host that open it may block or be fed by it"})
	}
	switch {
	case e.repository:
		s.repository(e)
	case e.zone.Kind() == GitConfig && s.config(e):
	case e.zone.Rule() != nil && !e.covered:
		s.named(e)
	}
}

// config reports a configuration that git should not believe.
func (s *scanner) config(e *entry) bool {
	data, err := readConfig(e.dir, e.name)
	if err == nil {
		err = CheckGitConfig(data, path.Dir(e.path))
	}
	if err == nil {
		return false
	}
	r := e.zone.Rule()
	s.add(Finding{Kind: ConfigUnsafe, Path: e.path, Class: r.Class.String(), Rule: r.Pattern, Reason: err.Error()})
	return true
}

// named is for names of the list. A directory is listed when it is new, and
// stands for what is in it; what changed in an old one is listed by itself.
func (s *scanner) named(e *entry) {
	kind := NameChanged
	switch {
	case s.base.fresh(e):
		kind = NameMade
		e.cover = true
	case e.typ() == unix.S_IFDIR:
		return
	}
	r := e.zone.Rule()
	s.add(Finding{Kind: kind, Path: e.path, Class: r.Class.String(), Rule: r.Pattern, Reason: r.Reason})
}

// repository is for directories that git would believe.
func (s *scanner) repository(e *entry) {
	if !s.base.fresh(e) {
		return
	}
	e.cover = true
	if !e.covered {
		s.add(Finding{Kind: RepositoryMade, Path: e.path, Class: madeRule.Class.String(), Rule: madeRule.Pattern, Reason: madeRule.Reason})
	}
}

// link lists links that the kernel will not resolve beneath the directory.
func (s *scanner) link(e *entry) {
	fd, err := unix.Openat2(int(s.root.Fd()), e.path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err == nil {
		unix.Close(fd)
		return
	}
	if !errors.Is(err, unix.EXDEV) {
		return
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(e.dir, e.name, buf)
	if err != nil {
		return
	}
	s.add(Finding{Kind: LinkOut, Path: e.path, Target: string(buf[:n]), Reason: "it leads out of the directory"})
}
