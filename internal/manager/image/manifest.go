package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// Version is that of the manifest's format.
const Version = 2

// maxManifest bounds what is read of a manifest: an environment has its place in
// it.
const maxManifest = 4 << 20

// Manifest says what an image is of and what it must be restored with.
type Manifest struct {
	Version    int                  `json:"version"`
	Kind       sandbox.SnapshotKind `json:"kind"`
	Snapshot   sandbox.ID           `json:"snapshot,omitempty"` // its ID, where the image is a snapshot's
	Sandbox    sandbox.ID           `json:"sandbox"`            // that was saved
	Generation uint64               `json:"generation"`         // that was saved
	Build      string               `json:"build"`              // of the programs that saved it
	Boundary   sandbox.Boundary     `json:"boundary"`
	Template   Template             `json:"template"`
	Limits     sandbox.Limits       `json:"limits"`
	Explicit   driver.Explicit      `json:"explicit"`
	User       string               `json:"user"`
	Workdir    string               `json:"workdir,omitempty"`
	Hostname   string               `json:"hostname"`
	Env        map[string]string    `json:"env,omitempty"`
	// Command and Captured are what the record knew of processes that go on.
	Command  *sandbox.Command `json:"command,omitempty"`
	Captured []string         `json:"captured,omitempty"`
	Dir      string           `json:"dir,omitempty"` // inside, that a snapshot of a directory was taken of
	SavedAt  time.Time        `json:"saved_at"`
	Files    []File           `json:"files"`

	signer string // the public key whose signature it bears
}

// ID is that of the snapshot or, where there is none, of the sandbox.
func (m *Manifest) ID() sandbox.ID {
	if m.Snapshot != "" {
		return m.Snapshot
	}
	return m.Sandbox
}

// SignedBy reports whether the manifest that was parsed bears the key's
// signature.
func (m *Manifest) SignedBy(k *Key) bool { return m.signer == k.Public() }

// Template is what is known of the template that a sandbox started from.
type Template struct {
	Name       string    `json:"name"`
	Kind       string    `json:"kind,omitempty"`
	Digest     string    `json:"digest,omitempty"`
	HostBacked bool      `json:"host_backed,omitempty"`
	CreatedAt  time.Time `json:"created_at,omitzero"`
}

// Same reports whether t and o are one template, as far as is known of both: one
// with a digest may have been made again.
func (t Template) Same(o Template) bool {
	return t.Name == o.Name && t.Kind == o.Kind && t.Digest == o.Digest && (t.Digest != "" || t.CreatedAt.Equal(o.CreatedAt))
}

// Bytes is what the image's files hold.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// sealed is how a manifest lies on disk.
type sealed struct {
	Manifest  *Manifest `json:"manifest"`
	SHA256    string    `json:"sha256"` // of the manifest, as it is encoded
	Key       string    `json:"key"`    // public half of the installation's
	Signature string    `json:"signature"`
}

// signedText is what is signed of a manifest, or of what else lies beside it.
func signedText(what string, body []byte) []byte {
	return append([]byte("belljar "+what+"\n"), body...)
}

func (m *Manifest) encode(k *Key) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	b, err = json.Marshal(sealed{m, hex.EncodeToString(sum[:]), k.Public(), k.sign(signedText("manifest", b))})
	return append(b, '\n'), err
}

// Parse reads a manifest that somebody has signed, whatever its files hold now;
// whose signature it bears is for the caller to ask. It takes only the form in
// which manifests are written: JSON has many for one value, and a flipped bit may
// make one of another.
func Parse(b []byte) (*Manifest, error) {
	var s sealed
	if err := json.Unmarshal(b, &s); err != nil || s.Manifest == nil {
		return nil, errors.New("is no manifest")
	}
	if s.Manifest.Version != Version {
		return nil, fmt.Errorf("has version %d and this build reads %d", s.Manifest.Version, Version)
	}
	body, err := json.Marshal(s.Manifest)
	if err != nil {
		return nil, errors.New("cannot be encoded again")
	}
	sum := sha256.Sum256(body)
	again, err := json.Marshal(s)
	if err != nil || !bytes.Equal(append(again, '\n'), b) || s.SHA256 != hex.EncodeToString(sum[:]) ||
		!signed(s.Key, s.Signature, signedText("manifest", body)) {
		return nil, errors.New("has changed since it was written")
	}
	s.Manifest.signer = s.Key
	return s.Manifest, s.Manifest.check()
}

// check is everything that can be said of a manifest by itself: who signed it may
// have been anybody.
func (m *Manifest) check() error {
	if !m.Kind.Valid() {
		return fmt.Errorf("is of a kind %q that this build does not know", m.Kind)
	}
	for _, id := range []sandbox.ID{m.ID(), m.Sandbox} {
		if _, err := sandbox.ParseID(string(id)); err != nil {
			return fmt.Errorf("has the ID %q", id)
		}
	}
	if m.Generation > maxGeneration {
		return fmt.Errorf("has the generation %d", m.Generation)
	}
	if err := m.Limits.Validate(); err != nil {
		return fmt.Errorf("has limits that cannot be: %w", err)
	}
	if err := sandbox.CheckEnv(m.Env); err != nil {
		return fmt.Errorf("has an environment that cannot be: %w", err)
	}
	if m.Dir != "" {
		if err := sandbox.CheckPath("dir", m.Dir); err != nil {
			return fmt.Errorf("has a directory that cannot be: %w", err)
		}
	}
	if len(m.Files) == 0 || len(m.Files) > maxFiles {
		return fmt.Errorf("lists %d files", len(m.Files))
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		if f.Name != filepath.Base(f.Name) || f.Name == "." || f.Name == ".." || f.Name == ManifestName || f.Name == namesName || len(f.Name) > maxFileName {
			return fmt.Errorf("names the file %q", f.Name)
		}
		if seen[f.Name] || f.Size < 0 {
			return fmt.Errorf("lists the file %q twice or with %d bytes", f.Name, f.Size)
		}
		seen[f.Name] = true
	}
	return nil
}

// Bounds on the files of an image.
const (
	maxFiles    = 64
	maxFileName = 64
)

// maxGeneration is more than any sandbox gets to, and leaves room to count on.
const maxGeneration = 1 << 62
