package filesum

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

// PieceLen is the length of a piece, in bytes.
const PieceLen = 8 << 20

// readLen is what is read at once.
const readLen = 256 << 10

// Hash counts a stream. The zero value is not ready: see [NewHash]. It is for one
// goroutine.
type Hash struct {
	piece  hash.Hash
	left   int64 // of the piece
	sums   hash.Hash
	pieces int
}

// NewHash returns a Hash of nothing.
func NewHash() *Hash { return &Hash{piece: sha256.New(), left: PieceLen, sums: sha256.New()} }

// Write adds b to the stream; it never fails.
func (h *Hash) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if h.left == 0 {
			h.turn()
		}
		part := b[:min(int64(len(b)), h.left)]
		h.piece.Write(part)
		h.left -= int64(len(part))
		b = b[len(part):]
	}
	return n, nil
}

// turn ends a piece.
func (h *Hash) turn() {
	h.sums.Write(h.piece.Sum(nil))
	h.pieces++
	h.piece.Reset()
	h.left = PieceLen
}

// Hex returns the digest in hexadecimal. Nothing may be written after it.
func (h *Hash) Hex() string {
	if h.pieces == 0 {
		return hex.EncodeToString(h.piece.Sum(nil))
	}
	h.turn()
	return hex.EncodeToString(h.sums.Sum(nil))
}

// Digest returns the digest, in hexadecimal, of a file from its beginning.
func Digest(f *os.File) (string, error) {
	sum, _, err := digestFile(f)
	return sum, err
}

// digestFile counts the pieces of a file on all processors that the process may
// use.
func digestFile(f *os.File) (sum string, size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return "", 0, err
	}
	size = info.Size()
	count := int64(1)
	if size > PieceLen {
		count = (size + PieceLen - 1) / PieceLen
	}
	sums := make([][sha256.Size]byte, count)
	errs := make([]error, min(count, int64(runtime.GOMAXPROCS(0))))
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			h, buf := sha256.New(), make([]byte, min(readLen, max(size, 1)))
			for n := next.Add(1) - 1; n < count && errs[w] == nil; n = next.Add(1) - 1 {
				h.Reset()
				errs[w] = add(h, f, n*PieceLen, min(PieceLen, size-n*PieceLen), buf)
				h.Sum(sums[n][:0])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", size, err
	}
	if count == 1 {
		return hex.EncodeToString(sums[0][:]), size, nil
	}
	h := sha256.New()
	for n := range sums {
		h.Write(sums[n][:])
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// add writes length bytes of f from at to h.
func add(h hash.Hash, f *os.File, at, length int64, buf []byte) error {
	for length > 0 {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), length)], at)
		h.Write(buf[:n])
		at, length = at+int64(n), length-int64(n)
		if err != nil && length > 0 {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // it has become shorter
			}
			return err
		}
	}
	return nil
}
