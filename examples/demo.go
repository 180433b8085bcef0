package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/belljar-sh/belljar/internal/cli/terminal"
)

// example is one program and what is expected of it.
type example struct {
	dir   string // beneath examples/; its name too
	title string
	flags []string // of belljar run
	argv  []string
	// mount is how the example's directory is mounted at /workspace: "ro" as it
	// is, "rw" a copy of its directory project.
	mount string
	// needs tells why the example cannot run here; "" when it can.
	needs func() string
	// prepare makes further files in an empty directory of the host, mounted
	// read-only at /data.
	prepare func(d *demo, data string) error
	// beside runs on the host while the example does.
	beside func(ctx context.Context, d *demo) error

	exit   int
	stdout []string // regular expressions that must match, line by line mode
	stderr []string
	check  func(d *demo, r *outcome) error
}

// outcome is what an example did.
type outcome struct {
	e      *example
	skip   string
	exit   int
	stdout string
	stderr string
	work   string // the mounted copy, where there is one
	took   time.Duration
	err    error
}

// demo runs examples with directories of its own for state and sockets.
type demo struct {
	belljar string
	dir     string
	temp    string
	canary  string
	quiet   bool
	done    []*outcome
}

func newDemo(bin, dir string, quiet bool) (*demo, error) {
	belljar, err := filepath.Abs(filepath.Join(bin, "belljar"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(belljar); err != nil {
		return nil, fmt.Errorf("%w: run make build first", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "belljar-demo-")
	if err != nil {
		return nil, err
	}
	d := &demo{belljar: belljar, dir: dir, temp: temp, quiet: quiet}
	d.canary = fmt.Sprintf("canary-%d-%d", os.Getpid(), time.Now().UnixNano())
	return d, os.WriteFile(filepath.Join(temp, "secret"), []byte(d.canary+"\n"), 0o600)
}

func (d *demo) close() { os.RemoveAll(d.temp) }

// command is a belljar command with a secret in our own environment, which
// must not reach a sandbox.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.belljar, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	cmd.Env = append(os.Environ(),
		"BELLJAR_STATE_DIR="+filepath.Join(d.temp, "state"),
		"BELLJAR_RUNTIME_DIR="+filepath.Join(d.temp, "run"),
		"DEMO_SECRET_TOKEN="+d.canary)
	return cmd
}

// secretPath stands in an example's arguments for a file of the host that must
// not be seen inside.
const secretPath = "{secret}"

// exampleTime bounds one example, its sandbox included.
const exampleTime = 3 * time.Minute

// one runs an example and keeps its outcome.
func (d *demo) one(ctx context.Context, e *example) *outcome {
	r := &outcome{e: e}
	d.done = append(d.done, r)
	d.say("\n== %s: %s\n", e.dir, e.title)
	if e.needs != nil {
		if r.skip = e.needs(); r.skip != "" {
			d.say("   skipped: %s\n", r.skip)
			return r
		}
	}
	ctx, cancel := context.WithTimeout(ctx, exampleTime)
	defer cancel()
	if r.err = d.run(ctx, r); r.err == nil {
		r.err = d.judge(r)
	}
	if r.err != nil {
		d.say("   UNEXPECTED: %s\n", terminal.EscapeText(r.err.Error()))
	}
	return r
}

// run runs the example's command.
func (d *demo) run(ctx context.Context, r *outcome) error {
	args, err := d.arguments(r)
	if err != nil {
		return err
	}
	d.say("   $ belljar %s\n", strings.Join(args, " "))
	cmd := d.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	beside := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		var err error
		if r.e.beside != nil {
			err = r.e.beside(ctx, d)
		}
		beside <- err
	}()
	err = cmd.Wait()
	r.took = time.Since(began)
	r.stdout, r.stderr, r.exit = stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	d.show(r)
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		return err
	}
	return <-beside
}

