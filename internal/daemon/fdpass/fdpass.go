// Package fdpass carries open files over a unix socket: one message of bytes
// with descriptors, answered by one byte.
package fdpass

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/sandbox"
)

// MaxFiles is the most descriptors that one message carries.
const MaxFiles = 64

// Send writes msg with files as one message and waits for the answer.
func Send(conn *net.UnixConn, msg []byte, files []*os.File) error {
	if len(files) == 0 || len(files) > MaxFiles {
		return fmt.Errorf("fdpass: %d files where 1 to %d can be sent", len(files), MaxFiles)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		// SyscallConn keeps the file open where Fd would make it blocking.
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
			return err
		}
	}
	if _, _, err := conn.WriteMsgUnix(msg, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	var answer [1]byte
	if n, err := conn.Read(answer[:]); err != nil || n != 1 || answer[0] != 1 {
		return fmt.Errorf("fdpass: the files were refused")
	}
	return nil
}

// Receive reads one message of at most limit bytes with its files, which the
// caller closes. On an error there are none to close.
func Receive(conn *net.UnixConn, limit int) (msg []byte, files []*os.File, err error) {
	buf := make([]byte, limit)
	oob := make([]byte, unix.CmsgSpace(4*MaxFiles))
	n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, nil, err
	}
	files, err = parse(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("fdpass: the message was cut")
	}
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("fdpass: the message has no files")
	}
	if err != nil {
		Close(files)
		return nil, nil, err
	}
	return buf[:n], files, nil
}

// Accept answers a message that was received.
func Accept(conn *net.UnixConn) error {
	_, err := conn.Write([]byte{1})
	return err
}

// Close closes files.
func Close(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func parse(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd) // ReadMsgUnix asks for MSG_CMSG_CLOEXEC; older kernels
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

// Dup returns a second descriptor of f, closed on exec.
func Dup(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var n int
	var derr error
	if err := raw.Control(func(fd uintptr) { n, derr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return nil, err
	}
	if derr != nil {
		return nil, derr
	}
	return os.NewFile(uintptr(n), f.Name()), nil
}

// Handles names the files of one message: [sandbox.Mount].Handle of each.
func Handles(ticket string, count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = ticket + "." + strconv.Itoa(i)
	}
	return out
}

// ParseHandle is the inverse of [Handles].
func ParseHandle(s string) (ticket string, index int, err error) {
	ticket, n, ok := strings.Cut(s, ".")
	index, err = strconv.Atoi(n)
	if !ok || err != nil || index < 0 || index >= MaxFiles || len(ticket) < 16 || len(ticket) > 64 {
		return "", 0, sandbox.Errorf(sandbox.Invalid, "this is not the handle of an open file").WithField("handle", s).
			WithHint("pass the file first; the API takes no host paths")
	}
	return ticket, index, nil
}
