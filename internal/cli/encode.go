package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

// format is how a result is printed: the value of -o.
type format string

const (
	formatDefault format = ""
	formatTable   format = "table"
	formatJSON    format = "json"
	formatYAML    format = "yaml"
)

func (f *format) Type() string   { return "json|yaml|table" }
func (f *format) String() string { return string(*f) }

func (f *format) Set(s string) error {
	switch format(s) {
	case formatTable, formatJSON, formatYAML:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("%q is not one of json, yaml, table", s)
}

// machine reports whether a program reads the result.
func (f format) machine() bool { return f == formatJSON || f == formatYAML }

// encode prints v as JSON or YAML. Characters that could act on a terminal
// appear as escapes, which mean the same to a parser.
func encode(w io.Writer, f format, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	out := escapeJSON(b.Bytes(), jsonEscape)
	if f == formatYAML {
		y, err := yaml.JSONToYAML(out)
		if err != nil {
			return fmt.Errorf("the result cannot be written as YAML: %w", err)
		}
		out = y
		if !printable(y) {
			// Plain scalars of YAML have no escapes; JSON is YAML too and has.
			out = escapeJSON(b.Bytes(), yamlEscape)
		}
	}
	_, err := w.Write(out)
	return err
}

func printable(b []byte) bool {
	for _, r := range string(b) {
		if r != '\n' && !strconv.IsPrint(r) {
			return false
		}
	}
	return true
}

// escapeJSON replaces characters that are not printable, which stand inside
// strings only.
func escapeJSON(in []byte, escape func([]byte, rune) []byte) []byte {
	if printable(in) {
		return in
	}
	var out []byte
	for len(in) > 0 {
		r, n := utf8.DecodeRune(in)
		if r == '\n' || strconv.IsPrint(r) {
			out = append(out, in[:n]...)
		} else {
			out = escape(out, r)
		}
		in = in[n:]
	}
	return out
}

func jsonEscape(b []byte, r rune) []byte {
	if hi, lo := utf16.EncodeRune(r); hi != utf8.RuneError {
		return fmt.Appendf(b, `\u%04x\u%04x`, hi, lo)
	}
	return fmt.Appendf(b, `\u%04x`, r)
}

func yamlEscape(b []byte, r rune) []byte {
	if r > 0xffff {
		return fmt.Appendf(b, `\U%08x`, r)
	}
	return fmt.Appendf(b, `\u%04x`, r)
}
