package daemon_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/sandbox"
)

// leave makes what a crash may leave: a draft, or a log, of nobody.
func (in *installation) leave(parent, suffix string) string {
	in.t.Helper()
	id := string(sandbox.NewID())
	dir := filepath.Join(parent, id+suffix)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		in.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "part"), make([]byte, 1<<16), 0o600); err != nil {
		in.t.Fatal(err)
	}
	return id
}

func ids(items []sandbox.DiskItem) (out []string) {
	for _, i := range items {
		out = append(out, i.ID)
	}
	slices.Sort(out)
	return out
}

func sorted(s ...string) []string { slices.Sort(s); return s }

// TestPrune: what nobody needs goes, and is told before; what somebody needs stays.
func TestPrune(t *testing.T) {
	in := install(t)
	c := in.dial()
	spec := sandbox.Spec{User: "root", Workdir: "/"}
	rests, dead := create(t, c, spec), create(t, c, spec)
	pauseIt(t, c, string(rests.ID))
	bare, err := c.Snapshot(t.Context(), string(rests.ID), "")
	if err != nil {
		t.Fatal(err)
	}
	named, err := c.Snapshot(t.Context(), string(rests.ID), "kept")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kill(t.Context(), string(dead.ID)); err != nil {
		t.Fatal(err)
	}
	left := []string{
		in.leave(in.dirs.Images(), ".new"), in.leave(in.dirs.Images(), ""), in.leave(in.dirs.Snapshots(), ".new"),
		in.leave(in.dirs.Forks(), ".new"), in.leave(in.dirs.Prepared(), ".new"), in.leave(in.dirs.Prepared(), ""), in.leave(in.dirs.Logs(), ""),
	}
	lesser := sorted(append(slices.Clone(left), string(dead.ID))...)
	all := sorted(append(slices.Clone(lesser), string(bare.ID))...)

	use, err := c.DiskUse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[sandbox.DiskKind]int{}
	for _, i := range use.Items {
		kinds[i.Kind]++
		free := slices.Contains(all, i.ID)
		if (i.Reason != "") != free || i.All != (i.ID == string(bare.ID)) || !free && i.ReclaimableBytes > 0 {
			t.Errorf("got %+v", i)
		}
		if shared := i.ID == string(bare.ID) || i.ID == string(named.ID); shared != (i.SharedBytes > 0) {
			t.Errorf("got %+v, want what two snapshots of a paused sandbox share counted once", i)
		}
	}
	if kinds[sandbox.DiskPaused] != 3 || kinds[sandbox.DiskSnapshot] != 3 || kinds[sandbox.DiskJournal] != 1 || use.FreeBytes <= 0 || use.KeptBytes <= 0 {
		t.Errorf("got %v, %d free, %d kept", kinds, use.FreeBytes, use.KeptBytes)
	}
	if !slices.Equal(use.TemplatesInUse, []string{rests.Template}) {
		t.Errorf("templates in use: got %v", use.TemplatesInUse)
	}

	for _, tt := range []struct {
		all, dry bool
		want     []string
	}{
		{false, true, lesser}, {true, true, all}, {false, false, lesser}, {false, false, nil}, {true, false, sorted(string(bare.ID))}, {true, false, nil},
	} {
		got, err := c.Prune(t.Context(), tt.all, tt.dry)
		if err != nil || !slices.Equal(ids(got.Items), tt.want) || len(got.Problems) > 0 {
			t.Errorf("prune, all %v, dry %v: got %v, %v, %v, want %v", tt.all, tt.dry, ids(got.Items), got.Problems, err, tt.want)
		}
		if (got.ReclaimedBytes > 0) != (len(tt.want) > 0) {
			t.Errorf("prune, all %v, dry %v: got %d bytes", tt.all, tt.dry, got.ReclaimedBytes)
		}
	}
	if _, err := c.Get(t.Context(), string(dead.ID)); sandbox.KindOf(err) != sandbox.NotFound {
		t.Errorf("the dead one: got %v", err)
	}
	if got, err := c.VerifySnapshot(t.Context(), "kept"); err != nil || got.ID != named.ID {
		t.Errorf("the named snapshot: got %v, %v", got.ID, err)
	}
	runs(t, c, string(rests.ID))
}

