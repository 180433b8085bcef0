package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/belljar-sh/belljar/internal/driver"
	"github.com/belljar-sh/belljar/sandbox"
)

// creation is the state of one Create. What it acquires is given back in
// reverse order unless the creation succeeds.
type creation struct {
	d    *Driver
	req  *driver.CreateRequest
	undo []func()

	ids    idPlan
	cg     *group
	limits []sandbox.LimitStatus
	shares []*share
	log    *tail
	logW   *os.File
	ctl    *control
	conns  driver.Channels
	sentry *role
	gofer  *role    // nil without shares
	tree   *os.File // the root's lower layer
	store  *os.File // what it writes; nil in memory
	mark   rootMark
	since  int64         // when the tree was made
	root   *net.UnixConn // our end of the sentry's connection for the root
	guest  *net.UnixConn // and of that for the directory of the guest's program
	stored bool          // the root's upper layer is on a disk
	booted *os.File      // one byte comes when the sentry is up, none when it is gone
}

func (c *creation) onUndo(f func()) { c.undo = append(c.undo, f) }

// step runs f and reports how long it took.
func (c *creation) step(name string, f func() error) error {
	start := time.Now()
	err := f()
	if c.req.Trace != nil {
		c.req.Trace("gvisor.new."+name, start, time.Since(start))
	}
	return err
}

func (d *Driver) create(ctx context.Context, req *driver.CreateRequest) (_ *Instance, err error) {
	c := &creation{d: d, req: req}
	defer func() {
		if err != nil {
			for n := len(c.undo) - 1; n >= 0; n-- {
				c.undo[n]()
			}
		}
	}()
	i := newInstance(c)
	i.gvisor = d.opts.GVisor
	steps := []struct {
		name string
		run  func() error
	}{
		{"ids", func() error { return c.reserveIDs(i) }},
		{"cgroup", func() error { return c.limit(context.WithoutCancel(ctx)) }},
		{"files", c.prepare},
		{"sentry", c.startSentry},
		{"gofer", c.startGofer},
		{"record", c.record},
		{"root", c.serveRoot},
		{"boot", func() error { return c.awaitBoot(ctx) }},
	}
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if err := c.step(s.name, s.run); err != nil {
			return nil, err
		}
	}
	i.adopt(c)
	return i, nil
}

func (c *creation) reserveIDs(i *Instance) error {
	var slot uint32
	if c.d.ids.ownRanges() {
		l, err := lockSlot(c.req.ID)
		if err != nil {
			return err
		}
		c.onUndo(l.release)
		i.slot, slot = l, l.slot
	}
	c.ids = c.d.ids.plan(slot)
	return nil
}

func (c *creation) limit(ctx context.Context) error {
	g, why := c.d.cgroups.make(c.req.ID)
	c.cg = g
	c.onUndo(func() {
		ctx, cancel := context.WithTimeout(ctx, removeTimeout)
		defer cancel()
		_ = g.remove(ctx)
	})
	limits, err := applyLimits(g, c.req, why)
	c.limits = limits
	return err
}

// prepare makes everything that the two processes are given.
func (c *creation) prepare() (err error) {
	if err := c.openShares(); err != nil {
		return err
	}
	if c.log, c.logW, err = newTail(); err != nil {
		return err
	}
	c.onUndo(func() { c.logW.Close() })
	return nil
}

// startSentry starts gVisor's boot role.
func (c *creation) startSentry() error {
	r, err := c.newRole(argv0Sentry, "boot")
	if err != nil {
		return err
	}
	defer r.closeGiven()
	c.sentry = r
	r.arg("--apply-caps=true", "--setup-root=true", "--attached=true",
		"--cpu-num="+strconv.Itoa(cpusSeen(c.req.Limits.CPUs)),
		"--cpu-period="+strconv.Itoa(cpuPeriod),
		"--cpu-quota="+strconv.FormatInt(int64(c.req.Limits.CPUs*cpuPeriod), 10),
		"--total-memory="+strconv.FormatInt(c.req.Limits.MemoryBytes, 10),
		"--total-host-memory="+strconv.FormatInt(c.req.Limits.MemoryBytes, 10),
		"--product-name=belljar")
	for _, give := range []func(*role) error{
		c.giveSpec, c.giveFiles, c.giveControl, c.giveSync, c.giveStdio, c.giveChannels, c.giveImage,
	} {
		if err := give(r); err != nil {
			return err
		}
	}
	r.arg(string(c.req.ID))
	r.confine(c.ids, syscall.CLONE_NEWNS|syscall.CLONE_NEWIPC|syscall.CLONE_NEWUTS|syscall.CLONE_NEWPID|syscall.CLONE_NEWNET)
	if err := c.d.spawn.start(r.cmd, c.cg); err != nil {
		return startError(c.d, "sentry", err)
	}
	c.onUndo(func() { c.reap(r) })
	return nil
}

