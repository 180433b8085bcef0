package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds on descriptors that wait for a create.
const (
	maxTickets     = 256
	maxTicketFiles = sandbox.MaxMounts
	maxTicketBytes = 4 << 10
)

// tickets keeps descriptors between their arrival and the create that takes
// them. It is safe for concurrent use.
type tickets struct {
	life time.Duration

	mu     sync.Mutex
	closed bool
	held   map[string]*ticket
}

type ticket struct {
	files []*os.File
	taken []bool
	lapse *time.Timer
}

func newTickets(life time.Duration) *tickets {
	return &tickets{life: life, held: map[string]*ticket{}}
}

// receive takes one batch from a connection and answers it with one byte, 1.
func (t *tickets) receive(ctx context.Context, c *net.UnixConn) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	head, files, err := readFiles(c)
	if err == nil {
		err = t.put(head, files)
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return // the sender sees the connection end without an answer
	}
	c.Write([]byte{1})
}

func readFiles(c *net.UnixConn) (wire.FDTicket, []*os.File, error) {
	var head wire.FDTicket
	buf := make([]byte, maxTicketBytes)
	oob := make([]byte, unix.CmsgSpace(4*(maxTicketFiles+1)))
	n, on, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return head, nil, err
	}
	files, err := parseRights(oob[:on])
	if err == nil && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		err = errors.New("truncated")
	}
	if err == nil {
		err = json.Unmarshal(buf[:n], &head)
	}
	if err == nil && (head.Ticket == "" || head.Count != len(files) || len(files) == 0) {
		err = errors.New("the ticket does not fit its descriptors")
	}
	return head, files, err
}

func parseRights(oob []byte) ([]*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "mount"))
		}
	}
	return files, nil
}

func (t *tickets) put(head wire.FDTicket, files []*os.File) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.held) >= maxTickets || t.held[head.Ticket] != nil {
		return errors.New("no room for this ticket")
	}
	k := &ticket{files: files, taken: make([]bool, len(files))}
	k.lapse = time.AfterFunc(t.life, func() { t.drop(head.Ticket, k) })
	t.held[head.Ticket] = k
	return nil
}

// drop closes what nobody took of a ticket.
func (t *tickets) drop(name string, k *ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held[name] == k {
		t.discard(name, k)
	}
}

func (t *tickets) discard(name string, k *ticket) {
	delete(t.held, name)
	k.lapse.Stop()
	for i, f := range k.files {
		if !k.taken[i] {
			f.Close()
		}
	}
}

// take returns the descriptors of mounts. The tickets that they name are used
// up, whether it succeeds or not.
func (t *tickets) take(mounts []wire.Mount) (out []driver.Mount, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() {
		for _, m := range mounts {
			if k := t.held[m.Ticket]; k != nil {
				t.discard(m.Ticket, k)
			}
		}
		if err != nil {
			closeMounts(out)
			out = nil
		}
	}()
	for _, m := range mounts {
		k := t.held[m.Ticket]
		if k == nil || m.Index < 0 || m.Index >= len(k.files) || k.taken[m.Index] {
			return out, sandbox.Errorf(sandbox.NotFound, "no open directory came with this ticket at index %d", m.Index).
				WithField("mount", m.Target).WithHint("send the descriptors again: a ticket serves one create and lapses after a minute")
		}
		k.taken[m.Index] = true
		out = append(out, driver.Mount{File: k.files[m.Index], Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return out, nil
}

func closeMounts(mounts []driver.Mount) {
	for _, m := range mounts {
		m.File.Close()
	}
}

func (t *tickets) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for name, k := range t.held {
		t.discard(name, k)
	}
}
