package host

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
)

// Names of the checks of devices.
const (
	CheckKVM = "KVM"
	CheckTUN = "/dev/net/tun"
)

// kvmVersion is the only version of the interface that was ever released.
const kvmVersion = 12

func deviceChecks() []driver.Check {
	return []driver.Check{kvmCheck("/dev/kvm"), tunCheck("/dev/net/tun")}
}

// kvmCheck opens the device and asks it for its version: on many virtual
// machines the file is there and nothing behind it.
func kvmCheck(path string) driver.Check {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return openVerdict(CheckKVM, path, err, "run on hardware or on a virtual machine with nested virtualisation, and load the kvm module")
	}
	defer unix.Close(fd)
	const getAPIVersion = 0xae00
	v, err := unix.IoctlRetInt(fd, getAPIVersion)
	if err != nil || v != kvmVersion {
		return no(CheckKVM, fmt.Sprintf("%s opens and does not answer as KVM (version %d, %v)", path, v, err), "")
	}
	return yes(CheckKVM, fmt.Sprintf("%s, interface version %d", path, v))
}

func tunCheck(path string) driver.Check {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return openVerdict(CheckTUN, path, err, "load the tun module, or make the device visible in this container")
	}
	unix.Close(fd)
	return yes(CheckTUN, "opens")
}

func openVerdict(name, path string, err error, remedy string) driver.Check {
	switch {
	case errors.Is(err, unix.ENOENT):
		return no(name, path+" does not exist", remedy)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return no(name, path+" exists with nothing behind it: "+errno(err), remedy)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return no(name, path+" may not be opened by this user: "+errno(err), "add the user to the group that owns "+path)
	}
	return unsure(name, path+": "+errno(err), remedy)
}
