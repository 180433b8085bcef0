package launch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/guest/guestclient"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/internal/keeper/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// siblings is how many sandboxes are restored from one image at the same time,
// and siblingsEnv the environment variable that says how many times; the promise
// is of 50 rounds.
const (
	siblings    = 16
	siblingsEnv = "BELLJAR_TEST_SIBLINGS"
)

func siblingRounds(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv(siblingsEnv))
	if err != nil || n < 1 {
		return 2
	}
	return n
}

// buildInto builds a program of testdata into a root.
func buildInto(t *testing.T, root, name string) {
	t.Helper()
	out := filepath.Join(root, name)
	cmd := exec.Command("go", "build", "-o", out, "./testdata/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", name, err, b)
	}
	if err := os.Chmod(out, 0o755); err != nil {
		t.Fatal(err)
	}
}

// sibling is one sandbox that came from the image.
type sibling struct {
	made  *wire.Created
	found map[string]string
}

// restoreOne restores a sandbox with an identity of its own, as a manager gives
// it, and has the probe look around in it.
func (s *saver) restoreOne(image string, n int) (*sibling, error) {
	ctx := s.t.Context()
	req := *s.req
	req.ID, req.Image = sandbox.NewID(), image
	req.Hello.Generation = 9
	req.Hello.Hostname = fmt.Sprintf("host-%s", req.ID[:8])
	req.Hello.MachineID = fmt.Sprintf("%032x", []byte(req.ID[:16]))
	req.Hello.Token = "token-" + string(req.ID)
	made, err := s.Create(ctx, &req)
	if err != nil {
		return nil, fmt.Errorf("create: %+v", sandbox.AsError(err))
	}
	defer s.Delete(ctx, req.ID)
	g := guestclient.New(s.Guest(req.ID, 9), "http://keeper", 9)
	p, err := g.Start(ctx, guest.Start{ID: "probe", Argv: []string{"/probe"}, User: "root"})
	if err != nil {
		return nil, err
	}
	o, err := g.Attach(ctx, p.ID, 0, 0)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	var out, text bytes.Buffer
	exit, _, err := o.CopyTo(&out, &text)
	if err != nil || exit.Status() != 0 {
		return nil, fmt.Errorf("the probe: %+v, %v: %s", exit, err, text.String())
	}
	sib := &sibling{made: made}
	if err := json.Unmarshal(out.Bytes(), &sib.found); err != nil {
		return nil, err
	}
	for name, want := range map[string]string{
		"hostname": req.Hello.Hostname, "machine_id": req.Hello.MachineID, "token": req.Hello.Token, "boot_id": made.Reply.BootID,
	} {
		if sib.found[name] != want {
			return nil, fmt.Errorf("%s is %q inside, want %q", name, sib.found[name], want)
		}
	}
	return sib, nil
}

// near reports whether two sequence numbers of the same connection can have
// been made with the same secret: the clock was read up to 20 ms earlier.
func near(t *testing.T, a, b string) bool {
	t.Helper()
	x, err1 := strconv.ParseUint(a, 16, 32)
	y, err2 := strconv.ParseUint(b, 16, 32)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	d := int32(uint32(x) - uint32(y))
	const steps = int32(20 * time.Millisecond / 64)
	return d > -steps && d < steps
}

// TestSiblings restores one image many times at once, and again and again: of
// what comes from the kernel no two sandboxes have the same.
func TestSiblings(t *testing.T) {
	s := newSaver(t, "")
	buildInto(t, s.req.Root.Path, "probe")
	s.create("", 1)
	image := s.save(false, 2)
	seen := map[string]map[string]int{} // by what it is, and value
	var took, hello []time.Duration
	for round := range siblingRounds(t) {
		sibs := make([]*sibling, siblings)
		errs := make([]error, siblings)
		var wg sync.WaitGroup
		for n := range sibs {
			wg.Go(func() { sibs[n], errs[n] = s.restoreOne(image, n) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		alike, secrets := 0, []string{}
		for _, sib := range sibs {
			r := sib.made.Reply.Restore
			if sib.made.Restore == nil || sib.made.Restore.ClockOffset != 0 || sib.made.Restore.Entropy != sandbox.HostLive {
				t.Fatalf("round %d: %+v", round, sib.made.Restore)
			}
			sib.found["draw"] = r.Draw
			took = append(took, r.Took)
			for _, step := range sib.made.Timeline {
				if step.Name == "hello" {
					hello = append(hello, step.Took)
				}
			}
			for _, other := range secrets {
				if near(t, sib.found["tcp_secret"], other) {
					alike++
				}
			}
			secrets = append(secrets, sib.found["tcp_secret"])
			delete(sib.found, "tcp_secret")
			for name, v := range sib.found {
				if seen[name] == nil {
					seen[name] = map[string]int{}
				}
				seen[name][v]++
			}
		}
		if all := siblings * (siblings - 1) / 2; alike > all/10 {
			t.Errorf("round %d: %d of %d pairs have near sequence numbers", round, alike, all)
		}
	}
	n := siblings * siblingRounds(t)
	pairs := n * (n - 1) / 2
	for name, values := range seen {
		delete(values, "") // a program that this host has not got
		equal := 0
		for v, count := range values {
			if count > 1 {
				equal += count * (count - 1) / 2
				t.Logf("%s: %d have %q", name, count, v)
			}
		}
		if equal > 0 {
			t.Errorf("%s: %d equal pairs of %d", name, equal, pairs)
		}
	}
	slices.Sort(took)
	slices.Sort(hello)
	t.Logf("%d restores, %d pairs of each of %d values; hello in the guest %v at the median and %v at most, as seen by the keeper %v",
		n, pairs, len(seen), took[len(took)/2], took[len(took)-1], hello[len(hello)/2])
}
