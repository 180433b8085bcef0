package workspace

import (
	"bytes"
	"fmt"
	"strings"
)

// MaxGitConfig is the size in bytes up to which a configuration is read.
const MaxGitConfig = 64 << 10

// UnsafeConfigError says why a git configuration may not be put in place. All
// its strings come from a guest.
type UnsafeConfigError struct {
	Line int    // from 1
	Key  string // as section.subsection.name, when it got so far
	Why  string
}

// Error implements error; names are quoted.
func (e *UnsafeConfigError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("git configuration, line %d: %s", e.Line, e.Why)
	}
	return fmt.Sprintf("git configuration, line %d: %q %s", e.Line, e.Key, e.Why)
}

// CheckGitConfig tells whether a repository's configuration names nothing that
// git would execute, trust or write to: nil, or an *[UnsafeConfigError]. gitDir
// is the path of the repository beneath the caller's directory, by which
// core.worktree is judged.
//
// It understands the part of the grammar that git itself writes and refuses the
// rest, so that it never takes for one key what git takes for another.
func CheckGitConfig(data []byte, gitDir string) error {
	if len(data) > MaxGitConfig {
		return &UnsafeConfigError{Line: 1, Why: "it is larger than git configurations are"}
	}
	p := configParser{gitDir: gitDir}
	for i, line := range bytes.Split(data, []byte("\n")) {
		p.line = i + 1
		if err := p.parse(string(bytes.TrimSuffix(line, []byte("\r")))); err != nil {
			return err
		}
	}
	return nil
}

type configParser struct {
	gitDir           string
	line             int
	section, sub     string
	inSection, named bool
}

func (p *configParser) refuse(why string) error {
	return &UnsafeConfigError{Line: p.line, Why: why}
}

func (p *configParser) parse(s string) error {
	if i := strings.IndexFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }); i >= 0 {
		return p.refuse("it has a control character")
	}
	s = strings.Trim(s, " \t")
	switch {
	case s == "", s[0] == '#', s[0] == ';':
		return nil
	case s[0] == '[':
		return p.header(s)
	case !p.inSection:
		return p.refuse("a key stands outside of any section")
	default:
		return p.entry(s)
	}
}

// header parses [section] and [section "subsection"], alone on its line.
func (p *configParser) header(s string) error {
	name, rest := word(s[1:])
	if name == "" {
		return p.refuse("a section has no name")
	}
	p.section, p.sub, p.named, p.inSection = strings.ToLower(name), "", false, true
	if rest == "]" {
		return nil
	}
	if rest == "" || rest[0] != ' ' && rest[0] != '\t' {
		return p.refuse("a section header is not as git writes it")
	}
	sub, ok := subsection(strings.TrimLeft(rest, " \t"))
	if !ok {
		return p.refuse("a section header is not as git writes it")
	}
	p.sub, p.named = sub, true
	return nil
}

// subsection parses "name"] with its two escapes.
func subsection(s string) (string, bool) {
	if s == "" || s[0] != '"' {
		return "", false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:] == "]"
		case '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", false
}

// word splits off letters, digits and dashes.
func word(s string) (string, string) {
	i := 0
	for i < len(s) && (s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z' || s[i] >= '0' && s[i] <= '9' || s[i] == '-') {
		i++
	}
	return s[:i], s[i:]
}

func (p *configParser) entry(s string) error {
	name, rest := word(s)
	if name == "" || name[0] < 'A' {
		return p.refuse("a key is not as git writes it")
	}
	e := configEntry{section: p.section, sub: p.sub, named: p.named, name: strings.ToLower(name), gitDir: p.gitDir, value: "true"}
	rest = strings.TrimLeft(rest, " \t")
	if rest != "" {
		if rest[0] != '=' {
			return p.refuse("a key is not as git writes it")
		}
		v, ok := configValue(strings.TrimLeft(rest[1:], " \t"))
		if !ok {
			return p.refuse("a value is not as git writes it")
		}
		e.value = v
	}
	if why := e.why(); why != "" {
		return &UnsafeConfigError{Line: p.line, Key: e.key(), Why: why}
	}
	return nil
}

// configValue reads a value to the end of its line: quotes, escapes and
// comments, but no continuation.
func configValue(s string) (string, bool) {
	var b strings.Builder
	quoted := false
	end := 0 // length without unquoted blanks at the end
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '"':
			quoted = !quoted
			continue
		case !quoted && (c == '#' || c == ';'):
			return b.String()[:end], true
		case c == '\\':
			i++
			if i == len(s) {
				return "", false
			}
			switch s[i] {
			case '"', '\\':
				c = s[i]
			case 'n':
				c = '\n'
			case 't':
				c = '\t'
			default:
				return "", false
			}
			b.WriteByte(c)
			end = b.Len()
			continue
		}
		b.WriteByte(c)
		if quoted || c != ' ' && c != '\t' {
			end = b.Len()
		}
	}
	return b.String()[:end], !quoted
}
