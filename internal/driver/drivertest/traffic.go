package drivertest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/belljar-sh/belljar/internal/channel"
	"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest"
	"github.com/belljar-sh/belljar/sandbox"
)

func (s *suite) down() {
	b := s.running()
	began := time.Now()
	if got, want := b.ask("PUT", "/v1/test/sum", io.NopCloser(testguest.Noise(bulk))), testguest.NoiseSum(bulk); got != want {
		s.Errorf("to the guest: digest %s, want %s", got, want)
	}
	up := time.Since(began)
	began = time.Now()
	got := b.ask("GET", "/v1/test/bytes?n="+strconv.Itoa(bulk), nil)
	down := time.Since(began)
	want, err := io.ReadAll(testguest.Noise(bulk))
	if err != nil || !bytes.Equal([]byte(got), want) {
		s.Errorf("from the guest: %d bytes that differ from the %d sent", len(got), len(want))
	}
	s.Logf("%d MiB to the guest %v, from it %v, making and checking included", bulk>>20, up, down)
	b.destroy()
}

// up serves connections of the guest's: an echo, and a refusal.
func (s *suite) up() {
	b := s.running()
	served := make(chan error, 1)
	go func() {
		served <- channel.ServeHost(s.Context(), b.inst.Channels().Up, channel.Limits{}, http.HandlerFunc(echo))
	}()
	for dest, check := range map[string]func(testguest.Up) bool{
		"echo.test:7":     func(u testguest.Up) bool { return u.Kind == "" && u.Sum == testguest.NoiseSum(bulk) },
		"example.com:443": func(u testguest.Up) bool { return u.Kind == sandbox.Denied },
	} {
		var u testguest.Up
		answer := b.ask("POST", "/v1/test/up?n="+strconv.Itoa(bulk)+"&dest="+dest, nil)
		if err := json.Unmarshal([]byte(answer), &u); err != nil || !check(u) {
			s.Errorf("%s: %+v, %v", dest, u, err)
		}
	}
	b.destroy()
	if err := <-served; err != nil {
		s.Errorf("up channel: %v", err)
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	if r.Host != "echo.test:7" {
		w.WriteHeader(http.StatusForbidden)
		json.NewEncoder(w).Encode(channel.Refusal{Rule: "test", Reason: "not the echo"})
		return
	}
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	rc.Flush()
	buf := make([]byte, 256<<10)
	for {
		n, err := r.Body.Read(buf)
		w.Write(buf[:n])
		rc.Flush()
		if err != nil {
			return
		}
	}
}

var limitNames = []sandbox.LimitName{
	sandbox.LimitCPU, sandbox.LimitMemory, sandbox.LimitProcesses, sandbox.LimitDisk, sandbox.LimitOpenFiles,
}

func (s *suite) limits() {
	b := s.running()
	seen := map[sandbox.LimitName]sandbox.LimitStatus{}
	for _, l := range b.inst.Limits() {
		if l.Value == "" || l.Explicit || l.Enforced && l.By == "" || !l.Enforced && l.Reason == "" {
			s.Errorf("limit %+v does not say what holds it or why nothing does", l)
		}
		seen[l.Name] = l
	}
	for _, name := range limitNames {
		if _, ok := seen[name]; !ok {
			s.Errorf("limit %s is not reported", name)
		}
	}
	if got := b.ask("GET", "/v1/test/cpus", nil); got != strconv.Itoa(b.inst.CPUsSeen()) {
		s.Errorf("the guest counts %s processors, the driver says %d", got, b.inst.CPUsSeen())
	}
	b.destroy()
}

// explicit asks for each limit by name: it is held, or the create fails and
// says which one it was.
func (s *suite) explicit() {
	for _, name := range limitNames {
		req := s.request()
		switch e := &req.Explicit; name {
		case sandbox.LimitCPU:
			e.CPUs = true
		case sandbox.LimitMemory:
			e.Memory = true
		case sandbox.LimitProcesses:
			e.Processes = true
		case sandbox.LimitDisk:
			e.Disk = true
		case sandbox.LimitOpenFiles:
			e.OpenFiles = true
		}
		b, err := s.tryCreate(req)
		if err != nil {
			e := sandbox.AsError(err)
			if e.Kind != sandbox.Unsupported || e.Field == "" || e.Hint == "" {
				s.Errorf("%s: %s, want unsupported with field and hint", name, describe(err))
			}
			continue
		}
		for _, l := range b.inst.Limits() {
			if l.Name == name && (!l.Enforced || !l.Explicit) {
				s.Errorf("%s was asked for, Create succeeded, and it is not held: %+v", name, l)
			}
		}
		b.destroy()
	}
}

// outOfMemory fills more than the limit, where the driver says that it holds.
func (s *suite) outOfMemory() {
	req := s.request()
	req.Limits.MemoryBytes = 128 << 20
	b := s.create(req)
	for _, l := range b.inst.Limits() {
		if l.Name == sandbox.LimitMemory && !l.Enforced {
			b.destroy()
			s.Skipf("probe: memory: %s", l.Reason)
		}
	}
	b.start()
	b.try("POST", "/v1/test/fill?n="+strconv.Itoa(512<<20), nil)
	if e := b.waitExit(); !e.OOM || e.Status() != 137 {
		s.Errorf("exit %+v, want OOM and status 137", e)
	}
	b.destroy()
}

func (s *suite) stats() {
	b := s.running()
	b.ask("PUT", "/v1/test/sum", io.NopCloser(testguest.Noise(1<<20)))
	for range 2 {
		st, err := b.inst.Stats(s.ctx())
		if err != nil || st.CPUTime < 0 || st.MemoryBytes < 0 || st.Tasks < 0 {
			s.Errorf("stats = %+v, %v", st, err)
		}
	}
	if err := b.inst.Kill(s.ctx()); err != nil {
		s.Errorf("kill: %v", describe(err))
	}
	if _, err := b.inst.Stats(s.ctx()); err != nil && sandbox.KindOf(err) == sandbox.Internal {
		s.Errorf("stats of the dead: %v", describe(err))
	}
	b.destroy()
}
