package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Get describes a sandbox.
func (b *Backend) Get(ctx context.Context, id string) (backend.Info, error) {
	_, done, err := b.calls.Begin(ctx)
	if err != nil {
		return backend.Info{}, err
	}
	defer done()
	x, err := b.own(id)
	if err != nil {
		return backend.Info{}, err
	}
	state, ok := b.state(x)
	if !ok {
		return backend.Info{}, notFound(id)
	}
	return b.describe(x, state, true), nil
}

// state returns a sandbox's state; false for one whose creation died.
func (b *Backend) state(x *sandbox) (backend.State, bool) {
	if !x.made() {
		free, err := x.tryLock()
		if free {
			made := x.made() // by now, perhaps
			x.unlock()
			if !made {
				return "", false
			}
		}
		if !free || err != nil {
			return backend.StateCreated, true
		}
	}
	if _, ok := x.running(b.machine.boot); ok {
		return backend.StateRunning, true
	}
	return backend.StateStopped, true
}

func (b *Backend) describe(x *sandbox, state backend.State, whole bool) backend.Info {
	info := backend.Info{
		ID: x.id(), SessionID: x.SessionID, Instance: x.Instance, Key: x.Key, Run: x.Run, Hash: x.Hash, Image: hostImage,
		ImageID: hostImage, User: fmt.Sprintf("%d:%d", x.User.UID, x.User.GID), Network: x.Network, Root: x.Root, Limits: x.Limits, Workspace: x.Workspace,
		RootBytes: rootBytes(&x.record), Ephemeral: x.Ephemeral,
		State: state, Created: x.Created, Labels: x.Labels,
	}
	if info.RootBytes > 0 {
		info.RootEnforcement = backend.WorkspaceMemory
	}
	if whole {
		info.ImageEnv = []string{"PATH=" + searchPath}
	}
	if state == backend.StateStopped {
		// It was not stopped by us, and the kernel killed for lack of memory: the guest is the last to be killed.
		_, started := x.started()
		info.OOMKilled = started && b.group(x).oomKills() > 0
	}
	return info
}

// List describes the sandboxes that match filter, oldest first. It also removes what dead creations of the filter's
// instance left behind.
func (b *Backend) List(ctx context.Context, filter backend.Filter) ([]backend.Info, error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	entries, err := os.ReadDir(b.dirs.sandboxes())
	if err != nil {
		return nil, fmt.Errorf("local: listing sandboxes: %w", scrub(err))
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
		if err != nil || !filterMatches(filter, &x.record) {
			continue // gone meanwhile, or unreadable, which is logged
		}
		state, ok := b.state(x)
		if !ok {
			b.sweepOne(ctx, x.SessionID, filter.Instance)
			continue
		}
		infos = append(infos, b.describe(x, state, false))
	}
	kit.Sort(infos)
	return infos, nil
}

func filterMatches(f backend.Filter, r *record) bool {
	for _, m := range [][2]string{{f.Instance, r.Instance}, {f.SessionID, r.SessionID}, {f.Key, r.Key}, {f.Run, r.Run}} {
		if m[0] != "" && m[0] != m[1] {
			return false
		}
	}
	return true
}

// sweepOne removes a sandbox of the instance whose creator died. Others stay.
func (b *Backend) sweepOne(ctx context.Context, session, instance string) {
	dead := func(x *sandbox) bool { return !x.made() }
	err := b.clear(ctx, session, instance, dead, b.abandon)
	if err != nil {
		b.log.Warn("local: what a dead creation left cannot be removed", "session", session, "error", err)
	}
}

// reclaim removes a sandbox of the instance whose record is lost and of which nothing lives, for a new one of the session.
// The workspace stays.
func (b *Backend) reclaim(ctx context.Context, session, instance string) {
	dead := func(x *sandbox) bool { return x.damaged && x.made() && !x.lives(b.machine.boot) }
	err := b.clear(ctx, session, instance, dead, b.drop)
	if err != nil {
		b.log.Warn("local: a damaged sandbox cannot be removed", "session", session, "error", err)
	}
}

