package cli

import (
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/belljar-sh/belljar/client"
	"github.com/belljar-sh/belljar/internal/archive"
	"github.com/belljar-sh/belljar/internal/cli/terminal"
	"github.com/belljar-sh/belljar/internal/guest/wire"
	"github.com/belljar-sh/belljar/sandbox"
)

func (a *app) cpCommand() *cobra.Command {
	var user string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC DST",
		Short: "copy files between this machine and sandboxes",
		Long: `Cp copies a file or directory. SRC and DST are paths of this machine or
SANDBOX:PATH; PATH is absolute, or relative to the sandbox's --workdir, else to
the home of the user inside (/root or /home/USER). As with cp -r, an existing
directory takes SRC inside itself, anything else is SRC's new name; SRC/. means
what is in the directory. With - the source is a tar stream from standard input,
or the destination one to standard output.

What comes out of a sandbox is unpacked by this program with your rights: set-id
bits, devices, FIFOs, sockets and links that lead out of the copied tree are left
behind, with a warning. Another warns of names that this machine executes or
trusts, such as .git/hooks and .envrc: see docs/WORKSPACE.md.`,
		Example: `  belljar cp data.csv work:
  belljar cp work:/home/user/result.txt .
  belljar cp src/. work:/workspace
  belljar cp work:report other:report
  belljar cp work:/var/log - | tar -t`,
		Args: between(2, 2),
		RunE: func(cmd *cobra.Command, argv []string) error {
			ctx, r := newRelay(cmd.Context())
			defer r.stop()
			err := a.cp(ctx, argv[0], argv[1], user, quiet)
			if status, ok := interrupted(ctx); ok {
				return status
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "user inside (default: the sandbox's)")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "do not tell what was left out")
	return cmd
}

// end is one end of a copy.
type end struct {
	ref  string // of the sandbox; "" for this machine
	path string
	std  bool // - was written
}

// parseEnd tells the forms of an argument apart as docker does: what stands
// before the first colon is a sandbox, unless it has a slash or begins with a
// dot.
func parseEnd(s string) end {
	if s == "-" {
		return end{std: true}
	}
	ref, p, ok := strings.Cut(s, ":")
	if !ok || ref == "" || strings.Contains(ref, "/") || strings.HasPrefix(ref, ".") {
		return end{path: s}
	}
	if p == "" {
		p = "."
	}
	return end{ref: ref, path: p}
}

// copier is one copy on its way.
type copier struct {
	a     *app
	c     *client.Client
	user  string
	quiet bool
	show  *progress
}

