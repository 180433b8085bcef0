package cli

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/belljar-sh/belljar/sandbox"
)

// byteSize is a flag for an amount of bytes: 512m, 1GiB, 1073741824.
type byteSize struct {
	n     int64
	typed string // for messages
}

func (b *byteSize) Type() string { return "size" }

func (b *byteSize) String() string { return b.typed }

func (b *byteSize) Set(s string) error {
	n, err := parseSize(s)
	if err != nil {
		return err
	}
	*b = byteSize{n, s}
	return nil
}

var sizeUnits = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
	"t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}

// parseSize reads a number with an optional unit; units are powers of 1024,
// as docker has them.
func parseSize(s string) (int64, error) {
	at := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if at < 0 {
		at = len(s)
	}
	unit, ok := sizeUnits[strings.ToLower(strings.TrimSpace(s[at:]))]
	n, err := strconv.ParseFloat(s[:at], 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("%q is not a size such as 512m or 2GiB", s)
	}
	if n *= unit; n <= 0 || n > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is out of range for a size", s)
	}
	return int64(n), nil
}

// formatSize prints an amount of bytes with at most one decimal.
func formatSize(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%dB", n)
	}
	f, i := float64(n), -1
	for f >= unit && i < 4 {
		f /= unit
		i++
	}
	return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) + string("KMGTP"[i]) + "iB"
}

// span is a flag for a time: 90, 90s, 5m, 1h30m. A bare number is in seconds.
type span time.Duration

func (d *span) Type() string { return "duration" }

func (d *span) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *span) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		secs, ferr := strconv.ParseFloat(s, 64)
		if ferr != nil || !(math.Abs(secs) < math.MaxInt64/1e9) {
			return fmt.Errorf("%q is not a time such as 90s, 5m or 1h30m", s)
		}
		v = time.Duration(secs * float64(time.Second))
	}
	if v <= 0 {
		return fmt.Errorf("%q is not a time above zero", s)
	}
	*d = span(v)
	return nil
}

// environment collects -e and --env-file. A bare KEY takes its value from
// our own environment and is left out when it has none.
func environment(pairs, files []string, lookup func(string) (string, bool)) (map[string]string, error) {
	env := map[string]string{}
	for _, file := range files {
		if err := envFile(env, file, lookup); err != nil {
			return nil, err
		}
	}
	for _, p := range pairs {
		if err := putEnv(env, p, lookup); err != nil {
			return nil, usagef("write -e KEY=VALUE, or -e KEY to pass on a variable of yours", "-e %q: %w", p, err)
		}
	}
	if len(env) == 0 {
		return nil, nil
	}
	return env, nil
}

func putEnv(env map[string]string, pair string, lookup func(string) (string, bool)) error {
	key, value, ok := strings.Cut(pair, "=")
	if key == "" {
		return fmt.Errorf("the name is empty")
	}
	if strings.ContainsFunc(key, unicode.IsSpace) {
		return fmt.Errorf("the name %q has white space", key)
	}
	if !ok {
		if value, ok = lookup(key); !ok {
			delete(env, key)
			return nil
		}
	}
	env[key] = value
	return nil
}

// envFile reads lines of KEY=VALUE or KEY; empty lines and those that begin
// with '#' are skipped, and quotes are part of the value, as docker does.
func envFile(env map[string]string, name string, lookup func(string) (string, bool)) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("--env-file %q: %w", name, pathCause(err))
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimLeft(sc.Text(), " \t")
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		if line == "" || line[0] == '#' {
			continue
		}
		if err := putEnv(env, strings.TrimSuffix(line, "\r"), lookup); err != nil {
			return usagef("each line is KEY=VALUE, KEY or # a comment", "--env-file %q, line %d: %w", name, n, err)
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("--env-file %q: %w", name, pathCause(err))
	}
	return nil
}

// labels reads KEY=VALUE pairs; a bare KEY has an empty value.
func labels(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		key, value, _ := strings.Cut(p, "=")
		if key == "" {
			return nil, usagef("write --label KEY=VALUE", "--label %q: the name is empty", p)
		}
		out[key] = value
	}
	return out, nil
}

// checkText refuses what cannot be carried: the API is JSON, which would put
// other bytes in their place.
func checkText(argv []string, env map[string]string) error {
	bad := func(field, value string) error {
		return sandbox.Errorf(sandbox.Invalid, "it is not valid UTF-8, which is all that can be passed on").WithField(field, value).
			WithHint("pass such bytes in a file or by standard input, or have a shell inside make them with printf")
	}
	for _, a := range argv {
		if !utf8.ValidString(a) {
			return bad("argument", a)
		}
	}
	for k, v := range env {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return bad("environment", k)
		}
	}
	return nil
}
