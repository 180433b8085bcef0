package workspace

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fold maps a file name to the form in which names are compared: lower case,
// without the characters that case-folding, HFS+ and NTFS file systems ignore
// or take for others. Two names that any of these takes for one fold to the
// same string where ASCII names are concerned. It never fails; bytes that are
// not UTF-8 stay as they are.
func Fold(name string) string {
	if plain(name) {
		return name
	}
	s := foldRunes(name)
	if cut := strings.IndexByte(s, ':'); cut > 0 { // a stream of a file on NTFS
		s = s[:cut]
	}
	if t := strings.TrimRight(s, " ."); t != "" {
		s = t
	}
	if base, ext, ok := shortName(s); ok {
		if long, ok := gitShort[base+"."+ext]; ok {
			return long
		}
	}
	return s
}

// plain tells that a name is its own folded form; nearly every name is.
func plain(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'A' && c <= 'Z', c >= utf8.RuneSelf, c == ':', c == '~':
			return false
		}
	}
	return name == "" || name[len(name)-1] != ' ' && name[len(name)-1] != '.'
}

func foldRunes(name string) string {
	var b strings.Builder
	b.Grow(len(name))
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteByte(name[i])
		case ignorable(r):
		default:
			if s, ok := asciiFolds[r]; ok {
				b.WriteString(s)
			} else {
				b.WriteRune(unicode.ToLower(r))
			}
		}
		i += n
	}
	return b.String()
}

// asciiFolds are the characters that full case folding, or an upper-case table,
// turns into ASCII letters.
var asciiFolds = map[rune]string{
	'\u017f': "s", '\u212a': "k", '\u0131': "i", '\u0130': "i",
	'\u00df': "ss", '\u1e9e': "ss",
	'\ufb00': "ff", '\ufb01': "fi", '\ufb02': "fl", '\ufb03': "ffi", '\ufb04': "ffl",
	'\ufb05': "st", '\ufb06': "st",
}

// ignorable tells whether file systems that normalise drop the character: the
// default-ignorable code points of Unicode.
func ignorable(r rune) bool {
	switch {
	case r < 0xad:
		return false
	case r == 0xad, r == 0x34f, r == 0x61c, r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5,
		r >= 0x180b && r <= 0x180f, r >= 0x200b && r <= 0x200f, r >= 0x202a && r <= 0x202e,
		r >= 0x2060 && r <= 0x206f, r == 0x3164, r >= 0xfe00 && r <= 0xfe0f, r == 0xfeff,
		r == 0xffa0, r >= 0xfff0 && r <= 0xfff8, r >= 0x1bca0 && r <= 0x1bca3,
		r >= 0x1d173 && r <= 0x1d17a, r >= 0xe0000 && r <= 0xe0fff:
		return true
	}
	return false
}