func (a *app) cp(ctx context.Context, from, to, user string, quiet bool) error {
	src, dst := parseEnd(from), parseEnd(to)
	ref := src.ref
	if ref == "" {
		ref = dst.ref
	}
	switch {
	case ref == "":
		return usagef("write SANDBOX:PATH for the end that is in a sandbox; cp(1) copies on this machine", "belljar cp: neither %q nor %q is in a sandbox", from, to)
	case from == "" || to == "":
		return usagef("name a path", "belljar cp: a path is empty")
	case dst.std && terminal.IsTerminal(a.out):
		return usagef("redirect standard output to a file or a pipe", "belljar cp: a tar stream does not go to a terminal")
	}
	c, err := a.mustRun(ctx, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	cp := &copier{a: a, c: c, user: user, quiet: quiet, show: a.progress("copying")}
	defer cp.show.end()
	for _, e := range []*end{&src, &dst} {
		if err := cp.absolute(ctx, e); err != nil {
			return err
		}
	}
	switch {
	case src.ref == "":
		return cp.in(ctx, src, dst)
	case dst.ref == "":
		return cp.out(ctx, src, dst)
	}
	return cp.across(ctx, src, dst)
}

// absolute completes a relative path in a sandbox.
func (cp *copier) absolute(ctx context.Context, e *end) error {
	if e.ref == "" || strings.HasPrefix(e.path, "/") {
		return nil
	}
	sb, err := cp.c.Get(ctx, e.ref)
	if err != nil {
		return err
	}
	base, user := sb.Workdir, cp.user
	if user == "" {
		user = sb.User
	}
	switch {
	case base != "":
	case user == "root":
		base = "/root"
	default:
		base = "/home/" + user
	}
	e.path = strings.TrimSuffix(base, "/") + "/" + e.path
	return nil
}

// tell reports progress of packing and unpacking.
func (cp *copier) tell(p archive.Progress) { cp.show.set(formatSize(p.Bytes) + ", " + p.Name) }

// summary warns of what was left out, by us and by the guest.
func (cp *copier) summary(s archive.Summary, said []wire.LeftOut) {
	if cp.quiet || s.Skipped == 0 && len(said) == 0 {
		return
	}
	cp.show.set("")
	reasons, by, more := leftOut(s, said)
	for _, reason := range reasons {
		cp.a.warn("left out, %s: %d: %v", reason, by[reason].count, by[reason])
	}
	if more > 0 {
		cp.a.warn("left out, and not listed: %d", more)
	}
}

// in copies from this machine into a sandbox.
func (cp *copier) in(ctx context.Context, src, dst end) error {
	if src.std {
		if err := cp.needDir(ctx, dst); err != nil {
			return err
		}
		return cp.c.PutTar(ctx, dst.ref, dst.path, cp.user, cp.a.in)
	}
	fi, err := os.Stat(src.path)
	if err != nil {
		return sandbox.Errorf(sandbox.NotFound, "%w", pathCause(err)).WithField("source", src.path)
	}
	contents := fi.IsDir() && isContents(src.path)
	at, err := cp.place(ctx, dst, hostName(src.path), fi.IsDir(), contents)
	if err != nil {
		return err
	}
	if fi.Mode().IsRegular() {
		return cp.inFile(ctx, src.path, dst.ref, path.Join(at.dir, at.name))
	}
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		sum, err := archive.Pack(ctx, pw, src.path, archive.PackOptions{Name: at.name, Progress: cp.tell})
		pw.CloseWithError(err)
		if err == nil {
			cp.summary(sum, nil)
		}
		packed <- err
	}()
	err = cp.c.PutTar(ctx, dst.ref, at.dir, cp.user, pr)
	pr.CloseWithError(io.ErrClosedPipe)
	if perr := <-packed; perr != nil && (err == nil || sandbox.KindOf(perr) != sandbox.Internal) {
		return perr // the reason why the other end saw the stream break
	}
	return err
}

// inFile sends one file: its old content stays until all has arrived.
func (cp *copier) inFile(ctx context.Context, from, ref, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return sandbox.Errorf(sandbox.Denied, "%w", pathCause(err)).WithField("source", from)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return sandbox.Errorf(sandbox.Invalid, "the source is neither a file nor a directory").WithField("source", from)
	}
	_, err = cp.c.PutFile(ctx, ref, to, cp.user, uint32(fi.Mode().Perm()), io.LimitReader(f, fi.Size()), fi.Size())
	return err
}

// spot is where a copy goes in a sandbox: under name in dir. The name "."
// means the directory itself.
type spot struct{ dir, name string }

// place decides where a copy goes, as cp -r does.
func (cp *copier) place(ctx context.Context, dst end, base string, dir, contents bool) (spot, error) {
	kind, err := cp.kind(ctx, dst)
	slash := strings.HasSuffix(dst.path, "/") || isContents(dst.path)
	clean := path.Clean(dst.path)
	fail := func(kind sandbox.Kind, hint, why string) (spot, error) {
		return spot{}, sandbox.Errorf(kind, "%s", why).WithField("destination", dst.ref+":"+dst.path).WithHint("%s", hint)
	}
	switch {
	case err != nil:
		return spot{}, err
	case kind == wire.TypeDir && contents:
		return spot{clean, "."}, nil
	case kind == wire.TypeDir:
		return spot{clean, base}, nil
	case kind != "" && dir:
		return fail(sandbox.Invalid, "remove the file first", "a directory cannot take the place of a file")
	case kind != "" && slash:
		return fail(sandbox.Invalid, "leave out the slash", "this is not a directory")
	case kind == "" && slash && !dir:
		return fail(sandbox.NotFound, "make the directory first, or leave out the slash", "there is no such directory")
	}
	parent := end{ref: dst.ref, path: path.Dir(clean)}
	if err := cp.needDir(ctx, parent); err != nil {
		return spot{}, err
	}
	return spot{parent.path, path.Base(clean)}, nil
}

