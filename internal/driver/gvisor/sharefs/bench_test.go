package sharefs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/lisafs"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/runsc/fsgofer"
)

// servers are ours and, for comparison, gVisor's own.
var servers = []struct {
	name  string
	start func(testing.TB, string, *unet.Socket)
}{
	{"sharefs", func(b testing.TB, dir string, sock *unet.Socket) { startServer(b, dir, protected, sock, newMadeDirs()) }},
	{"fsgofer", func(b testing.TB, dir string, sock *unet.Socket) {
		if err := fsgofer.OpenProcSelfFD("/proc/self/fd"); err != nil {
			b.Fatal(err)
		}
		srv := lisafs.NewServer()
		lc, err := srv.CreateConnection(sock, dir, fsgofer.ConnectionOpts(false), fsgofer.NewConnectionImpl(&fsgofer.Config{}))
		if err != nil {
			b.Fatal(err)
		}
		srv.StartConnection(lc)
		b.Cleanup(srv.Wait)
	}},
}

func benchmark(b *testing.B, run func(b *testing.B, ctx context.Context, client *lisafs.Client, root *lisafs.ClientFD)) {
	for _, s := range servers {
		b.Run(s.name, func(b *testing.B) {
			dir := b.TempDir()
			for i := range 1000 {
				path := filepath.Join(dir, "a", fmt.Sprintf("d%d", i/100), fmt.Sprintf("f%d", i))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("content"), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			ours, theirs, err := unet.SocketPair(false)
			if err != nil {
				b.Fatal(err)
			}
			s.start(b, dir, ours)
			client, in, _, err := lisafs.NewClient(theirs)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(client.Close)
			if err := client.StartChannels(); err != nil {
				b.Fatal(err)
			}
			root := client.NewFD(in.ControlFD)
			run(b, context.Background(), client, &root)
		})
	}
}

func name(i int) []string {
	return []string{"a", fmt.Sprintf("d%d", i%1000/100), fmt.Sprintf("f%d", i%1000)}
}

// BenchmarkStat is what every use of a path costs in a shared mount.
func BenchmarkStat(b *testing.B) {
	benchmark(b, func(b *testing.B, ctx context.Context, _ *lisafs.Client, root *lisafs.ClientFD) {
		for i := 0; b.Loop(); i++ {
			if st, err := root.WalkStat(ctx, name(i)); err != nil || len(st) != 3 {
				b.Fatal(len(st), err)
			}
		}
	})
}

func BenchmarkWalkOpenRead(b *testing.B) {
	buf := make([]byte, 64)
	benchmark(b, func(b *testing.B, ctx context.Context, client *lisafs.Client, root *lisafs.ClientFD) {
		for i := 0; b.Loop(); i++ {
			_, inodes, err := root.WalkMultiple(ctx, name(i))
			if err != nil || len(inodes) != 3 {
				b.Fatal(len(inodes), err)
			}
			fd := client.NewFD(inodes[2].ControlFD)
			open, hostFD, err := fd.OpenAt(ctx, unix.O_RDONLY)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := unix.Pread(hostFD, buf, 0); err != nil {
				b.Fatal(err)
			}
			unix.Close(hostFD)
			for _, id := range []lisafs.FDID{open, inodes[0].ControlFD, inodes[1].ControlFD, inodes[2].ControlFD} {
				client.CloseFD(ctx, id, false)
			}
		}
	})
}

func BenchmarkCreateUnlink(b *testing.B) {
	benchmark(b, func(b *testing.B, ctx context.Context, client *lisafs.Client, root *lisafs.ClientFD) {
		for b.Loop() {
			in, open, hostFD, err := root.OpenCreateAt(ctx, "new", unix.O_RDWR, 0o644, lisafs.UID(os.Getuid()), lisafs.GID(os.Getgid()))
			if err != nil {
				b.Fatal(err)
			}
			unix.Close(hostFD)
			client.CloseFD(ctx, open, false)
			client.CloseFD(ctx, in.ControlFD, false)
			if err := root.UnlinkAt(ctx, "new", 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkReadDir(b *testing.B) {
	benchmark(b, func(b *testing.B, ctx context.Context, client *lisafs.Client, root *lisafs.ClientFD) {
		_, inodes, err := root.WalkMultiple(ctx, []string{"a", "d1"})
		if err != nil {
			b.Fatal(err)
		}
		fd := client.NewFD(inodes[1].ControlFD)
		open, _, err := fd.OpenAt(ctx, unix.O_RDONLY)
		if err != nil {
			b.Fatal(err)
		}
		dir := client.NewFD(open)
		for b.Loop() {
			if e, err := dir.Getdents64(ctx, -65536); err != nil || len(e) != 100 {
				b.Fatal(len(e), err)
			}
		}
	})
}
