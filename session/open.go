package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// flight is the creation of one key's sandbox, shared by all who wait for it. The fields below pulls are
// guarded by Manager.mu.
type flight struct {
	req    Request
	ready  *pooled // taken from the pool, nil without one
	evict  *pooled // to be removed first, in whose place this one is
	cancel context.CancelFunc
	done   chan struct{} // closed when the outcome stands and nothing of a failed creation is left
	pulls  pullRelay

	waiters   int
	abandoned error // set when nobody wants the sandbox any more
	finished  bool
	announced bool // one opener was told that the sandbox is new
	session   *Session
	adopted   bool
	err       error
}

// abandon cancels the creation; Manager.mu is held.
func (f *flight) abandon(why error) {
	if f.abandoned == nil && !f.finished {
		f.abandoned = why
		f.cancel()
	}
}

// errAbandoned ends a creation that all waiters left.
var errAbandoned = errors.New("session: all callers canceled")

// Open returns the session of key, and makes its sandbox when there is none; created is true for the one caller whose
// sandbox is new. Callers of one key share one creation: one whose ctx ends stops waiting without disturbing the
// others, and when the last one left the creation is cancelled and leaves nothing behind.
//
// If the key's sandbox was lost, Open creates it again with its files, if the backend keeps files of stopped sandboxes
// (backend.Capabilities.Persistent). Otherwise it makes a fresh one, with a new id and created true. Files of a lost
// sandbox are kept for its idle timeout, those of runs and named sandboxes for 30 days.
//
// If the key is open with another request, Open returns a ConflictError. At Options.MaxSandboxes the error wraps
// backend.ErrCapacity, and for a run that has ended backend.ErrClosed.
//
// A sandbox that another process left, because it died or as Detach does, is adopted with what is in it; created is
// false. One that a living process has is backend.ErrExists, for named sandboxes (UserKey) after a short wait. Which
// processes live is what Options.Store knows; without a common store only named sandboxes are found, and none if labels
// can be forged (backend.Capabilities.Forgeable).
func (m *Manager) Open(ctx context.Context, key Key, req Request) (s *Session, created bool, err error) {
	ctx, span := telemetry.StartWith(ctx, m.tracers, telemetry.SpanOpen, m.keyAttributes(key)...)
	began := time.Now()
	defer func() {
		measured := []attribute.KeyValue{telemetry.KeyCreated.Bool(created)}
		if s != nil {
			span.SetAttributes(telemetry.KeySandboxID.String(s.id), telemetry.KeyCreated.Bool(created),
				semconv.ContainerID.String(s.engine.ID), telemetry.Text(semconv.ContainerImage, s.engine.Image), semconv.ContainerRuntime.String(m.driver))
		}
		err = sandbox.WrapError("Open", m.driver, "", err)
		if err != nil {
			measured = append(measured, semconv.ErrorType.String(telemetry.Class(err)))
		}
		m.meters.opened.Record(ctx, time.Since(began).Seconds(), m.measured(measured...))
		telemetry.End(span, err)
	}()
	if err := cmp.Or(ctx.Err(), key.Validate()); err != nil {
		return nil, false, err
	}
	if req, err = m.prepare(req); err != nil {
		return nil, false, refusedOpen(ctx, key, req, err)
	}
	if err := m.checkDurable(key, req); err != nil {
		return nil, false, err
	}
	span.SetAttributes(telemetry.Text(telemetry.KeyImage, req.Image)) // a reference, which has no room for a password
	if err := audit.Note(ctx, func(r *audit.Record) {
		r.Event, r.Run, r.Key, r.Image, r.Decision = audit.EventOpen, key.Run(), key.String(), req.Image, audit.Allowed
		r.Backend, r.Isolation = m.driver, string(m.b.Capabilities().Isolation[req.OCIRuntime])
		r.Policy, r.Settings = "", nil // of the sandbox around, if any
	}); err != nil {
		return nil, false, err
	}
	for again := true; again && err == nil; {
		s, created, again, err = m.tryOpen(ctx, key, req)
	}
	if err == nil {
		err = m.isolated(s.engine, req) // one that was open, or another process's
	}
	if err != nil {
		return nil, false, err
	}
	return s, created, nil
}

