// Package testguest is a small guest for tests of drivers and of the keeper:
// it answers hello as belljar-guest does and has, beneath /v1/test/, routes
// that exercise channels, processes and limits. It runs in process (fake
// driver) and as the program in its directory "program".
package testguest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/channel"
	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// SleepArg makes the program sleep for ever, ExitArg end at once.
const (
	SleepArg = "sleep-for-ever"
	ExitArg  = "exit-at-once"
)

// Noise returns a reader of n bytes that look random and are the same every
// time.
func Noise(n int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{7}), n)
}

// NoiseSum returns the SHA-256 of Noise(n), in hexadecimal.
func NoiseSum(n int64) string { return sum(Noise(n)) }

func sum(r io.Reader) string {
	h := sha256.New()
	if _, err := io.CopyBuffer(h, r, make([]byte, 256<<10)); err != nil {
		return err.Error()
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Run serves both channels until down ends, ctx is done or a request asks for
// an exit. It returns the exit code.
func Run(ctx context.Context, down, up net.Conn) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &server{quit: cancel}
	if up != nil {
		c, err := channel.DialGuest(up)
		if err != nil {
			return 3
		}
		defer c.Close()
		g.up = c
	}
	if err := channel.ServeGuest(ctx, down, g.handler()); err != nil {
		return 4
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.code
}

type server struct {
	up   *channel.Guest
	quit func()

	mu    sync.Mutex
	gen   uint64
	code  int
	asked int
}

func (g *server) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /v1/hello", g.hello)
	m.HandleFunc("POST /v1/quiesce", quiesce)
	m.HandleFunc("POST /v1/test/count", g.count)
	m.HandleFunc("POST /v1/test/file", g.file)
	m.HandleFunc("GET /v1/ping", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	m.HandleFunc("GET /v1/test/bytes", g.bytes)
	m.HandleFunc("PUT /v1/test/sum", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, sum(r.Body)) })
	m.HandleFunc("PUT /v1/test/drop", drop)
	m.HandleFunc("POST /v1/test/echo", g.echo)
	m.HandleFunc("POST /v1/test/exit", g.exit)
	m.HandleFunc("POST /v1/test/spawn", g.spawn)
	m.HandleFunc("POST /v1/test/exec", g.exec)
	m.HandleFunc("POST /v1/test/fill", g.fill)
	m.HandleFunc("POST /v1/test/up", g.connect)
	m.HandleFunc("GET /v1/test/headers", g.headers)
	m.HandleFunc("GET /v1/test/cpus", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strconv.Itoa(runtime.NumCPU())) })
	return m
}

func (g *server) hello(w http.ResponseWriter, r *http.Request) {
	var h guest.Hello
	if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	g.mu.Lock()
	g.gen = h.Generation
	g.mu.Unlock()
	// The build is the host's word: a test guest is built apart.
	json.NewEncoder(w).Encode(guest.HelloReply{Protocol: guest.Protocol, Build: h.Build, BootID: "test", Users: []string{"root"}})
}

// quiesce has the conversation end at the seam that the host names.
func quiesce(w http.ResponseWriter, r *http.Request) {
	seam, err := hex.DecodeString(r.Header.Get(guest.HeaderSeam))
	if err != nil || !channel.ExpectSeam(r.Context(), seam) {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// MemoryEnv names a variable with the path of a file in which the guest keeps
// its count, for drivers to whom a file is all the memory that they can save.
const MemoryEnv = "BELLJAR_FAKE_MEMORY"

// count answers with how often it has been asked.
func (g *server) count(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	path := os.Getenv(MemoryEnv)
	if b, err := os.ReadFile(path); path != "" && err == nil {
		g.asked, _ = strconv.Atoi(string(b)) // its own
	}
	g.asked++
	text := strconv.Itoa(g.asked)
	if path != "" {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	io.WriteString(w, text)
}

// FileEnv names a variable with the path of the file that counts how often it
// has been asked for, where that is not [CountFile].
const FileEnv = "BELLJAR_FAKE_FILE"

// CountFile is that file in a sandbox with files of its own.
const CountFile = "/var/tmp/test-count"

// file counts on in a file and answers with what it says then.
func (g *server) file(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	path := os.Getenv(FileEnv)
	if path == "" {
		path = CountFile
	}
	b, _ := os.ReadFile(path)
	n, _ := strconv.Atoi(string(b))
	text := strconv.Itoa(n + 1)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	io.WriteString(w, text)
}

func count(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64) // 0 when absent
	return n
}

func (g *server) bytes(w http.ResponseWriter, r *http.Request) {
	buf := make([]byte, 256<<10)
	if r.URL.Query().Get("zero") != "" {
		for left := count(r); left > 0; {
			n, err := w.Write(buf[:min(left, int64(len(buf)))])
			if err != nil {
				return
			}
			left -= int64(n)
		}
		return
	}
	io.CopyBuffer(struct{ io.Writer }{w}, Noise(count(r)), buf)
}

// drop reads everything and answers with the count.
func drop(w http.ResponseWriter, r *http.Request) {
	n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, 256<<10))
	io.WriteString(w, strconv.FormatInt(n, 10))
}

func (g *server) echo(w http.ResponseWriter, r *http.Request) {
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

func (g *server) exit(w http.ResponseWriter, r *http.Request) {
	code, _ := strconv.Atoi(r.URL.Query().Get("code"))
	g.mu.Lock()
	g.code = code
	g.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
	time.AfterFunc(20*time.Millisecond, g.quit) // the answer is still on its way
}

// spawn starts children in sessions of their own, which nobody waits for.
func (g *server) spawn(w http.ResponseWriter, r *http.Request) {
	for range max(1, count(r)) {
		cmd := exec.Command("/proc/self/exe", SleepArg)
		cmd.Env = os.Environ()
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// exec starts a child that ends at once, and waits for it.
func (g *server) exec(w http.ResponseWriter, r *http.Request) {
	cmd := exec.Command("/proc/self/exe", ExitArg)
	cmd.Env = os.Environ()
	if err := cmd.Run(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// fill takes n bytes of memory and touches them.
func (g *server) fill(w http.ResponseWriter, r *http.Request) {
	var held [][]byte
	for left := count(r); left > 0; left -= 1 << 20 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
	}
	runtime.KeepAlive(held)
	w.WriteHeader(http.StatusNoContent)
}

// Up is what a connection on the up channel came to.
type Up struct {
	Kind  sandbox.Kind `json:"kind"` // "" when it was allowed
	Error string       `json:"error"`
	Sum   string       `json:"sum"` // of what came back
}

// connect opens a connection to dest on the up channel, sends n bytes of noise
// and hashes what comes back.
func (g *server) connect(w http.ResponseWriter, r *http.Request) {
	var out Up
	s, err := g.up.Connect(r.Context(), r.URL.Query().Get("dest"))
	if err != nil {
		out.Kind, out.Error = sandbox.KindOf(err), err.Error()
		json.NewEncoder(w).Encode(out)
		return
	}
	defer s.Close()
	go func() {
		io.CopyBuffer(struct{ io.Writer }{s}, Noise(count(r)), make([]byte, 256<<10))
		s.CloseWrite()
	}()
	out.Sum = sum(s)
	json.NewEncoder(w).Encode(out)
}

// headers tells which headers arrived, and sends some that must not pass.
func (g *server) headers(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Set-Cookie", "guest=1")
	h.Set("Location", "http://evil.test/")
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Content-Type", "application/x-test")
	json.NewEncoder(w).Encode(r.Header)
}
