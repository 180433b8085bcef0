package guest

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// maxWindow bounds rows and columns; programs allocate by them.
const maxWindow = 4096

// openPTY makes a terminal of the given size that belongs to id. The master
// can be waited for; the slave is for the child.
func openPTY(size wire.PTYSize, id identity) (master *os.File, slave int, err error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, err
	}
	slave, err = openSlave(m, id)
	if err != nil {
		unix.Close(m)
		return nil, -1, err
	}
	if err := setWindow(m, size); err != nil {
		unix.Close(m)
		unix.Close(slave)
		return nil, -1, err
	}
	return os.NewFile(uintptr(m), "pty"), slave, nil
}

func openSlave(master int, id identity) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, err
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	// So that the user can open /dev/tty and its own terminal by name. Not
	// every boundary lets a terminal change hands, and the descriptor works
	// without it.
	unix.Fchown(fd, int(id.uid), -1)
	return fd, nil
}

// setWindow sets the size; zero means 80 by 24.
func setWindow(fd int, size wire.PTYSize) error {
	ws := unix.Winsize{Col: size.Cols, Row: size.Rows}
	if ws.Col == 0 {
		ws.Col = 80
	}
	if ws.Row == 0 {
		ws.Row = 24
	}
	ws.Col, ws.Row = min(ws.Col, maxWindow), min(ws.Row, maxWindow)
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &ws)
}
