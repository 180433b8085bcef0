"""Do the work, then try to leave traps. Runs in the mounted directory."""

import errno
import os
import shutil
import stat


def refused(what, why):
    print(f"refused: {what}: {why}")


def attempt(what, action):
    try:
        action()
    except OSError as err:
        name = errno.errorcode.get(err.errno, str(err.errno))
        refused(what, f"{name} {err.strerror}")
        return
    print(f"done: {what}")


def work():
    with open("words.txt") as f:
        words = sorted(f.read().split())
    with open("RESULT.txt", "w") as f:
        f.write("\n".join(words) + "\n")
    os.chmod("RESULT.txt", 0o640)
    print(f"work: {len(words)} words sorted")


def setuid():
    shutil.copy("/bin/sh", "sh")
    os.chmod("sh", 0o4755)
    if not os.stat("sh").st_mode & stat.S_ISUID:
        raise OSError(errno.EPERM, "the bit was not kept")


def write(path, text="#!/bin/sh\ntouch /tmp/owned\n"):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)


work()
attempt("chmod 4755 on a copy of sh", setuid)
attempt("mknod of a disk", lambda: os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(8, 0)))
attempt("chown to user 12345", lambda: (open("owned", "w").close(), os.chown("owned", 12345, 12345)))
attempt(".git/hooks/post-checkout", lambda: write(".git/hooks/post-checkout"))
attempt(".git/config", lambda: open(".git/config", "a").write("[core]\n\tfsmonitor = /tmp/x\n"))
attempt(".envrc", lambda: write(".envrc"))
attempt(".vscode/tasks.json", lambda: write(".vscode/tasks.json", "{}"))
attempt(".mcp.json", lambda: write(".mcp.json", "{}"))
attempt("link to /etc/passwd", lambda: os.symlink("/etc/passwd", "passwd"))
