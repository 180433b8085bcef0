package image

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/belljar-sh/belljar/internal/filesum"
	"github.com/belljar-sh/belljar/sandbox"
)

// Key is an installation's: what it has written it knows by its signature
// (Ed25519, RFC 8032). It cannot be printed. It is safe for concurrent use.
type Key struct {
	private ed25519.PrivateKey
}

// LoadKey reads the key at path, and makes it, with mode 0600 and synced, when
// there is none. Of two that make it at the same time both have the same.
func LoadKey(path string) (*Key, error) {
	seed, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeKey(path); err != nil {
			return nil, keyError(path, err)
		}
		seed, err = readSmall(path)
	}
	if err != nil {
		return nil, keyError(path, err)
	}
	raw, err := hex.DecodeString(string(seed))
	if err != nil || len(raw) != ed25519.SeedSize {
		return nil, sandbox.Errorf(sandbox.Internal, "the installation's key is damaged").WithField("key", path).
			WithHint("put it back as it was; without it nothing that this installation has saved is restored with its memory")
	}
	return &Key{ed25519.NewKeyFromSeed(raw)}, nil
}

// NewKey draws a key that lies nowhere.
func NewKey() *Key {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	return &Key{ed25519.NewKeyFromSeed(seed)}
}

func keyError(path string, err error) error {
	return sandbox.Errorf(sandbox.Internal, "the installation's key cannot be used: %w", err).WithField("key", path)
}

// makeKey writes a new key aside and gives it its name, unless another has that
// by then.
func makeKey(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	_, err = f.WriteString(hex.EncodeToString(seed))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return filesum.SyncPath(filepath.Dir(path))
}

// Public is the key's public half, in hexadecimal: it names the installation.
func (k *Key) Public() string {
	return hex.EncodeToString(k.private.Public().(ed25519.PublicKey))
}

// Derive returns 32 bytes that only this installation has, and always the same
// for one purpose.
func (k *Key) Derive(purpose string) []byte {
	h := hmac.New(sha256.New, k.private.Seed())
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// String keeps the key out of logs.
func (k *Key) String() string { return "key of the installation" }

// GoString keeps the key out of logs.
func (k *Key) GoString() string { return k.String() }

func (k *Key) sign(text []byte) string {
	return hex.EncodeToString(ed25519.Sign(k.private, text))
}

// signed reports whether signature is that of the public key over text. Both are
// taken in lower case only: a flipped bit makes upper case of it.
func signed(public, signature string, text []byte) bool {
	key, err := hex.DecodeString(public)
	if err != nil || len(key) != ed25519.PublicKeySize || hex.EncodeToString(key) != public {
		return false
	}
	sig, err := hex.DecodeString(signature)
	if err != nil || hex.EncodeToString(sig) != signature {
		return false
	}
	return ed25519.Verify(key, text, sig)
}
