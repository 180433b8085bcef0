// Package lifelock is the lock that tells whether somebody lives: a process
// holds it on a file for as long as it does, and others ask whether it is held.
//
// Asking takes nothing. With flock, whoever asks has the lock for a moment, and
// two who ask at once take each other for the owner. These are the kernel's
// locks of open file descriptions: like flock they belong to an open file, which
// may be handed to another process and holds the lock until it is closed by all
// who have it, and unlike flock they can be asked for.
package lifelock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrHeld says that another open file holds the lock.
var ErrHeld = errors.New("the lock is held")

// Take takes the lock on f, which is open for writing, without waiting. Taking
// it again is no error. It is safe for concurrent use.
func Take(f *os.File) error {
	err := fcntl(f, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return ErrHeld
	}
	return err
}

// Held reports whether somebody holds the lock on the file at path, which is no
// link. An error is one of opening or asking: a file that is missing is
// [os.ErrNotExist], and nobody holds it.
func Held(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	found := unix.Flock_t{Type: unix.F_RDLCK}
	if err := fcntl(f, unix.F_OFD_GETLK, &found); err != nil {
		return false, err
	}
	return found.Type != unix.F_UNLCK, nil
}

func fcntl(f *os.File, cmd int, l *unix.Flock_t) error {
	for {
		err := unix.FcntlFlock(f.Fd(), cmd, l)
		if err != unix.EINTR {
			return os.NewSyscallError("fcntl", err)
		}
	}
}
