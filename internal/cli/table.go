package cli

import (
	"io"
	"strings"
	"unicode"

	"github.com/belljar-sh/belljar/internal/cli/terminal"
)

// table is text in columns. Cells are escaped when it is written.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write prints the columns aligned, two spaces apart, without trailing space.
func (t *table) write(w io.Writer) error {
	lines := t.rows
	if len(t.head) > 0 {
		lines = append([][]string{t.head}, t.rows...)
	}
	var width []int
	rows := make([][]string, 0, len(lines))
	for _, r := range lines {
		cells := make([]string, len(r))
		for i, c := range r {
			cells[i] = terminal.Escape(c)
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], columns(cells[i]))
		}
		rows = append(rows, cells)
	}
	var b strings.Builder
	for _, r := range rows {
		line := ""
		for i, c := range r {
			line += c + strings.Repeat(" ", width[i]-columns(c)+2)
		}
		b.WriteString(strings.TrimRight(line, " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// columns is the width of s on a terminal: wide scripts take two cells,
// combining marks none.
func columns(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case wide(r):
			n += 2
		default:
			n++
		}
	}
	return n
}

func wide(r rune) bool {
	return r >= 0x1100 && r <= 0x115f || // Hangul Jamo
		r >= 0x2e80 && r <= 0xa4cf && r != 0x303f || // CJK
		r >= 0xac00 && r <= 0xd7a3 || // Hangul
		r >= 0xf900 && r <= 0xfaff || r >= 0xfe30 && r <= 0xfe6f ||
		r >= 0xff00 && r <= 0xff60 || r >= 0xffe0 && r <= 0xffe6 || // full width
		r >= 0x1f300 && r <= 0x1faff || // pictographs
		r >= 0x20000 && r <= 0x3fffd
}
