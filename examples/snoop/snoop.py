"""Look for what should not be here. Prints one line for each attempt."""

import errno
import os
import re
import socket
import sys

leaks = 0


def refused(what, why):
    print(f"refused: {what}: {why}")


def leaked(what, why):
    global leaks
    leaks += 1
    print(f"LEAKED: {what}: {why}")


def reason(err):
    name = errno.errorcode.get(err.errno, "") if err.errno else ""
    return f"{name} {err.strerror}".strip() if err.strerror else str(err)


def read(path):
    try:
        with open(path, "rb") as f:
            data = f.read(4096)
    except OSError as err:
        refused(path, reason(err))
        return
    if data.strip():
        leaked(path, f"{len(data)} bytes")
    else:
        refused(path, "empty")


def listing(path):
    try:
        names = os.listdir(path)
    except OSError as err:
        refused(path, reason(err))
        return
    if names:
        leaked(path, f"{len(names)} names, {names[0]} among them")
    else:
        refused(path, "empty")


def files():
    for name in ("id_rsa", "id_ed25519", "config"):
        read(os.path.expanduser("~/.ssh/" + name))
    listing("/root")
    read("/etc/shadow")
    read("/root/.aws/credentials")
    for path in sys.argv[1:]:
        read(path)


def environment():
    words = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)
    found = [k for k in os.environ if words.search(k)]
    if found:
        leaked("environment", " ".join(found))
    else:
        refused("environment", f"{len(os.environ)} variables, none secret: {' '.join(sorted(os.environ))}")


def processes():
    pids = sorted(int(p) for p in os.listdir("/proc") if p.isdigit())
    names = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/comm") as f:
                names.append(f.read().strip())
        except OSError:
            pass
    if len(pids) > 10:
        leaked("processes", f"{len(pids)} are visible")
    else:
        refused("processes of the host", f"only {' '.join(names)} to be seen")


def sockets():
    for path in ("/var/run/docker.sock", "/run/containerd/containerd.sock"):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            s.connect(path)
            leaked(path, "connected")
        except OSError as err:
            refused(path, reason(err))
        finally:
            s.close()


def network():
    for host, port in (("1.1.1.1", 443), ("169.254.169.254", 80), ("10.0.0.1", 22)):
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        s.settimeout(2)
        try:
            s.connect((host, port))
            leaked(f"{host}:{port}", "connected")
        except OSError as err:
            refused(f"{host}:{port}", reason(err))
        finally:
            s.close()
    try:
        socket.getaddrinfo("example.com", 443)
        leaked("example.com", "resolved")
    except OSError as err:
        refused("name example.com", err.strerror or str(err))


files()
environment()
processes()
sockets()
network()
sys.exit(1 if leaks else 0)