func (d *demo) arguments(r *outcome) ([]string, error) {
	e := r.e
	args := append([]string{"run"}, e.flags...)
	source := filepath.Join(d.dir, e.dir)
	switch e.mount {
	case "ro":
		args = append(args, "-v", source+":/workspace:ro")
	case "rw":
		r.work = filepath.Join(d.temp, e.dir)
		if err := os.CopyFS(r.work, os.DirFS(filepath.Join(source, "project"))); err != nil {
			return nil, err
		}
		args = append(args, "-v", source+":/example:ro", "-v", r.work+":/workspace")
	}
	if e.prepare != nil {
		data := filepath.Join(d.temp, e.dir+"-data")
		if err := os.Mkdir(data, 0o755); err != nil {
			return nil, err
		}
		if err := e.prepare(d, data); err != nil {
			return nil, err
		}
		if e.mount != "rw" {
			args = append(args, "-v", data+":/data:ro")
		}
	}
	args = append(args, "--")
	for _, a := range e.argv {
		args = append(args, strings.ReplaceAll(a, secretPath, filepath.Join(d.temp, "secret")))
	}
	return args, nil
}

// judge compares the outcome with the expected one.
func (d *demo) judge(r *outcome) error {
	if r.exit != r.e.exit {
		return fmt.Errorf("exit code %d, want %d", r.exit, r.e.exit)
	}
	for stream, wants := range map[string][]string{r.stdout: r.e.stdout, r.stderr: r.e.stderr} {
		for _, want := range wants {
			if ok, err := regexp.MatchString("(?m)"+want, stream); err != nil || !ok {
				return fmt.Errorf("the output has no line like %q (%v)", want, err)
			}
		}
	}
	for _, s := range []string{r.stdout, r.stderr} {
		if strings.Contains(s, d.canary) {
			return fmt.Errorf("a secret of the host was seen inside")
		}
		if i := strings.Index(s, "LEAKED:"); i >= 0 {
			line, _, _ := strings.Cut(s[i:], "\n")
			return errors.New(line)
		}
	}
	if r.e.check != nil {
		return r.e.check(d, r)
	}
	return nil
}

// leftovers checks that nothing of any sandbox is left.
func (d *demo) leftovers() error {
	names, err := filepath.Glob(filepath.Join(d.temp, "run", "keepers", "*"))
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("left behind: %s", strings.Join(names, " "))
	}
	return err
}

func (d *demo) say(format string, args ...any) {
	if !d.quiet {
		fmt.Printf(format, args...)
	}
}

// show prints the output, the middle of long output left out.
func (d *demo) show(r *outcome) {
	const most = 24
	for _, s := range []string{r.stdout, r.stderr} {
		lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
		for i, line := range lines {
			switch {
			case line == "" && len(lines) == 1:
			case i == most-4 && len(lines) > most:
				d.say("   | ... %d lines ...\n", len(lines)-most)
			case i < most-4 || i >= len(lines)-4 || len(lines) <= most:
				d.say("   | %s\n", terminal.Escape(line))
			}
		}
	}
	d.say("   exit code %d after %.2f s\n", r.exit, r.took.Seconds())
}

// refusals counts what was refused and returns the first reasons.
func (r *outcome) refusals() string {
	var what []string
	for line := range strings.Lines(r.stdout + r.stderr) {
		line = strings.TrimSpace(line)
		if s, ok := strings.CutPrefix(line, "refused: "); ok {
			what = append(what, s)
		}
		if s, ok := strings.CutPrefix(line, "belljar: "); ok && !strings.HasPrefix(s, "warning") && r.exit > 123 {
			what = append(what, s)
		}
	}
	switch len(what) {
	case 0:
		return "nothing"
	case 1:
		return what[0]
	}
	return fmt.Sprintf("%d attempts, such as %s", len(what), what[0])
}

// table prints one line for each example.
func (d *demo) table(w io.Writer) {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EXAMPLE\tRESULT\tEXIT\tSECONDS\tREFUSED, AND WHY")
	for _, r := range d.done {
		result, exit, took := "as expected", fmt.Sprint(r.exit), fmt.Sprintf("%.2f", r.took.Seconds())
		refused := terminal.Escape(r.refusals())
		switch {
		case r.skip != "":
			result, exit, took, refused = "skipped", "-", "-", r.skip
		case r.err != nil:
			result = "UNEXPECTED"
			refused = terminal.Escape(r.err.Error())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.e.dir, result, exit, took, refused)
	}
	t.Flush()
}
