package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Get describes a sandbox.
func (b *driver) Get(ctx context.Context, id string) (backend.Info, error) {
	x, err := b.own(id)
	if err != nil {
		return backend.Info{}, err
	}
	state, ok := b.state(x)
	if !ok {
		return backend.Info{}, notFound(id)
	}
	return b.describe(x, state), nil
}

// state returns a sandbox's state. It returns false if the creator died before the creation was complete.
func (b *driver) state(x *sandbox) (backend.State, bool) {
	if !x.made() {
		if free, _ := x.tryLock(); !free { // in creation; another call reports errors
			return backend.StateCreated, true
		}
		made := x.made() // may have finished in the meantime
		x.unlock()
		if !made {
			return "", false
		}
	}
	if _, ok := x.running(b.machine.boot); ok {
		return backend.StateRunning, true
	}
	return backend.StateStopped, true
}

func (b *driver) describe(x *sandbox, state backend.State) backend.Info {
	info := x.Info(x.Labels, x.UserLabels)
	info.ID, info.ImageID, info.ImageEnv, info.State = x.id(), hostImage, []string{"PATH=" + searchPath}, state
	if info.RootBytes > 0 {
		info.RootEnforcement = backend.WorkspaceMemory
	}
	if state == backend.StateStopped {
		// Workcell did not stop it, and the kernel killed processes because memory ran out. The kernel kills the guest agent
		// last.
		_, started := x.started()
		info.OOMKilled = started && host.OOMKills(b.group(x).dir("memory"), b.machine.cgroups.v2) > 0
	}
	return info
}

// List describes the sandboxes matching filter. It also removes leftovers of dead creations of the filter's instance.
func (b *driver) List(ctx context.Context, filter backend.Filter) ([]backend.Info, error) {
	entries, err := os.ReadDir(b.dirs.sandboxes())
	if err != nil {
		return nil, failed("listing sandboxes", err)
	}
	infos := []backend.Info{}
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, ended(ctx)
		}
		if !kit.IsSessionID(e.Name()) || filter.SessionID != "" && e.Name() != filter.SessionID {
			continue
		}
		x, err := b.readSandbox(e.Name())
		if err != nil {
			continue // removed concurrently, or unreadable, which is logged
		}
		state, ok := b.state(x)
		if !ok {
			b.sweepOne(ctx, x.session(), filter.Instance)
			continue
		}
		infos = append(infos, b.describe(x, state))
	}
	return infos, nil
}

// sweepOne removes a sandbox of the instance if the creator died. It does not touch other sandboxes.
func (b *driver) sweepOne(ctx context.Context, session, instance string) {
	if err := b.clear(ctx, session, instance); err != nil {
		b.opts.Logger.Warn("local: cannot remove leftovers of an interrupted create", "session", session, "error", err)
	}
}

func (b *driver) clear(ctx context.Context, session, instance string) error {
	x, err := b.readSandbox(session)
	if err != nil || x.instance() != instance || x.made() {
		return nil
	}
	if free, _ := x.tryLock(); !free { // in creation; another call reports errors
		return nil
	}
	defer x.unlock()
	// The earlier read may have returned an unfinished or an older sandbox.
	again, err := b.readSandbox(session)
	if err != nil || !x.current() || again.made() {
		return nil
	}
	return b.abandon(ctx, again)
}

// Start starts a stopped sandbox.
func (b *driver) Start(ctx context.Context, id string) error {
	x, err := b.locked(ctx, id)
	if err != nil {
		return err
	}
	defer x.unlock()
	if _, ok := x.running(b.machine.boot); ok {
		return nil
	}
	if !x.made() { // its creator died
		return notFound(id)
	}
	if _, ok := x.started(); !ok { // no process may be running, regardless of the files
		if err := b.halt(ctx, x); err != nil {
			return err
		}
	}
	return b.start(ctx, x)
}

// Stop kills the processes of a sandbox.
func (b *driver) Stop(ctx context.Context, id string) error {
	x, err := b.locked(ctx, id)
	if err != nil {
		return err
	}
	defer x.unlock()
	return b.halt(ctx, x)
}

