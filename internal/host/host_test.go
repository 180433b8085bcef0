package host

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestKernelCheck(t *testing.T) {
	for _, tc := range []struct {
		release string
		want    driver.Verdict
	}{
		{"6.18.44-fc-v595", driver.Yes},
		{"5.11.0", driver.Yes},
		{"5.10.0-28-amd64", driver.No},
		{"4.19", driver.No},
		{"7.0-rc1", driver.Yes},
		{"unknown", driver.CannotTell},
		{"x.y", driver.CannotTell},
	} {
		t.Run(tc.release, func(t *testing.T) {
			if got := kernelCheck(tc.release); got.Verdict != tc.want {
				t.Errorf("kernelCheck(%q) = %+v, want %s", tc.release, got, tc.want)
			}
		})
	}
}

func TestUserNSVerdict(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want driver.Verdict
	}{
		{syscall.ENOENT, driver.Yes},
		{syscall.EPERM, driver.No},
		{syscall.EACCES, driver.No},
		{syscall.ENOSPC, driver.No},
		{syscall.EUSERS, driver.No},
		{syscall.EINVAL, driver.No},
		{syscall.ENOMEM, driver.CannotTell},
	} {
		t.Run(tc.err.Error(), func(t *testing.T) {
			got := userNSVerdict(&os.PathError{Op: "fork/exec", Path: "/x", Err: tc.err})
			if got.Verdict != tc.want {
				t.Errorf("got %+v, want %s", got, tc.want)
			}
			if got.Verdict == driver.No && got.Remedy == "" {
				t.Error("a no without a remedy")
			}
		})
	}
}

