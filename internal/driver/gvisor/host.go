package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// hostName is the file of a memory image that says on what host, and by what, it
// was written. A sentry knows nothing of it.
const hostName = "host.json"

// hostVersion is that of the file's form.
const hostVersion = 1

// maxHost bounds the file, in bytes.
const maxHost = 256 << 20

// hostState is what must be as it was for a memory image to be restored.
type hostState struct {
	Version int        `json:"version"`
	GVisor  string     `json:"gvisor"` // version of the module
	CPU     processor  `json:"cpu"`
	Root    rootMark   `json:"root"`
	Files   []heldFile `json:"files"`
}

// processor is what gVisor compares of processors at a restore: programs may
// have looked, once, at what there is.
type processor struct {
	Arch      string   `json:"arch"`
	CacheLine uint32   `json:"cache_line,omitempty"` // bytes
	Features  []string `json:"features"`
}

// rootMark tells a directory that a root is in from another copy of it.
type rootMark struct {
	Digest string `json:"digest,omitempty"` // of the template; "": it is the host's own files
	Ino    uint64 `json:"ino"`
	Born   int64  `json:"born,omitempty"` // nanoseconds; 0: the file system does not say
}

// ownGVisor is the version of the module that this program was linked with;
// gVisor's own version string is empty in such a build, and it compares nothing.
func ownGVisor() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return gvisorIn(info)
}

// gvisorIn is the version of gVisor that a program was built with, "" when it
// does not say.
func gvisorIn(info *debug.BuildInfo) string {
	for _, m := range info.Deps {
		if m.Path != "gvisor.dev/gvisor" {
			continue
		}
		if m.Replace == nil {
			return m.Version
		}
		return strings.TrimSuffix(m.Replace.Path+"@"+m.Replace.Version, "@")
	}
	return ""
}

// thisProcessor asks the processor, once: behind a hypervisor each question
// costs.
var thisProcessor = sync.OnceValue(func() processor {
	cpuid.Initialize()
	have := cpuid.HostFeatureSet()
	p := processor{Arch: runtime.GOARCH, CacheLine: cacheLine(have)}
	for _, f := range cpuid.AllFeatures() {
		if have.HasFeature(f) {
			p.Features = append(p.Features, f.String())
		}
	}
	slices.Sort(p.Features)
	return p
})

// markRoot looks at the directory of a root.
func markRoot(root *driver.Root) (rootMark, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, root.Path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return rootMark{}, fmt.Errorf("look at the root: %w", err)
	}
	m := rootMark{Digest: root.Digest, Ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		m.Born = nanos(st.Btime)
	}
	return m, nil
}

// copyOf reports whether m is another copy of the template that n is one of.
func (m rootMark) copyOf(n rootMark) bool {
	return m.Digest != "" && m.Digest == n.Digest && (m.Ino != n.Ino || m.Born != n.Born)
}

// describe returns what the sandbox, which has just been saved and stands still,
// needs at a restore.
func (i *Instance) describe() (*hostState, error) {
	files, err := held(i.sentry.Process.Pid, i.tree, i.since)
	if err != nil {
		return nil, err
	}
	s := &hostState{Version: hostVersion, GVisor: i.gvisor, CPU: thisProcessor(), Root: i.mark, Files: []heldFile{}}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		s.Files = append(s.Files, *files[path])
	}
	return s, nil
}

// write puts the state into an image.
func (s *hostState) write(dir string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, hostName), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// readHost reads the state from an image.
func readHost(dir string) (*hostState, error) {
	f, err := os.OpenFile(filepath.Join(dir, hostName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		kind := sandbox.Internal
		if errors.Is(err, os.ErrNotExist) {
			kind = sandbox.NotFound
		}
		return nil, sandbox.Errorf(kind, "the image cannot be opened: %w", err).WithField("image", dir)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxHost+1))
	s := &hostState{}
	if err == nil && len(b) > maxHost {
		err = fmt.Errorf("it has more than %d bytes", maxHost)
	}
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err == nil && s.Version != hostVersion {
		err = fmt.Errorf("it has the form %d and not %d", s.Version, hostVersion)
	}
	if err == nil && len(s.Files) > maxHeld {
		err = fmt.Errorf("it names %d files", len(s.Files))
	}
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Internal, "what the image says of its host cannot be read: %w", err).
			WithField("image", filepath.Join(dir, hostName))
	}
	return s, nil
}

// fits checks that the sandbox, which is about to be restored, is on a host like
// that of the image. It returns the files, by name, that the sentry will then
// have to hold.
func (i *Instance) fits(s *hostState) (map[inode]string, error) {
	if now := i.gvisor; now == "" || now != s.GVisor {
		return nil, sandbox.Errorf(sandbox.Conflict, "the sandbox was saved by gVisor %s, and this is gVisor %s", orUnknown(s.GVisor), orUnknown(now)).
			WithField("gvisor", s.GVisor).
			WithHint("install the build that saved it: memory is restored by the gVisor that saved it only; files can be kept without memory")
	}
	if err := s.CPU.within(thisProcessor()); err != nil {
		return nil, err
	}
	alike := i.mark.copyOf(s.Root)
	files := make(map[inode]string, len(s.Files))
	for n := range s.Files {
		node, err := s.Files[n].unchanged(i.tree, alike)
		if err != nil {
			return nil, err
		}
		files[node] = s.Files[n].path()
	}
	return files, nil
}

func orUnknown(v string) string {
	if v == "" {
		return "of an unknown version"
	}
	return v
}

// maxNamed bounds the features that an error names.
const maxNamed = 16

// within refuses a processor that lacks what programs may have found on the one
// where they were saved. More than that does no harm: who looked has looked.
func (p processor) within(now processor) error {
	field, value, why := "", "", ""
	var missing []string
	for _, f := range p.Features {
		if _, found := slices.BinarySearch(now.Features, f); !found {
			missing = append(missing, f)
		}
	}
	switch {
	case p.Arch != now.Arch:
		field, value, why = "arch", p.Arch, "it is "+now.Arch
	case len(missing) > maxNamed:
		field, value, why = "cpu", strings.Join(missing[:maxNamed], " "), fmt.Sprintf("it lacks these features and %d more", len(missing)-maxNamed)
	case len(missing) > 0:
		field, value, why = "cpu", strings.Join(missing, " "), "it lacks these features"
	case p.CacheLine != now.CacheLine:
		field, value, why = "cpu", fmt.Sprint(p.CacheLine), fmt.Sprintf("its cache lines have %d bytes", now.CacheLine)
	default:
		return nil
	}
	return sandbox.Errorf(sandbox.Conflict, "this processor is not like the one where the sandbox was saved: %s", why).
		WithField(field, value).WithHint("restore it on a processor that has at least these, or begin anew from its files")
}
