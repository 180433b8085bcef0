package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Methods of the sentry's control server (gvisor.dev/gvisor/runsc/boot).
const (
	methodSetNetwork = "containerManager.SetNetworkArgs"
	methodStartRoot  = "containerManager.StartRoot"
	methodCheckpoint = "containerManager.Checkpoint"
	methodRestore    = "containerManager.Restore"
	methodPause      = "containerManager.Pause"
	methodResume     = "containerManager.Resume"

	methodFSSave        = "containerManager.FSSave"
	methodWaitFSRestore = "containerManager.WaitFSRestore"
)

// maxReply bounds an answer of the sentry. A sentry may have been taken over by
// its guest, so what it says is hostile like everything else from there.
const maxReply = 1 << 20

// control is a connection to a sentry's control server: one JSON value per
// request and one per answer, with no framing around them.
type control struct {
	mu   sync.Mutex // one call at a time
	conn *net.UnixConn
	// inode is the listening socket's, without a name: a sentry ends its
	// connections when it has restored itself, and this leads to it again.
	inode *os.File
}

// newControl makes the listening socket for a sentry and connects to it, so
// that requests can be written before the sentry is there. The socket's name
// in dir is gone again on return: nobody else can ever connect.
func newControl(dir string) (listener *os.File, c *control, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer d.Close()
	// A name through the directory's descriptor is short enough whatever dir is.
	name := fmt.Sprintf("/proc/self/fd/%d/control", d.Fd())
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	listener = os.NewFile(uintptr(fd), "control")
	defer func() {
		if err != nil {
			listener.Close()
		}
	}()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return nil, nil, fmt.Errorf("bind control socket: %w", err)
	}
	defer os.Remove(filepath.Join(dir, "control"))
	if err := unix.Listen(fd, 4); err != nil {
		return nil, nil, err
	}
	inode, err := unix.Open(name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("control socket: %w", err)
	}
	c = &control{inode: os.NewFile(uintptr(inode), "control socket")}
	if err := c.dial(); err != nil {
		c.inode.Close()
		return nil, nil, err
	}
	return listener, c, nil
}

// dial connects to the sentry, anew if need be.
func (c *control) dial() error {
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d", c.inode.Fd()))
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	if c.conn != nil {
		c.conn.Close()
	}
	c.conn = conn.(*net.UnixConn)
	return nil
}

// redial connects anew to a sentry that has restored itself.
func (c *control) redial() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dial()
}

// call asks for method and waits for the answer, which carries no result that
// this driver needs. After ctx has ended the connection is of no further use.
func (c *control) call(ctx context.Context, method string, arg any) error {
	return c.callFiles(ctx, method, arg, nil)
}

// callFiles is call with open files, which the sentry gets copies of.
func (c *control) callFiles(ctx context.Context, method string, arg any, files []*os.File) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	req, err := json.Marshal(struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}{method, arg})
	if err != nil {
		return err
	}
	if err := c.send(req, files); err != nil {
		return fmt.Errorf("%s: %w", method, orCause(ctx, err))
	}
	var reply struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
	}
	if err := readJSON(c.conn, &reply); err != nil {
		return fmt.Errorf("%s: %w", method, orCause(ctx, err))
	}
	if !reply.Success {
		return fmt.Errorf("%s: %q", method, clip(reply.Err, 1<<10))
	}
	return nil
}

// send writes a request, with files in one message with its first bytes.
func (c *control) send(req []byte, files []*os.File) error {
	if len(files) == 0 {
		_, err := c.conn.Write(req)
		return err
	}
	fds := make([]int, len(files))
	for n, f := range files {
		fds[n] = int(f.Fd())
	}
	sent, _, err := c.conn.WriteMsgUnix(req, unix.UnixRights(fds...), nil)
	if err == nil && sent < len(req) {
		_, err = c.conn.Write(req[sent:])
	}
	return err
}

// readJSON reads one JSON value of at most maxReply bytes.
func readJSON(conn net.Conn, into any) error {
	limited := &io.LimitedReader{R: conn, N: maxReply}
	err := json.NewDecoder(limited).Decode(into)
	if err != nil && limited.N == 0 {
		return errors.New("answer too long")
	}
	return err
}

// orCause prefers why ctx ended over the I/O error that its end brought about.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *control) close() error { return errors.Join(c.conn.Close(), c.inode.Close()) }

func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// The loopback interface, in the words of gVisor's control server.
type (
	networkArgs struct {
		LoopbackLinks []loopbackLink
	}
	loopbackLink struct {
		Name      string
		Addresses []prefix
		Routes    []route
	}
	prefix struct {
		Address   net.IP
		PrefixLen int
	}
	route struct {
		Destination net.IPNet
	}
)

// loopbackOnly configures lo and nothing else.
func loopbackOnly() *networkArgs {
	v4, v6 := net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback
	return &networkArgs{LoopbackLinks: []loopbackLink{{
		Name:      "lo",
		Addresses: []prefix{{v4, 8}, {v6, 128}},
		Routes: []route{
			{net.IPNet{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}},
			{net.IPNet{IP: v6, Mask: net.CIDRMask(128, 128)}},
		},
	}}}
}
