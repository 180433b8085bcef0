package template

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// The cache answers "has anything changed that the host template was made
// from?" with one lstat per file: a change of content, owner, mode or entries
// moves the change time of a file or directory, which nobody can set back.

// cacheHead is the first line of a cache file; the inputs follow, each ended by
// a NUL.
type cacheHead struct {
	Version int           `json:"version"`
	Digest  string        `json:"digest"` // of the skeleton
	Print   string        `json:"print"`  // of the inputs
	Boot    string        `json:"boot"`
	Binds   []driver.Bind `json:"binds"`
}

// settle is how old a change must be for its time to tell it from the next: the
// clock that marks files ticks every few milliseconds.
const settle = 100 * time.Millisecond

// cachePath depends on what else decides the result.
func (s *Store) cachePath(shift bool) string {
	b, err := json.Marshal([]any{s.o.Host.UsrLocal, s.o.Host.Extra, s.o.Host.base, shift})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(b)
	return filepath.Join(s.dir, hostDir, "current-"+hex.EncodeToString(sum[:8]))
}

// cachedHost returns the root that was made last, if nothing has changed.
func (s *Store) cachedHost(shift bool) (driver.Root, bool) {
	raw, err := os.ReadFile(s.cachePath(shift))
	if err != nil {
		return driver.Root{}, false
	}
	line, list, ok := strings.Cut(string(raw), "\n")
	var head cacheHead
	if !ok || json.Unmarshal([]byte(line), &head) != nil || head.Version != recordVersion || head.Boot != bootID() {
		return driver.Root{}, false
	}
	print, _ := fingerprint(s.o.Host.base, strings.Split(strings.TrimSuffix(list, "\x00"), "\x00"))
	if print != head.Print {
		return driver.Root{}, false
	}
	root := filepath.Join(s.dir, hostDir, head.Digest, rootName)
	var st unix.Stat_t
	if unix.Lstat(root, &st) != nil {
		return driver.Root{}, false
	}
	return driver.Root{Path: root, Binds: head.Binds, Shifted: shift}, true
}

// cacheHost notes what was made from what, unless one of the inputs changed so
// lately that a further change might not show.
func (s *Store) cacheHost(p *hostPlan, digest string, binds []driver.Bind, began time.Time) {
	print, newest := fingerprint(p.o.base, p.inputs)
	if began.Sub(newest) < settle {
		return
	}
	line, err := json.Marshal(cacheHead{recordVersion, digest, print, bootID(), binds})
	if err != nil {
		return
	}
	path := s.cachePath(p.shift)
	text := string(line) + "\n" + strings.Join(p.inputs, "\x00") + "\x00"
	// A cache that cannot be written costs time, nothing else.
	if os.WriteFile(path+".new", []byte(text), 0o600) == nil {
		os.Rename(path+".new", path)
	}
}

// fingerprint returns a digest of what lstat says of every path below base, and
// the time of the newest change.
func fingerprint(base string, paths []string) (string, time.Time) {
	h := sha256.New()
	var newest unix.Timespec
	var st unix.Stat_t
	var b [64]byte
	for _, p := range paths {
		if base != "" {
			p = filepath.Join(base, p)
		}
		st = unix.Stat_t{}
		if unix.Lstat(p, &st) != nil {
			h.Write([]byte("missing " + p))
			continue
		}
		for i, v := range []uint64{
			uint64(st.Dev), st.Ino, uint64(st.Mode)<<32 | uint64(st.Uid), uint64(st.Size),
			uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()), uint64(st.Gid), uint64(len(p)),
		} {
			binary.LittleEndian.PutUint64(b[i*8:], v)
		}
		h.Write(b[:])
		h.Write([]byte(p))
		if st.Ctim.Nano() > newest.Nano() {
			newest = st.Ctim
		}
	}
	return hex.EncodeToString(h.Sum(nil)), time.Unix(newest.Unix())
}

// bootID tells boots of the machine apart.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