// Rules of refusals to open a sandbox.
const (
	ruleImages = "images" // Options.Images
	ruleRoot   = "root"   // Options.AllowRoot
)

// refusedOpen returns err. If it is that a sandbox as req wants it is not allowed, it is noted and put on record.
func refusedOpen(ctx context.Context, key Key, req Request, err error) error {
	if !errors.Is(err, backend.ErrPermission) {
		return err
	}
	rule := ruleImages
	if user, err := record.ParseUser(req.User); err == nil && record.IsRoot(user) {
		rule = ruleRoot
	}
	trace.SpanFromContext(ctx).AddEvent(telemetry.EventRefused, trace.WithAttributes(telemetry.KeyRule.String(rule)))
	return errors.Join(err, audit.Note(ctx, func(r *audit.Record) {
		r.Event, r.Run, r.Key, r.Decision, r.Rule = audit.EventOpen, key.Run(), key.String(), audit.Refused, rule
		if _, err := backend.NormalizeImage(req.Image); err == nil { // else it may be an address with a password in it
			r.Image = req.Image
		}
	}))
}

// tryOpen finds the key's session, joins its creation or begins it. again reports whether something that was in the way
// is gone now.
func (m *Manager) tryOpen(ctx context.Context, key Key, req Request) (_ *Session, created, again bool, _ error) {
	m.mu.Lock()
	if err := m.refuses(key.Scope()); err != nil {
		m.mu.Unlock()
		return nil, false, false, err
	}
	e := m.entries[key]
	switch {
	case e == nil:
		ready, evict := m.pool.take(req), (*pooled)(nil)
		if ready == nil && m.opts.MaxSandboxes > 0 && m.used >= m.opts.MaxSandboxes {
			if gone := m.leaving(); gone != nil {
				m.mu.Unlock()
				return nil, false, true, wait(ctx, gone)
			}
			if evict = m.pool.evict(); evict == nil {
				m.mu.Unlock()
				return nil, false, false, fmt.Errorf("%w: sandbox limit reached (%d)", backend.ErrCapacity, m.opts.MaxSandboxes)
			}
		}
		f := m.launch(ctx, key, req, ready, evict)
		m.mu.Unlock()
		return m.await(ctx, f, req)
	case e.flight != nil:
		f := e.flight
		if f.abandoned != nil {
			m.mu.Unlock()
			return nil, false, true, wait(ctx, f.done)
		}
		fields := f.req.Differences(req)
		if req.Mode == OpenAsIs {
			fields = mismatches(fields, backend.Info{Limits: f.req.Limits}, req, true)
		}
		if fields != nil || differs(req.IdlePolicy, f.req.IdlePolicy) {
			m.mu.Unlock()
			fields = append(fields, policyField(req.IdlePolicy, f.req.IdlePolicy)...)
			return nil, false, false, &ConflictError{Key: key, Fields: fields}
		}
		f.waiters++
		m.mu.Unlock()
		return m.await(ctx, f, req)
	}
	s := e.session
	m.mu.Unlock()
	return m.reuse(ctx, s, req)
}

// leaving returns a channel that is closed once a closing session has ended; nil without one. mu is held.
func (m *Manager) leaving() <-chan struct{} {
	for _, s := range m.byID {
		if s.isClosing() {
			return s.closing
		}
	}
	return nil
}

// refuses returns why no sandbox may be opened in a scope, nil when one may; mu is held.
func (m *Manager) refuses(scope record.Scope) error {
	if m.closed {
		return errManagerClosed
	}
	if _, ok := m.sealed[scope]; ok {
		return fmt.Errorf("%w: run %s has ended", backend.ErrClosed, scope)
	}
	return nil
}

