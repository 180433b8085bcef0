// Package hostfilter puts a small seccomp filter below gVisor's own on the
// processes that stand between a guest and the host's files: boot (the sentry)
// and the gofer.
//
// gVisor's filters list the calls that those processes need. Some of them,
// fchmod, openat and mknodat among them, are needed with harmless arguments
// only, and a sentry that a guest has taken over could use them on any host
// descriptor that it holds to leave a set-user-ID program on the host. This
// filter, which knows nothing of gVisor, fails such calls with EPERM:
//
//   - chmod, fchmod, fchmodat, fchmodat2, mkdir, mkdirat, mknod, mknodat, creat,
//     and open or openat that may create, with a set-user-ID or set-group-ID bit;
//   - mknod and mknodat of anything but a regular file;
//   - setxattr, lsetxattr, setxattrat and their removing counterparts, which
//     take paths: what gVisor and Belljar set, they set by descriptor;
//   - io_uring_enter, because a ring would do all of this unseen;
//   - every call of a foreign architecture (int80 and x32 on amd64).
//
// It cannot look behind pointers: the mode of openat2 and the name given to
// fsetxattr pass. The sentry's own filter allows no openat2; file capabilities
// need a capability that neither process has.
//
// Filters stack and the strictest answer wins, so nothing installed later can
// lift this one, and the traps by which systrap takes a guest's calls go first.
package hostfilter
