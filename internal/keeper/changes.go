package keeper

import (
	"context"
	"io"
	"net/http"
	"os"
	"strconv"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// changes passes on what the guest's kernel says that the sandbox has changed.
// The kernel stands still while it writes that down, and not while it is sent.
func (k *keeper) changes(w http.ResponseWriter, r *http.Request) {
	b := k.named(w, r)
	if b == nil {
		return
	}
	list, err := b.changes(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	defer list.Close()
	fi, err := list.Stat()
	if err != nil {
		writeError(w, sandbox.Errorf(sandbox.Internal, "the list of files cannot be read: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(fi.Size(), 10))
	_, _ = io.Copy(w, io.LimitReader(list, fi.Size())) // a reader that has gone is no news
}

func (b *box) changes(ctx context.Context) (*os.File, error) {
	b.saving.Lock()
	defer b.saving.Unlock()
	b.mu.Lock()
	inst, status := b.inst, b.status
	b.mu.Unlock()
	if !status.Running {
		return nil, notRunning(status.ID)
	}
	l, ok := inst.(driver.FileLister)
	if !ok {
		return nil, sandbox.Errorf(sandbox.Unsupported, "the %s boundary cannot tell which files a sandbox has changed", status.Boundary)
	}
	return l.ListFiles(ctx)
}
