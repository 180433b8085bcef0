package gvisor

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// changeFiles changes all that can be changed about files.
const changeFiles = `
set -e
umask 022
mkdir -p /data/d/e && cd /data
printf 'new\n' >plain && chown 1000:1001 plain && chmod 4751 plain
ln plain d/hard && ln -s ../plain d/link && ln -s "$(printf '%0100d' 0)" long && mkfifo -m 640 fifo && mknod dev c 1 3
printf x >"$(printf 'bad\377\tname')" && printf y >"$(printf '%0200d' 7)"
truncate -s 20G sparse && printf mid | dd of=sparse bs=1 seek=10737418240 conv=notrunc 2>/dev/null
dd if=/dev/urandom of=big bs=1M count=16 2>/dev/null && sha256sum big >/sum
chmod 2775 d && chmod 1777 d/e
chown -h 7:8 long
python3 -c '
import os
os.setxattr("plain", "user.note", b"text"); os.setxattr("d", "user.dir", b"y"); os.setxattr("big", "user.bin", b"\xff\xfe")'
rm /usr/bin/tee && rm -r /usr/share/doc && mkdir /usr/share/doc && echo only >/usr/share/doc/one
echo more >>/etc/passwd
echo memory >/dev/shm/gone; echo t >/tmp/t
find /data /usr/share/doc -exec touch -h -d @1000000000 {} +
touch -d @1000000000.623456789 fifo
sleep 1000 </dev/null >/dev/null 2>&1 &
`

const lookFiles = `cd /data
for f in plain d/hard d/link long fifo dev "$(printf 'bad\377\tname')" sparse d d/e big /usr/share/doc; do stat -c '%A %u:%g %h %F %s %Y' "$f"; done
stat -c '%i' plain d/hard | uniq | wc -l
python3 -c '
import os
print(os.getxattr("plain", "user.note"), os.getxattr("d", "user.dir"), os.listxattr("big"))'
dd if=sparse bs=1 skip=10737418240 count=3 2>/dev/null; echo; sha256sum -c /sum; readlink d/link; cat 0*7
ls /usr/bin/tee /usr/share/doc 2>&1; tail -1 /etc/passwd; ls /dev/shm; cat /tmp/t; ls / | tr '\n' ' '
ls -A /.belljar`

func TestSaveFiles(t *testing.T) { inModes(t, testSaveFiles) }

func testSaveFiles(t *testing.T) {
	d := newDriver(t)
	req := request(t)
	b := start(t, d, req)
	if r := b.run("/bin/sh", "-c", changeFiles); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	want := b.run("/bin/sh", "-c", strings.Replace(lookFiles, "ls /dev/shm", "true", 1)).Out
	// What an image does not keep: parts of seconds, and attributes that are no text.
	want = strings.Replace(want, " fifo 0 1000000000", " fifo 0 1000000001", 1)
	want = strings.Replace(want, "['user.bin']", "[]", 1)
	dir := b.saveFiles(true)
	if r := b.run("/bin/sh", "-c", "cat /dev/shm/gone; pgrep sleep >/dev/null && echo runs"); r.Out != "memory\nruns\n" {
		t.Errorf("the source afterwards: %+v", r)
	}
	boot := b.run("/bin/cat", "/proc/sys/kernel/random/boot_id").Out
	for n := range 2 {
		again := request(t)
		again.Root, again.Files = req.Root, dir
		again.Limits.MemoryBytes = int64(n+2) * 256 << 20
		twin := start(t, d, again)
		if got := twin.run("/bin/sh", "-c", lookFiles).Out; got != want {
			t.Errorf("copy %d has\n%s\nwant\n%s", n, got, want)
		}
		if r := twin.run("/bin/sh", "-c", "pgrep sleep; cat /proc/sys/kernel/random/boot_id"); r.Out == boot || strings.Count(r.Out, "\n") != 1 {
			t.Errorf("a fresh boot: %+v", r)
		}
		if r := twin.run("/bin/sh", "-c", "echo later >/data/later; rm /data/plain"); r.Code != 0 {
			t.Errorf("%+v", r)
		}
		fourth := request(t) // with its memory, too
		fourth.Root, fourth.Limits = req.Root, again.Limits
		if r := resume(t, d, fourth, twin.checkpoint(true)).run("/bin/sh", "-c", "cat /data/later"); r.Out != "later\n" {
			t.Errorf("a copy's memory: %+v", r)
		}
		third := request(t)
		third.Root, third.Files = req.Root, twin.saveFiles(false)
		if r := start(t, d, third).run("/bin/sh", "-c", "cat /data/later /data/d/hard; ls /data/plain"); !strings.HasPrefix(r.Out, "later\nnew\n") || r.Code == 0 {
			t.Errorf("a copy's copy: %+v", r)
		}
	}
}

func (b *box) saveFiles(leaveRunning bool) string {
	b.t.Helper()
	dir := b.t.TempDir()
	if err := b.i.(driver.FileSaver).SaveFiles(b.t.Context(), dir, leaveRunning); err != nil {
		b.t.Fatal(err)
	}
	return dir
}

// TestListFiles: a list has names, and of contents no more than where they lie.
func TestListFiles(t *testing.T) { inModes(t, testListFiles) }

