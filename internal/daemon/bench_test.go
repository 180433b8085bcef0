package daemon_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/sandbox"
)

// What daemon and keeper cost on the way to a guest that runs on the host.
func BenchmarkThrough(b *testing.B) {
	in := install(b)
	c := in.dial()
	sb := create(b, c, sandbox.Spec{User: "root", Workdir: "/"})
	ref := string(sb.ID)
	const size = 256 << 20
	path := filepath.Join(b.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		b.Fatal(err)
	}
	exec := func(b *testing.B, s client.Streams, argv ...string) {
		exit, err := c.Exec(b.Context(), ref, client.ExecOptions{Argv: argv, Streams: s})
		if err != nil || exit.Code != 0 {
			events(b, c, ref)
			b.Fatalf("exec: %+v, %v", exit, err)
		}
	}
	b.Run("info", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Info(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			exec(b, client.Streams{}, "/bin/true")
		}
	})
	b.Run("output", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			exec(b, client.Streams{Stdout: io.Discard}, "/bin/cat", path)
		}
	})
	b.Run("input", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			exec(b, client.Streams{Stdin: io.LimitReader(zeros{}, size)}, "/bin/sh", "-c", "cat >/dev/null")
		}
	})
	b.Run("download", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			f, err := c.GetFile(b.Context(), ref, path, "root", 0)
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, f, make([]byte, 512<<10))
			f.Close()
			if err != nil || n != size {
				events(b, c, ref)
				b.Fatalf("%d, %v", n, err)
			}
		}
	})
	b.Run("upload", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.PutFile(b.Context(), ref, path+"2", "root", 0, io.LimitReader(zeros{}, size), size); err != nil {
				events(b, c, ref)
				b.Fatal(err)
			}
		}
	})
}

// events logs the state and limit events of a sandbox.
func events(b *testing.B, c *client.Client, ref string) {
	ev, err := c.Events(b.Context(), ref, 0, false)
	if err != nil {
		b.Log(err)
		return
	}
	defer ev.Close()
	for e, err := ev.Next(); err == nil; e, err = ev.Next() {
		if e.Kind != sandbox.EventExit {
			b.Log(e.Kind, e.State, e.Limit, e.Message)
		}
	}
}

// zeros is a reader without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
