package roles

import (
	"bufio"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

func TestParsePages(t *testing.T) {
	const smaps = `00400000-011f2000 r-xp 00000000 fd:00 77                                 /usr/bin/engine
Rss:               13944 kB
Anonymous:             0 kB
011f2000-02000000 r--p 00df2000 fd:00 77                                 /usr/bin/engine
Anonymous:             0 kB
02000000-02001000 r--p 01c00000 fd:00 77                                 /usr/bin/engine
Anonymous:             4 kB
02001000-02080000 rw-p 01c01000 fd:00 77                                 /usr/bin/engine
Anonymous:             0 kB
02080000-02090000 r--p 00000000 fd:00 78                                 /usr/lib/other
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7ff000-bad r--p 00000000 fd:00 77 /usr/bin/engine
Anonymous:             0 kB
`
	want := []span{{0x400000, 0x11f2000}, {0x11f2000, 0x2000000}, {0x7ff000, 0xbad}}
	if got := parsePages(bufio.NewScanner(strings.NewReader(smaps)), 77); !reflect.DeepEqual(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if got := parsePages(bufio.NewScanner(strings.NewReader(smaps)), 0); got != nil {
		t.Errorf("without an inode: %x", got)
	}
}

func rssFile(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssFile:"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no RssFile")
	return 0
}

// TestDrop: what is dropped is gone, and comes back where it is needed.
func TestDrop(t *testing.T) {
	pages := ownPages()
	if len(pages) == 0 {
		t.Fatal("a program without pages")
	}
	before := rssFile(t)
	drop(pages)
	if after := rssFile(t); after > before*2/3 {
		t.Errorf("%d KiB of files mapped, %d before", after, before)
	}
}
