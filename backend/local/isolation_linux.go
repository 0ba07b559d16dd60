package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// isolationError describes a failed part of the isolation.
type isolationError struct {
	launch.Report
	text string
	kind error
}

func (e *isolationError) Error() string { return e.text + ": " + e.kind.Error() }

func (e *isolationError) Unwrap() error { return e.kind }

// reportError returns the error for a launcher's report, with a hint. It contains paths in the sandbox, not paths on
// the host.
func (l *launching) reportError(r launch.Report) error {
	errno := unix.Errno(r.Errno)
	for _, t := range l.trees {
		if r.What != "showing "+t.Source || t.Source == t.Target {
			continue
		}
		r.What = "showing " + t.Target
		if errno == unix.ENOENT && strings.HasPrefix(t.Source, l.own+"/") {
			return fmt.Errorf("local: the source of %s was removed from the state directory: %w", t.Target, backend.ErrLost)
		}
	}
	text := fmt.Sprintf("local: cannot set up isolation %q: %s", r.Isolation, r.What)
	if r.Errno != 0 {
		text += ": " + errno.Error()
	}
	kind := backend.ErrUnsupported
	switch errno {
	case unix.ENOMEM, unix.ENOSPC, unix.EAGAIN, unix.EMFILE, unix.ENFILE:
		kind = backend.ErrUnavailable
	}
	if h := hint(r.Isolation, errno); h != "" {
		text += " (" + h + ")"
	}
	return &isolationError{r, text, kind}
}

// hint returns how to enable a part of the isolation. If this is unknown, hint returns an empty string.
func hint(part string, errno unix.Errno) string {
	switch {
	case errno == unix.ENOSYS && part == launch.IsolationFiles:
		return "recursive read-only mounts require Linux 5.12"
	case part == launch.IsolationMounts && (errno == unix.EPERM || errno == unix.EACCES):
		return userNamespaceHint()
	case part == launch.IsolationProc && errno == unix.EPERM:
		return "part of /proc is hidden, as in a container; run outside a container, or in one with an unmasked /proc"
	case part == launch.IsolationPivot && errno == unix.EINVAL:
		return "the root file system is an initial ramdisk or a chroot, which cannot be changed"
	case part == launch.IsolationSeccomp:
		return "the kernel must support CONFIG_SECCOMP_FILTER"
	}
	return ""
}

// forkError returns the error for a failure to create a process in new namespaces.
func (b *driver) forkError(err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return failed("starting the sandbox's process", err)
	}
	kind, text := backend.ErrUnsupported, ""
	switch errno {
	case unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EUSERS, unix.EINVAL, unix.ENOSYS:
		text = userNamespaceHint()
	case unix.ENOENT:
		return fmt.Errorf("local: the guest agent was removed from the state directory; restart this program: %w",
			backend.ErrUnavailable)
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		kind, text = backend.ErrUnavailable, "process limit of the host or user reached"
	}
	if text != "" {
		text = " (" + text + ")"
	}
	return fmt.Errorf("local: cannot set up isolation %q: creating namespaces: %v%s: %w",
		launch.IsolationUser, errno, text, kind)
}

// userNamespaceHint returns the setting preventing this process from creating namespaces.
func userNamespaceHint() string {
	for _, s := range []struct{ setting, bad, problem, fix string }{
		{"user/max_user_namespaces", "0", "user namespaces are disabled", "sysctl -w user.max_user_namespaces=10000"},
		{"kernel/unprivileged_userns_clone", "0", "user namespaces are disabled for ordinary users",
			"sysctl -w kernel.unprivileged_userns_clone=1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts user namespaces of ordinary users",
			"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or add a profile for this program"},
	} {
		if b, err := os.ReadFile("/proc/sys/" + s.setting); err == nil && strings.TrimSpace(string(b)) == s.bad {
			return s.problem + "; run as root: " + s.fix
		}
	}
	return "user namespaces are not allowed: container seccomp filter, namespace limit, chroot, or missing privileges"
}

// tryIsolation isolates a trial process without a guest agent. It also detects whether a writable root is supported.
func (b *driver) tryIsolation(ctx context.Context) error {
	b.machine.layers = true
	err := b.try(ctx, backend.RootWritable)
	if missing, ok := errors.AsType[*isolationError](err); ok && missing.Isolation == launch.IsolationLayers {
		b.opts.Logger.Info("local: a writable root is not supported on this host", "error", err)
		b.machine.layers = false
		err = b.try(ctx, backend.RootReadonly)
	}
	return err
}

func (b *driver) try(ctx context.Context, root backend.RootMode) error {
	limits := b.enforceable(b.opts.Limits.Merge(backend.DefaultLimits()).Fit(backend.Limits{}))
	r := &record{Record: kit.Record{Root: root, Limits: limits}, IDs: ids{User: launch.ID{UID: 1000, GID: 1000}}}
	if b.machine.blocks {
		r.IDs.Base = lastBlock // the block may be in use, but the trial creates no lasting files
	}
	r.Limits.WorkspaceBytes = 0 // any directory is sufficient
	c := b.view(r, group{c: b.machine.cgroups, name: b.groupPrefix() + newNonce()})
	c.Argv = nil
	for i, t := range c.Trees { // the trial creates no group and no workspace
		c.Trees[i].Optional = t.Optional || strings.HasPrefix(t.Target, "/sys/fs/cgroup")
		if t.Target == backend.Workdir {
			c.Trees[i].Source = b.guest
		}
	}
	l, err := b.fork(r.IDs, nil, nil)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.configure(c); err != nil {
		return err
	}
	return l.release(ctx)
}
