package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/launch"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// cleanupTimeout bounds what is done after a caller's context ended.
const cleanupTimeout = time.Minute

// Create makes a sandbox and starts it.
func (b *driver) Create(ctx context.Context, p *kit.Plan) (_ backend.Info, err error) {
	r, err := b.plan(ctx, p)
	if err != nil {
		return backend.Info{}, err
	}
	release, err := b.holdEnvironment(p, r)
	if err != nil {
		return backend.Info{}, err
	}
	defer release()
	spec := p.Spec
	b.sweepOne(ctx, spec.ID, spec.Instance)
	x, err := b.takeName(*r)
	if err != nil {
		return backend.Info{}, err
	}
	x.fork = spec.Fork
	defer x.unlock()
	defer x.letGo()
	defer func() {
		if err != nil {
			err = errors.Join(err, b.rollback(ctx, x))
		}
	}()
	if err := b.claimWorkspace(ctx, x); err != nil {
		return backend.Info{}, err
	}
	if err := b.firstStart(ctx, x); err != nil {
		return backend.Info{}, err
	}
	if err := b.settle(x); err != nil {
		return backend.Info{}, fmt.Errorf("local: recording the sandbox: %w", scrub(err))
	}
	return b.describe(x, backend.StateRunning), nil
}

// write writes the record. It is on its way to the disk then, as is what has been written about the workspace: settle
// waits for both, while the sandbox begins to run.
func (x *sandbox) write(owner string) error {
	if err := host.WriteJSON(x.file(recordFile), x.record, false); err != nil {
		return err
	}
	for _, file := range []string{owner, x.file(recordFile)} {
		x.disk.Go(func() error { return scrub(host.Sync(file)) })
	}
	return nil
}

// firstStart is start with a span of its own, as the first start of every engine has it.
func (b *driver) firstStart(ctx context.Context, x *sandbox) (err error) {
	ctx, span := b.calls.Span(ctx, telemetry.SpanDriverStart)
	defer func() { telemetry.End(span, err) }()
	if err := x.write(b.dirs.ownerFile(x.session())); err != nil { // its control group has an owner from the beginning
		return fmt.Errorf("local: recording the sandbox: %w", scrub(err))
	}
	return b.start(ctx, x)
}

// plan returns the record of a sandbox, unless this machine cannot run it.
func (b *driver) plan(ctx context.Context, p *kit.Plan) (*record, error) {
	program, err := resolveImage(p.Ref)
	if err == nil {
		err = program.find()
	}
	if err == nil {
		err = b.supports(p)
	}
	if err != nil {
		return nil, err
	}
	enforcement := backend.WorkspaceWatched
	if p.Sized && !p.Spec.Building {
		if enforcement, err = b.chooseEnforcement(ctx, p.Spec.ID); err != nil {
			return nil, err
		}
	}
	r := &record{
		Nonce: newNonce(), Record: p.Record(enforcement), Labels: p.SandboxLabels(b.opts.Guest.Version),
		UserLabels: maps.Clone(p.Spec.Labels),
	}
	if r.Mounts, err = b.mounts(p.Spec.Mounts); err != nil {
		return nil, err
	}
	r.Image, r.Limits, r.IDs.User = hostImage, b.enforceable(r.Limits), launch.ID(p.User)
	if err := b.planEnvironment(p, r); err != nil {
		return nil, err
	}
	r.RootBytes = rootBytes(r)
	return r, nil
}

// mounts returns mounts with their sources as they are. What the sandbox shows of the host's own system stays as it is.
func (b *driver) mounts(list []backend.Mount) ([]backend.Mount, error) {
	for _, m := range list {
		for _, dir := range append(systemDirs(), "/etc") {
			if m.Target == dir || strings.HasPrefix(m.Target, dir+"/") {
				return nil, fmt.Errorf("local: cannot mount at %s, which is a path of the host: %w", m.Target, backend.ErrUnsupported)
			}
		}
	}
	return kit.ResolveMounts("local", list, b.dirs.root)
}

// supports refuses what this machine cannot do.
func (b *driver) supports(p *kit.Plan) error {
	m := b.machine
	switch s, asked := p.Spec, p.Asked; {
	case s.Network == backend.NetworkBridge:
		return fmt.Errorf("local: network access is not supported; use docker or containerd: %w", backend.ErrUnsupported)
	case s.Root == backend.RootWritable && !m.layers && !s.Building:
		return fmt.Errorf("local: a writable root is not supported by this kernel or file system: %w", backend.ErrUnsupported)
	case asked.MemoryBytes > 0 && !m.cgroups.memory():
		return fmt.Errorf("local: cannot create a memory cgroup; run as root or in a delegated cgroup, or remove the limit: %w", backend.ErrUnsupported)
	case asked.CPUMillis > 0 && !m.cgroups.cpu():
		return fmt.Errorf("local: cannot create a CPU cgroup; run as root or in a delegated cgroup, or remove the limit: %w", backend.ErrUnsupported)
	case asked.OpenFiles > 0:
		var own unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err == nil && uint64(asked.OpenFiles) > own.Max {
			return fmt.Errorf("local: cannot allow %d open files, the limit of this process is %d: %w", asked.OpenFiles, own.Max, backend.ErrUnsupported)
		}
	}
	return p.Supports(name, b.Capabilities(), runtime.GOARCH)
}