func TestAppArmorCheck(t *testing.T) {
	dir := t.TempDir()
	write := func(s string) string {
		p := filepath.Join(dir, s)
		if err := os.WriteFile(p, []byte(s+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tc := range []struct {
		name, path string
		uid        int
		want       driver.Verdict
	}{
		{"absent", filepath.Join(dir, "none"), 1000, driver.Yes},
		{"off", write("0"), 1000, driver.Yes},
		{"on", write("1"), 1000, driver.No},
		{"on and root", write("1"), 0, driver.Yes},
		{"unreadable", dir, 1000, driver.CannotTell},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := appArmorCheck(tc.path, tc.uid); got.Verdict != tc.want {
				t.Errorf("got %+v, want %s", got, tc.want)
			}
		})
	}
}

func TestParseCgroupMounts(t *testing.T) {
	const mountinfo = `25 20 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
nonsense
28 25 0:25 /
`
	got := parseCgroupMounts([]byte(mountinfo))
	if len(got) != 2 || got[0].path != "/sys/fs/cgroup/cpu" || got[0].v2 || !got[1].v2 {
		t.Fatalf("got %+v", got)
	}
	if !slices.Contains(got[0].controllers, "cpuacct") {
		t.Errorf("controllers = %v, want cpuacct among them", got[0].controllers)
	}
	if c := cgroupVersion(got); !strings.Contains(c.Reason, "hybrid") {
		t.Errorf("version = %+v, want hybrid", c)
	}
	if c := cgroupVersion(nil); c.Verdict != driver.No {
		t.Errorf("version of no mounts = %+v, want no", c)
	}
}

func TestControllerCheck(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"v1/user/me", "v2/user/me"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	v2 := cgroupMount{path: dir + "/v2", v2: true, controllers: []string{"memory"}}
	v1 := cgroupMount{path: dir + "/v1", controllers: []string{"memory"}}
	self := parseSelfCgroup([]byte("4:memory:/user/me\n0::/user/me\n"))
	if c := controllerCheck("memory", []cgroupMount{v1}, self); c.Verdict != driver.Yes {
		t.Errorf("v1 writable: %+v", c)
	}
	if c := controllerCheck("memory", []cgroupMount{v2}, self); c.Verdict != driver.No {
		t.Errorf("v2 without subtree_control: %+v", c)
	}
	sub := filepath.Join(dir, "v2/user/me/cgroup.subtree_control")
	if err := os.WriteFile(sub, []byte("cpu memory\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c := controllerCheck("memory", []cgroupMount{v2}, self); c.Verdict != driver.Yes {
		t.Errorf("v2 delegated: %+v", c)
	}
	if c := controllerCheck("pids", []cgroupMount{v1, v2}, self); c.Verdict != driver.No {
		t.Errorf("absent controller: %+v", c)
	}
}

func TestMemoryAndSwap(t *testing.T) {
	m := parseMeminfo([]byte("MemTotal:  2097152 kB\nMemAvailable: 1048576 kB\nSwapTotal: 0 kB\nHugePages_Total: 7\nodd\n"))
	if m["MemTotal"] != 2<<30 || m["HugePages_Total"] != 7 {
		t.Fatalf("parseMeminfo = %v", m)
	}
	if c := memoryCheck(m); c.Verdict != driver.Yes || c.Reason != "1.0 GiB of 2.0 GiB available" {
		t.Errorf("memoryCheck = %+v", c)
	}
	if c := memoryCheck(map[string]int64{"MemAvailable": 1 << 20}); c.Verdict != driver.No {
		t.Errorf("little memory: %+v", c)
	}
	if c := memoryCheck(nil); c.Verdict != driver.CannotTell {
		t.Errorf("unknown memory: %+v", c)
	}
	if c := swapCheck(m); c.Verdict != driver.Yes {
		t.Errorf("swapCheck = %+v", c)
	}
}

func TestHasSubordinate(t *testing.T) {
	const file = "alice:100000:65536\n1001:200000:65536\nbroken\nbob\n"
	for _, tc := range []struct {
		name, uid string
		want      bool
	}{{"alice", "1000", true}, {"carol", "1001", true}, {"bob", "1002", false}, {"broken", "7", false}} {
		if got := hasSubordinate([]byte(file), tc.name, tc.uid); got != tc.want {
			t.Errorf("hasSubordinate(%s) = %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestOwnCheck(t *testing.T) {
	dir := t.TempDir()
	script := func(name, body string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+body+"\n"), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tc := range []struct {
		name, path string
		want       driver.Verdict
		reason     string
	}{
		{"same", script("same", "echo belljar-engine b1", 0o755), driver.Yes, "same build"},
		{"other", script("other", "echo belljar-engine b2", 0o755), driver.No, `build "b2"`},
		{"fails", script("fails", "exit 3", 0o755), driver.No, "exit status 3"},
		{"silent", script("silent", "", 0o755), driver.No, `build ""`},
		{"not executable", script("plain", "", 0o644), driver.No, "not an executable"},
		{"absent", filepath.Join(dir, "none"), driver.No, "does not exist"},
		{"directory", dir, driver.No, "not an executable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ownCheck(t.Context(), "x", tc.path, "b1")
			if got.Verdict != tc.want || !strings.Contains(got.Reason, tc.reason) {
				t.Errorf("got %+v, want %s with %q", got, tc.want, tc.reason)
			}
		})
	}
}

// TestProbeWithoutEngine asks the real machine from a directory that has no
// other programs: every boundary is reported, none as available, each with a
// reason.
func TestProbeWithoutEngine(t *testing.T) {
	r := Probe(context.Background(), Options{Dir: t.TempDir(), StateDir: t.TempDir(), Build: "b"})
	if r.Works {
		t.Error("the default boundary works without an engine")
	}
	if got, want := len(r.Boundaries), len(sandbox.Boundaries())-1; got != want {
		t.Errorf("%d boundaries, want %d", got, want)
	}
	for _, b := range r.Boundaries {
		if b.Available == driver.Yes || b.Reason == "" {
			t.Errorf("%s: %s, %q", b.Boundary, b.Available, b.Reason)
		}
	}
	seen := map[string]bool{}
	for _, c := range r.Checks {
		if seen[c.Name] {
			t.Errorf("%q asked twice", c.Name)
		}
		seen[c.Name] = true
		if c.Verdict == driver.No && c.Remedy == "" && c.Name != CheckKVM {
			t.Errorf("%q is no without a remedy: %s", c.Name, c.Reason)
		}
	}
}

// TestProbeWithEngine lets a script play the engine's answer.
func TestProbeWithEngine(t *testing.T) {
	for _, tc := range []struct {
		name, answer string
		want         driver.Verdict
	}{
		{"yes", `echo '[{"boundary":"gvisor","available":"yes"}]'`, driver.Yes},
		{"no", `echo '[{"boundary":"gvisor","available":"no","reason":"why"}]'`, driver.No},
		{"nonsense", `echo hello`, driver.CannotTell},
		{"empty", `echo '[]'`, driver.CannotTell},
		{"fails", `echo broken >&2; exit 1`, driver.CannotTell},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			engine := "#!/bin/sh\ncase $1 in version) echo belljar-engine b;; probe) " + tc.answer + ";; esac\n"
			for name, body := range map[string]string{Engine: engine, Guest: "#!/bin/sh\necho belljar-guest b\n"} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			r := Probe(t.Context(), Options{Dir: dir, Build: "b"})
			if r.Works != (tc.want == driver.Yes) {
				t.Errorf("works = %v", r.Works)
			}
			for _, b := range r.Boundaries {
				if b.Boundary == sandbox.GVisor && b.Available != tc.want {
					t.Errorf("gvisor %s (%s), want %s", b.Available, b.Reason, tc.want)
				}
			}
		})
	}
}
