// The runtime would look for CPU limits in cgroup files at every start, and
// again now and then; the guest sets the number itself.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command belljar-guest is PID 1 of a sandbox. It serves processes and files
// to the host over the channel on descriptor 3 and is of no use elsewhere.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/guest"
)

// downFD is where a driver puts the guest's end of the down channel.
const downFD = 3

func main() {
	runtime.MemProfileRate = 0 // its tables are 1.4 MiB in every sandbox
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println("belljar-guest", build.ID())
		return
	}
	conn, err := down()
	if err != nil {
		fmt.Fprintln(os.Stderr, "belljar-guest: this program is started inside a sandbox, by belljar-engine, with a channel on descriptor 3, which here is:", err)
		os.Exit(2)
	}
	if err := serve(context.Background(), conn); err != nil {
		fmt.Fprintln(os.Stderr, "belljar-guest:", err)
		os.Exit(1)
	}
}

// down returns the channel to the host. It makes few system calls: this is on
// the way of every start.
func down() (net.Conn, error) {
	var st unix.Stat_t
	if err := unix.Fstat(downFD, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, unix.ENOTSOCK
	}
	unix.CloseOnExec(downFD)
	unix.CloseOnExec(downFD + 1)
	if _, err := unix.FcntlInt(downFD, unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	return fileConn{os.NewFile(downFD, "down")}, nil
}

// fileConn is a connection without the name look-ups of net.FileConn.
type fileConn struct{ *os.File }

func (fileConn) LocalAddr() net.Addr  { return addr("guest") }
func (fileConn) RemoteAddr() net.Addr { return addr("host") }

type addr string

func (addr) Network() string  { return "down" }
func (a addr) String() string { return string(a) }

// serve returns when the host has closed the channel.
func serve(ctx context.Context, conn net.Conn) error {
	// Behind gVisor waking another thread costs more than what it would do:
	// with one place a transfer takes half the CPU time. Calls that block give
	// the place up.
	runtime.GOMAXPROCS(1)
	if err := guest.Prepare(); err != nil {
		return err
	}
	return channel.ServeGuest(ctx, conn, guest.New(ctx, guest.Config{Init: os.Getpid() == 1}))
}
