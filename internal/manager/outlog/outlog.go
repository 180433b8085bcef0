// Package outlog keeps the output of one process on disk: the beginning and
// the end of it, in the order in which it came, with the middle left out when
// there is too much.
//
// A log is a directory of segments that hold frames of guest/wire as they are
// served. A segment's name tells at which byte of each stream it begins, so a
// hole between two segments is a gap that can be counted. The first segment is
// kept for ever, of the others the newest. A writer that was killed leaves a
// torn frame at most, which the next one cuts off.
package outlog

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

// Sizes on disk: a log never has more than Segments + 1 segments of about
// SegmentBytes, plus one frame each.
const (
	SegmentBytes = 1 << 20
	Segments     = 8
)

// Log is the log of one process. One writer and any number of readers may use
// it at once.
type Log struct {
	dir string

	mu      sync.Mutex
	changed chan struct{}
	segs    []segment
	at      [3]int64 // by stream: the next byte
	file    *os.File // the last segment
	size    int64    // of it
	exit    *sandbox.Exit
}

// segment is one file; it begins at these bytes of the streams.
type segment struct {
	index          int64
	stdout, stderr int64
}

func (s segment) name() string {
	return fmt.Sprintf("%016x-%016x-%016x.frames", s.index, s.stdout, s.stderr)
}

func parseSegment(name string) (s segment, ok bool) {
	n, err := fmt.Sscanf(name, "%016x-%016x-%016x.frames", &s.index, &s.stdout, &s.stderr)
	return s, err == nil && n == 3 && s.name() == name
}

// Open opens the log in dir, making it when it is missing.
func Open(dir string) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("outlog: %w", err)
	}
	l := &Log{dir: dir, changed: make(chan struct{})}
	segs, err := list(dir)
	if err != nil {
		return nil, err
	}
	if l.segs = segs; len(segs) == 0 {
		return l, l.begin(segment{})
	}
	return l, l.resume()
}

func list(dir string) (segs []segment, err error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("outlog: %w", err)
	}
	for _, n := range names {
		if s, ok := parseSegment(n.Name()); ok {
			segs = append(segs, s)
		}
	}
	slices.SortFunc(segs, func(a, b segment) int { return int(a.index - b.index) })
	return segs, nil
}

// begin starts a segment.
func (l *Log) begin(s segment) error {
	f, err := os.OpenFile(filepath.Join(l.dir, s.name()), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("outlog: %w", err)
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.size = f, 0
	l.segs = append(l.segs, s)
	if len(l.segs) > Segments+1 {
		old := l.segs[1]
		l.segs = slices.Delete(slices.Clone(l.segs), 1, 2)
		return os.Remove(filepath.Join(l.dir, old.name()))
	}
	return nil
}

// resume reads the last segment and cuts a torn frame off.
func (l *Log) resume() error {
	last := l.segs[len(l.segs)-1]
	f, err := os.OpenFile(filepath.Join(l.dir, last.name()), os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("outlog: %w", err)
	}
	l.file, l.at[wire.Stdout], l.at[wire.Stderr] = f, last.stdout, last.stderr
	r := bufio.NewReaderSize(f, 256<<10)
	buf := make([]byte, wire.MaxPayload)
	for {
		h, err := wire.ReadFrame(r)
		if err != nil {
			break
		}
		if _, err := io.ReadFull(r, buf[:h.Len]); err != nil {
			break
		}
		l.size += wire.HeaderLen + int64(h.Len)
		if h.Type == wire.FrameData || h.Type == wire.FrameGap {
			l.at[h.Stream] = after(h, buf[:h.Len])
		}
		if h.Type == wire.FrameExit {
			l.exit = new(sandbox.Exit)
			if err := json.Unmarshal(buf[:h.Len], l.exit); err != nil {
				return errors.Join(fmt.Errorf("outlog: an exit cannot be read: %w", err), f.Close())
			}
		}
	}
	if err := f.Truncate(l.size); err != nil {
		return fmt.Errorf("outlog: %w", err)
	}
	return nil
}

// Next returns the bytes of each stream that come next, and whether the exit
// has been written.
func (l *Log) Next() (stdout, stderr int64, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[wire.Stdout], l.at[wire.Stderr], l.exit != nil
}

// Exit returns the exit that has been written, nil as long as there is none.
func (l *Log) Exit() *sandbox.Exit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exit
}