func testListFiles(t *testing.T) {
	b := start(t, newDriver(t), request(t))
	if r := b.run("/bin/sh", "-c", "mkdir /data; dd if=/dev/urandom of=/data/big bs=1M count=64 2>/dev/null; rm /usr/bin/tee"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	for range 2 {
		f, err := b.i.(driver.FileLister).ListFiles(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		tree := make([]byte, 1<<20)
		n, err := f.Read(tree)
		if err != nil || !bytes.Contains(tree[:n], []byte("./data/big\x00")) || !bytes.Contains(tree[:n], []byte("./usr/bin/tee\x00")) {
			t.Errorf("%v, %d bytes: %q", err, n, tree[:min(n, 4096)])
		}
		if fi, err := f.Stat(); err != nil || fi.Size() > 64<<10 {
			t.Errorf("a list of %d bytes, %v", fi.Size(), err)
		}
	}
}

// TestSaveFilesRefused: what cannot be saved or begun with.
func TestSaveFilesRefused(t *testing.T) {
	d := newDriver(t)
	i, err := d.Create(t.Context(), request(t))
	if err != nil {
		t.Fatal(err)
	}
	defer i.Destroy(context.WithoutCancel(t.Context()))
	save := func(dir string) error { return i.(driver.FileSaver).SaveFiles(t.Context(), dir, true) }
	if err := save(t.TempDir()); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("before it started: %v", err)
	}
	if _, err := i.(driver.FileLister).ListFiles(t.Context()); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("a list before it started: %v", err)
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	used := t.TempDir()
	os.WriteFile(filepath.Join(used, "tree"), nil, 0o600)
	if err := save(used); err == nil {
		t.Error("an image was written over another")
	}
	begin := func(dir string) error {
		req := request(t)
		req.Files = dir
		i, err := d.Create(t.Context(), req)
		if err != nil {
			return err
		}
		defer i.Destroy(context.WithoutCancel(t.Context()))
		return i.Start(t.Context())
	}
	if err := begin(t.TempDir()); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("of nothing: %v", err)
	}
	bad := t.TempDir()
	if err := save(bad); err != nil {
		t.Fatal(err)
	}
	for _, name := range fileImage {
		path := filepath.Join(bad, name)
		was, _ := os.ReadFile(path)
		os.WriteFile(path, []byte("this is no image"), 0o600)
		if err := begin(bad); err == nil && name != "pages" {
			t.Errorf("of garbage as %s: begun", name)
		}
		os.WriteFile(path, was, 0o600)
	}
	if err := begin(bad); err != nil {
		t.Errorf("the same without garbage: %v", err)
	}
}

// TestSaveFilesRoom: without room nothing is saved and the sandbox goes on, and
// files that are more than a sandbox may have are not begun with.
func TestSaveFilesRoom(t *testing.T) {
	d := newDriver(t)
	req := request(t)
	b := start(t, d, req)
	const fill = "mkdir /data; dd if=/dev/urandom of=/data/big bs=1M count=16 2>/dev/null"
	if r := b.run("/bin/sh", "-c", fill); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	i := b.i.(*Instance)
	for n := range fileImage {
		var files []*os.File
		for m := range fileImage {
			name := filepath.Join(t.TempDir(), "f")
			if m == n {
				name = "/dev/full"
			}
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files = append(files, f)
		}
		err := i.unsaved(t.Context(), "image", i.saveFiles(t.Context(), files, n%2 == 0))
		if sandbox.KindOf(err) != sandbox.ResourceExhausted {
			t.Errorf("without room for %s: %v", fileImage[n], err)
		}
	}
	if r := b.run("/bin/sh", "-c", "wc -c </data/big"); strings.TrimSpace(r.Out) != "16777216" {
		t.Errorf("afterwards: %+v", r)
	}
	again := request(t)
	again.Root, again.Files, again.Limits.DiskBytes = req.Root, b.saveFiles(true), 4<<20
	small, err := d.Create(t.Context(), again)
	if err == nil {
		defer small.Destroy(context.WithoutCancel(t.Context()))
		err = small.Start(t.Context())
	}
	if sandbox.KindOf(err) != sandbox.ResourceExhausted {
		t.Errorf("on a small disk: %v", err)
	}
}

// TestWatchSize: whoever writes more than it may is ended, and told of.
func TestWatchSize(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ended := make(chan struct{})
	w := watchSize([]*os.File{f}, 1<<20, func() { close(ended) })
	for writing := true; writing; {
		select {
		case <-ended:
			writing = false
		default:
			if fi, _ := f.Stat(); fi.Size() < 1<<30 {
				f.Write(make([]byte, 64<<10))
			}
		}
	}
	if err := w.stop(); sandbox.KindOf(err) != sandbox.ResourceExhausted {
		t.Errorf("%v", err)
	}
	f.Truncate(1 << 20)
	w = watchSize([]*os.File{f}, 1<<20, func() { t.Error("ended for what is allowed") })
	<-time.After(3 * watchEvery)
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	// A hole is as long as a file that is full.
	f.Truncate(1 << 40)
	ended = make(chan struct{})
	w = watchSize([]*os.File{f}, 1<<20, func() { close(ended) })
	<-ended
	if err := w.stop(); err == nil {
		t.Error("no error")
	}
}

// TestLetGo: an image that somebody may still write to is none.
func TestLetGo(t *testing.T) {
	d := newDriver(t)
	b := start(t, d, request(t))
	i := b.i.(*Instance)
	dir := b.saveFiles(true)
	if err := i.letGo(dir); err != nil {
		t.Errorf("of what nobody has: %v", err)
	}
	held, err := os.OpenFile(filepath.Join(dir, "pages"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := i.letGo(dir); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("of what somebody has: %v", err)
	}
	if _, err := i.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}
