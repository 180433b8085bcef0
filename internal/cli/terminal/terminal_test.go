package terminal

import (
	"bytes"
	"strings"
	"testing"
)

func TestEscape(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "hello, wörld 漢字 😀", "hello, wörld 漢字 😀"},
		{"newline", "a\nb", `a\nb`},
		{"tab and return", "a\tb\r", `a\tb\r`},
		{"escape", "\x1b]0;title\x07", `\x1b]0;title\x07`},
		{"nul and delete", "\x00\x7f", `\x00\x7f`},
		{"C1", "\u009b31m", `\u009b31m`},
		{"right to left override", "abc\u202etxt.exe", `abc\u202etxt.exe`},
		{"isolates", "\u2066\u2069\u200f", `\u2066\u2069\u200f`},
		{"zero width", "a\u200bb\ufeff", `a\u200bb\ufeff`},
		{"line separator", "a\u2028b", `a\u2028b`},
		{"tags", "\U000e0041", `\U000e0041`},
		{"not UTF-8", "a\xff\xc3", `a\xff\xc3`},
		{"real replacement character", "\ufffd", "\ufffd"},
		{"backslash", `C:\n`, `C:\n`},
		{"no-break space", "a\u00a0b", `a\u00a0b`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Escape(tc.in); got != tc.want {
				t.Errorf("Escape(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
	if got, want := EscapeText("a\n\tb\x1b"), "a\n\tb\\x1b"; got != want {
		t.Errorf("EscapeText = %q, want %q", got, want)
	}
}

func TestEscapeWriterKeepsSplitCharacters(t *testing.T) {
	const in = "é漢😀\x1b\xffé\xe6\xbc"
	const want = "é漢😀\\x1b\\xffé\\xe6\\xbc"
	for size := 1; size <= len(in); size++ {
		var out bytes.Buffer
		w := NewEscapeWriter(&out)
		for rest := in; rest != ""; {
			n := min(size, len(rest))
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != want {
			t.Errorf("writes of %d: %q, want %q", size, got, want)
		}
	}
}

func TestModes(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"text", "hello\r\n", ""},
		{"full screen program, left", "\x1b[?1049h\x1b[?25l\x1b[?25h\x1b[?1049l", ""},
		{"full screen program, killed", "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"},
		{"mouse", "\x1b[?1002;1006h", "\x1b[?1002l\x1b[?1006l"},
		{"bracketed paste", "\x1b[?2004h$ ", "\x1b[?2004l"},
		{"colour left on", "\x1b[1;31mred", "\x1b[0m"},
		{"colour off", "\x1b[31mred\x1b[0m\x1b[1mx\x1b[m", ""},
		{"keypad", "\x1b=", "\x1b>"},
		{"kitty", "\x1b[>1u", "\x1b[<99u"},
		{"modifyOtherKeys", "\x1b[>4;2m", "\x1b[>4m"},
		{"scroll region", "\x1b[2;10r", "\x1b7\x1b[r\x1b8"},
		{"full reset", "\x1b[?1049h\x1bc", ""},
		{"soft reset", "\x1b[?25l\x1b[!p", ""},
		{"cut in a sequence", "\x1b[?10", "\x18"},
		{"cut in a string", "\x1b]0;title", "\x1b\\"},
		{"mode inside a title is text", "\x1b]0;\x1b[?25l\x07", ""},
		{"line drawing", "\x1b(0qqq", "\x0f\x1b(B"},
		{"unknown mode", "\x1b[?31337h", ""},
		{"endless sequence", "\x1b[" + strings.Repeat("1", 1000), "\x18"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, step := range []int{len(tc.in), 1} {
				var out bytes.Buffer
				m := NewModes(&out)
				for i := 0; i < len(tc.in); i += step {
					if _, err := m.Write([]byte(tc.in[i : i+step])); err != nil {
						t.Fatal(err)
					}
				}
				if out.String() != tc.in {
					t.Errorf("output was changed: %q", out.String())
				}
				got := m.Reset()
				if !sameSequences(got, tc.want) {
					t.Errorf("Reset() = %q, want %q", got, tc.want)
				}
				if again := m.Reset(); again != "" {
					t.Errorf("second Reset() = %q, want nothing", again)
				}
			}
		})
	}
}

// sameSequences compares without regard to order.
func sameSequences(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for _, s := range strings.SplitAfter(b, "\x1b[") {
		if !strings.Contains(a, strings.TrimSuffix(s, "\x1b[")) {
			return false
		}
	}
	return true
}
