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

// cleanupTimeout bounds cleanup after a caller's context ended.
const cleanupTimeout = time.Minute

// Create creates a sandbox and starts it.
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
		return backend.Info{}, failed("recording the sandbox", err)
	}
	return b.describe(x, backend.StateRunning), nil
}

// write writes the record. It flushes the record and the owner's file to the disk in the background, while the sandbox
// starts. settle waits for the flush.
func (x *sandbox) write(owner string) error {
	if err := host.WriteJSON(x.file(recordFile), x.record, false); err != nil {
		return err
	}
	for _, file := range []string{owner, x.file(recordFile)} {
		x.disk.Go(func() error { return host.Public(host.Sync(file)) })
	}
	return nil
}

// firstStart is like start, but creates a span, as the first start does on every driver.
func (b *driver) firstStart(ctx context.Context, x *sandbox) (err error) {
	ctx, span := b.calls.Span(ctx, telemetry.SpanDriverStart)
	defer func() { telemetry.End(span, err) }()
	if err := x.write(b.dirs.ownerFile(x.session())); err != nil { // first, to avoid a group without an owner
		return failed("recording the sandbox", err)
	}
	return b.start(ctx, x)
}

// plan returns the record of a sandbox, or an error if this host cannot run it.
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
	if err := b.resolveMounts(p); err != nil {
		return nil, err
	}
	r := &record{
		Nonce: newNonce(), Record: p.Record(enforcement), Labels: p.SandboxLabels(b.opts.Guest.Version),
		UserLabels: maps.Clone(p.Spec.Labels),
	}
	r.Image, r.Limits, r.IDs.User = hostImage, b.enforceable(r.Limits), launch.ID(p.User)
	if err := b.planEnvironment(p, r); err != nil {
		return nil, err
	}
	r.RootBytes = rootBytes(r)
	return r, nil
}

// resolveMounts resolves the sources of mounts. It returns an error for a target inside a directory shared with the
// host.
func (b *driver) resolveMounts(p *kit.Plan) error {
	for _, m := range p.Spec.Mounts {
		for _, dir := range append(systemDirs(), "/etc") {
			if m.Target == dir || strings.HasPrefix(m.Target, dir+"/") {
				return fmt.Errorf("local: cannot mount at %s, which is a path of the host: %w",
					m.Target, backend.ErrUnsupported)
			}
		}
	}
	return p.ResolveMounts(nil, b.dirs.root)
}

// supports returns an error if this host cannot run the plan.
func (b *driver) supports(p *kit.Plan) error {
	m, problem := b.machine, ""
	switch s, asked := p.Spec, p.Asked; {
	case s.Network == backend.NetworkBridge:
		problem = "network access is not supported; use docker or containerd"
	case s.Root == backend.RootWritable && !m.layers && !s.Building:
		problem = "a writable root is not supported by this kernel or file system"
	case asked.MemoryBytes > 0 && !m.cgroups.memory():
		problem = "cannot create a memory cgroup; run as root or in a delegated cgroup, or remove the limit"
	case asked.CPUMillis > 0 && !m.cgroups.cpu():
		problem = "cannot create a CPU cgroup; run as root or in a delegated cgroup, or remove the limit"
	case asked.OpenFiles > 0:
		var own unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err == nil && uint64(asked.OpenFiles) > own.Max {
			problem = fmt.Sprintf("cannot allow %d open files, the limit of this process is %d", asked.OpenFiles, own.Max)
		}
	}
	if problem != "" {
		return fmt.Errorf("local: %s: %w", problem, backend.ErrUnsupported)
	}
	return p.Supports(b.Capabilities(), runtime.GOARCH)
}

// enforceable clears the default limits not enforceable on this host. Requested limits not enforceable on this host
// have already been rejected.
func (b *driver) enforceable(l backend.Limits) backend.Limits {
	if !b.machine.cgroups.memory() {
		l.MemoryBytes = 0
	}
	if !b.machine.cgroups.cpu() {
		l.CPUMillis = 0
	}
	return l
}