// clear removes a sandbox of the instance, if it is dead. One that is in use stays.
func (b *Backend) clear(ctx context.Context, session, instance string, dead func(*sandbox) bool, remove func(context.Context, *sandbox) error) error {
	x, err := b.readSandbox(session)
	if err != nil || x.Instance != instance || !dead(x) {
		return nil
	}
	if ok, err := x.tryLock(); !ok || err != nil {
		return nil // it is being made
	}
	defer x.unlock()
	// What was read may have been unfinished, or of another one.
	again, err := b.readSandbox(session)
	if err != nil || !x.current() || !dead(again) {
		return nil
	}
	return remove(ctx, again)
}

// Start starts a stopped sandbox.
func (b *Backend) Start(ctx context.Context, id string) (err error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, span := b.calls.Span(ctx, telemetry.SpanLocalStart)
	defer func() { telemetry.End(span, err) }()
	x, err := b.locked(ctx, id)
	if err != nil {
		return err
	}
	defer x.unlock()
	if _, ok := x.running(b.machine.boot); ok {
		return nil
	}
	if x.damaged {
		return fmt.Errorf("local: the sandbox's record is damaged, and how to start it is lost: %w", backend.ErrLost)
	}
	if _, ok := x.started(); !ok { // then nothing may run, whatever the files tell
		if err := b.halt(ctx, x); err != nil {
			return err
		}
	}
	return b.start(ctx, x, nil, noRecord)
}

// Stop ends the processes of a sandbox at once: the guest has nothing to save.
func (b *Backend) Stop(ctx context.Context, id string) (err error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, span := b.calls.Span(ctx, telemetry.SpanLocalStop)
	defer func() { telemetry.End(span, err) }()
	x, err := b.locked(ctx, id)
	if err != nil {
		return err
	}
	defer x.unlock()
	return b.halt(ctx, x)
}

// halt ends the process of a locked sandbox and removes what holds it.
func (b *Backend) halt(ctx context.Context, x *sandbox) error {
	if p, ok := x.started(); ok {
		if x.damaged && p.alive(b.machine.boot) {
			x.Group = b.foundGroup(p)
		}
		if err := p.kill(ctx, b.machine.boot); err != nil {
			return err
		}
	} else if err := b.group(x).kill(ctx, b.machine.boot); err != nil { // what the sandbox's files do not tell of
		return err
	} else if x.lives(b.machine.boot) {
		return fmt.Errorf("local: the sandbox runs, and the record of its process is damaged: end it by hand: %w", backend.ErrUnavailable)
	}
	if err := b.group(x).remove(ctx); err != nil {
		return err
	}
	for _, f := range []string{runFile, socketFile} {
		if err := os.Remove(x.file(f)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("local: stopping: %w", scrub(err))
		}
	}
	return nil
}

// Remove ends a sandbox and deletes it. With the workspace kept, a later Create of the same session finds it again.
func (b *Backend) Remove(ctx context.Context, id string, opts backend.RemoveOptions) (err error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	ctx, span := b.calls.Span(ctx, telemetry.SpanLocalRemove)
	defer func() { telemetry.End(span, err) }()
	session, nonce, err := splitID(id)
	if err != nil {
		return nil // it is none of ours
	}
	meant := func(w workspace) bool { return opts.Volumes && (w.Last == nonce || w.Maker == "") }
	x, err := b.hold(ctx, session, nonce, meant)
	if x == nil || err != nil {
		return err
	}
	defer x.unlock()
	if x.Nonce != nonce { // that one's creation died, and the workspace may still be of the one that is meant
		return b.removeWorkspace(ctx, session, meant)
	}
	if err := errors.Join(b.halt(ctx, x), b.removeWorkspace(ctx, session, meant)); err != nil {
		return err
	}
	if err := b.drop(ctx, x); err != nil {
		return err
	}
	if err := b.dirs.sweep(ctx); err != nil {
		b.log.Warn("local: the remains of dead processes cannot be removed", "error", err)
	}
	return nil
}

