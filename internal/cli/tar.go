package cli

import (
	"archive/tar"
	"io"
	"os"
	"strconv"
	"strings"
)

// renameTop passes a tar stream of one file or directory on with its topmost
// name replaced; "." takes it away, so that the tree's content lies at the top.
// Streams may call the tree "." or by a name. Names that are not of that form
// pass unchanged: whoever unpacks judges them. A watch, which may be nil, sees
// all that passes. Close ends the work early.
func renameTop(r io.Reader, top string, watch *tarWatch) *renamer {
	pr, pw := io.Pipe()
	n := &renamer{pr, make(chan struct{})}
	go func() {
		defer close(n.done)
		pw.CloseWithError(copyRenamed(pw, r, top, watch))
	}()
	return n
}

// renamer is a renamed stream. done is closed when nobody uses its watch any
// more.
type renamer struct {
	*io.PipeReader
	done chan struct{}
}

func copyRenamed(w io.Writer, r io.Reader, top string, watch *tarWatch) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	buf := make([]byte, 256<<10)
	old := ""
	for first := true; ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			watch.comment(h)
			continue
		}
		if first {
			old, first = firstPart(h.Name), false
		}
		h.Name = rename(h.Name, old, top)
		if h.Typeflag == tar.TypeLink {
			h.Linkname = rename(h.Linkname, old, top)
		}
		if watch.leavesOut(h) {
			continue
		}
		h.Format = tar.FormatPAX
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		out, done := watch.entry(h, tw)
		if _, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{tr}, buf); err != nil {
			return err
		}
		done()
	}
	return tw.Close()
}

// firstPart is the topmost name of a stream: "." when it begins with the tree
// itself.
func firstPart(name string) string {
	first, _, _ := strings.Cut(strings.TrimSuffix(name, "/"), "/")
	return first
}

func rename(name, old, top string) string {
	if old == ".." || old == "" {
		return name
	}
	dir := strings.HasSuffix(name, "/")
	rest, ok := strings.CutPrefix(strings.TrimSuffix(name, "/"), old)
	switch {
	case old == "." && (!ok || rest != "" && rest[0] != '/'):
		rest = "/" + strings.TrimSuffix(name, "/") // a name beneath a tree that was called "."
	case !ok || rest != "" && rest[0] != '/':
		return name
	}
	name = top + rest
	if dir {
		name += "/"
	}
	return name
}

// umask returns the process's own, read where reading it does not set it. 022
// stands in where it cannot be read.
func umask() uint32 {
	const usual = 0o022
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return usual
	}
	_, rest, ok := strings.Cut(string(b), "\nUmask:")
	value, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
	if !ok || err != nil {
		return usual
	}
	return uint32(n)
}
