package paths

import (
	"regexp"
	"strconv"
	"strings"
)

// scenario carries a vector out.
type scenario func(c *caseRun)

// rule gives a scenario to the arguments of an operation that its pattern
// matches; sub are the pattern's groups.
type rule struct {
	op      string // "" is any
	pattern string
	make    func(sub []string) scenario
	reason  string // why such a vector has no place here; then make is nil
}

// rules are tried in order. Arguments are written for people, so patterns look
// for what carries the meaning. The last rules take an argument for a path.
var rules = []rule{
	{"", `(?i)other sandbox's token|expired token|without (a )?token|token of`, nil,
		"the API is a unix socket in a 0700 directory whose peer is checked; there are no tokens. Where a server has them, TestAuthorize of internal/e2b holds"},
	{"", `(?i)signed URL|signature`, nil, "on the daemon's socket nothing is signed; TestAuthorize of internal/e2b holds for signatures: they are of the path as it stands"},
	{"import-snapshot", `\.\./|digest`, with(importSnapshot), ""},
	{"write", `(?i)multipart with .*parts|missing boundary`, with(multipartFloods), ""},
	{"", `(?i)^username=`, with(users), ""},
	{"write", `(?i)multipart upload whose part filename`, with(multipartName), ""},

	{"read", `(?i)^swap\b`, with(raceRead), ""},
	{"write", `(?i)^swap\b`, with(raceWrite), ""},
	{"list", `(?i)^swap\b`, with(raceList), ""},
	{"delete", `(?i)^swap\b`, with(raceDelete), ""},
	{"copy-in", `(?i)swap of .*?(\d+) ?MiB`, func(s []string) scenario { return raceCopyIn(number(s[1])) }, ""},
	{"copy-in", `(?i)\bswap\b`, func([]string) scenario { return raceCopyIn(64) }, ""},
	{"copy-out", `(?i)\bswap\b`, with(raceCopyOut), ""},
	{"mount", `(?i)\blink\b`, with(mountOnLink), ""},
	{"remount", `(?i)remount`, with(remounts), ""},
	{"exec-cwd", `cwd=/proc/self/fd/`, with(execCwd), ""},
	{"exec-cwd", `^cwd=(\S+)$`, func(s []string) scenario { return execIn(s[1]) }, ""},
	{"watch", `(?i)watch (\S+) recursively with ([\d,]+) dirs`, func(s []string) scenario { return watchMany(number(s[2])) }, ""},

	{"", `(?i)chain of ([\d,]+) (?:sym)?links?(?: to| ->)? ?(\S*)`, func(s []string) scenario { return chained(int(number(s[1])), s[2]) }, ""},
	{"list", `(?i)dir(?:ectory)? with ([\d,]+) links to (\S+)`, func(s []string) scenario { return listLinks(number(s[1]), s[2]) }, ""},
	{"", `^(\S+) ->\s*(\S+)(?: \(.*\))?$`, func(s []string) scenario { return throughLink(s[1], s[2]) }, ""},
	{"read", `(?i)^(?:a )?FIFO\b`, with(readFIFO), ""},
	{"write", `(?i)^(?:a )?FIFO\b`, with(writeFIFO), ""},
	{"read", `(?i)^(?:a )?unix socket\b`, with(readSocket), ""},
	{"read", `(?i)sparse file of ([\d,]+) ?([KMGT])iB`, func(s []string) scenario { return readSparse(number(s[1]) * unit(s[2])) }, ""},
	{"write", `(?i)disk full|no inodes`, with(diskFull), ""},
	{"write", `(?i)^/sys or virtual`, func([]string) scenario { return each("/sys/kernel/notes", "/proc/version", "/proc/self/oom_score_adj") }, ""},

	{"write", `(?i)^name of ([\d,]+) bytes`, func(s []string) scenario { return nameOf(number(s[1])) }, ""},
	{"", `(?i)^path of ([\d,]+) ?([KMG])iB`, func(s []string) scenario { return pathOf(number(s[1]) * unit(s[2])) }, ""},
	{"write", `(?i)NFC and in NFD`, func([]string) scenario { return names("caf\u00e9.txt", "cafe\u0301.txt") }, ""},
	{"write", `(?i)newline|escape sequence|leading '-'`, func([]string) scenario {
		return names("new\nline", "esc\x1b[2J", "rtl\u202eabc", "; rm -rf *", "$(id)", "`id`", "-rf", "tab\there", "cr\rhere", "bell\a")
	}, ""},
	{"write", `(?i)\bCON\b|ending in`, func([]string) scenario { return names("CON", "aux", "dot.", "space ", "NUL", "a:b") }, ""},
	{"write", `(?i)non-UTF-8|invalid UTF-8|not UTF-8`, func([]string) scenario { return names("latin\xe9", "\xff\xfe", "half\xc3") }, ""},
	{"", `(?i)\bNUL\b|\\x00|\x00|%00`, with(withNUL), ""},

	{"extract", `(?i)^tar '([^']+)'$`, func(s []string) scenario { return extractNames(s[1]) }, ""},
	{"extract", `(?i)hard ?link to (\S+)`, func(s []string) scenario { return extractHardLink(s[1]) }, ""},
	{"extract", `(?i)device node|setuid|capability|mtime`, with(extractMetadata), ""},
	{"extract", `(?i)(?:sym)?link\b.*(?:then|through|followed)`, with(extractThroughLink), ""},
	{"extract", `(?i)symlink|link (?:to|->)`, with(extractLinkOut), ""},
	{"extract", `(?i)absolute`, func([]string) scenario { return extractNames("/HOST_WRITE_CANARY") }, ""},
	{"extract", `(?i)bomb|ratio|expan|zeros`, with(extractBomb), ""},
	{"extract", `(?i)trunc|cut (?:short|off)`, with(extractTruncated), ""},
	{"extract", `(?i)([\d,]+) entries`, func(s []string) scenario { return extractMany(number(s[1])) }, ""},

	// What is left is one path, or several with commas.
	{"read", `^(/\S+)(?:, ?/\S+)+$`, func([]string) scenario { return eachOfArg }, ""},
	{"write", `^(/\S+)(?:, ?/\S+)+$`, func([]string) scenario { return eachOfArg }, ""},
	{"read", `^\S*$`, with(plain), ""},
	{"write", `^\S*$`, with(plain), ""},
	{"list", `^\S*$`, with(plain), ""},
	{"delete", `^\S*$`, with(plain), ""},
	{"stat", `^\S*$`, with(plain), ""},
}

func with(s scenario) func([]string) scenario { return func([]string) scenario { return s } }

// find returns the scenario of a vector, or the reason why it has none.
func find(v vector) (scenario, string) {
	for _, r := range rules {
		if r.op != "" && r.op != v.Request.Op {
			continue
		}
		sub := regexp.MustCompile(r.pattern).FindStringSubmatch(v.Request.Arg)
		if sub == nil {
			continue
		}
		if r.make == nil {
			return nil, r.reason
		}
		return r.make(sub), ""
	}
	return nil, ""
}

func number(s string) int64 {
	n, err := strconv.ParseInt(strings.ReplaceAll(s, ",", ""), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func unit(s string) int64 {
	return map[string]int64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[strings.ToUpper(s)]
}