// hold locks the sandbox with that id, or whatever else keeps others from making its workspace theirs: the rest of another
// creation, or the session's name, taken like for a new sandbox. Nil and no error: there is nothing to remove.
func (b *Backend) hold(ctx context.Context, session, nonce string, meant func(workspace) bool) (*sandbox, error) {
	for {
		x, err := b.readSandbox(session)
		if err != nil {
			w, err := b.dirs.ownerOf(session)
			if err != nil && !errors.Is(err, errDamaged) || !meant(w) || exists(b.dirs.sandbox(session)) {
				return nil, nil
			}
			x, err = b.takeName(&record{SessionID: session, Nonce: nonce, Instance: w.Instance})
			if errors.Is(err, backend.ErrExists) { // by now
				continue
			}
			return x, err
		}
		if x.Nonce != nonce && x.made() {
			return nil, nil // the workspace is that one's
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

// drop removes a locked sandbox. Its name is free at once; what then fails leaves only files without meaning.
func (b *Backend) drop(ctx context.Context, x *sandbox) error {
	if err := b.halt(ctx, x); err != nil {
		return err
	}
	if err := b.dirs.discard(ctx, x.dir); err != nil {
		return fmt.Errorf("local: removing a sandbox: %w", err)
	}
	return nil
}

// Dial opens a stream to the guest. Streams do not disturb each other: Connect is the same.
func (b *Backend) Dial(ctx context.Context, id string) (_ io.ReadWriteCloser, err error) {
	return b.connect(ctx, id, telemetry.SpanLocalDial)
}

// Connect opens a stream of its own to the guest.
func (b *Backend) Connect(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	return b.connect(ctx, id, telemetry.SpanLocalConnect)
}

func (b *Backend) connect(ctx context.Context, id, spanName string) (_ io.ReadWriteCloser, err error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, span := b.calls.Span(ctx, spanName)
	defer func() { telemetry.End(span, err) }()
	x, err := b.own(id)
	if err != nil {
		return nil, err
	}
	path, release, err := x.socketPath()
	if err != nil {
		return nil, notFound(id)
	}
	defer release()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return &stream{Conn: conn}, nil
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		if _, gone := b.own(id); gone != nil {
			return nil, gone
		}
		return nil, fmt.Errorf("local: the sandbox does not run: %w", backend.ErrLost)
	case errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("local: the guest takes no more connections: %w", backend.ErrCapacity)
	}
	return nil, fmt.Errorf("local: reaching the guest: %v: %w", errors.Unwrap(err), backend.ErrUnavailable)
}

// stream is a connection to a guest. Closing it again is no error.
type stream struct {
	net.Conn
	closing sync.Once
}

func (s *stream) Close() (err error) {
	s.closing.Do(func() { err = s.Conn.Close() })
	return err
}

// OOMKills counts how often the kernel ended a process of the sandbox for lack of memory since it was started.
// backend.ErrUnsupported where no cgroup counts.
func (b *Backend) OOMKills(ctx context.Context, id string) (int64, error) {
	_, done, err := b.calls.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	x, err := b.own(id)
	if err != nil {
		return 0, err
	}
	if !b.machine.cgroups.memory() {
		return 0, fmt.Errorf("local: OOM kills are not counted without a memory cgroup: %w", backend.ErrUnsupported)
	}
	return max(0, b.group(x).oomKills()), nil
}

// HasImage reports whether a reference stands for a program that is there.
func (b *Backend) HasImage(ctx context.Context, ref string) (bool, error) {
	_, done, err := b.calls.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	p, err := resolveImage(ref)
	if errors.Is(err, backend.ErrUnsupported) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return p.find() == nil, nil
}
