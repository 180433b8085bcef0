package terminal_test

import (
	"bytes"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/testenv"
)

func cooked(t *testing.T, f *os.File) bool {
	t.Helper()
	tio, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return tio.Lflag&(unix.ICANON|unix.ECHO) != 0
}

func TestRestore(t *testing.T) {
	master, slave := testenv.OpenPTY(t)
	term := terminal.New(slave, slave)
	if err := term.Raw(); err != nil {
		t.Fatal(err)
	}
	if cooked(t, slave) {
		t.Fatal("the terminal is not raw")
	}
	if _, err := io.WriteString(term.Output(), "\x1b[?1049h\x1b[?25lhello"); err != nil {
		t.Fatal(err)
	}
	if _, err := master.WriteString("rm -rf /\n"); err != nil { // typed and never read
		t.Fatal(err)
	}
	term.Restore()
	term.Restore()
	if !cooked(t, slave) {
		t.Error("the terminal is still raw")
	}
	const want = "\x1b[?1049h\x1b[?25lhello\x1b[?1049l\x1b[?25h"
	got := make([]byte, 4096)
	n, err := io.ReadAtLeast(master, got, len(want))
	if err != nil || !bytes.HasPrefix(got[:n], []byte("\x1b[?1049h\x1b[?25lhello")) || n != len(want) {
		t.Errorf("output %q, %v, want %q", got[:n], err, want)
	}
	if left, err := unix.IoctlGetInt(int(slave.Fd()), unix.TIOCINQ); err != nil || left != 0 {
		t.Errorf("%d bytes of input are left for the shell (%v)", left, err)
	}
}

func TestSizeAndIsTerminal(t *testing.T) {
	master, slave := testenv.OpenPTY(t)
	testenv.Resize(t, master, 132, 43)
	if cols, rows, err := terminal.Size(slave); cols != 132 || rows != 43 || err != nil {
		t.Errorf("Size = %d, %d, %v", cols, rows, err)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if !terminal.IsTerminal(slave) || terminal.IsTerminal(file) || terminal.IsTerminal(nil) {
		t.Error("IsTerminal is wrong")
	}
}
