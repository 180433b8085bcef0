package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTwoSandboxesAreApart: neither sees the other's processes, files,
// sockets or shared memory.
func TestTwoSandboxesAreApart(t *testing.T) {
	needPython(t)
	e := setup(t)
	a, b := create(t, e, "a"), create(t, e, "b")
	const serve = `
import os, socket, time
from multiprocessing import shared_memory
open("/tmp/secret", "w").write("of a")
open("/dev/shm/plain", "w").write("of a")
shm = shared_memory.SharedMemory(name="belljar-test", create=True, size=64)
socks = []
for family, address in ((socket.AF_UNIX, "\0abstract"), (socket.AF_UNIX, "/tmp/sock"), (socket.AF_INET, ("127.0.0.1", 4711))):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.bind(address)
    s.listen(1)
    socks.append(s)
print("ready", flush=True)
time.sleep(600)
`
	const look = `
import os, socket
from multiprocessing import shared_memory
for path in ("/tmp/secret", "/dev/shm/plain", "/dev/shm/belljar-test"):
    print(path, os.path.exists(path))
try:
    shared_memory.SharedMemory(name="belljar-test")
    print("shm True")
except OSError:
    print("shm False")
for name, family, address in (("abstract", socket.AF_UNIX, "\0abstract"), ("unix", socket.AF_UNIX, "/tmp/sock"), ("tcp", socket.AF_INET, ("127.0.0.1", 4711))):
    s = socket.socket(family, socket.SOCK_STREAM)
    try:
        s.connect(address)
        print(name, True)
    except OSError:
        print(name, False)
n = 0
for p in os.listdir("/proc"):
    try:
        if p.isdigit() and b"abstract" in open("/proc/%s/cmdline" % p, "rb").read() and int(p) != os.getpid(): n += 1
    except OSError: pass
print("process", n > 0)
`
	id := strings.TrimSpace(want(t, a.exec("-d", "--", python, "-c", serve), 0).Stdout)
	logs := e.Command("logs", "-f", "--process", id, a.name)
	out, err := logs.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := logs.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	logs.Process.Kill()
	logs.Wait()

	if r := want(t, a.exec("--", python, "-c", look), 0); strings.Contains(r.Stdout, "False") {
		t.Fatalf("the probe finds nothing even where it is: %s", r.Stdout)
	}
	if r := want(t, b.exec("--", python, "-c", look), 0); strings.Contains(r.Stdout, "True") {
		t.Errorf("the neighbour sees: %s", r.Stdout)
	}
}

// TestHostIsNotVisible: no home directory, key, socket, environment, boot_id,
// machine-id, user name, host name or path of the host is to be seen.
func TestHostIsNotVisible(t *testing.T) {
	e := setup(t)
	const secret = "host-secret-4a7c"
	if err := os.MkdirAll(filepath.Join(e.Home, ".ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{".ssh/id_ed25519", "notes"} {
		if err := os.WriteFile(filepath.Join(e.Home, f), []byte(secret), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := e.Command("run", "-i", "-u", "root", "--", "sh")
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(`
for f in "HOME_OF_HOST/.ssh/id_ed25519" "HOME_OF_HOST/notes" /root/.ssh /var/run/docker.sock /run/containerd /run/dbus /etc/shadow /dev/kvm /dev/mem /dev/sda /dev/vda; do
	[ -e "$f" ] && echo "FOUND $f"
done
env; hostname; id; cat /etc/passwd /etc/group /etc/hosts /etc/resolv.conf /etc/machine-id /proc/sys/kernel/random/boot_id 2>/dev/null
cat /proc/mounts /proc/self/mountinfo /proc/cmdline /proc/version /proc/self/cgroup /proc/1/cmdline /proc/1/environ /proc/self/environ 2>/dev/null | tr '\0' '\n'
for d in /sys/class/net /sys/class/dmi/id /sys/block /sys/fs/cgroup /sys/module /proc/net /proc/sys/kernel; do ls -la $d 2>/dev/null; done
ls -la / /home /root /tmp /run /var/run /mnt /media /srv /opt 2>/dev/null
ls -la /proc/1/fd /proc/self/fd 2>/dev/null
ps -ef 2>/dev/null
true`, "HOME_OF_HOST", e.Home))
	cmd.Env = append(cmd.Env, "HOST_TOKEN="+secret, "USER=hostuser-77", "LOGNAME=hostuser-77")
	r := want(t, e.Finish(cmd), 0)
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]string{
		"secret": secret, "user name": "hostuser-77", "something of the host": "FOUND ",
		"boot_id": read("/proc/sys/kernel/random/boot_id"), "machine-id": read("/etc/machine-id"),
		"kernel release": unix.ByteSliceToString(u.Release[:]), "kernel command line": read("/proc/cmdline"),
		"state directory": e.State, "runtime directory": e.Run, "programs' directory": e.Bin, "home": e.Home + "\n",
		"belljar": "belljar-engine",
	} {
		if s != "" && strings.Contains(r.Stdout, s) {
			t.Errorf("the %s of the host is visible: %q in\n%s", what, s, around(r.Stdout, s))
		}
	}
	if len(host) > 3 && strings.Contains(r.Stdout, host) {
		t.Errorf("the host's name %q is visible in\n%s", host, around(r.Stdout, host))
	}
}

func around(text, s string) string {
	i := strings.Index(text, s)
	return text[max(0, i-200):min(len(text), i+len(s)+200)]
}

// TestNoNetwork: there is no way out, no host loopback, no metadata address.
func TestNoNetwork(t *testing.T) {
	needPython(t)
	e := setup(t)
	r := want(t, e.Belljar("run", "--", python, "-c", `
import socket
for a in (("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 22), ("127.0.0.1", 22), ("::1", 22), ("2606:4700:4700::1111", 53)):
    s = socket.socket(socket.AF_INET6 if ":" in a[0] else socket.AF_INET, socket.SOCK_STREAM)
    s.settimeout(3)
    try:
        s.connect(a)
        print("REACHED", a)
    except TimeoutError:
        print("TIMEOUT", a)
    except OSError:
        pass
`), 0)
	if r.Stdout != "" {
		t.Errorf("%s", r.Stdout)
	}
}

// TestFreshEveryTime: nothing of one run is seen by the next.
func TestFreshEveryTime(t *testing.T) {
	e := setup(t)
	want(t, e.Belljar("run", "-u", "root", "--", "sh", "-c", "touch /etc/x /usr/x /x /tmp/x ~/x; chmod 777 /usr/bin"), 0)
	want(t, e.Belljar("run", "-u", "root", "--", "sh", "-c", "! ls /etc/x /usr/x /x /tmp/x ~/x && [ $(stat -c %a /usr/bin) = 755 ]"), 0)
	if out, err := exec.Command("ls", "/etc/x", "/usr/x", "/x").CombinedOutput(); err == nil {
		t.Errorf("on the host: %s", out)
	}
}
