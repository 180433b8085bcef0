package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of a keeper's log: one that has more than maxLog bytes is cut to its
// head and its tail, which say how it began and what happened last.
const (
	maxLog  = 1 << 20
	logHead = 64 << 10
	logTail = 256 << 10
	logLook = 30 * time.Second // how often its size is looked at
)

// watchLog keeps the log of the keeper in bounds until ctx is done. It is
// written through descriptors that append, also by the runtime as it dies, so
// it is cut in place; a line that comes in that moment may be lost.
func (k *keeper) watchLog(ctx context.Context) {
	tick := time.NewTicker(logLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := capLog(filepath.Join(k.opts.Dir, LogName)); err != nil {
				fmt.Fprintf(os.Stderr, "the log cannot be cut: %v\n", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// capLog cuts the log at path when it is too long. No log is none.
func capLog(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() || fi.Size() <= maxLog {
		return err
	}
	keep := make([]byte, logHead, logHead+logTail+128)
	tail := make([]byte, logTail)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, logHead), keep); err != nil {
		return err
	}
	if _, err := io.ReadFull(io.NewSectionReader(f, fi.Size()-logTail, logTail), tail); err != nil {
		return err
	}
	keep = fmt.Appendf(keep, "\n[%d bytes were cut out here]\n", fi.Size()-logHead-logTail)
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.Write(append(keep, tail...))
	return err
}