// reap ends a process of ours that no instance has taken over.
func (c *creation) reap(r *role) {
	_ = r.cmd.Process.Kill()
	_, _ = r.cmd.Process.Wait()
}

func startError(d *Driver, what string, err error) error {
	if errors.Is(err, unix.EACCES) {
		return sandbox.Errorf(sandbox.Unsupported, "the engine may not be run by every user of this host: %w", err).
			WithField("engine", d.opts.Engine).WithHint("chmod 755 it")
	}
	return fmt.Errorf("start %s: %w", what, err)
}

func (c *creation) giveSpec(r *role) error {
	spec := sentrySpec(c.req)
	if err := c.addShares(spec, func(n int) string { return c.shares[n].target }); err != nil {
		return err
	}
	f, err := writeSpec(c.req.Dir, "config.json", spec)
	if err != nil {
		return err
	}
	r.give("spec-fd", f)
	return nil
}

// giveFiles connects the sentry to the servers of its root's lower layer and of
// the shares, and hands it the file for the root's upper layer.
func (c *creation) giveFiles(r *role) error {
	for _, conn := range []**net.UnixConn{&c.root, &c.guest} {
		theirs, err := c.serverConn(conn)
		if err != nil {
			return err
		}
		r.give("io-fds", theirs)
	}
	if len(c.shares) > 0 {
		var err error
		if c.gofer, err = c.newRole(argv0Gofer, "gofer"); err != nil {
			return err
		}
		c.gofer.arg("--gofer-mount-confs=none:memory" + c.shareConfs())
	}
	for range c.shares {
		sentryEnd, goferEnd, err := socketpair()
		if err != nil {
			return err
		}
		r.give("io-fds", sentryEnd)
		c.gofer.give("io-fds", goferEnd)
	}
	upper := "memory"
	if store, err := openStore(c.req.Dir, "/var/tmp"); err == nil {
		if err := c.keepStore(store); err != nil {
			store.Close()
			return err
		}
		r.give("gofer-filestore-fds", store)
		upper, c.stored = "anon", true
	}
	r.arg(fmt.Sprintf("--gofer-mount-confs=lisafs:%s:size=%d,lisafs:none%s", upper, c.req.Limits.DiskBytes, c.shareConfs()))
	return nil
}

func (c *creation) shareConfs() string { return strings.Repeat(",lisafs:none", len(c.shares)) }

// serverConn makes a connection to a server of ours and returns the sentry's
// end.
func (c *creation) serverConn(into **net.UnixConn) (*os.File, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		theirs.Close()
		return nil, err
	}
	*into = conn.(*net.UnixConn)
	c.onUndo(func() { conn.Close() })
	return theirs, nil
}

// serveRoot puts the root together, and the directory of the guest's program,
// and begins to serve them. The servers end with the sentry.
func (c *creation) serveRoot() error {
	var ns *os.File
	if c.req.Root.Shifted && c.ids.OwnRange {
		var err error
		if ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", c.sentry.cmd.Process.Pid)); err != nil {
			return err
		}
		defer ns.Close()
	}
	c.since = time.Now().UnixNano()
	tree, err := c.d.mounts.assemble(&c.req.Root, c.ids, ns)
	if err != nil {
		return err
	}
	if err := c.keepTree(tree); err != nil {
		tree.Close()
		return err
	}
	go serveRoot(c.root, tree, c.ids)
	if tree, err = c.d.mounts.guestTree(c.req.Guest); err != nil {
		return err
	}
	go serveRoot(c.guest, tree, c.ids)
	return nil
}

