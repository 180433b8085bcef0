"""Write to the file system until it is full."""

import errno
import os
import sys

path = os.path.expanduser("~/fill")
written = 0
block = os.urandom(1 << 20)
try:
    with open(path, "wb", buffering=0) as f:
        while written < 8 << 30:
            written += f.write(block)
except OSError as err:
    mib = written >> 20
    print(f"refused: more than {mib} MiB on disk: {errno.errorcode[err.errno]} {err.strerror}")
    sys.exit(0 if err.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
print(f"LEAKED: {written >> 20} MiB written and no end")
sys.exit(1)