// takeName creates a sandbox's directory and locks it in one atomic step. The directory has no record yet. If the
// session's name is taken, takeName returns ErrExists.
func (b *driver) takeName(r record) (*sandbox, error) {
	x := &sandbox{dir: b.dirs.fresh(), record: r}
	x.Group = b.groupPrefix() + x.Nonce
	if err := os.Mkdir(x.dir, 0o700); err != nil {
		return nil, failed("creating a sandbox", err)
	}
	_, err := x.tryLock()
	if err == nil {
		err = os.Symlink(x.Nonce+"@"+x.instance(), x.file(identityLink))
	}
	if err == nil {
		err = host.RenameNew(x.dir, b.dirs.sandbox(r.session()))
	}
	if err != nil {
		x.unlock()
		_ = os.RemoveAll(x.dir) // a leftover directory does no harm
		if errors.Is(err, unix.EEXIST) {
			return nil, b.taken(r.session())
		}
		return nil, failed("creating a sandbox", err)
	}
	x.dir = b.dirs.sandbox(r.session())
	return x, nil
}

// taken returns the error for a taken session name.
func (b *driver) taken(session string) error {
	if _, err := b.readSandbox(session); err != nil && host.Exists(b.dirs.sandbox(session)) {
		return fmt.Errorf("local: sandboxes/%s in the state directory is damaged or not a sandbox; remove it: %w",
			session, backend.ErrExists)
	}
	return fmt.Errorf("local: sandbox %s already exists: %w", session, backend.ErrExists)
}

// rollback removes the objects of a failed Create. It ignores the cancellation of ctx.
func (b *driver) rollback(ctx context.Context, x *sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = x.disk.Wait() // removed files need no flush
	err := b.abandon(ctx, x)
	// A conflict may be temporary: a killed launcher writes files and mounts until it has exited.
	for pause := 50 * time.Millisecond; err != nil && pause < 3*time.Second && ctx.Err() == nil; pause *= 2 {
		time.Sleep(pause)
		err = b.abandon(ctx, x)
	}
	if err != nil {
		b.opts.Logger.Warn("local: cannot clean up after a failed create", "session", x.session(), "error", err)
	}
	return err
}

// abandon removes a sandbox whose creation is incomplete. It also removes the workspace if this creation created it.
func (b *driver) abandon(ctx context.Context, x *sandbox) error {
	made := func(w workspace) bool { return w.Maker == x.Nonce }
	// While the name is taken, no other process can take over the workspace.
	return errors.Join(b.halt(ctx, x), b.removeWorkspace(ctx, x.session(), made), b.drop(ctx, x))
}

// start starts the sandbox's process. The sandbox must be locked and must have no running process.
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
	// The launcher creates no lasting objects before release, and exits when this process exits. Therefore the record is
	// written before release.
	if err := host.WriteJSON(x.file(runFile), p, false); err != nil {
		return failed("recording the sandbox", err)
	}
	if err := b.group(x).join(p.PID); err != nil && !errors.Is(err, unix.ESRCH) { // the launcher reports this exit
		return err
	}
	return l.release(ctx)
}

// newLauncher creates the sandbox's control group and starts a launcher. The launcher has not joined the group yet.
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
		l.close() // makes the launcher exit
		return nil, process{}, failed("inspecting the sandbox's process", err)
	}
	return l, p, nil
}

// endpoints creates the files to be inherited by the guest agent: the socket and the log.
func (x *sandbox) endpoints() (listener, log *os.File, err error) {
	if listener, err = x.listen(); err != nil {
		return nil, nil, failed("creating the guest agent's socket", err)
	}
	log, err = os.OpenFile(x.file(logFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, errors.Join(failed("creating the guest agent's log", err), listener.Close())
	}
	return listener, log, nil
}

// listen creates the guest agent's socket.
func (x *sandbox) listen() (*os.File, error) {
	path, done, err := x.socketPath()
	if err != nil {
		return nil, err
	}
	defer done()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // left over from the last start
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