// reuse returns an open session to another opener, or waits until a closing one is gone.
func (m *Manager) reuse(ctx context.Context, s *Session, req Request) (_ *Session, created, again bool, _ error) {
	if s.joined { // the connection may not show yet that another process ended the sandbox
		if rec, err := m.store.Get(ctx, s.id); err == nil && rec.State == record.Closed {
			s.control.Lose("another process removed it")
		}
	}
	switch use := s.control.Use(); {
	case use.Closing:
		return nil, false, true, wait(ctx, s.closing)
	case use.Lost:
		// What is left of it, a stopped container or its volume, must go before the key is used again, or is used on.
		to := owner.Removing
		if s.survives() {
			to = owner.Ready // to be adopted with its files
		}
		if s.control.BeginClose(always) {
			m.spawn(func() {
				if err := m.finishClose(ctx, s, to, owner.EngineLost); err != nil {
					m.log.WarnContext(ctx, "cannot remove the leftovers of a lost sandbox yet", "sandbox", s.id, "error", err)
				}
			})
		}
		return nil, false, true, wait(ctx, s.closing)
	}
	err := s.matches(req)
	switch {
	case err == nil && !s.reopened(req):
		return nil, false, true, wait(ctx, s.closing)
	case err == nil:
		return s, false, false, nil
	case req.Mode == OpenRebuild:
		return nil, false, true, m.releaseIdle(ctx, s)
	}
	return nil, false, false, err
}

// matches returns a ConflictError unless the sandbox is what req asks for.
func (s *Session) matches(req Request) error {
	switch {
	case differs(req.IdlePolicy, s.policy):
		return &ConflictError{Key: s.key, Fields: policyField(req.IdlePolicy, s.policy)}
	case s.asIs || req.Mode == OpenAsIs:
		if fields := conflicts(s.made, s.engine, req); fields != nil {
			return &ConflictError{Key: s.key, Fields: fields}
		}
	}
	switch {
	case req.Mode == OpenAsIs:
		return nil
	case s.asIs: // the hash does not cover the values of variables, which are nowhere but in a request
		s.control.SetDefaults(req.Env, req.ExecTimeout, req.Egress)
		return nil
	}
	if fields := s.req.Differences(req); fields != nil {
		return &ConflictError{Key: s.key, Fields: fields}
	}
	return nil
}

// reopened counts another opener in. It reports whether the session is open.
func (s *Session) reopened(req Request) bool {
	if !s.control.Touch() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extendIdle(req)
	return true
}

// spawn runs fn in a goroutine that the end of the manager waits for, or at once when that has begun.
func (m *Manager) spawn(fn func()) {
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.wg.Go(fn)
	}
	m.mu.Unlock()
	if closed {
		fn()
	}
}

// wait waits for done as long as ctx allows.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// launch begins a creation with one waiter; mu is held. What it has of the pool passes its place on.
func (m *Manager) launch(ctx context.Context, key Key, req Request, ready, evict *pooled) *flight {
	// The creation belongs to all who wait for it: it keeps the first one's trace but not its cancellation.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{req: req, ready: ready, evict: evict, cancel: cancel, done: make(chan struct{}), waiters: 1}
	f.req.OnPull = f.pulls.report
	m.entries[key] = &entry{flight: f}
	if ready == nil && evict == nil {
		m.used++
	}
	m.wg.Go(func() {
		defer cancel()
		m.create(ctx, key, f)
	})
	return f
}

// await waits for a creation, as one of its waiters.
func (m *Manager) await(ctx context.Context, f *flight, req Request) (_ *Session, created, again bool, _ error) {
	leave := f.pulls.join(req.OnPull)
	select {
	case <-f.done:
	case <-ctx.Done():
	}
	leave()
	m.mu.Lock()
	defer m.mu.Unlock()
	f.waiters--
	if !f.finished {
		if f.waiters == 0 {
			f.abandon(errAbandoned)
		}
		return nil, false, false, ctx.Err()
	}
	if f.err != nil {
		return nil, false, false, f.err
	}
	created = !f.announced && !f.adopted
	f.announced = true
	f.session.reopened(req)
	return f.session, created, false, nil
}

