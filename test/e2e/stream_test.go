package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/belljar-sh/belljar/internal/testenv"
)

// noise is a stream of bytes that does not repeat, the same every time.
type noise struct{ state uint64 }

func (n *noise) Read(p []byte) (int, error) {
	for i := range p {
		n.state = n.state*6364136223846793005 + 1442695040888963407
		p[i] = byte(n.state >> 56)
	}
	return len(p), nil
}

// noiseProgram prints MiB of the same kind of bytes: a block that depends on
// its number, in Python for speed.
const noiseProgram = `
import sys, hashlib
out = sys.stdout.buffer
for i in range(int(sys.argv[1])):
    block = hashlib.sha256(str(i).encode()).digest() * 32768
    out.write(block)
`

func noiseSum(mib int) string {
	h := sha256.New()
	for i := range mib {
		s := sha256.Sum256([]byte(itoa(i)))
		h.Write(bytes.Repeat(s[:], 32768))
	}
	return hex.EncodeToString(h.Sum(nil))
}

func itoa(i int) string {
	if i < 10 {
		return string(rune('0' + i))
	}
	return itoa(i/10) + itoa(i%10)
}

// TestPipeIsByteExact: 64 MiB through a pipe, by run and by exec.
func TestPipeIsByteExact(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	want64 := noiseSum(64)
	for _, how := range [][]string{{"run"}, {"exec", b.name}} {
		h := sha256.New()
		cmd := e.Command(append(how, "--", "/usr/bin/python3", "-c", noiseProgram, "64")...)
		cmd.Stdout = h
		want(t, e.Finish(cmd), 0)
		if got := hex.EncodeToString(h.Sum(nil)); got != want64 {
			t.Errorf("%v: the output differs", how)
		}
	}
}

// TestPTYIsByteExact: 64 MiB through a terminal, in raw mode inside so that
// the terminal's own line discipline changes nothing.
func TestPTYIsByteExact(t *testing.T) {
	e := setup(t)
	const mib = 64
	s := testenv.OnTerminal(t, e.Command("run", "-it", "--", "sh", "-c",
		`stty raw -echo; echo BEGIN; /usr/bin/python3 -c "$0" `+itoa(mib)+`; echo END`, noiseProgram))
	s.Expect("END")
	if code := s.Wait(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	out := s.Output()
	_, body, ok := strings.Cut(out, "BEGIN\n")
	if !ok || len(body) < mib<<20 {
		t.Fatalf("%d bytes came", len(body))
	}
	sum := sha256.Sum256([]byte(body[:mib<<20]))
	if hex.EncodeToString(sum[:]) != noiseSum(mib) {
		t.Error("the output differs")
	}
}

// TestStdin100MiB: 100 MiB of input arrive whole and in order.
func TestStdin100MiB(t *testing.T) {
	e := setup(t)
	const size = 100 << 20
	h := sha256.New()
	cmd := e.Command("run", "-i", "--", "sha256sum")
	cmd.Stdin = io.TeeReader(io.LimitReader(&noise{1}, size), h)
	r := want(t, e.Finish(cmd), 0)
	if got := strings.Fields(r.Stdout)[0]; got != hex.EncodeToString(h.Sum(nil)) {
		t.Errorf("the input arrived with sum %s", got)
	}
}

// TestCatReturnsAtEOF: the end of input reaches the command at once.
func TestCatReturnsAtEOF(t *testing.T) {
	e := setup(t)
	b := create(t, e, "work")
	for name, in := range map[string]string{"empty": "", "text": "a\nb", "binary": "\x00\xff\x04\x1a"} {
		for _, how := range [][]string{{"run", "-i"}, {"exec", "-i", b.name}} {
			cmd := e.Command(append(how, "--", "cat")...)
			cmd.Stdin = strings.NewReader(in)
			if r := want(t, e.Finish(cmd), 0); r.Stdout != in || r.Took > 20*time.Second {
				t.Errorf("%s, %v: %q after %v", name, how, r.Stdout, r.Took)
			}
		}
	}
	// Without -i the command sees the end at once, whatever our input is.
	cmd := e.Command("run", "--", "cat")
	r, w := io.Pipe()
	defer w.Close()
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(out); err != nil || len(got) != 0 {
		t.Errorf("output %q, %v", got, err)
	}
	w.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestUTF8SplitAcrossChunks: a character whose bytes are written one by one
// arrives whole, in the stream and in the result of -o json.
func TestUTF8SplitAcrossChunks(t *testing.T) {
	e := setup(t)
	line := `for b in '\303' '\251' '\346' '\274' '\242' '\360' '\237' '\230' '\200'; do printf "$b"; sleep 0.05; done`
	if r := want(t, e.Belljar("run", "--", "sh", "-c", line), 0); r.Stdout != "é漢😀" {
		t.Errorf("stdout %q", r.Stdout)
	}
	var got ended
	decode(t, want(t, e.Belljar("run", "-o", "json", "--", "sh", "-c", line), 0).Stdout, &got)
	if got.Stdout.Head != "é漢😀" || got.Stdout.Encoding != "utf-8" {
		t.Errorf("result %+v", got.Stdout)
	}
}

// TestClosedPipe: `belljar run -- yes | head` ends, and so does the sandbox.
func TestClosedPipe(t *testing.T) {
	e := setup(t)
	cmd := e.Command("run", "--", "yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 141 {
		t.Errorf("it ended with %v, want 141", err)
	}
}

// TestSlowReader: a reader that does not read holds the command back and
// loses nothing.
func TestSlowReader(t *testing.T) {
	e := setup(t)
	cmd := e.Command("run", "--", "/usr/bin/python3", "-c", noiseProgram, "24")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	first := make([]byte, 1<<20)
	if _, err := io.ReadFull(out, first); err != nil {
		t.Fatal(err)
	}
	h.Write(first)
	<-time.After(3 * time.Second) // much longer than the rest takes to be written
	if _, err := io.Copy(h, out); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if hex.EncodeToString(h.Sum(nil)) != noiseSum(24) {
		t.Error("the output differs")
	}
}
