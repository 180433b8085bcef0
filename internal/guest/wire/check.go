package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/belljar-sh/belljar/sandbox"
)

// Bounds on what a guest may answer with, over and above the length of its
// text: a few bytes of JSON can decode to hundreds of bytes of memory.
const (
	maxUncounted = 64 << 10 // bytes of JSON of which the parts are not counted
	maxTokens    = 16 << 10 // parts of a longer one
	maxSentence  = 512      // bytes of a sentence for people
	maxUsers     = 1024
	maxName      = 256            // bytes of a user's name, a build or a boot's ID
	maxSignal    = 127            // the highest that a wait status can hold
	maxText      = 1<<20 + 64<<10 // bytes of a process's arguments and names: what a start may hold
)

// MaxHelloReply bounds the answer to hello, in bytes: it repeats the arguments
// of a process, escaped.
const MaxHelloReply = 8 << 20

// Decode decodes one JSON value that a guest wrote. The caller bounds its
// length; one of many small parts is refused.
func Decode(b []byte, out any) error {
	if len(b) > maxUncounted {
		if err := countTokens(b); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("wire: an answer that cannot be read: %w", err)
	}
	return nil
}

func countTokens(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	for n := 0; ; n++ {
		switch _, err := d.Token(); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("wire: an answer that cannot be read: %w", err)
		case n >= maxTokens:
			return fmt.Errorf("wire: an answer of more than %d parts", maxTokens)
		}
	}
}

// CheckError returns a guest's error with its sentences bounded, nil when it is
// none or of a kind that a guest does not answer with.
func CheckError(from *sandbox.Error) *sandbox.Error {
	if from == nil || !from.Kind.Valid() {
		return nil
	}
	e := *from
	e.Message, e.Hint, e.Field, e.Value = Tidy(e.Message), Tidy(e.Hint), Tidy(e.Field), Tidy(e.Value)
	return &e
}

// Tidy bounds a guest's sentence to about 512 bytes and makes it valid UTF-8.
func Tidy(s string) string {
	if len(s) > maxSentence {
		s = s[:maxSentence] + "..."
	}
	if utf8.ValidString(s) {
		return s
	}
	return string(bytes.ToValidUTF8([]byte(s), []byte("\ufffd")))
}

// DecodeExit decodes the payload of a FrameExit.
func DecodeExit(b []byte) (sandbox.Exit, error) {
	var x sandbox.Exit
	if err := Decode(b, &x); err != nil {
		return x, err
	}
	return x, checkExit(&x)
}

// checkExit refuses what no wait status can say: others make exit codes of it.
func checkExit(x *sandbox.Exit) error {
	switch {
	case x.Code < -1 || x.Code > 255:
		return fmt.Errorf("wire: exit code %d", x.Code)
	case x.Signal < 0 || x.Signal > maxSignal:
		return fmt.Errorf("wire: exit by signal %d", x.Signal)
	}
	x.Reason = Tidy(x.Reason)
	return nil
}

// Check refuses what no process can be, and bounds the sentence of its end. Its
// words are the guest's all the same.
func (p *Process) Check() error {
	text := len(p.ID) + len(p.Tag) + len(p.Cwd) + len(p.User)
	for _, a := range p.Argv {
		text += len(a)
	}
	if text > maxText {
		return fmt.Errorf("wire: a process of %d bytes", text)
	}
	for _, n := range []int64{
		int64(p.PID), p.Stdin, p.Stdout.Written, p.Stdout.Dropped, p.Stdout.Acked,
		p.Stderr.Written, p.Stderr.Dropped, p.Stderr.Acked,
	} {
		if n < 0 || n > 1<<62 {
			return fmt.Errorf("wire: a process with a count of %d", n)
		}
	}
	if p.Exit == nil {
		return nil
	}
	return checkExit(p.Exit)
}

// Check refuses what no directory entry can be.
func (e *Entry) Check() error {
	switch e.Type {
	case TypeFile, TypeDir, TypeSymlink, TypeOther:
	default:
		return fmt.Errorf("wire: an entry of type %q", Tidy(string(e.Type)))
	}
	switch e.TargetType {
	case "", TypeFile, TypeDir, TypeOther:
	default:
		return fmt.Errorf("wire: a link to an entry of type %q", Tidy(string(e.TargetType)))
	}
	if e.Size < 0 {
		return fmt.Errorf("wire: an entry of %d bytes", e.Size)
	}
	return nil
}

// Check refuses counts that cannot be.
func (m *Metrics) Check() error {
	for _, n := range []int64{int64(m.CPUs), m.MemTotal, m.MemUsed, m.MemCache, m.DiskTotal, m.DiskUsed, m.Processes} {
		if n < 0 {
			return fmt.Errorf("wire: a count of %d", n)
		}
	}
	for _, n := range m.LimitHits {
		if n < 0 {
			return fmt.Errorf("wire: a limit that was hit %d times", n)
		}
	}
	return nil
}

// Check refuses a stdin count that cannot be.
func (s *StdinReply) Check() error {
	if s.Offset < 0 || s.Offset > 1<<62 {
		return fmt.Errorf("wire: %d bytes of standard input", s.Offset)
	}
	return nil
}

// Check refuses an answer to a hello with start that no guest of ours gives,
// and bounds its sentences.
func (r *HelloReply) Check(start *Start) error {
	if len(r.Build) > maxName || len(r.BootID) > maxName {
		return fmt.Errorf("wire: a name of %d bytes", max(len(r.Build), len(r.BootID)))
	}
	r.Build, r.BootID = Tidy(r.Build), Tidy(r.BootID)
	if len(r.Users) > maxUsers {
		return fmt.Errorf("wire: a list of %d users", len(r.Users))
	}
	for i, name := range r.Users {
		if len(name) > maxName {
			return fmt.Errorf("wire: a user's name of %d bytes", len(name))
		}
		r.Users[i] = Tidy(name)
	}
	if r.Restore != nil {
		if err := r.Restore.check(); err != nil {
			return err
		}
	}
	return r.checkStart(start)
}

func (r *HelloReply) checkStart(start *Start) error {
	switch {
	case start == nil && (r.Process != nil || r.StartError != nil):
		return fmt.Errorf("wire: word of a process that was not asked for")
	case r.Process != nil && r.StartError != nil:
		return fmt.Errorf("wire: a process that has started and has not")
	case r.Process != nil && r.Process.ID != start.ID:
		return fmt.Errorf("wire: another process than was asked for")
	case r.Process != nil:
		return r.Process.Check()
	case r.StartError != nil:
		if r.StartError = CheckError(r.StartError); r.StartError == nil {
			return fmt.Errorf("wire: an error of no known kind")
		}
	}
	return nil
}