// TestPruneAtWork: what is being saved while somebody prunes is no leftover.
func TestPruneAtWork(t *testing.T) {
	in := install(t)
	c := in.dial()
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	done := make(chan error)
	go func() {
		for n := range 20 {
			var err error
			switch n % 3 {
			case 0:
				_, err = c.Pause(t.Context(), ref)
			case 1:
				_, err = c.Snapshot(t.Context(), ref, "n"+strconv.Itoa(n))
			default:
				var made []sandbox.Sandbox
				if made, _, err = c.Fork(t.Context(), ref, 1, ""); err == nil {
					_, err = c.Kill(t.Context(), string(made[0].ID))
				}
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			list, err := c.Snapshots(t.Context())
			if err != nil || len(list) == 0 {
				t.Fatalf("got %d snapshots, %v", len(list), err)
			}
			for _, s := range list {
				if _, err := c.VerifySnapshot(t.Context(), string(s.ID)); err != nil {
					t.Error(err)
				}
			}
			runs(t, c, ref)
			return
		default:
			if got, err := c.Prune(t.Context(), false, false); err != nil || len(got.Problems) > 0 {
				t.Errorf("got %v, %v", got.Problems, err)
			}
		}
	}
}

func amount(n int64) *int64 { return &n }

// TestQuota: what might go beyond a bound is refused before it begins, and the
// sandbox runs on.
func TestQuota(t *testing.T) {
	in := install(t)
	c := in.dial()
	first, err := c.Quota(t.Context())
	if err != nil || first.KeptBytes != 0 || first.FreeBytes <= 0 || first.FreeBytes > 1<<30 {
		t.Errorf("at first: got %+v, %v", first, err)
	}
	use, err := c.DiskUse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ref := string(create(t, c, sandbox.Spec{User: "root", Workdir: "/"}).ID)
	tried := map[string]func() error{
		"pause":    func() error { _, err := c.Pause(t.Context(), ref); return err },
		"snapshot": func() error { _, err := c.Snapshot(t.Context(), ref, "s"); return err },
		"files":    func() error { _, err := c.SnapshotFiles(t.Context(), ref, "f"); return err },
		"fork":     func() error { _, _, err := c.Fork(t.Context(), ref, 2, ""); return err },
	}
	for _, tt := range []struct {
		name       string
		kept, free *int64
		field      string
		refused    []string
	}{
		{"free", amount(0), amount(use.FreeBytes + 1<<30), "free_bytes", []string{"pause", "snapshot", "files", "fork"}},
		{"kept", amount(1), amount(0), "kept_bytes", []string{"pause", "snapshot", "files"}},
	} {
		set, err := c.SetQuota(t.Context(), tt.kept, tt.free)
		if err != nil || set.KeptBytes != *tt.kept || set.FreeBytes != *tt.free {
			t.Fatalf("%s: got %+v, %v", tt.name, set, err)
		}
		for _, what := range tt.refused {
			e := sandbox.AsError(tried[what]())
			if e == nil || e.Kind != sandbox.ResourceExhausted || e.Field != tt.field || e.Value == "" || e.Hint == "" {
				t.Errorf("%s, %s: got %+v", tt.name, what, e)
			}
		}
		runs(t, c, ref)
		if sb, err := c.Get(t.Context(), ref); err != nil || sb.State != sandbox.Running || sb.Generation != 1 || len(in.stored()) > 0 {
			t.Errorf("%s: got %v in generation %d, %v, left %v", tt.name, sb.State, sb.Generation, err, in.stored())
		}
	}
	// The bounds outlive the daemon, and one that is taken away holds no more.
	if err := c.Stop(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c = in.dial()
	if q, err := c.Quota(t.Context()); err != nil || q.KeptBytes != 1 || q.FreeBytes != 0 {
		t.Errorf("after a restart: got %+v, %v", q, err)
	}
	if _, err := c.SetQuota(t.Context(), amount(0), nil); err != nil {
		t.Fatal(err)
	}
	pauseIt(t, c, ref)
	runs(t, c, ref)
}

func TestQuotaRefused(t *testing.T) {
	c := install(t).dial()
	for _, tt := range []struct{ kept, free *int64 }{{amount(-1), nil}, {nil, amount(-1)}, {nil, amount(1 << 60)}} {
		if _, err := c.SetQuota(t.Context(), tt.kept, tt.free); sandbox.KindOf(err) != sandbox.Invalid || sandbox.AsError(err).Field == "" {
			t.Errorf("got %v, want it refused by name", err)
		}
	}
}

// TestQuotaAndTimeouts: a sandbox that its timeout would pause and the quota
// forbids is killed in the end.
func TestQuotaAndTimeouts(t *testing.T) {
	in := install(t)
	c := in.dial()
	if _, err := c.SetQuota(t.Context(), amount(1), nil); err != nil {
		t.Fatal(err)
	}
	sb := create(t, c, sandbox.Spec{User: "root", Workdir: "/", Timeout: 300 * time.Millisecond, OnTimeout: sandbox.OnTimeoutPause})
	dead, err := c.Wait(t.Context(), string(sb.ID))
	if err != nil || dead.EndReason != sandbox.EndTimeout {
		t.Errorf("got %v, %v, want timeout", dead.EndReason, err)
	}
}
