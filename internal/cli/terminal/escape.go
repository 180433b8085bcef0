package terminal

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Escape returns s in a form that cannot act on a terminal or mislead its
// reader: control characters, escape sequences, invisible and bidirectional
// characters and bytes that are not UTF-8 appear as \n, \x1b, \u202e and the
// like. Text for people passes unchanged, on one line.
func Escape(s string) string { return escape(s, "") }

// EscapeText is [Escape] for text of several lines: newlines and tabs pass.
func EscapeText(s string) string { return escape(s, "\n\t") }

func escape(s, pass string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !strconv.IsPrint(r) && !strings.ContainsRune(pass, r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		appendRune(&b, r, s[:n], pass)
		s = s[n:]
	}
	return b.String()
}

func appendRune(b *strings.Builder, r rune, raw, pass string) {
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case strconv.IsPrint(r), strings.ContainsRune(pass, r):
		b.WriteString(raw)
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == '\t':
		b.WriteString(`\t`)
	case r < 0x80:
		fmt.Fprintf(b, `\x%02x`, r)
	case r > 0xffff:
		fmt.Fprintf(b, `\U%08x`, r)
	default:
		fmt.Fprintf(b, `\u%04x`, r)
	}
}

// EscapeWriter passes text on with everything escaped as [EscapeText] does. A
// character that is split between two writes is kept until it is whole; Close
// writes what is left, and does not close the writer beneath. It is for one
// goroutine.
type EscapeWriter struct {
	w    io.Writer
	rest []byte
}

// NewEscapeWriter returns an [EscapeWriter] to w.
func NewEscapeWriter(w io.Writer) *EscapeWriter { return &EscapeWriter{w: w} }

// Write escapes p. It returns len(p) unless the writer beneath fails.
func (e *EscapeWriter) Write(p []byte) (int, error) {
	b := append(e.rest, p...)
	whole := len(b) - tail(b)
	if _, err := io.WriteString(e.w, EscapeText(string(b[:whole]))); err != nil {
		return 0, err
	}
	e.rest = append(e.rest[:0:0], b[whole:]...)
	return len(p), nil
}

// Close writes an unfinished character.
func (e *EscapeWriter) Close() error {
	_, err := io.WriteString(e.w, EscapeText(string(e.rest)))
	e.rest = nil
	return err
}

// tail counts the bytes at the end of b that begin a character which is not
// yet whole.
func tail(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
