package files

import (
	"net/http"
	"strings"
	"testing"

	guest "github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func TestChooseEncoding(t *testing.T) {
	for accept, want := range map[string]encoding{
		"": identity, " , ": identity, "identity": identity, "gzip": gzipped, "GZIP": gzipped, "gzip, deflate": gzipped, "br, gzip;q=0.1": gzipped,
		"*": gzipped, "identity, gzip;q=0.5": identity, "gzip;q=0": unacceptable, "gzip;q=0, *": identity, "br": unacceptable,
		"br, identity;q=0.2": identity, "*;q=0": unacceptable, "gzip;q=x": unacceptable, "gzip;q=2": unacceptable, "gzip;q=NaN, identity": identity,
		"gzip; q=0.001": gzipped,
	} {
		if got := chooseEncoding(accept); got != want {
			t.Errorf("%q: got %v, want %v", accept, got, want)
		}
	}
}

func TestPartName(t *testing.T) {
	for _, tt := range []struct{ in, field, file string }{
		{`form-data; name="file"; filename="/a/b/c.txt"`, "file", "/a/b/c.txt"},
		{`form-data; name="file"; filename="../../x"`, "file", "../../x"},
		{`form-data; name="file"; filename="ž 🐎"`, "file", "ž 🐎"},
		{`form-data; name="file"; filename="a%2Fb"`, "file", "a%2Fb"},
		{`form-data; name="file"; filename*=UTF-8''%C5%BE`, "file", "ž"},
		{`form-data; name="file"; filename="a\b\c"`, "file", `a\b\c`},
		{`form-data; name="file"; filename="a\"b"`, "file", `a"b`},
		{`form-data; name=file; filename=x`, "file", "x"},
		{`form-data; name="other"`, "other", ""},
	} {
		field, file, err := partName(tt.in)
		if err != nil || field != tt.field || file != tt.file {
			t.Errorf("%s: got %q, %q, %v", tt.in, field, file, err)
		}
	}
	for _, bad := range []string{"", "attachment; filename=x", `form-data; name="file"; filename="` + strings.Repeat("x", sandbox.MaxPath) + `"`, "form-data; name=file; filename=\"a\x00b\""} {
		if _, file, err := partName(bad); err == nil {
			t.Errorf("%.40q: got %.40q", bad, file)
		}
	}
}

func TestParseMeta(t *testing.T) {
	got, err := parseMeta(http.Header{"X-Metadata-A-B": {"1", "2"}, "X-Other": {"x"}, "X-Metadata-C": {" "}})
	if err != nil || len(got) != 2 || got["a-b"] != "1,2" || got["c"] != " " {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []http.Header{
		{"X-Metadata-": {"x"}}, {"X-Metadata-A": {"\x00"}}, {"X-Metadata-A": {"é"}}, {"X-Metadata-" + strings.Repeat("a", 247): {"x"}},
		{"X-Metadata-A": {strings.Repeat("x", 4096)}},
	} {
		if got, err := parseMeta(bad); err == nil {
			t.Errorf("%v: got %v", bad, got)
		}
	}
}

func TestInfo(t *testing.T) {
	link := info(&guest.Entry{Name: "\xff", Path: "/d/\xff", Type: guest.TypeSymlink, Mode: 0o777, Target: "../x", Meta: map[string]string{"\xff": "\xff"}})
	if link.Type != 0 || link.Permissions != "Lrwxrwxrwx" || link.GetSymlinkTarget() != "/x" || link.Name != "\ufffd" || link.Metadata["\ufffd"] != "\ufffd" {
		t.Errorf("got %v", link)
	}
	for _, tt := range []struct {
		mode uint32
		kind guest.EntryType
		want string
	}{
		{0o644, guest.TypeFile, "-rw-r--r--"}, {0o755, guest.TypeDir, "drwxr-xr-x"}, {0o1777, guest.TypeDir, "dtrwxrwxrwx"},
		{0o4755, guest.TypeFile, "urwxr-xr-x"}, {0o2755, guest.TypeFile, "grwxr-xr-x"}, {0o600, guest.TypeOther, "?rw-------"},
	} {
		if got := permissions(&guest.Entry{Mode: tt.mode, Type: tt.kind}); got != tt.want {
			t.Errorf("%o: got %s, want %s", tt.mode, got, tt.want)
		}
	}
}

func FuzzPartName(f *testing.F) {
	f.Add(`form-data; name="file"; filename="/a/../b"`)
	f.Add(`form-data; name="file"; filename*=UTF-8''%00`)
	f.Fuzz(func(t *testing.T, header string) {
		_, file, err := partName(header)
		if err == nil && (len(file) >= sandbox.MaxPath || strings.IndexByte(file, 0) >= 0) {
			t.Errorf("%q is taken for the file %q", header, file)
		}
	})
}

func FuzzChooseEncoding(f *testing.F) {
	f.Add("gzip;q=0.5, identity;q=0.1, *;q=0")
	f.Fuzz(func(t *testing.T, accept string) {
		if chooseEncoding(accept) == gzipped && !strings.Contains(strings.ToLower(accept), "gzip") && !strings.Contains(accept, "*") {
			t.Errorf("gzip for %q", accept)
		}
	})
}

func FuzzParseMeta(f *testing.F) {
	f.Add("A", "b")
	f.Fuzz(func(t *testing.T, k, v string) {
		got, err := parseMeta(http.Header{metaPrefix + k: {v}})
		if err != nil {
			return
		}
		for k, v := range got {
			if k == "" || len(k)+len(v) > maxMetaTotal || !printable(k+v) || k != strings.ToLower(k) {
				t.Errorf("got %q: %q", k, v)
			}
		}
	})
}
