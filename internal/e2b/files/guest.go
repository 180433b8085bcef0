// Package files serves filesystem.Filesystem and the /files routes of the E2B
// wire for one sandbox. It is a translation: paths mean what the guest makes of
// them, with the rights of the request's user.
package files

import (
	"context"
	"io"
	"strings"
	"time"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
)

// Guest reaches the files of one sandbox. Paths are as [guest.Entry] has them
// or as a caller wrote them; user "" is the sandbox's default. A sandbox that
// has ended is [sandbox.Unavailable] with the field "sandbox". Implementations are safe for concurrent
// use and bound what a guest may answer.
type Guest interface {
	// Workdir is where processes begin by default; "" is the user's home.
	Workdir() string

	// Stat, Move and List have links followed, see [guest.Entry].Resolved.
	Stat(ctx context.Context, path, user string) (guest.Entry, error)
	Move(ctx context.Context, path, to, user string) (guest.Entry, error)
	List(ctx context.Context, path, user string, depth int) ([]guest.Entry, error)
	Mkdir(ctx context.Context, path, user string) (guest.Entry, error)
	Remove(ctx context.Context, path, user string) error

	// Open reads a file from an offset on. The caller closes it.
	Open(ctx context.Context, path, user string, from int64) (*File, error)
	// Put writes a file from body, whose size may be -1. Until all of it has
	// arrived the old content stays.
	Put(ctx context.Context, path, user string, meta map[string]string, body io.Reader, size int64) (guest.Entry, error)

	// Watch returns the frames of a watch; local refuses network mounts. ctx
	// bounds it, and the caller closes it.
	Watch(ctx context.Context, path, user string, recursive, local bool) (io.ReadCloser, error)
}

// File is a file on its way out.
type File struct {
	io.ReadCloser
	Size    int64     // of what is sent; -1: not known
	ModTime time.Time // zero: not known
}

// place is the path of a request as the guest takes it: an empty one is the
// default directory.
func (s *Service) place(p string) string {
	if p != "" {
		return p
	}
	if wd := s.g.Workdir(); wd != "" {
		return wd
	}
	return "~"
}

func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }
