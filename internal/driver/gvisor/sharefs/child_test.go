package sharefs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/fsgofer/extension"
	"gvisor.dev/gvisor/runsc/fsgofer/filter"

	"github.com/belljar-sh/belljar/internal/driver/gvisor/hostfilter"
)

// serveEnv makes the test binary a gofer: it serves the share of the spec in it
// on descriptor 3.
const serveEnv = "SHAREFS_TEST_SERVE"

// startChild serves a share in a process that is confined as a gofer is. A call
// that the filter does not allow ends it, and with it the test.
func startChild(t *testing.T, dir string, sh Share, sock *unet.Socket) {
	t.Helper()
	spec := &specs.Spec{Mounts: []specs.Mount{{Destination: dir, Source: sh.Source, Type: "bind", Options: []string{"bind", "rw"}}}}
	if err := Annotate(spec, []Share{sh}); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := sock.Release()
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	var stderr strings.Builder
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveEnv+"="+string(b))
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the client has closed its end
		if err := cmd.Wait(); err != nil {
			t.Errorf("the confined server: %v\n%s", err, stderr.String())
		}
	})
}

// serveChild goes through the steps of gVisor's gofer command.
func serveChild(raw string) error {
	var spec specs.Spec
	if err := json.Unmarshal([]byte(raw), &spec); err != nil {
		return err
	}
	if err := hostfilter.Install(); err != nil {
		return err
	}
	s := Extension().(*server)
	if _, err := s.PrepareGofer(extension.GoferPrepareContext{}); err != nil {
		return err
	}
	sock, err := unet.NewSocket(3)
	if err != nil {
		return err
	}
	if err := filter.Install(filter.Options{DirectFS: true, CgoEnabled: config.CgoEnabled, ExtraRules: []seccomp.SyscallRules{s.SeccompRules()}}); err != nil {
		return err
	}
	m := &spec.Mounts[0]
	impl, opts, err := s.TryHandleMount(&spec, m, m.Destination, false)
	if err != nil {
		return err
	}
	if impl == nil {
		return errors.New("the mount was not taken")
	}
	srv := lisafs.NewServer()
	lc, err := srv.CreateConnection(sock, m.Destination, opts, impl)
	if err != nil {
		return err
	}
	srv.StartConnection(lc)
	srv.Wait()
	srv.Destroy()
	return nil
}

func TestTryHandleMount(t *testing.T) {
	t.Parallel()
	s := Extension().(*server)
	if _, err := s.PrepareGofer(extension.GoferPrepareContext{}); err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{}
	if err := Annotate(spec, []Share{{Source: "/a", UID: 1}, {Source: "/b", ReadOnly: true}}); err != nil {
		t.Fatal(err)
	}
	for _, hint := range []string{"0.directfs=off", "0.source=/a", "1.type=bind", "1.share=shared"} {
		key, want, _ := strings.Cut(hint, "=")
		if got := spec.Annotations["dev.gvisor.spec.mount.belljar-share-"+key]; got != want {
			t.Errorf("hint %s is %q, want %q", key, got, want)
		}
	}
	for _, tt := range []struct {
		name             string
		mount            *specs.Mount
		readonly         bool
		taken, ro, fails bool
	}{
		{"the root", nil, false, false, false, false},
		{"a share", &specs.Mount{Source: "/a"}, false, true, false, false},
		{"a share mounted read-only", &specs.Mount{Source: "/a"}, true, true, true, false},
		{"a read-only share", &specs.Mount{Source: "/b"}, false, true, true, false},
		{"another read-only mount", &specs.Mount{Source: "/c"}, true, false, false, false},
		{"another writable mount", &specs.Mount{Source: "/c"}, false, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			impl, opts, err := s.TryHandleMount(spec, tt.mount, "/x", tt.readonly)
			if (impl != nil) != tt.taken || opts.Readonly != tt.ro || (err != nil) != tt.fails {
				t.Errorf("got %v, %+v, %v", impl, opts, err)
			}
		})
	}
	if _, _, err := s.TryHandleMount(&specs.Spec{Annotations: map[string]string{Annotation: "{"}}, &specs.Mount{}, "/x", true); err == nil {
		t.Error("a broken annotation passes")
	}
	for _, bad := range [][]Share{{{Source: ""}}, {{Source: "/a"}, {Source: "/a"}}} {
		if err := Annotate(&specs.Spec{}, bad); err == nil {
			t.Errorf("Annotate(%v) works", bad)
		} else if fmt.Sprint(err) == "" {
			t.Error("an empty error")
		}
	}
}
