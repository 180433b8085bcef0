package guest

import (
	"context"
	"encoding/json"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/belljar-sh/belljar/internal/build"
	"github.com/belljar-sh/belljar/internal/guest/wire"
)

// rehearsalTime bounds how long a rehearsal may take: the program that it runs
// is the template's.
const rehearsalTime = 5 * time.Second

// servePrepare does, before there is a hello, what needs no identity, and goes
// once through what comes next, so that little of it is new when somebody waits:
// code that has not run yet is read in, page by page, as is what every program
// of the template is linked with. It tells nobody who the sandbox is.
func (s *Server) servePrepare(w http.ResponseWriter, r *http.Request) {
	q := &request{Request: r, w: w, ctx: r.Context()}
	var h wire.Hello
	if err := q.decode(&h); err != nil {
		reply(w, err)
		return
	}
	s.mu.Lock()
	fresh := s.hello.Generation == 0 && !s.prepared
	s.prepared = true
	s.mu.Unlock()
	if fresh {
		s.tune()
		if s.cfg.Init {
			s.furnish()
			s.trees.limit(h.Limits.Processes)
			s.prewrite()
		}
		s.rehearse(r.Context())
		debug.FreeOSMemory()
	}
	reply(w, q.json(wire.HelloReply{Protocol: wire.Protocol, Build: build.ID(), Users: s.users.names()}))
}

// prewrite writes the files that the identity goes into, with what is nobody's:
// what has been written once is written faster. They are written again, all of
// them, before anybody looks.
func (s *Server) prewrite() {
	for _, name := range []string{"generation", "token"} {
		s.note(name, "\n")
	}
	var there []string
	for i, path := range s.cfg.MachineIDs {
		if replaceID(path, strings.Repeat("0", 32), i == 0) {
			there = append(there, path)
		}
	}
	s.cfg.MachineIDs = there // nobody makes another before hello
	if s.cfg.HostnameFile != "" && !replaceID(s.cfg.HostnameFile, "sandbox", false) {
		s.cfg.HostnameFile = ""
	}
	s.bootID = readBootID()
	ownKernel()
}

// furnish does once what PID 1 does after a boot.
func (s *Server) furnish() { s.furnishOnce.Do(s.initFirst) }

// tune sets once what the guest allows itself.
func (s *Server) tune() {
	s.tuneOnce.Do(func() {
		debug.SetGCPercent(gcPercent)
		debug.SetMemoryLimit(memoryLimit)
	})
}

// rehearse runs a program that does nothing, as root in /, and forgets it. What
// a template does not have cannot be rehearsed.
func (s *Server) rehearse(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, rehearsalTime)
	defer cancel()
	req := &wire.Start{ID: "rehearsal", Argv: []string{"true"}, User: "root", Cwd: "/"}
	same, err := json.Marshal(req)
	if err != nil {
		return
	}
	p, mine, err := s.procs.reserve(req.ID, same)
	if err != nil || !mine {
		return
	}
	err = s.launch(p, req)
	s.procs.settle(p, err)
	if err != nil {
		return
	}
	select {
	case <-p.gone:
	case <-ctx.Done():
	}
	_ = p.destroy(ctx) // what lives on is in nobody's way
}