// kind returns the type of what lies at a path in a sandbox, a link to a
// directory counting as one; "" when there is nothing.
func (cp *copier) kind(ctx context.Context, e end) (wire.EntryType, error) {
	st, err := cp.c.Stat(ctx, e.ref, e.path, cp.user)
	switch {
	case sandbox.KindOf(err) == sandbox.NotFound && fieldOf(err) == "path":
		return "", nil
	case err != nil:
		return "", err
	case st.Type != wire.TypeSymlink:
		return st.Type, nil
	}
	if _, err := cp.c.ReadDir(ctx, e.ref, e.path, cp.user, 1); err == nil {
		return wire.TypeDir, nil
	}
	return wire.TypeFile, nil
}

func (cp *copier) needDir(ctx context.Context, e end) error {
	kind, err := cp.kind(ctx, e)
	if err == nil && kind != wire.TypeDir {
		err = sandbox.Errorf(sandbox.NotFound, "there is no such directory").WithField("destination", e.ref+":"+e.path).
			WithHint("make it first: belljar exec %s -- mkdir -p %s", e.ref, e.path)
	}
	return err
}

// out copies from a sandbox to this machine.
func (cp *copier) out(ctx context.Context, src, dst end) error {
	r, err := cp.c.GetTar(ctx, src.ref, treePath(src.path), cp.user)
	if err != nil {
		return err
	}
	defer r.Close()
	if dst.std {
		_, err := io.Copy(cp.a.out, r)
		return err
	}
	watch, err := watchPlace(dst.path)
	if err != nil {
		return err
	}
	renamed := renameTop(r, topName(src.path), watch)
	defer renamed.Close()
	sum, _, err := archive.Place(ctx, dst.path, renamed, archive.Options{Links: archive.LinksSkip, Devices: archive.DevicesSkip, Umask: umask(), Progress: cp.tell})
	if err != nil {
		return err
	}
	<-renamed.done
	cp.summary(sum, watch.left)
	if watch.trusted.count > 0 {
		cp.show.set("")
		cp.a.warn("%d of these names the host executes or trusts, look at them before you go on there: %v", watch.trusted.count, &watch.trusted)
	}
	return nil
}

// across copies from one sandbox to another, or within one.
func (cp *copier) across(ctx context.Context, src, dst end) error {
	kind, err := cp.kind(ctx, src)
	if err == nil && kind == "" {
		err = sandbox.Errorf(sandbox.NotFound, "no such file or directory").WithField("source", src.ref+":"+src.path)
	}
	if err != nil {
		return err
	}
	at, err := cp.place(ctx, dst, topName(src.path), kind == wire.TypeDir, isContents(src.path))
	if err != nil {
		return err
	}
	r, err := cp.c.GetTar(ctx, src.ref, treePath(src.path), cp.user)
	if err != nil {
		return err
	}
	defer r.Close()
	watch := &tarWatch{}
	renamed := renameTop(r, at.name, watch)
	defer renamed.Close()
	if err := cp.c.PutTar(ctx, dst.ref, at.dir, cp.user, renamed); err != nil {
		return err
	}
	renamed.Close()
	<-renamed.done
	cp.summary(archive.Summary{}, watch.left)
	return nil
}

// topName is what the copy of a path in a sandbox is called; "." for what is in
// a directory.
func topName(p string) string {
	if isContents(p) {
		return "."
	}
	if base := path.Base(path.Clean(p)); base != "/" && base != ".." {
		return base
	}
	return "."
}

// hostName is topName for a path of this machine, whose own "." has a name.
func hostName(p string) string {
	abs, err := filepath.Abs(p)
	if err != nil || abs == "/" {
		return "."
	}
	return filepath.Base(abs)
}

// isContents reports whether a path means what is in a directory.
func isContents(p string) bool { return p == "." || strings.HasSuffix(p, "/.") }

// treePath is what is read for a path that may mean a directory's content.
func treePath(p string) string {
	if p == "/." {
		return "/"
	}
	return strings.TrimSuffix(p, "/.")
}

func fieldOf(err error) string { return sandbox.AsError(err).Field }
