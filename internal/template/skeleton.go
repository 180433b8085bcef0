package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

const (
	localName      = "local"      // covers /usr/local
	supersededName = "superseded" // its time tells since when another one is current
	// supersededFor is how long a skeleton stays that nobody holds: a run may
	// be between resolving and holding it.
	supersededFor = 10 * time.Minute
)

// localDirs are in the directory that covers /usr/local, as packages expect.
var localDirs = []string{"bin", "etc", "games", "include", "lib", "sbin", "share", "src"}

// digest names the skeleton by what is in it and by the boot of the machine:
// skeletons are not synced, so one from before a crash is not trusted.
func (p *hostPlan) digest(boot string) string {
	h := sha256.New()
	fmt.Fprintf(h, "1 %v %s\n", p.shift, boot)
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		n := p.nodes[name]
		fmt.Fprintf(h, "%q %v %v %v %v %d\n", name, n.kind, n.mode, n.user, n.anyone, len(n.data))
		h.Write([]byte(n.data))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// remakeHost plans the template anew and makes the skeleton that it needs. The
// maker's lock is held.
func (s *Store) remakeHost(ctx context.Context, shift bool) (driver.Root, error) {
	began := time.Now()
	p, err := planHost(s.o.Host, shift)
	if err != nil {
		return driver.Root{}, err
	}
	digest := p.digest(bootID())
	home := filepath.Join(s.dir, hostDir, digest)
	if _, err := os.Lstat(filepath.Join(home, rootName)); err != nil {
		if err := s.makeSkeleton(ctx, p, digest); err != nil {
			return driver.Root{}, err
		}
	}
	if err := os.Remove(filepath.Join(home, supersededName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return driver.Root{}, storeError("host", err)
	}
	root := p.root(home)
	s.cacheHost(p, digest, root.Binds, began)
	return root, nil
}

// root is the plan's root with the skeleton in home.
func (p *hostPlan) root(home string) driver.Root {
	binds := slices.Clone(p.binds)
	if p.mask {
		binds = append(binds, driver.Bind{Source: filepath.Join(home, localName), Target: usrLocal})
	}
	return driver.Root{Path: filepath.Join(home, rootName), Binds: binds, Shifted: p.shift}
}

// makeSkeleton writes the skeleton aside and renames it.
func (s *Store) makeSkeleton(ctx context.Context, p *hostPlan, digest string) error {
	w, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer w.end()
	if err := p.write(w.path("new", rootName)); err != nil {
		return storeError("host", err)
	}
	for _, d := range localDirs {
		if err := os.MkdirAll(w.path("new", localName, d), 0o755); err != nil {
			return storeError("host", err)
		}
	}
	if err := os.MkdirAll(w.path("old"), 0o700); err != nil {
		return storeError("host", err)
	}
	l, err := s.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer l.Close()
	s.retireSkeletons(w.path("old"))
	return storeErrorOrNil("host", os.Rename(w.path("new"), filepath.Join(s.dir, hostDir, digest)))
}

// write makes the skeleton's files. The directory is ours alone.
func (p *hostPlan) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) { // parents first
		if err := p.writeNode(filepath.Join(dir, name), p.nodes[name]); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o755)
}

func (p *hostPlan) writeNode(path string, n node) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch n.kind {
	case fs.ModeSymlink:
		return os.Symlink(n.data, path)
	case fs.ModeDir:
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	default:
		if err := os.WriteFile(path, []byte(n.data), 0o644); err != nil {
			return err
		}
	}
	mode := n.mode
	if n.anyone && !p.shift {
		mode |= 0o777
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		return err
	}
	if n.user && p.shift {
		return os.Lchown(path, userID, userID)
	}
	return nil
}

// retireSkeletons marks every skeleton as superseded, the current one is
// unmarked afterwards, and moves those into old that have been so for long and
// are not held. The store's lock is held.
func (s *Store) retireSkeletons(old string) {
	dir := filepath.Join(s.dir, hostDir)
	names, err := readNames(dir)
	if err != nil {
		return
	}
	for _, n := range names {
		home := filepath.Join(dir, n)
		if info, err := os.Lstat(home); err != nil || !info.IsDir() {
			continue
		}
		mark := filepath.Join(home, supersededName)
		info, err := os.Lstat(mark)
		if err != nil {
			os.WriteFile(mark, nil, 0o600) // without a mark it stays: no harm
			continue
		}
		if users, err := holders(home); err == nil && len(users) == 0 && time.Since(info.ModTime()) > supersededFor {
			os.Rename(home, filepath.Join(old, n))
		}
	}
}
