// Command probe prints, as a JSON object of strings, what a fresh process in a
// sandbox draws from its kernel and finds out about the machine that it is on:
// all that must be different in two sandboxes that came from one image.
package main

import (
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	out := map[string]string{}
	for name, f := range map[string]func() (string, error){
		"getrandom":   getrandom,
		"urandom":     func() (string, error) { return head("/dev/urandom") },
		"random":      func() (string, error) { return head("/dev/random") },
		"uuid":        func() (string, error) { return read("/proc/sys/kernel/random/uuid") },
		"boot_id":     func() (string, error) { return read("/proc/sys/kernel/random/boot_id") },
		"machine_id":  func() (string, error) { return read("/etc/machine-id") },
		"token":       func() (string, error) { return read("/run/belljar/token") },
		"hostname":    os.Hostname,
		"tls_go":      tlsGo,
		"tls_openssl": tlsOpenSSL,
	} {
		v, err := f()
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			os.Exit(1)
		}
		out[name] = v
	}
	isn, secret, err := sequence()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tcp sequence number:", err)
		os.Exit(1)
	}
	out["tcp_isn"], out["tcp_secret"] = isn, secret
	json.NewEncoder(os.Stdout).Encode(out)
}

func getrandom() (string, error) {
	var b [32]byte
	_, err := unix.Getrandom(b[:], 0)
	return hex.EncodeToString(b[:]), err
}

func head(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [32]byte
	_, err = io.ReadFull(f, b[:])
	return hex.EncodeToString(b[:]), err
}

func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

// Where the random bytes of a ClientHello lie, after the heads of the record
// and of the message and the version.
const randomAt, randomLen = 11, 32

// clientRandom reads a ClientHello.
func clientRandom(r io.Reader) (string, error) {
	var b [randomAt + randomLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return "", err
	}
	if b[0] != 22 || b[5] != 1 {
		return "", fmt.Errorf("no ClientHello: % x", b[:6])
	}
	return hex.EncodeToString(b[randomAt:]), nil
}

func tlsGo() (string, error) {
	server, client := net.Pipe()
	defer server.Close()
	go tls.Client(client, &tls.Config{ServerName: "x"}).Handshake()
	return clientRandom(server)
}

// tlsOpenSSL has a fresh process of openssl say hello; where there is none,
// nothing.
func tlsOpenSSL() (string, error) {
	program, err := exec.LookPath("openssl")
	if err != nil {
		return "", nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	cmd := exec.Command(program, "s_client", "-connect", l.Addr().String())
	if err := cmd.Start(); err != nil {
		return "", err
	}
	defer cmd.Wait()
	l.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second))
	c, err := l.Accept()
	if err != nil {
		return "", err
	}
	defer c.Close()
	return clientRandom(c)
}

// sequence returns the initial sequence number of a connection, seen on a TUN
// device, and what is left of it without the clock's part: gVisor adds to a
// secret's digest the time in steps of 64 ns.
func sequence() (isn, secret string, err error) {
	tun, err := openTUN("probe0", [4]byte{10, 77, 0, 1})
	if err != nil {
		return "", "", err
	}
	defer unix.Close(tun)
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", "", err
	}
	defer unix.Close(s)
	if err := unix.Bind(s, &unix.SockaddrInet4{Port: 5555, Addr: [4]byte{10, 77, 0, 1}}); err != nil {
		return "", "", fmt.Errorf("bind: %w", err)
	}
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	if err := unix.Connect(s, &unix.SockaddrInet4{Port: 4242, Addr: [4]byte{10, 77, 0, 2}}); err != unix.EINPROGRESS {
		return "", "", fmt.Errorf("connect: %v", err)
	}
	buf := make([]byte, 2048)
	for range 100 {
		n, err := unix.Read(tun, buf)
		if err != nil {
			return "", "", fmt.Errorf("read the device: %w", err)
		}
		if n < 40 || buf[0]>>4 != 4 || buf[9] != unix.IPPROTO_TCP {
			continue
		}
		tcp := buf[4*(buf[0]&15) : n]
		v := binary.BigEndian.Uint32(tcp[4:])
		return fmt.Sprintf("%08x", v), fmt.Sprintf("%08x", v-uint32(now.Nano()>>6)), nil
	}
	return "", "", fmt.Errorf("no packet of the connection came")
}

// openTUN makes a device with an address.
func openTUN(name string, addr [4]byte) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	if err != nil {
		return -1, err
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return -1, err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return -1, fmt.Errorf("TUNSETIFF: %w", err)
	}
	link, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	return fd, addAddress(uint32(link.Index), addr)
}

// addAddress is RTM_NEWADDR with a prefix of 24 bits.
func addAddress(index uint32, addr [4]byte) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	msg := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg+16)
	msg = binary.NativeEndian.AppendUint16(msg, unix.RTM_NEWADDR)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	msg = append(msg, 1, 0, 0, 0, 0, 0, 0, 0)
	msg = append(msg, unix.AF_INET, 24, 0, 0)
	msg = binary.NativeEndian.AppendUint32(msg, index)
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		msg = binary.NativeEndian.AppendUint16(msg, 8)
		msg = binary.NativeEndian.AppendUint16(msg, kind)
		msg = append(msg, addr[:]...)
	}
	if err := unix.Sendto(s, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, buf, 0)
	if err != nil || n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("netlink: %d bytes, %v", n, err)
	}
	if e := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); e != 0 {
		return fmt.Errorf("netlink: %w", unix.Errno(-e))
	}
	return nil
}
