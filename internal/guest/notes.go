package guest

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// notes are the small files of the guest's own in RunDir. They are kept open:
// each hello writes them, and a claim waits for it. By hello only, which the
// host sends one at a time.
type notes map[string]*notedFile

type notedFile struct{ fd, size int }

// note writes a small file in place: it may be bound over another.
func (s *Server) note(name, text string) {
	f := s.noted(name)
	if f == nil {
		return
	}
	unix.Pwrite(f.fd, []byte(text), 0)
	if len(text) < f.size {
		unix.Ftruncate(f.fd, int64(len(text)))
	}
	f.size = len(text)
}

// noted returns one of the files, nil when it cannot be had.
func (s *Server) noted(name string) *notedFile {
	if f := s.notes[name]; f != nil {
		return f
	}
	fd, err := unix.Open(filepath.Join(s.cfg.RunDir, name), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return nil
	}
	if s.notes == nil {
		s.notes = notes{}
	}
	s.notes[name] = &notedFile{fd: fd}
	return s.notes[name]
}

// renew has the files opened anew when somebody inside has cleaned them away,
// but for that of the boot ID, which may be bound over the kernel's.
func (n notes) renew() {
	f := n["generation"]
	if f == nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) == nil && st.Nlink > 0 {
		return
	}
	for name, f := range n {
		if name != "boot_id" {
			unix.Close(f.fd)
			delete(n, name)
		}
	}
}
