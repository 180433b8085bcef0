package files

import (
	"io/fs"
	"path"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	wire "github.com/belljar-sh/belljar/internal/gen/e2b/filesystem"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
)

// info describes an entry as the wire does. Of a link, type and mode are those
// of what it leads to; one that leads nowhere has no type.
func info(e *guest.Entry) *wire.EntryInfo {
	out := &wire.EntryInfo{
		Name: valid(e.Name), Path: valid(e.Path), Size: e.Size,
		Type: kind(e.Type), Mode: e.Mode & 0o777, Permissions: permissions(e),
		Owner: valid(e.Owner), Group: valid(e.Group), ModifiedTime: timestamppb.New(e.ModTime),
	}
	if e.Type == guest.TypeSymlink {
		out.Type, out.Mode = kind(e.TargetType), e.TargetMode&0o777
		to := valid(leadsTo(e))
		out.SymlinkTarget = &to
	}
	for k, v := range e.Meta {
		if out.Metadata == nil {
			out.Metadata = map[string]string{}
		}
		out.Metadata[valid(k)] = valid(v)
	}
	return out
}

func kind(t guest.EntryType) wire.FileType {
	switch t {
	case guest.TypeFile:
		return wire.FileType_FILE_TYPE_FILE
	case guest.TypeDir:
		return wire.FileType_FILE_TYPE_DIRECTORY
	}
	return wire.FileType_FILE_TYPE_UNSPECIFIED
}

// leadsTo is the absolute path that a link leads to; of one that leads nowhere,
// what it says.
func leadsTo(e *guest.Entry) string {
	switch {
	case e.Resolved != "":
		return e.Resolved
	case strings.HasPrefix(e.Target, "/"):
		return path.Clean(e.Target)
	}
	return path.Join(path.Dir(e.Path), e.Target)
}

// permissions is the entry's own mode as Go prints it: "-rw-r--r--".
func permissions(e *guest.Entry) string {
	m := fs.FileMode(e.Mode & 0o777)
	for _, b := range []struct {
		bit  uint32
		mode fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if e.Mode&b.bit != 0 {
			m |= b.mode
		}
	}
	switch e.Type {
	case guest.TypeDir:
		m |= fs.ModeDir
	case guest.TypeSymlink:
		m |= fs.ModeSymlink
	case guest.TypeOther:
		m |= fs.ModeIrregular
	}
	return m.String()
}