// create makes the sandbox of a flight and settles its outcome.
func (m *Manager) create(ctx context.Context, key Key, f *flight) {
	s, adopted, err := m.provide(ctx, key, f)
	m.mu.Lock()
	if s != nil && f.abandoned != nil {
		why := f.abandoned
		m.mu.Unlock()
		// Opens of the key wait on f until this is done.
		m.discard(s, adopted)
		s, err = nil, why
		m.mu.Lock()
	}
	if f.abandoned != nil && err != nil {
		err = f.abandoned
	}
	f.finished, f.session, f.adopted, f.err = true, s, adopted, err
	if s == nil {
		delete(m.entries, key)
		m.used--
	} else {
		m.entries[key] = &entry{session: s}
		m.byID[s.id] = s
		m.meters.active.Add(ctx, 1, m.measured())
	}
	m.mu.Unlock()
	close(f.done)
}

// provide finds the sandbox of a flight's key, or makes one of what the pool has ready, or a new one.
func (m *Manager) provide(ctx context.Context, key Key, f *flight) (s *Session, adopted bool, err error) {
	if f.evict != nil {
		_ = m.removePooled(ctx, f.evict.session) // its failure is logged, and a sweep's
	}
	if f.ready != nil {
		if s, adopted, err = m.assign(ctx, key, f.req, f.ready); !errors.Is(err, errStale) {
			return s, adopted, err
		}
	}
	return m.build(ctx, key, f.req)
}

// build finds or makes the sandbox of a key and connects to it. On failure nothing is left, or what may be left is
// noted for the reaper.
func (m *Manager) build(ctx context.Context, key Key, req Request) (_ *Session, adopted bool, _ error) {
	s := m.newSession(key, req, record.SandboxPrefix+record.NewID())
	reserve := func() error { return m.store.Insert(ctx, s.creating()) }
	if adopted, err := m.reserve(ctx, s, req, reserve); adopted != nil || err != nil {
		return adopted, true, engineError(err) // a store's error names a file of the host
	}
	info, err := m.make(ctx, s, req)
	if err != nil {
		m.forget(s, err)
		return nil, false, engineError(err)
	}
	s.engine = info
	s.byDefault(req, info)
	if err := m.begin(ctx, s, req); err != nil {
		m.discard(s, false)
		return nil, false, err
	}
	return s, false, nil
}

// begin makes a session of a sandbox that was just made.
func (m *Manager) begin(ctx context.Context, s *Session, req Request) error {
	err := m.canStop(s.policy, s.engine.Limits, s.engine.Workspace) // the runtime may allow another enforcement than usual
	if err == nil {
		if err = s.connect(ctx); errors.Is(err, backend.ErrNotFound) {
			err = fmt.Errorf("%w: it was removed while it was being created", backend.ErrLost)
		}
	}
	if err == nil {
		err = s.prepare(ctx, true, req.Prepare)
	}
	return err
}

// prepare completes a sandbox for its first or next opener and records that it is ready. If the sandbox is lost before,
// the opener removes it or leaves it as it was.
func (s *Session) prepare(ctx context.Context, fresh bool, with func(context.Context, *Session) error) error {
	err := s.control.OpenEgress(ctx)
	if err == nil && fresh {
		s.beginCaches(ctx)
	}
	if err == nil && with != nil {
		err = guarded(func() error { return with(ctx, s) })
	}
	if err == nil {
		err = engineError(s.m.store.Update(ctx, s.recordAs(record.Ready, s.expiry())))
	}
	s.settled.Store(err == nil)
	if err == nil && s.wasLost() {
		err = fmt.Errorf("%w: it ended while it was being opened", backend.ErrLost)
	}
	return err
}

// creating returns the record of a sandbox that is being made.
func (s *Session) creating() record.Record {
	return s.recordAs(record.Creating, s.created.Add(custody.Lifetimes.Remembered))
}

// guarded turns a panic of a caller's function into an error: it runs in a goroutine of the manager, where nobody else
// could recover it, and the sandbox it is about must still be removed.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a function of the request panicked: %v", r)
		}
	}()
	return f()
}

