package drivertest

import (
	"os"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/internal/filetree"
	"github.com/belljar-sh/belljar/sandbox"
)

// files saves what a sandbox has written, with and without its going on, and
// begins others with it: each has the files of then and no memory.
func (s *suite) files() {
	if !s.f.Driver.Probe(s.ctx()).Capabilities.FileSnapshot {
		s.Skip("probe: this driver saves no files here")
	}
	b := s.running()
	b.counts("1")
	b.writes("1")
	b.lists()
	kept := b.saveFiles(true)
	b.counts("2") // its memory is as it was
	b.writes("2")
	last := b.saveFiles(false)
	b.destroy()

	for _, c := range []struct{ dir, next string }{{last, "3"}, {kept, "2"}, {last, "3"}} {
		req := s.request()
		req.Files = c.dir
		again := s.create(req)
		if err := again.inst.Start(s.ctx()); err != nil {
			s.Fatalf("start with files: %v", describe(err))
		}
		if err := again.hello(again.inst.Channels().Down, 3); err != nil {
			s.Fatalf("hello with files: %v", describe(err))
		}
		again.counts("1")
		again.writes(c.next)
		again.destroy()
	}
	s.noFiles()
}

// noFiles asks for what there is not.
func (s *suite) noFiles() {
	nothing := s.create(s.request())
	if err := nothing.inst.(driver.FileSaver).SaveFiles(s.ctx(), s.imageDir(), true); sandbox.KindOf(err) != sandbox.Conflict {
		s.Errorf("files of a sandbox that has not started: %v", err)
	}
	if _, err := nothing.inst.(driver.FileLister).ListFiles(s.ctx()); sandbox.KindOf(err) != sandbox.Conflict {
		s.Errorf("a list of a sandbox that has not started: %v", err)
	}
	nothing.destroy()
	req := s.request()
	req.Files = s.imageDir()
	if _, err := s.f.Driver.Create(s.ctx(), req); sandbox.KindOf(err) != sandbox.NotFound {
		s.Errorf("a create with files that are not there: %v, want not_found", err)
	}
}

// writes has the guest count on in a file.
func (b *box) writes(want string) {
	b.s.Helper()
	if got := b.ask("POST", "/v1/test/file", nil); got != want {
		b.s.Errorf("the file counts %q, want %q", got, want)
	}
}

// lists looks for the file of writes in the list of what has changed.
func (b *box) lists() {
	b.s.Helper()
	f, err := b.inst.(driver.FileLister).ListFiles(b.s.ctx())
	if err != nil {
		b.s.Fatalf("list: %v", describe(err))
	}
	defer f.Close()
	for e, err := range filetree.Entries(f) {
		if err != nil {
			b.s.Fatalf("list: %v", describe(err))
		}
		if e.Type == filetree.File && e.Size == 1 && e.Mode == 0o600 {
			return
		}
	}
	b.s.Error("the list does not name the file that was written")
}

func (b *box) saveFiles(leaveRunning bool) (dir string) {
	b.s.Helper()
	dir = b.s.imageDir()
	full := b.s.imageDir()
	for _, name := range []string{"files", "tree", "pages-meta", "pages"} {
		if err := os.WriteFile(filepath.Join(full, name), nil, 0o600); err != nil {
			b.s.Fatal(err)
		}
	}
	saver := b.inst.(driver.FileSaver)
	if err := saver.SaveFiles(b.s.ctx(), full, leaveRunning); err == nil {
		b.s.Error("an image was written over another")
	}
	if err := saver.SaveFiles(b.s.ctx(), dir, leaveRunning); err != nil {
		b.s.Fatalf("save files: %v", describe(err))
	}
	return dir
}
