package template

import (
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// etcShown lists what is copied from the host's /etc, as patterns of names in
// it; directories with all that is in them. It holds what programs under /usr
// need to work the way their packages set them up. It does not hold what may
// carry secrets or says who uses the machine: accounts, shell start-up files,
// package managers', pip's, npm's and git's configuration, services.
var etcShown = []string{
	"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"ssl", "ca-certificates", "ca-certificates.conf", "pki", "crypto-policies",
	"localtime", "timezone", "locale.alias", "locale.conf", "inputrc", "terminfo",
	"mime.types", "mailcap", "magic", "magic.mime", "services", "protocols", "rpc", "ethertypes", "gai.conf", "host.conf",
	"debian_version", "os-release", "lsb-release", "redhat-release", "system-release", "fedora-release",
	"alpine-release", "arch-release", "SuSE-release", "issue",
	"python*", "perl", "java*", "R", "fonts", "sgml", "xml", "xdg/mimeapps.list",
	"ImageMagick-*", "OpenCL", "vulkan", "glvnd", "openmpi", "texmf", "papersize", "libpaper.d", "ghostscript",
	"login.defs", "manpath.config", "nanorc", "groff", "less", "iproute2", "debuginfod", "gprofng.rc", "gdb",
	"emacs", "lynx", "w3m", "tmpfiles.d", "ucf.conf", "xattr.conf", "request-key.conf", "libnl-3", "bash_completion.d",
}

// Bounds on what is copied: an /etc that has more is not one.
const (
	maxEtcFile  = 8 << 20
	maxEtcBytes = 64 << 20
	maxEtcNodes = 20_000
	maxEtcDepth = 12
)

// addEtc copies what etcShown lists.
func (p *hostPlan) addEtc() error {
	st, ok := p.look("/etc")
	if !ok || !openDir(&st) {
		return nil
	}
	names, err := readNames(p.at("/etc"))
	if err != nil {
		return storeError("read /etc", err)
	}
	for _, pattern := range etcShown {
		top, rest, _ := strings.Cut(pattern, "/")
		for _, n := range names {
			if ok, err := path.Match(top, n); err != nil || !ok {
				continue
			}
			if rest == "" {
				p.addEtcNode("etc/"+n, 0)
			} else if st, ok := p.look("/etc/" + n); ok && openDir(&st) {
				p.addEtcNode("etc/"+n+"/"+rest, 1)
				if _, ok := p.nodes["etc/"+n+"/"+rest]; ok {
					p.nodes["etc/"+n] = node{kind: fs.ModeDir, mode: 0o755}
				}
			}
		}
	}
	return nil
}

// addEtcNode copies name if every user of the host may read it.
func (p *hostPlan) addEtcNode(name string, depth int) {
	if depth > maxEtcDepth || len(p.nodes) >= maxEtcNodes || secretName(name) {
		return
	}
	st, ok := p.look("/" + name)
	if !ok {
		return
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		p.addEtcDir(name, &st, depth)
	case unix.S_IFREG:
		p.addEtcFile(name)
	case unix.S_IFLNK:
		// A link never changes; when it is replaced its directory does.
		p.inputs = p.inputs[:len(p.inputs)-1]
		if to, err := os.Readlink(p.at("/" + name)); err == nil {
			p.nodes[name] = node{kind: fs.ModeSymlink, data: to} // dropLinks decides
		}
	}
}

func (p *hostPlan) addEtcDir(name string, st *unix.Stat_t, depth int) {
	if !openDir(st) {
		return
	}
	names, err := readNames(p.at("/" + name))
	if err != nil {
		return
	}
	p.nodes[name] = node{kind: fs.ModeDir, mode: 0o755}
	for _, n := range names {
		p.addEtcNode(name+"/"+n, depth+1)
	}
}

// addEtcFile reads a file, and asks the descriptor, not the name, whether
// everybody may.
func (p *hostPlan) addEtcFile(name string) {
	fd, err := unix.Open(p.at("/"+name), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode()&0o004 == 0 || info.Size() > maxEtcFile || p.bytes+info.Size() > maxEtcBytes {
		return
	}
	b, err := io.ReadAll(io.LimitReader(f, maxEtcFile))
	if err != nil || secretContent(b) {
		return
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o001 != 0 {
		mode = 0o755
	}
	p.bytes += int64(len(b))
	p.nodes[name] = node{mode: mode, data: string(b)}
}

// secretName tells names of private keys, readable or not.
func secretName(name string) bool {
	base := filepath.Base(name)
	if base == "private" {
		return true
	}
	for _, ext := range []string{".key", ".p12", ".pfx", ".jks", ".kdbx"} {
		if strings.HasSuffix(strings.ToLower(base), ext) {
			return true
		}
	}
	return false
}

func secretContent(b []byte) bool {
	s := string(b[:min(len(b), 1<<20)])
	for {
		_, rest, ok := strings.Cut(s, "-----BEGIN ")
		if !ok {
			return false
		}
		if line, _, _ := strings.Cut(rest, "\n"); strings.Contains(line, "PRIVATE KEY") {
			return true
		}
		s = rest
	}
}

// addSynthetic adds what is never the host's own.
func (p *hostPlan) addSynthetic() {
	shell := "/bin/sh"
	if _, err := os.Stat(p.at("/bin/bash")); err == nil {
		shell = "/bin/bash"
	}
	pam := "auth sufficient pam_rootok.so\nauth required pam_deny.so\naccount required pam_permit.so\nsession required pam_permit.so\n"
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/root:" + shell + "\n" +
			"user:x:1000:1000:user:" + userHome + ":" + shell + "\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group": "root:x:0:\ntty:x:5:\nstaff:x:50:\nuser:x:1000:\nnogroup:x:65534:\n",
		"hosts": "127.0.0.1\tlocalhost\n127.0.1.1\tsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n" +
			"protocols: files\nservices: files\nrpc: files\n",
		"resolv.conf": "",
		"hostname":    "sandbox\n",
		"machine-id":  "", // the guest sets it
		"shells":      "/bin/sh\n/bin/bash\n/usr/bin/sh\n/usr/bin/bash\n",
		"fstab":       "",
		"profile": "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nexport PATH\n" +
			"if [ -n \"$BASH_VERSION\" ] && [ \"$BASH\" != /bin/sh ] && [ -r /etc/bash.bashrc ]; then . /etc/bash.bashrc; fi\n",
		"bash.bashrc":     "case $- in *i*) PS1='\\u@\\h:\\w\\$ ' ;; esac\n",
		"pam.d/other":     "auth required pam_deny.so\naccount required pam_deny.so\npassword required pam_deny.so\nsession required pam_deny.so\n",
		"pam.d/su":        pam,
		"pam.d/su-l":      pam,
		"pam.d/runuser":   pam,
		"pam.d/runuser-l": pam,
	} {
		p.nodes["etc/"+name] = node{mode: 0o644, data: text}
	}
	p.nodes["etc/mtab"] = node{kind: fs.ModeSymlink, data: "../proc/self/mounts"}
	for _, d := range []string{"etc/pam.d", "etc/skel", "etc/profile.d", "etc/opt"} {
		p.nodes[d] = node{kind: fs.ModeDir, mode: 0o755}
	}
}
