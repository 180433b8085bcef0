package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseVolume(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want volume
		err  string
	}{
		{".:/work", volume{source: ".", target: "/work"}, ""},
		{"/a:/b/../c/:ro", volume{source: "/a", target: "/c", readOnly: true}, ""},
		{"/a:/b:rw", volume{source: "/a", target: "/b"}, ""},
		{"/a", volume{}, "1 parts"},
		{"/a:/b:ro:x", volume{}, "4 parts"},
		{"/a:/b:z", volume{}, "neither"},
		{":/b", volume{}, "empty"},
		{"/a:b", volume{}, "not absolute"},
	} {
		t.Run(tc.in, func(t *testing.T) {
			got, err := parseVolume(tc.in)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || *got != tc.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestOpenVolumes(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	work := filepath.Join(home, "me", "work")
	if err := os.MkdirAll(work, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", filepath.Join(home, "me"))
	own := filepath.Join(dir, "own")
	t.Setenv("BELLJAR_STATE_DIR", filepath.Join(own, "state"))
	t.Setenv("BELLJAR_RUNTIME_DIR", filepath.Join(own, "run"))
	if err := os.MkdirAll(filepath.Join(own, "state", "templates"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(dir, "docker.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	toRoot := filepath.Join(dir, "root")
	if err := os.Symlink("/", toRoot); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, source string
		err, warning string
	}{
		{"directory", work, "", ""},
		{"file", file, "", ""},
		{"home", filepath.Join(home, "me"), "", "home directory"},
		{"above home", home, "", "home directory"},
		{"fifo", fifo, "a FIFO", ""},
		{"socket", sock, "a socket", ""},
		{"device", "/dev/null", "a device", ""},
		{"devices", "/dev", "may not be mounted", ""},
		{"root", "/", "may not be mounted", ""},
		{"link to root", toRoot, "may not be mounted", ""},
		{"proc", "/proc", "shows the host", ""},
		{"own root by proc", "/proc/self/root", "may not be mounted", ""},
		{"proc file", "/proc/version", "shows the host", ""},
		{"sys", "/sys/kernel", "shows the host", ""},
		{"loop", loop, "symbolic links", ""},
		{"above our own", own, "Belljar keeps", ""},
		{"our own", filepath.Join(own, "state"), "Belljar keeps", ""},
		{"in our own", filepath.Join(own, "state", "templates"), "Belljar keeps", ""},
		{"above all of it", dir, "Belljar keeps", "home directory"},
		{"absent", filepath.Join(dir, "none"), "no such file", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, said := saying(t)
			vols, err := openVolumes([]string{tc.source + ":/x"}, a.warn)
			defer closeVolumes(vols)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
			} else if err != nil || len(vols) != 1 {
				t.Errorf("%d volumes, %v", len(vols), err)
			}
			if got := said(); (tc.warning == "") != (got == "") || !strings.Contains(got, tc.warning) {
				t.Errorf("warning %q, want %q", got, tc.warning)
			}
		})
	}
}
