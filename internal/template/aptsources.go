package template

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// source is what one entry of apt's sources says.
type source struct {
	types, uris, suites, components []string
	signedBy                        string
	disabled                        bool
}

// hostSources returns, in deb822 form, from where the host gets the main
// component of this suite of Debian, with its updates; "" when it does not.
// Sources of others are left out, as are those whose address holds a password:
// the list stays in the template.
func hostSources(etc, suite string) string {
	var all []source
	files := []string{filepath.Join(etc, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join(etc, "sources.list.d", pattern))
		if err == nil {
			files = append(files, found...)
		}
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // missing, or not for our eyes
		}
		if strings.HasSuffix(f, ".sources") {
			all = append(all, parseDeb822(string(b))...)
		} else {
			all = append(all, parseOneLine(string(b))...)
		}
	}
	var out strings.Builder
	base := false
	for _, s := range all {
		suites := s.debian(suite)
		if len(suites) == 0 {
			continue
		}
		base = base || slices.Contains(suites, suite)
		out.WriteString("Types: deb\nURIs: " + strings.Join(s.uris, " ") + "\nSuites: " + strings.Join(suites, " ") + "\nComponents: main\n")
		if s.signedBy != "" {
			out.WriteString("Signed-By: " + s.signedBy + "\n")
		}
		out.WriteString("\n")
	}
	if !base {
		return ""
	}
	return out.String()
}

// debian returns which of the source's suites are this one of Debian.
func (s source) debian(suite string) []string {
	keyring := filepath.Base(s.signedBy)
	if s.disabled || !slices.Contains(s.types, "deb") || !slices.Contains(s.components, "main") || len(s.uris) == 0 ||
		s.signedBy != "" && (!filepath.IsAbs(s.signedBy) || !strings.HasPrefix(keyring, "debian-archive-")) {
		return nil
	}
	for _, u := range s.uris {
		parsed, err := url.Parse(u)
		if err != nil || parsed.User != nil || strings.ContainsAny(u, " \n") {
			return nil
		}
	}
	var out []string
	for _, have := range s.suites {
		if slices.Contains([]string{suite, suite + "-updates", suite + "-security", suite + "/updates"}, have) {
			out = append(out, have)
		}
	}
	return out
}

// parseOneLine reads lines like "deb [option=value] URI SUITE COMPONENT...".
func parseOneLine(text string) []source {
	var out []source
	for line := range strings.SplitSeq(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		var s source
		if before, rest, ok := strings.Cut(line, "["); ok {
			options, after, _ := strings.Cut(rest, "]")
			for _, o := range strings.Fields(options) {
				if v, ok := strings.CutPrefix(o, "signed-by="); ok {
					s.signedBy = v
				}
			}
			line = before + " " + after
		}
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		s.types, s.uris, s.suites, s.components = f[:1], f[1:2], f[2:3], f[3:]
		out = append(out, s)
	}
	return out
}

// parseDeb822 reads paragraphs of fields.
func parseDeb822(text string) []source {
	var out []source
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		var s source
		key := ""
		for line := range strings.SplitSeq(paragraph, "\n") {
			if strings.HasPrefix(line, "#") {
				continue
			}
			value := line
			if !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "\t") {
				key, value, _ = strings.Cut(line, ":")
			}
			s.set(strings.ToLower(key), strings.TrimSpace(value))
		}
		out = append(out, s)
	}
	return out
}

func (s *source) set(key, value string) {
	words := strings.Fields(value)
	switch key {
	case "types":
		s.types = append(s.types, words...)
	case "uris":
		s.uris = append(s.uris, words...)
	case "suites":
		s.suites = append(s.suites, words...)
	case "components":
		s.components = append(s.components, words...)
	case "signed-by":
		s.signedBy = strings.TrimSpace(s.signedBy + " " + value)
	case "enabled":
		s.disabled = slices.Contains([]string{"no", "false", "0", "off"}, strings.ToLower(value))
	}
}

// aptKept are the options of the host's apt that decide whether it reaches its
// sources, as the beginnings of names.
var aptKept = []string{
	"Acquire::Check-Valid-Until ", "Acquire::Check-Date ", "Acquire::Retries ", "Acquire::ForceIPv4 ", "Acquire::ForceIPv6 ",
	"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::http::Timeout ", "Acquire::https::Timeout ",
	"Acquire::https::CAInfo ", "Acquire::https::Verify-",
}

// hostAptOptions returns those options as mmdebstrap takes them. They do not
// stay in the template.
func hostAptOptions() []string {
	program, err := findProgram("apt-config")
	if err != nil {
		return nil
	}
	b, err := exec.Command(program, "dump", "--format", "%F \"%v\";%n").Output()
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.SplitSeq(string(b), "\n") {
		if strings.HasSuffix(line, ` "";`) {
			continue
		}
		if slices.ContainsFunc(aptKept, func(p string) bool { return strings.HasPrefix(line, p) }) {
			out = append(out, line)
		}
	}
	return out
}