// keepStore keeps a descriptor of the file that holds what the sandbox writes, to
// tell how much that is.
func (c *creation) keepStore(store *os.File) error {
	fd, err := unix.FcntlInt(store.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c.store = os.NewFile(uintptr(fd), "store")
	c.onUndo(func() { c.store.Close() })
	return nil
}

// keepTree keeps a descriptor of the root for the instance, which looks there
// for the files that a memory image refers to.
func (c *creation) keepTree(tree *os.File) (err error) {
	if c.mark, err = markRoot(&c.req.Root); err != nil {
		return err
	}
	fd, err := unix.FcntlInt(tree.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c.tree = os.NewFile(uintptr(fd), "root")
	c.onUndo(func() { c.tree.Close() })
	return nil
}

func (c *creation) giveControl(r *role) error {
	l, ctl, err := newControl(c.req.Dir)
	if err != nil {
		return err
	}
	c.ctl = ctl
	c.onUndo(func() { ctl.close() })
	r.give("controller-fd", l)
	return nil
}

func (c *creation) giveSync(r *role) error {
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	c.booted = pr
	c.onUndo(func() { pr.Close() })
	r.give("start-sync-fd", pw)
	return nil
}

// giveStdio gives the guest's first process nothing to read, and our log to
// write to.
func (c *creation) giveStdio(r *role) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	r.give("stdio-fds", null)
	for range 2 {
		r.arg("--stdio-fds=" + strconv.Itoa(r.lend(c.logW)))
	}
	return nil
}

// giveChannels makes the two channels: descriptors 3 and 4 of the guest.
func (c *creation) giveChannels(r *role) error {
	// In this order, which a restored sandbox must find again.
	for n, into := range []*net.Conn{&c.conns.Down, &c.conns.Up} {
		host, guest, err := socketpair()
		if err != nil {
			return err
		}
		conn, err := net.FileConn(host)
		host.Close()
		if err != nil {
			guest.Close()
			return err
		}
		*into = conn
		c.onUndo(func() { conn.Close() })
		r.arg(fmt.Sprintf("--pass-fd=%d:%d", r.lend(guest), 3+n))
		r.given = append(r.given, guest)
	}
	return nil
}

// startGofer starts gVisor's gofer role, which serves the shares.
func (c *creation) startGofer() error {
	r := c.gofer
	if r == nil {
		return nil
	}
	defer r.closeGiven()
	defer func() {
		for _, s := range c.shares {
			s.tree.Close()
		}
	}()
	spec := goferSpec()
	if err := c.addShares(spec, shareName); err != nil {
		return err
	}
	specFile, err := writeSpec(c.req.Dir, "gofer.json", spec)
	if err != nil {
		return err
	}
	r.give("spec-fd", specFile)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	r.give("mounts-fd", null) // the sentry needs no resolved mounts: it has them
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	ours.Close() // nothing is ever opened on the gofer's behalf
	r.give("rpc-fd", theirs)
	r.arg(string(c.req.ID))

	var plan GoferPlan
	for _, s := range c.shares {
		plan.Shares = append(plan.Shares, GoferShare{FD: r.lend(s.tree), Dir: s.dir})
	}
	env, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	r.cmd.Env = append(r.cmd.Env, GoferPlanEnv+"="+string(env))
	r.confine(c.ids, syscall.CLONE_NEWNS|syscall.CLONE_NEWIPC|syscall.CLONE_NEWUTS|syscall.CLONE_NEWPID|syscall.CLONE_NEWNET)
	if err := c.d.spawn.start(r.cmd, c.cg); err != nil {
		return startError(c.d, "gofer", err)
	}
	c.onUndo(func() { c.reap(r) })
	return nil
}

// awaitBoot waits until the sentry's kernel is up.
func (c *creation) awaitBoot(ctx context.Context) error {
	defer c.booted.Close()
	defer c.logW.Close()
	stop := context.AfterFunc(ctx, func() { c.booted.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.ReadFull(c.booted, make([]byte, 1)); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return c.bootError()
	}
	pid := c.sentry.cmd.Process.Pid
	if err := noDirectories(pid); err != nil {
		return err
	}
	if err := c.d.mounts.unmountProc(pid); err != nil {
		return err
	}
	return c.ctl.call(ctx, methodSetNetwork, loopbackOnly())
}

// noDirectories checks that a sentry that has booted holds no descriptor of a
// directory, by which a guest that has taken it over could reach the host. The
// root's comes later, and leads nowhere else.
func noDirectories(pid int) error {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at the sentry's descriptors: %w", err)
	}
	for _, e := range entries {
		fi, err := os.Stat(filepath.Join(dir, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile, or nothing with a file to it
		}
		if err != nil || fi.IsDir() {
			return sandbox.Errorf(sandbox.Internal, "the sentry holds a directory as descriptor %s (%v)", e.Name(), err)
		}
	}
	return nil
}

// bootError explains a sentry that ended before it was up.
func (c *creation) bootError() error {
	if c.gofer != nil {
		_ = c.gofer.cmd.Process.Kill()
	}
	_ = c.sentry.cmd.Process.Kill()
	state, _ := c.sentry.cmd.Process.Wait()
	c.logW.Close()
	if c.cg.oomKills() > 0 {
		return sandbox.Errorf(sandbox.ResourceExhausted, "the memory limit is too small to boot a sandbox").
			WithField("memory", strconv.FormatInt(c.req.Limits.MemoryBytes, 10)).WithHint("ask for more memory")
	}
	return sandbox.Errorf(sandbox.Internal, "gVisor did not boot (%v): %s", state, c.log.text())
}

// channelBuffer is what the kernel may hold on its way, in bytes. A large one
// lets the guest, for whom system calls are dear, pass much in one. Inside, it
// cannot be set.
const channelBuffer = 1 << 20

// socketpair returns two connected stream sockets.
func socketpair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	for _, fd := range fds {
		// Not to be had on every host, and only a matter of speed.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, channelBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, channelBuffer)
		}
	}
	return os.NewFile(uintptr(fds[0]), "host end"), os.NewFile(uintptr(fds[1]), "guest end"), nil
}
