package files

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/belljar-sh/belljar/internal/e2b/reply"
	wire "github.com/belljar-sh/belljar/internal/gen/e2b/filesystem"
	"github.com/belljar-sh/belljar/internal/gen/e2b/filesystem/filesystemconnect"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// maxDepth bounds a listing.
const maxDepth = 64

// Service is the service for one sandbox; use [New]. It is safe for concurrent
// use.
type Service struct {
	g        Guest
	watchers watchers
}

// New returns the service over a guest. Watchers that callers make live until
// they are removed, the sandbox ends or ctx does.
func New(ctx context.Context, g Guest) *Service {
	return &Service{g: g, watchers: watchers{ctx: ctx, byID: map[string]*watcher{}}}
}

// Close ends all watchers.
func (s *Service) Close() { s.watchers.close() }

// Handler returns the path beneath which the service is mounted, and it.
func (s *Service) Handler(opts ...connect.HandlerOption) (string, http.Handler) {
	return filesystemconnect.NewFilesystemHandler(s, opts...)
}

// answer says an entry or an error.
func answer(e guest.Entry, err error) (*wire.EntryInfo, error) {
	if err != nil {
		return nil, failure(err)
	}
	return info(&e), nil
}

// failure says an error of the file system.
func failure(err error) error {
	e := sandbox.AsError(err)
	if e.Kind == sandbox.Invalid && e.Message == guest.TooManyLinks {
		return reply.Coded(connect.CodeFailedPrecondition, e.Error())
	}
	return reply.Error(err)
}

// Stat describes a file.
func (s *Service) Stat(ctx context.Context, req *wire.StatRequest) (*wire.StatResponse, error) {
	user, err := reply.User(ctx)
	if err != nil {
		return nil, err
	}
	e, err := answer(s.g.Stat(ctx, s.place(req.GetPath()), user))
	return &wire.StatResponse{Entry: e}, err
}

// MakeDir makes a directory and its parents.
func (s *Service) MakeDir(ctx context.Context, req *wire.MakeDirRequest) (*wire.MakeDirResponse, error) {
	user, err := reply.User(ctx)
	if err != nil {
		return nil, err
	}
	e, err := answer(s.g.Mkdir(ctx, s.place(req.GetPath()), user))
	return &wire.MakeDirResponse{Entry: e}, err
}

// Move renames a file or directory, making the new parents.
func (s *Service) Move(ctx context.Context, req *wire.MoveRequest) (*wire.MoveResponse, error) {
	user, err := reply.User(ctx)
	if err != nil {
		return nil, err
	}
	e, err := answer(s.g.Move(ctx, s.place(req.GetSource()), s.place(req.GetDestination()), user))
	return &wire.MoveResponse{Entry: e}, err
}

// ListDir lists a directory depth first, in lexical order.
func (s *Service) ListDir(ctx context.Context, req *wire.ListDirRequest) (*wire.ListDirResponse, error) {
	user, err := reply.User(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetDepth() > maxDepth {
		return nil, reply.Coded(connect.CodeInvalidArgument, "a listing goes at most 64 levels down")
	}
	list, err := s.g.List(ctx, s.place(req.GetPath()), user, int(max(req.GetDepth(), 1)))
	if err != nil {
		return nil, failure(err)
	}
	out := &wire.ListDirResponse{Entries: make([]*wire.EntryInfo, 0, len(list))}
	for i := range list {
		out.Entries = append(out.Entries, info(&list[i]))
	}
	return out, nil
}

// Remove removes a file or a whole tree; what is not there is no error.
func (s *Service) Remove(ctx context.Context, req *wire.RemoveRequest) (*wire.RemoveResponse, error) {
	user, err := reply.User(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.g.Remove(ctx, s.place(req.GetPath()), user); err != nil && sandbox.KindOf(err) != sandbox.NotFound {
		return nil, failure(err)
	}
	return &wire.RemoveResponse{}, nil
}