// enforceable leaves out the defaults that nothing enforces here. Those that were asked for were refused before.
func (b *driver) enforceable(l backend.Limits) backend.Limits {
	if !b.machine.cgroups.memory() {
		l.MemoryBytes = 0
	}
	if !b.machine.cgroups.cpu() {
		l.CPUMillis = 0
	}
	return l
}

// takeName makes a sandbox's directory, locked, in one step: from the beginning it is locked by its maker. It has no
// record yet. ErrExists when the session's name is taken.
func (b *driver) takeName(r record) (*sandbox, error) {
	x := &sandbox{dir: b.dirs.fresh(), record: r}
	x.Group = b.groupPrefix() + x.Nonce
	if err := os.Mkdir(x.dir, 0o700); err != nil {
		return nil, fmt.Errorf("local: creating a sandbox: %w", scrub(err))
	}
	_, err := x.tryLock()
	if err == nil {
		err = os.Symlink(x.Nonce+"@"+x.instance(), x.file(identityLink))
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, x.dir, unix.AT_FDCWD, b.dirs.sandbox(r.session()), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		x.unlock()
		_ = os.RemoveAll(x.dir) // a stray directory does no harm
		if errors.Is(err, unix.EEXIST) {
			return nil, b.taken(r.session())
		}
		return nil, fmt.Errorf("local: creating a sandbox: %w", scrub(err))
	}
	x.dir = b.dirs.sandbox(r.session())
	return x, nil
}

// taken returns the error of a session's name.
func (b *driver) taken(session string) error {
	if _, err := b.readSandbox(session); err != nil && exists(b.dirs.sandbox(session)) {
		return fmt.Errorf("local: sandboxes/%s in the state directory is damaged or not a sandbox; remove it: %w",
			session, backend.ErrExists)
	}
	return fmt.Errorf("local: sandbox %s already exists: %w", session, backend.ErrExists)
}

// rollback removes what a failed Create made. It runs after the caller's context ended, too.
func (b *driver) rollback(ctx context.Context, x *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = x.disk.Wait() // what is removed need not be on the disk
	err := b.abandon(ctx, x)
	// What is in the way may be about to end: a launcher that was killed writes and mounts until it is gone.
	for pause := 50 * time.Millisecond; err != nil && pause < 3*time.Second && ctx.Err() == nil; pause *= 2 {
		time.Sleep(pause)
		err = b.abandon(ctx, x)
	}
	if err != nil {
		b.log.Warn("local: cannot clean up after a failed create", "session", x.session(), "error", err)
	}
	return err
}

// abandon removes a sandbox whose creation did not come to its end, and the workspace if that creation made it.
func (b *driver) abandon(ctx context.Context, x *sandbox) error {
	made := func(w workspace) bool { return w.Maker == x.Nonce }
	// While the name is taken nobody else can make the workspace theirs.
	return errors.Join(b.halt(ctx, x), b.removeWorkspace(ctx, x.session(), made), b.drop(ctx, x))
}

// start starts the sandbox's process. The sandbox is locked, and no process of it runs.
func (b *driver) start(ctx context.Context, x *sandbox) (err error) {
	var p process
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			err = errors.Join(err, p.kill(ctx, b.machine.boot), b.halt(ctx, x))
		}
	}()
	l, p, err := b.newLauncher(ctx, x)
	if err != nil {
		return err
	}
	defer l.close()
	if err := b.Recover(ctx, x); err != nil {
		return err
	}
	if x.Workspace == backend.WorkspaceSized {
		if err := b.mountSized(x, l.pid); err != nil {
			return err
		}
	}
	if err := b.prepareBuilding(x); err != nil {
		return err
	}
	if err := l.configure(b.view(&x.record, b.group(x))); err != nil {
		return err
	}
	// The launcher becomes nothing that lasts before release, and ends when we do. So it is on record before that.
	if err := host.WriteJSON(x.file(runFile), p, false); err != nil {
		return fmt.Errorf("local: recording the sandbox: %w", scrub(err))
	}
	if err := b.group(x).join(p.PID); err != nil && !errors.Is(err, unix.ESRCH) { // the launcher reports its own end
		return err
	}
	return l.release(ctx)
}

// newLauncher creates the sandbox's control group and starts a launcher, which has not joined the group yet.
func (b *driver) newLauncher(ctx context.Context, x *sandbox) (*launching, process, error) {
	if err := b.group(x).create(ctx); err != nil {
		return nil, process{}, err
	}
	if err := b.group(x).limit(x.Limits, b.machine.cpus); err != nil {
		return nil, process{}, err
	}
	listener, log, err := x.endpoints()
	if err != nil {
		return nil, process{}, err
	}
	defer listener.Close()
	defer log.Close()
	l, err := b.fork(x.IDs, listener, log)
	if err != nil {
		return nil, process{}, err
	}
	p, err := identify(l.pid, b.machine.boot)
	if err != nil {
		l.close() // which ends it
		return nil, process{}, fmt.Errorf("local: inspecting the sandbox's process: %w", scrub(err))
	}
	return l, p, nil
}

// endpoints makes what the guest inherits: its socket and its log.
func (x *sandbox) endpoints() (listener, log *os.File, err error) {
	if listener, err = x.listen(); err != nil {
		return nil, nil, fmt.Errorf("local: creating the guest agent's socket: %w", scrub(err))
	}
	log, err = os.OpenFile(x.file(logFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("local: creating the guest agent's log: %w", scrub(err)), listener.Close())
	}
	return listener, log, nil
}

// listen makes the guest's socket.
func (x *sandbox) listen() (*os.File, error) {
	path, done, err := x.socketPath()
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of the last start
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}