// halt kills the process of a locked sandbox and removes the control group and mounts.
func (b *driver) halt(ctx context.Context, x *sandbox) error {
	if err := b.Thaw(ctx, x); err != nil {
		return err
	}
	if p, ok := x.started(); ok {
		if err := p.kill(ctx, b.machine.boot); err != nil {
			return err
		}
	} else if err := b.group(x).kill(ctx, b.machine.boot); err != nil { // finds processes without a record
		return err
	}
	if err := b.group(x).remove(ctx); err != nil {
		return err
	}
	for _, f := range []string{runFile, socketFile} {
		if err := os.Remove(x.file(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return failed("stopping", err)
		}
	}
	return nil
}

// Remove stops a sandbox and deletes it.
func (b *driver) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	session, nonce, err := splitID(id)
	if err != nil {
		return nil // not a sandbox of this driver
	}
	meant := func(w workspace) bool { return opts.Volumes && (w.Last == nonce || w.Maker == "") }
	x, err := b.hold(ctx, session, nonce, meant)
	if x == nil || err != nil {
		return err
	}
	defer x.unlock()
	if x.Nonce != nonce { // a dead creation; the workspace may belong to the specified sandbox
		return b.removeWorkspace(ctx, session, meant)
	}
	if err := errors.Join(b.halt(ctx, x), b.removeWorkspace(ctx, session, meant)); err != nil {
		return err
	}
	if err := b.drop(ctx, x); err != nil {
		return err
	}
	if err := b.dirs.sweep(ctx); err != nil {
		b.opts.Logger.Warn("local: cannot remove leftovers of exited processes", "error", err)
	}
	return nil
}

// hold locks the sandbox with this ID. If the sandbox does not exist, hold locks the leftovers of another creation or
// takes the session's name like a new sandbox. Each of these locks prevents other processes from taking over the
// workspace. If no objects need to be removed, hold returns nil and no error.
func (b *driver) hold(ctx context.Context, session, nonce string, meant func(workspace) bool) (*sandbox, error) {
	for {
		x, err := b.readSandbox(session)
		if err != nil {
			w, err := b.dirs.readOwner(session)
			if errors.Is(err, os.ErrNotExist) || !meant(w) || host.Exists(b.dirs.sandbox(session)) {
				return nil, nil
			}
			x, err = b.takeName(nameOnly(session, w.Instance, nonce))
			if errors.Is(err, backend.ErrExists) { // created in the meantime
				continue
			}
			return x, err
		}
		if x.Nonce != nonce && x.made() {
			return nil, nil // the workspace belongs to another sandbox
		}
		err = x.acquire(ctx)
		if errors.Is(err, backend.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		again, err := b.readSandbox(session)
		if err == nil && x.current() && again.Nonce == x.Nonce && (x.Nonce == nonce || !again.made()) {
			again.lock = x.lock
			return again, nil
		}
		x.unlock()
	}
}

// drop removes a locked sandbox. The sandbox's name is free immediately. A later failure only leaves unused files.
func (b *driver) drop(ctx context.Context, x *sandbox) error {
	if err := b.halt(ctx, x); err != nil {
		return err
	}
	return failed("removing a sandbox", b.dirs.discard(ctx, x.dir))
}

// Dial opens a stream to the guest agent. Streams are independent of each other.
func (b *driver) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	x, err := b.own(id)
	if err != nil {
		return nil, err
	}
	if err := b.settled(ctx, x); err != nil {
		return nil, err
	}
	path, release, err := x.socketPath()
	if err != nil {
		return nil, notFound(id)
	}
	defer release()
	conn, err := wire.DialSocket(path)
	switch {
	case err == nil:
		return host.NewStream(conn, conn, conn.Close), nil
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		if _, gone := b.own(id); gone != nil {
			return nil, gone
		}
		return nil, fmt.Errorf("local: the sandbox is not running: %w", backend.ErrLost)
	case errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("local: the guest agent accepts no more connections: %w", backend.ErrCapacity)
	}
	return nil, fmt.Errorf("local: connecting to the guest agent: %v: %w", err, backend.ErrUnavailable)
}

// ImageID returns an ID for the program of a reference.
func (b *driver) ImageID(_ context.Context, ref string) (string, error) {
	p, err := resolveImage(ref)
	if errors.Is(err, backend.ErrUnsupported) {
		return "", fmt.Errorf("%w: %w", backend.ErrNotFound, err) // the image is known to be missing on this host
	}
	if err == nil {
		err = p.find()
	}
	return hostImage, err
}
