package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// examples returns the table of what is run.
func examples() []*example {
	return []*example{
		{
			dir: "csv", title: "analyse 100,000 rows with Python's standard library",
			mount: "ro", prepare: makeOrders, needs: program("python3"),
			argv:  []string{"python3", "/workspace/analyse.py", "/data/orders.csv"},
			check: checkOrders,
		},
		{
			dir: "pipeline", title: "the busiest clients of a web server's log",
			mount:  "ro",
			argv:   []string{"sh", "/workspace/top.sh", "/workspace/access.log"},
			stdout: []string{`^192\.0\.2\.2 23 /\.env$`, `^192\.0\.2\.1 19 /\.env$`, `^192\.0\.2\.3 15 /wp-admin\.php$`},
		},
		{
			dir: "patch", title: "clone a repository, apply a patch, run its tests",
			mount: "ro", needs: program("git", "python3"),
			argv:   []string{"sh", "/workspace/work.sh", "/workspace"},
			stdout: []string{`^before: FAILED \(failures=2\)$`, `^after: OK$`, `^pushed: slug: join words by single dashes$`},
		},
		{
			dir: "node", title: "a small server and its client",
			mount: "ro", needs: program("node"),
			argv:   []string{"node", "/workspace/serve.mjs", "/workspace/input.txt"},
			stdout: []string{`^is 7$`, `^in 6$`, `^it 6$`},
		},
		{
			dir: "forkbomb", title: "processes without end",
			mount: "ro", flags: []string{"--pids", "64", "--cpus", "1", "--timeout", "4s"},
			argv:   []string{"bash", "/workspace/bomb.sh"},
			exit:   124,
			stdout: []string{`^lighting the fuse$`},
			stderr: []string{`^belljar: the time of 4s was over`},
			beside: neighbour,
		},
		{
			dir: "snoop", title: "look for keys, passwords, secrets and a way out",
			mount: "ro", needs: program("python3"),
			argv: []string{"python3", "/workspace/snoop.py", secretPath, "/proc/1/environ"},
			stdout: []string{
				`^refused: /etc/shadow: `, `^refused: \S+/\.ssh/id_rsa: ENOENT`, `^refused: environment: \d+ variables, none secret`,
				`^refused: /var/run/docker\.sock: `, `^refused: 169\.254\.169\.254:80: `, `^refused: name example\.com: `,
			},
		},
		{
			dir: "memory", title: "take more memory than there is",
			mount: "ro", flags: []string{"--memory", "256m"}, needs: program("python3"),
			argv:   []string{"python3", "/workspace/eat.py"},
			exit:   137,
			stdout: []string{`^took 16 MiB$`},
			stderr: []string{`^belljar: the sandbox used more memory than its limit of 256MiB and was killed$`, `^hint: .*--memory`},
		},
		{
			dir: "disk", title: "fill the disk",
			mount: "ro", flags: []string{"--disk", "64m"}, needs: program("python3"),
			argv:   []string{"python3", "/workspace/fill.py"},
			stdout: []string{`^refused: more than \d+ MiB on disk: ENOSPC`},
		},
		{
			dir: "workspace", title: "work in a directory of the host, and try to leave a trap in it",
			mount: "rw", flags: []string{"-u", "root", "-w", "/workspace"}, needs: program("python3", "git"),
			prepare: gitInit,
			argv:    []string{"python3", "/example/work.py"},
			stdout:  []string{`^work: 3 words sorted$`, `^refused: \.git/hooks/post-checkout: `, `^refused: \.envrc: `, `^refused: mknod of a disk: `},
			stderr:  []string{`passwd`},
			check:   checkWorkspace,
		},
	}
}

// program asks whether the host has programs where the host template finds
// them.
func program(names ...string) func() string {
	return func() string {
		for _, n := range names {
			found := false
			for _, dir := range []string{"/usr/local/bin", "/usr/bin", "/bin"} {
				if fi, err := os.Stat(filepath.Join(dir, n)); err == nil && fi.Mode()&0o111 != 0 {
					found = true
				}
			}
			if !found {
				return "this host has no " + n + " in /usr/bin"
			}
		}
		return ""
	}
}

// neighbour runs another sandbox while the fork bomb goes off.
func neighbour(ctx context.Context, d *demo) error {
	t := time.NewTimer(1500 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	out, err := d.command(ctx, "run", "--", "echo", "alive").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "alive" {
		return fmt.Errorf("a sandbox beside the fork bomb did not work: %v: %s", err, out)
	}
	d.say("   meanwhile another sandbox answered in %.2f s\n", time.Since(began).Seconds())
	return nil
}

// gitInit makes the mounted copy a repository, as the work of a person is.
func gitInit(d *demo, _ string) error {
	cmd := exec.Command("git", "init", "--quiet", filepath.Join(d.temp, "workspace"))
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TEMPLATE_DIR=")
	return cmd.Run()
}

// checkWorkspace looks at what the run has left on the host.
func checkWorkspace(_ *demo, r *outcome) error {
	result := filepath.Join(r.work, "RESULT.txt")
	b, err := os.ReadFile(result)
	if err != nil || string(b) != "bell\nglass\njar\n" {
		return fmt.Errorf("the work is not done: %q, %v", b, err)
	}
	return filepath.WalkDir(r.work, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := os.Lstat(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(r.work, path)
		st := fi.Sys().(*syscall.Stat_t)
		switch {
		case fi.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice) != 0:
			return fmt.Errorf("%s was left with mode %v", rel, fi.Mode())
		case int(st.Uid) != os.Geteuid():
			return fmt.Errorf("%s belongs to user %d", rel, st.Uid)
		case strings.HasPrefix(rel, ".git/hooks/"), rel == ".envrc", rel == ".mcp.json", rel == ".vscode/tasks.json":
			return fmt.Errorf("%s was left", rel)
		case rel == ".git/config":
			if b, _ := os.ReadFile(path); strings.Contains(string(b), "fsmonitor") {
				return fmt.Errorf("%s was changed", rel)
			}
		}
		return nil
	})
}
