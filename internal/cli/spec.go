package cli

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// specFlags are the flags that describe a sandbox: run and create have them.
type specFlags struct {
	name, template, snapshot       string
	boundary, hostname             string
	workdir, user                  string
	allowWeaker                    bool
	limits                         limitFlags
	timeout                        span
	onTimeout                      string
	env, envFiles, volumes, labels []string
}

func (s *specFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.name, "name", "", "name of the sandbox")
	f.StringVar(&s.template, "template", "", "what it starts from (default "+sandbox.DefaultTemplate+")")
	f.StringVar(&s.snapshot, "snapshot", "", "snapshot that it starts from, in the place of a template")
	f.StringVar(&s.boundary, "boundary", "", "what stands between it and the host (default gvisor)")
	f.BoolVar(&s.allowWeaker, "allow-weaker", false, "take a weaker boundary when the one asked for is not to be had")
	f.StringVar(&s.hostname, "hostname", "", "host name inside")
	f.StringVarP(&s.workdir, "workdir", "w", "", "directory in which commands start (default: the user's home)")
	f.StringVarP(&s.user, "user", "u", "", "user inside (default user)")
	s.limits.add(f)
	f.Var(&s.timeout, "timeout", "time after which it is killed: 90, 90s, 5m")
	f.StringVar(&s.onTimeout, "on-timeout", "", "what happens then: kill (default), or pause, which needs the daemon")
	f.StringArrayVarP(&s.env, "env", "e", nil, "environment: KEY=VALUE, or KEY to pass on yours")
	f.StringArrayVar(&s.envFiles, "env-file", nil, "file with one KEY=VALUE per line")
	f.StringArrayVarP(&s.volumes, "volume", "v", nil, "mount SRC at DST: SRC:DST or SRC:DST:ro")
	f.StringArrayVar(&s.labels, "label", nil, "label: KEY=VALUE")
	cmd.RegisterFlagCompletionFunc("boundary", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var out []string
		for _, b := range sandbox.Boundaries() {
			out = append(out, string(b))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
}

// spec checks the flags and the command and returns what they ask for. The
// volumes are open; the caller closes them.
func (s *specFlags) spec(cmd *cobra.Command, argv []string, warn warner) (sandbox.Spec, []*volume, error) {
	spec, err := s.values(cmd)
	if err == nil {
		err = checkText(argv, spec.Env)
	}
	if err != nil {
		return spec, nil, err
	}
	for _, text := range s.volumes {
		v, err := parseVolume(text)
		if err != nil {
			return spec, nil, err
		}
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: v.source, Target: v.target, ReadOnly: v.readOnly})
	}
	if err := checkSpec(&spec, s.limits.typed()); err != nil {
		return spec, nil, err
	}
	vols, err := openVolumes(s.volumes, warn)
	return spec, vols, err
}

func (s *specFlags) values(cmd *cobra.Command) (spec sandbox.Spec, err error) {
	limits, err := s.limits.values(cmd)
	if err != nil {
		return spec, err
	}
	env, err := environment(s.env, s.envFiles, os.LookupEnv)
	if err != nil {
		return spec, err
	}
	lab, err := labels(s.labels)
	if err != nil {
		return spec, err
	}
	return sandbox.Spec{
		Name:        s.name,
		Template:    s.template,
		Snapshot:    s.snapshot,
		Boundary:    sandbox.Boundary(s.boundary),
		AllowWeaker: s.allowWeaker,
		Limits:      limits,
		Env:         env,
		Workdir:     s.workdir,
		User:        s.user,
		Hostname:    s.hostname,
		Timeout:     time.Duration(s.timeout),
		OnTimeout:   sandbox.OnTimeout(s.onTimeout),
		Labels:      lab,
	}, nil
}

// sendVolumes passes the open volumes to the manager and puts the handles into
// the spec.
func sendVolumes(ctx context.Context, c *client.Client, spec *sandbox.Spec, vols []*volume) error {
	if len(vols) == 0 {
		return nil
	}
	files := make([]*os.File, len(vols))
	for i, v := range vols {
		files[i] = v.file
	}
	handles, err := c.SendFiles(ctx, files)
	if err != nil {
		return err
	}
	if len(handles) != len(vols) {
		return sandbox.Errorf(sandbox.Internal, "%d handles for %d volumes", len(handles), len(vols))
	}
	for i, h := range handles {
		spec.Mounts[i].Handle = h
	}
	return nil
}
