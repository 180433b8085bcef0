package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestDiskFull: when the disk is full a snapshot, a fork and a pause fail with a
// reason, the sandbox runs on, nothing half made is left, and what was there before
// still works. The disk is a small one of the test's own, in a mount namespace of
// its own.
func TestDiskFull(t *testing.T) {
	needPython(t)
	if os.Geteuid() != 0 {
		t.Skip("probe: mount: only root mounts a small disk for the test")
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skipf("probe: unshare: %v", err)
	}
	e := setup(t)
	if err := os.MkdirAll(e.State, 0o700); err != nil {
		t.Fatal(err)
	}
	const script = `
set -u
mount -t tmpfs -o size=400m,mode=700 none "$BELLJAR_STATE_DIR" || exit 99
belljar create --name work -- /usr/bin/python3 -c 'import os, time
b = bytearray(os.urandom(60 << 20))
open("/tmp/ready", "w")
time.sleep(1e6)' >/dev/null || exit 98
while ! belljar exec work -- test -e /tmp/ready; do sleep 0.1; done
belljar snapshot create work first >/dev/null; echo first $?
dd if=/dev/zero of="$BELLJAR_STATE_DIR/fill" bs=1M count=240 2>/dev/null
for what in "snapshot create work second" "fork work -n 2" "pause work"; do
	belljar $what >/dev/null 2>&1; echo "$what: $?"
done
belljar exec work -- echo alive
ls "$BELLJAR_STATE_DIR/snapshots" | wc -l
ls "$BELLJAR_STATE_DIR/forks" "$BELLJAR_STATE_DIR/images" | grep -c '^[a-z0-9]\{20\}'
belljar run --snapshot first -- echo from the first
rm "$BELLJAR_STATE_DIR/fill"
belljar pause work >/dev/null; echo paused $?
belljar exec work -- echo again
belljar kill --all >/dev/null
belljar daemon stop --kill
`
	cmd := e.Program("unshare", "-m", "--propagation", "private", "sh", "-c", script)
	for i, v := range cmd.Env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			cmd.Env[i] = "PATH=" + e.Bin + ":" + path
		}
	}
	r := want(t, e.Finish(cmd), 0)
	const expected = `first 0
snapshot create work second: 125
fork work -n 2: 125
pause work: 125
alive
1
0
from the first
paused 0
again
`
	if r.Stdout != expected {
		t.Errorf("got\n%s\nwant\n%s\nstderr: %s", r.Stdout, expected, clip(r.Stderr))
	}
}
