package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) statsCommand() *cobra.Command {
	var f *format
	var once bool
	cmd := &cobra.Command{
		Use:               "stats [SANDBOX...]",
		Short:             "show what sandboxes use",
		Long:              "Stats shows what sandboxes use, all that run when none is named. On a terminal it\ngoes on until it is interrupted.",
		Example:           "  belljar stats\n  belljar stats work --no-stream -o json",
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, refs []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			live := !once && !f.machine() && terminal.IsTerminal(a.out)
			return a.stats(ctx, refs, *f, live)
		},
	}
	f = a.formatFlag(cmd)
	cmd.Flags().BoolVar(&once, "no-stream", false, "show one answer only")
	return cmd
}

// usage is one line of stats.
type usage struct {
	Sandbox sandbox.ID   `json:"sandbox"`
	Name    string       `json:"name,omitempty"`
	Stats   client.Stats `json:"stats"`
	at      time.Time
}

func (a *app) stats(ctx context.Context, refs []string, f format, live bool) error {
	c, err := a.running(ctx)
	if err != nil {
		return err
	}
	if c == nil {
		if len(refs) > 0 {
			return noSandbox(refs[0])
		}
		return a.printUsage(f, nil, nil)
	}
	defer c.Close()
	var before map[sandbox.ID]usage
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		now, err := collectUsage(ctx, c, refs)
		if _, ok := interrupted(ctx); ok {
			return nil
		}
		if err != nil {
			return err
		}
		if live {
			fmt.Fprint(a.out, "\x1b[H\x1b[J")
		}
		if err := a.printUsage(f, now, before); err != nil || !live {
			return err
		}
		before = map[sandbox.ID]usage{}
		for _, u := range now {
			before[u.Sandbox] = u
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func collectUsage(ctx context.Context, c *client.Client, refs []string) ([]usage, error) {
	var list []sandbox.Sandbox
	var err error
	if len(refs) == 0 {
		list, err = c.List(ctx, false)
	}
	for _, ref := range refs {
		s, gerr := c.Get(ctx, ref)
		if gerr != nil {
			return nil, gerr
		}
		list = append(list, s)
	}
	if err != nil {
		return nil, err
	}
	out := []usage{}
	for _, s := range list {
		st, err := c.Stats(ctx, string(s.ID))
		if err != nil {
			if len(refs) == 0 && s.State != sandbox.Running {
				continue
			}
			return nil, err
		}
		out = append(out, usage{Sandbox: s.ID, Name: s.Name, Stats: st, at: time.Now()})
	}
	return out, nil
}

func (a *app) printUsage(f format, now []usage, before map[sandbox.ID]usage) error {
	if f.machine() {
		if now == nil {
			now = []usage{}
		}
		return encode(a.out, f, now)
	}
	t := newTable("ID", "NAME", "CPU", "CPU TIME", "MEMORY", "LIMIT", "TASKS", "IN", "OUT", "EGRESS REFUSED")
	for _, u := range now {
		cpu := "-"
		if b, ok := before[u.Sandbox]; ok && u.at.After(b.at) {
			cpu = fmt.Sprintf("%.1f%%", 100*float64(u.Stats.CPUTime-b.Stats.CPUTime)/float64(u.at.Sub(b.at)))
		}
		limit := "-"
		if u.Stats.MemoryLimit > 0 {
			limit = formatSize(u.Stats.MemoryLimit)
		}
		t.add(string(u.Sandbox), u.Name, cpu, u.Stats.CPUTime.Round(time.Millisecond).String(),
			formatSize(u.Stats.MemoryBytes), limit, fmt.Sprint(u.Stats.Tasks),
			formatSize(u.Stats.WrittenBytes), formatSize(u.Stats.ReadBytes), fmt.Sprint(u.Stats.EgressRefused))
	}
	return t.write(a.out)
}