// newSession makes a session without a sandbox.
func (m *Manager) newSession(key Key, req Request, id string) *Session {
	now := m.now()
	s := &Session{
		m: m, id: id, key: key, req: req, made: req.shape().encode(), owned: true, created: now, idle: req.IdleTimeout,
		policy: cmp.Or(req.IdlePolicy, record.IdleRemove), lossRecorded: make(chan struct{}), closing: make(chan struct{}),
	}
	s.req.OnPull, s.req.Prepare, s.req.OnAdopt = nil, nil, nil // its owner's, only for the beginning
	s.Sandbox, s.control = sandbox.New(m.b, sandbox.Options{
		ID: id, Key: key.String(), Run: key.Run(), Limits: req.Limits, Env: req.Env, ExecTimeout: req.ExecTimeout,
		MaxFileBytes: m.opts.MaxFileBytes, Egress: m.opts.Egress, Hosts: req.Egress, Shared: m.opts.Join,
		Settings:       sync.OnceValue(func() sandbox.Settings { return s.Info().Settings() }),
		TracerProvider: m.tracers, Logger: m.log, Now: func() time.Time { return m.now() }, OnUse: s.recordUse, OnLost: s.noteLost,
	})
	return s
}

// spec returns the driver's view of a session. The environment stays with the session: in the container's configuration
// anybody with the engine could read it.
func (m *Manager) spec(s *Session, onPull func(backend.PullProgress)) backend.Spec {
	return backend.Spec{
		ID: s.id, Instance: m.opts.Instance, Key: s.key.String(), Run: s.key.Run(), Hash: s.req.shape().hash(),
		Image: s.req.Image, Pull: s.req.Pull, User: s.req.User, Root: s.req.Root, Limits: s.req.Limits,
		Network: s.req.Network, OCIRuntime: s.req.OCIRuntime, Isolation: s.req.Isolation, Mounts: m.mounts(s.req), Labels: maps.Clone(m.opts.Labels),
		OnPull: onPull, Fork: s.req.fork, Created: s.created, OrphanTimeout: s.orphanTimeout(), Ephemeral: m.alone,
	}
}

// connect makes the first connection of a session.
func (s *Session) connect(ctx context.Context) error {
	return s.control.Connect(ctx, s.engine, s.imageEnv())
}

// refused reports whether a creation failed before anything was made.
func refused(err error) bool {
	for _, kind := range []error{backend.ErrImage, backend.ErrInvalid, backend.ErrPermission, backend.ErrUnsupported, backend.ErrEnvironment} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// discard removes the sandbox of a session that nobody got.
func (m *Manager) discard(s *Session, adopted bool) {
	to := owner.Gone
	if adopted {
		to = owner.Ready // it was there before us
	}
	if err := m.closeSession(m.ctx, s, to, owner.RunEnded); err != nil {
		m.log.Warn("cannot remove an abandoned sandbox yet", "sandbox", s.id, "error", err)
	}
}

// forget clears up after a creation that failed in the driver. Unless it failed before there was anything, the driver
// may have been unable to clean up: the reaper looks for the sandbox by its id, also later, when an engine that was
// slow to answer has made it after all.
func (m *Manager) forget(s *Session, cause error) {
	if !refused(cause) {
		m.keeper.Save(s.recordAs(record.Removing, m.now()))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), custody.StoreTimeout)
	defer cancel()
	if m.store.Delete(ctx, s.id) != nil {
		m.keeper.Save(s.recordAs(record.Closed, m.now())) // at least it must not hold the key
	}
}

// pullRelay hands the progress of one pull to all openers who wait for it. An opener who left is not called any more.
type pullRelay struct {
	mu    sync.Mutex // guards heard, and is held while its functions are called, so that who leaves waits for them
	heard []*func(backend.PullProgress)
}

// join adds a listener, which may be nil, and returns the function that removes it.
func (p *pullRelay) join(listener func(backend.PullProgress)) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = append(p.heard, &listener)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		listener = nil
	}
}

// report calls the listeners. One that panics is not called again; the pull goes on for the others.
func (p *pullRelay) report(progress backend.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.heard {
		if *l != nil && guarded(func() error { (*l)(progress); return nil }) != nil {
			*l = nil
		}
	}
}
