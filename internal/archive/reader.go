package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/belljar-sh/belljar/sandbox"
)

const (
	blockSize = 512       // of a tar stream
	inBuffer  = 256 << 10 // read from the source at once
	// maxWindow is the largest zstd window that is decoded: what the zstd
	// program accepts by default.
	maxWindow = 128 << 20
)

var magics = []struct {
	name  string
	magic []byte
}{
	{"gzip", []byte{0x1f, 0x8b}},
	{"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd}},
	{"xz", []byte{0xfd, '7', 'z', 'X', 'Z', 0}},
	{"bzip2", []byte("BZh")},
	{"zip", []byte("PK\x03\x04")},
	{"squashfs", []byte("hsqs")},
	{"7z", []byte{'7', 'z', 0xbc, 0xaf}},
}

func compression(head []byte) string {
	for _, m := range magics {
		if bytes.HasPrefix(head, m.magic) {
			return m.name
		}
	}
	return ""
}

// decompress returns the tar stream in r, which may be plain, gzip or zstd, as
// its first bytes tell. The result must be closed.
func decompress(ctx context.Context, r io.Reader, m *meter) (io.ReadCloser, error) {
	buf := bufio.NewReaderSize(&countIn{ctx, r, m}, inBuffer)
	head, err := buf.Peek(8)
	if len(head) == 0 {
		if err == io.EOF {
			return nil, sandbox.Errorf(sandbox.Invalid, "the archive is empty")
		}
		return nil, readError(err, "")
	}
	switch kind := compression(head); kind {
	case "":
		return io.NopCloser(buf), nil
	case "gzip":
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, readError(err, "")
		}
		return z, nil
	case "zstd":
		z, err := zstd.NewReader(buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, readError(err, "")
		}
		return z.IOReadCloser(), nil
	default:
		return nil, sandbox.Errorf(sandbox.Unsupported, "the archive is %s, not tar, tar.gz or tar.zst", kind).
			WithField("archive", kind).
			WithHint("convert it first, for instance: xz -dc FILE | belljar template import NAME -")
	}
}

// readError puts a failure to read or parse the stream into a sentence. last is
// the entry that was read before.
func readError(err error, last string) error {
	if own := (*sandbox.Error)(nil); errors.As(err, &own) {
		if own.Field == "entry" && own.Value == "" {
			return own.WithField("entry", last)
		}
		return own
	}
	where := "at its beginning"
	if last != "" {
		where = "after an entry"
	}
	e := sandbox.Errorf(sandbox.Invalid, "the archive cannot be read %s: %v", where, err).WithCause(err)
	if last != "" {
		e = e.WithField("entry", last)
	}
	return e.WithHint("it may be cut short or not be a tar archive at all; nothing was kept")
}