// Write appends data, which stands at offset of its stream. Bytes that are
// there already are skipped, a hole is a gap.
func (l *Log) Write(stream wire.Stream, offset int64, data []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream != wire.Stdout && stream != wire.Stderr {
		return errors.New("outlog: unknown stream")
	}
	at := l.at[stream]
	if skip := at - offset; skip > 0 {
		if skip >= int64(len(data)) {
			return nil
		}
		data, offset = data[skip:], at
	}
	for len(data) > 0 {
		n := min(len(data), wire.MaxPayload)
		if err := l.write(wire.Frame{Type: wire.FrameData, Stream: stream, Offset: uint64(offset)}, data[:n]); err != nil {
			return err
		}
		offset += int64(n)
		data = data[n:]
	}
	return nil
}

// Jump records that a stream goes on at offset only: what is missing is a gap.
func (l *Log) Jump(stream wire.Stream, offset int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if (stream != wire.Stdout && stream != wire.Stderr) || offset <= l.at[stream] {
		return nil
	}
	at := l.at[stream]
	var lost [8]byte
	binary.BigEndian.PutUint64(lost[:], uint64(offset-at))
	return l.write(wire.Frame{Type: wire.FrameGap, Stream: stream, Offset: uint64(at)}, lost[:])
}

// after returns the byte that follows a frame with that payload.
func after(f wire.Frame, payload []byte) int64 {
	if f.Type == wire.FrameGap && len(payload) == 8 {
		return int64(f.Offset) + int64(binary.BigEndian.Uint64(payload))
	}
	return int64(f.Offset) + int64(f.Len)
}

// End appends the exit.
func (l *Log) End(exit sandbox.Exit) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exit != nil {
		return nil
	}
	b, err := json.Marshal(exit)
	if err != nil {
		return fmt.Errorf("outlog: %w", err)
	}
	if err := l.write(wire.Frame{Type: wire.FrameExit}, b); err != nil {
		return err
	}
	l.exit = &exit
	return nil
}

// write appends one frame, with l.mu held. A write that fails half way is cut
// off again.
func (l *Log) write(f wire.Frame, data []byte) error {
	if l.file == nil {
		return os.ErrClosed
	}
	if l.size >= SegmentBytes {
		last := l.segs[len(l.segs)-1]
		next := segment{index: last.index + 1, stdout: l.at[wire.Stdout], stderr: l.at[wire.Stderr]}
		if err := l.begin(next); err != nil {
			return err
		}
	}
	f.Len = uint32(len(data))
	buf := make([]byte, wire.HeaderLen, wire.HeaderLen+len(data))
	f.Put(buf)
	buf = append(buf, data...)
	if _, err := l.file.Write(buf); err != nil {
		return errors.Join(fmt.Errorf("outlog: %w", err), l.file.Truncate(l.size))
	}
	l.size += int64(len(buf))
	if f.Type == wire.FrameData || f.Type == wire.FrameGap {
		l.at[f.Stream] = after(f, data)
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// Close ends writing; readers go on to the end.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	close(l.changed)
	l.changed = make(chan struct{})
	return err
}

// state returns what a reader needs to go on: the segments, how long the last
// one is, whether more can come and a channel that tells when it has.
func (l *Log) state() (segs []segment, size int64, more bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.segs, l.size, l.exit == nil && l.file != nil, l.changed
}

// gap appends a gap frame to b when bytes are missing.
func gap(b []byte, stream wire.Stream, at, next int64) []byte {
	if next <= at {
		return b
	}
	var f [wire.HeaderLen + 8]byte
	wire.Frame{Type: wire.FrameGap, Stream: stream, Len: 8, Offset: uint64(at)}.Put(f[:])
	binary.BigEndian.PutUint64(f[wire.HeaderLen:], uint64(next-at))
	return append(b, f[:]...)
}
