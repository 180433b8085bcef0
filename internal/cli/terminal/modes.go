package terminal

import (
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
)

// modeReset are the private modes that a full-screen program switches away
// from what a shell expects, and the sequence that switches each back. The key
// is the number and the direction that deviates.
var modeReset = map[string]string{
	"1h":    "\x1b[?1l",    // application cursor keys
	"3h":    "\x1b[?3l",    // 132 columns
	"5h":    "\x1b[?5l",    // reverse video
	"6h":    "\x1b[?6l",    // origin mode
	"7l":    "\x1b[?7h",    // no wrap at the right margin
	"9h":    "\x1b[?9l",    // mouse, X10
	"25l":   "\x1b[?25h",   // hidden cursor
	"47h":   "\x1b[?47l",   // alternate screen
	"66h":   "\x1b[?66l",   // application keypad
	"69h":   "\x1b[?69l",   // left and right margins
	"1000h": "\x1b[?1000l", // mouse: clicks
	"1001h": "\x1b[?1001l", // mouse: highlighting
	"1002h": "\x1b[?1002l", // mouse: drags
	"1003h": "\x1b[?1003l", // mouse: every move
	"1004h": "\x1b[?1004l", // focus events
	"1005h": "\x1b[?1005l", // mouse: UTF-8 coordinates
	"1006h": "\x1b[?1006l", // mouse: SGR coordinates
	"1015h": "\x1b[?1015l", // mouse: urxvt coordinates
	"1016h": "\x1b[?1016l", // mouse: pixels
	"1047h": "\x1b[?1047l", // alternate screen
	"1049h": "\x1b[?1049l", // alternate screen, cursor saved
	"2004h": "\x1b[?2004l", // bracketed paste
	"2026h": "\x1b[?2026l", // synchronized output
	"2031h": "\x1b[?2031l", // reports of colour scheme
	"4h":    "\x1b[4l",     // insert mode; set by CSI 4 h without '?'
	"style": "\x1b[0 q",    // shape of the cursor
	"kitty": "\x1b[<99u",   // kitty's keyboard protocol
	"other": "\x1b[>4m",    // xterm's modifyOtherKeys
	"keys":  "\x1b>",       // application keypad by ESC =
	"edges": "\x1b7\x1b[r\x1b8",
	"shift": "\x0f\x1b(B", // line drawing characters
	"color": "\x1b[0m",
}

// Modes watches the output of a program on its way to a terminal and knows
// which modes are on. It only remembers names from a fixed table, so a hostile
// program cannot make it grow. It is safe for concurrent use.
type Modes struct {
	mu    sync.Mutex
	w     io.Writer
	on    map[string]bool
	state byte // 0: text, 1: after ESC, 2: in CSI, 3: in a string, 4: ESC in a string, 5: charset
	csi   []byte
}

// maxCSI bounds a control sequence; a longer one is not of interest.
const maxCSI = 64

// NewModes returns a writer to w that watches what passes.
func NewModes(w io.Writer) *Modes { return &Modes{w: w, on: map[string]bool{}} }

// Write passes p on unchanged and remembers the modes that it sets.
func (m *Modes) Write(p []byte) (int, error) {
	m.mu.Lock()
	for _, c := range p {
		m.step(c)
	}
	m.mu.Unlock()
	return m.w.Write(p)
}

// Reset returns what has to be written to the terminal so that a shell finds
// it as it left it, "" when nothing is to be done, and forgets all modes.
func (m *Modes) Reset() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	switch {
	case m.state == 3 || m.state == 4:
		b.WriteString("\x1b\\") // end the string that was begun
	case m.state != 0:
		b.WriteString("\x18") // cancel the sequence that was begun
	}
	for _, k := range slices.Sorted(maps.Keys(m.on)) {
		b.WriteString(modeReset[k])
	}
	m.on, m.state, m.csi = map[string]bool{}, 0, m.csi[:0]
	return b.String()
}

func (m *Modes) step(c byte) {
	switch {
	case c == 0x18 || c == 0x1a: // CAN and SUB end every sequence
		m.state = 0
	case m.state == 0:
		m.text(c)
	case m.state == 1:
		m.escape(c)
	case m.state == 2:
		m.control(c)
	case m.state == 3:
		if c == 0x1b {
			m.state = 4
		} else if c == 0x07 {
			m.state = 0
		}
	case m.state == 4:
		m.state = 3
		if c == '\\' {
			m.state = 0
		}
	case m.state == 5:
		m.set("shift", c != 'B')
		m.state = 0
	}
}

func (m *Modes) text(c byte) {
	switch c {
	case 0x1b:
		m.state = 1
	case 0x0e:
		m.set("shift", true)
	case 0x0f:
		m.set("shift", false)
	}
}

func (m *Modes) escape(c byte) {
	m.state = 0
	switch c {
	case '[':
		m.state, m.csi = 2, m.csi[:0]
	case ']', 'P', 'X', '^', '_':
		m.state = 3
	case '(':
		m.state = 5
	case 0x1b:
		m.state = 1
	case '=':
		m.set("keys", true)
	case '>':
		m.set("keys", false)
	case 'c': // full reset
		clear(m.on)
	}
}

func (m *Modes) control(c byte) {
	switch {
	case c == 0x1b:
		m.state = 1
	case c >= 0x40 && c <= 0x7e:
		m.state = 0
		m.sequence(string(m.csi), c)
	case len(m.csi) < maxCSI:
		m.csi = append(m.csi, c)
	}
}

// sequence is one whole CSI: its parameters and its last byte.
func (m *Modes) sequence(params string, last byte) {
	private := strings.HasPrefix(params, "?")
	switch {
	case (last == 'h' || last == 'l') && private:
		for _, n := range strings.Split(params[1:], ";") {
			m.set(n+"h", last == 'h')
			m.set(n+"l", last == 'l')
		}
	case (last == 'h' || last == 'l') && params == "4":
		m.set("4h", last == 'h')
	case last == 'q' && strings.HasSuffix(params, " "):
		m.set("style", params != " " && params != "0 ")
	case last == 'u' && strings.HasPrefix(params, ">"), last == 'u' && strings.HasPrefix(params, "="):
		m.set("kitty", true)
	case last == 'm' && strings.HasPrefix(params, ">4"):
		m.set("other", strings.HasPrefix(params, ">4;"))
	case last == 'm' && params != "" && params[0] != '>' && params[0] != '?':
		m.set("color", params != "0")
	case last == 'm' && params == "":
		m.set("color", false)
	case last == 'r' && !private:
		m.set("edges", params != "")
	case last == 'p' && params == "!": // soft reset
		for _, k := range []string{"1h", "6h", "7l", "25l", "4h", "edges", "shift", "color", "keys"} {
			delete(m.on, k)
		}
	}
}

func (m *Modes) set(key string, on bool) {
	if _, known := modeReset[key]; !known {
		return
	}
	if on {
		m.on[key] = true
	} else {
		delete(m.on, key)
	}
}
