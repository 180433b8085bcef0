package keeperclient

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/keeper/sock"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// SendFiles hands open descriptors to the keeper and returns the ticket by
// which one create takes them, each by its index. The files stay the caller's.
func (c *Client) SendFiles(ctx context.Context, files []*os.File) (ticket string, err error) {
	ticket = rand.Text()
	return ticket, c.SendFilesAs(ctx, ticket, files)
}

// SendFilesAs is SendFiles with a ticket of the caller's choosing, which
// nobody can guess and which is used once.
func (c *Client) SendFilesAs(ctx context.Context, ticket string, files []*os.File) error {
	if len(files) == 0 || len(files) > sandbox.MaxMounts {
		return sandbox.Errorf(sandbox.Invalid, "between 1 and %d files can be sent at once", sandbox.MaxMounts)
	}
	conn, err := sock.Dial(ctx, c.dir, wire.FDSocketName)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	head, err := json.Marshal(wire.FDTicket{Ticket: ticket, Count: len(files)})
	if err != nil {
		return sandbox.Errorf(sandbox.Internal, "cannot encode a ticket: %w", err)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
		}
		if err != nil {
			return sandbox.Errorf(sandbox.Invalid, "a file is closed: %w", err)
		}
	}
	_, _, err = conn.WriteMsgUnix(head, unix.UnixRights(fds...), nil)
	runtime.KeepAlive(files)
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, "the keeper did not take the descriptors: %w", err)
	}
	return nil
}
