package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// flight is the creation of one key's sandbox. All openers of the key share it. Manager.mu guards the fields below
// pulls.
type flight struct {
	req    Request
	former *Session // closing session whose sandbox is opened again; nil without one
	ready  *pooled  // pooled sandbox to use; nil without one
	evict  *pooled  // pooled sandbox to remove first, to stay within MaxSandboxes
	cancel context.CancelFunc
	done   chan struct{} // closed when the outcome is final and a failed creation is cleaned up
	pulls  pullRelay

	waiters   int
	abandoned error       // reason for canceling the creation, for example errAbandoned
	end       owner.Event // if not empty, the sandbox of former ends as well
	finished  bool
	announced bool // one opener has received created = true
	session   *Session
	adopted   bool
	err       error
}

// abandon cancels the creation. If end is not empty, the sandbox of the former session ends because of this event. The
// caller must hold Manager.mu.
func (f *flight) abandon(why error, end owner.Event) {
	if f.finished {
		return
	}
	f.end = cmp.Or(f.end, end)
	if f.abandoned == nil {
		f.abandoned = why
		f.cancel()
	}
}

// errAbandoned ends a creation whose callers were all canceled.
var errAbandoned = errors.New("session: all callers canceled")

// Open returns the session of key and creates the sandbox if it does not exist. created reports whether this call
// created it. Concurrent callers with the same key share one creation. If a caller's ctx is canceled, the other callers
// are not affected. If all callers are canceled, the creation is canceled and cleaned up.
//
// If the key's sandbox was lost and the backend keeps files of stopped sandboxes (backend.Capabilities.Persistent),
// Open recreates the sandbox with the files. Otherwise Open creates an empty sandbox with a new id and returns created
// = true. Files of a lost sandbox are kept for the idle timeout. Files of named sandboxes and of runs are kept for 30
// days.
//
// If the key is open with a different request, Open returns a ConflictError. If Options.MaxSandboxes is reached, the
// error wraps backend.ErrCapacity. If the run has ended, the error wraps backend.ErrClosed.
//
// If another process died or called Detach, Open adopts the process's sandbox with the existing files and returns
// created = false. If a living process owns the sandbox, the error wraps backend.ErrExists. For named sandboxes
// (UserKey), Open first waits for a short time. Options.Store records which processes are alive. Without a shared
// store, Open finds only named sandboxes of other processes, and none if labels can be forged
// (backend.Capabilities.Forgeable).
func (m *Manager) Open(ctx context.Context, key Key, req Request) (s *Session, created bool, err error) {
	ctx, span := telemetry.StartWith(ctx, m.tracers, telemetry.SpanOpen, m.keyAttributes(key)...)
	began := time.Now()
	defer func() {
		measured := []attribute.KeyValue{telemetry.KeyCreated.Bool(created)}
		if s != nil {
			span.SetAttributes(telemetry.KeySandboxID.String(s.id), telemetry.KeyCreated.Bool(created),
				semconv.ContainerID.String(s.engine.ID), telemetry.Text(semconv.ContainerImage, s.engine.Image),
				semconv.ContainerRuntime.String(m.driver))
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
	span.SetAttributes(telemetry.Text(telemetry.KeyImage, req.Image)) // a valid reference, so it contains no password
	if err := audit.Note(ctx, func(r *audit.Record) {
		r.Event, r.Run, r.Key, r.Image, r.Decision = audit.EventOpen, key.Run(), key.String(), req.Image, audit.Allowed
		r.Backend, r.Isolation = m.driver, string(m.b.Capabilities().Isolation[req.OCIRuntime])
		r.Policy, r.Settings = "", nil // of the sandbox around, if any
	}); err != nil {
		return nil, false, err
	}
	for {
		s, created, err := m.tryOpen(ctx, key, req)
		if errors.Is(err, errAgain) {
			continue
		}
		if err == nil && m.isolated(s.engine, req) != nil { // it was open, or belongs to another process
			return nil, false, m.isolated(s.engine, req)
		}
		return s, created, err
	}
}

// errAgain makes Open try again after an obstacle has been removed.
var errAgain = errors.New("session: try again")

var errRoot = errors.New("root is not allowed in sandboxes")

// refusedOpen returns err. If the reason is a policy, refusedOpen adds a span event and an audit record.
func refusedOpen(ctx context.Context, key Key, req Request, err error) error {
	if !errors.Is(err, backend.ErrPermission) {
		return err
	}
	rule := "images" // Options.Images
	if errors.Is(err, errRoot) {
		rule = "root" // Options.AllowRoot
	}
	trace.SpanFromContext(ctx).AddEvent(telemetry.EventRefused, trace.WithAttributes(telemetry.KeyRule.String(rule)))
	return errors.Join(err, audit.Note(ctx, func(r *audit.Record) {
		r.Event, r.Run, r.Key, r.Decision, r.Rule = audit.EventOpen, key.Run(), key.String(), audit.Refused, rule
		if _, err := backend.NormalizeImage(req.Image); err == nil { // an invalid reference may be a URL with a password
			r.Image = req.Image
		}
	}))
}

// tryOpen finds the key's session, waits for a running creation, or starts the creation. It may return errAgain.
func (m *Manager) tryOpen(ctx context.Context, key Key, req Request) (_ *Session, created bool, _ error) {
	m.mu.Lock()
	if err := m.refuses(key.Scope()); err != nil {
		m.mu.Unlock()
		return nil, false, err
	}
	e := m.entries[key]
	switch {
	case e == nil:
		ready, evict := m.pool.take(req), (*pooled)(nil)
		if ready == nil && m.opts.MaxSandboxes > 0 && m.used >= m.opts.MaxSandboxes {
			if gone := m.leaving(); gone != nil {
				m.mu.Unlock()
				return nil, false, awaitAgain(ctx, gone)
			}
			if evict = m.pool.evict(); evict == nil {
				m.mu.Unlock()
				return nil, false, fmt.Errorf("%w: sandbox limit reached (%d)", backend.ErrCapacity, m.opts.MaxSandboxes)
			}
		}
		f := m.launch(ctx, key, &flight{req: req, ready: ready, evict: evict})
		m.mu.Unlock()
		return m.await(ctx, f, req)
	case e.flight != nil:
		f := e.flight
		if f.abandoned != nil {
			m.mu.Unlock()
			return nil, false, awaitAgain(ctx, f.done)
		}
		fields := f.req.Differences(req)
		if req.Mode == OpenAsIs {
			fields = mismatches(fields, backend.Info{Limits: f.req.Limits}, req, true)
		}
		if fields = append(fields, policyField(req.IdlePolicy, f.req.IdlePolicy)...); fields != nil {
			m.mu.Unlock()
			return nil, false, &ConflictError{Key: key, Fields: fields}
		}
		f.waiters++
		m.mu.Unlock()
		return m.await(ctx, f, req)
	}
	s := e.session
	m.mu.Unlock()
	return m.reuse(ctx, s, req)
}

// leaving returns a channel of a closing session, closed at the end of the session. If no session is closing, it
// returns nil. The caller must hold mu.
func (m *Manager) leaving() <-chan struct{} {
	for _, s := range m.byID {
		if s.isClosing() {
			return s.closing
		}
	}
	return nil
}

// refuses returns the reason why no sandbox may be opened in a scope, or nil. The caller must hold mu.
func (m *Manager) refuses(scope record.Scope) error {
	if m.closed {
		return errManagerClosed
	}
	if _, ok := m.sealed[scope]; ok {
		return fmt.Errorf("%w: run %s has ended", backend.ErrClosed, scope)
	}
	return nil
}

// reuse returns an open session to another opener. If the session is closing, reuse waits for the end and returns
// errAgain.
func (m *Manager) reuse(ctx context.Context, s *Session, req Request) (_ *Session, created bool, _ error) {
	if m.opts.Join { // the connection may not show yet a removal by another process
		brief, cancel := context.WithTimeout(ctx, 2*time.Second) // during an outage of the store, Open returns the session
		rec, err := m.store.Get(brief, s.id)
		cancel()
		if err == nil && rec.State == record.Closed {
			s.control.Lose("another process removed it")
		}
	}
	switch use := s.control.Use(); {
	case use.Closing:
		return nil, false, awaitAgain(ctx, s.closing)
	case use.Lost && s.survives():
		return m.reopen(ctx, s, req, always)
	case use.Lost:
		// Before the key is used again, the leftovers, for example a stopped container or a volume, are removed.
		if s.control.BeginClose(always) {
			m.spawn(func() {
				if err := m.finishClose(ctx, s, owner.Removing, owner.EngineLost); err != nil {
					m.log.WarnContext(ctx, "cannot remove the leftovers of a lost sandbox yet", "sandbox", s.id, "error", err)
				}
			})
		}
		return nil, false, awaitAgain(ctx, s.closing)
	}
	err := s.matches(req)
	switch {
	case err == nil && !s.reopened(req):
		return nil, false, awaitAgain(ctx, s.closing)
	case err == nil:
		return s, false, nil
	case req.Mode == OpenRebuild:
		return m.reopenIdle(ctx, s, req)
	}
	return nil, false, err
}

// reopen closes s and starts a creation, which adopts the sandbox. The key stays in use, to allow a close of the key to
// remove the sandbox. If the condition of BeginClose returns false, reopen returns errBusy.
func (m *Manager) reopen(ctx context.Context, s *Session, req Request, condition func(sandbox.Use) bool) (
	_ *Session, created bool, _ error) {
	m.mu.Lock()
	if err := m.refuses(s.key.Scope()); err != nil {
		m.mu.Unlock()
		return nil, false, err
	}
	if !s.control.BeginClose(condition) {
		m.mu.Unlock()
		if s.isClosing() {
			return nil, false, awaitAgain(ctx, s.closing)
		}
		return nil, false, errBusy
	}
	s.reopening = true
	f := m.launch(ctx, s.key, &flight{req: req, former: s})
	m.mu.Unlock()
	return m.await(ctx, f, req)
}

// matches returns a ConflictError if the sandbox does not match req.
func (s *Session) matches(req Request) error {
	fields := policyField(req.IdlePolicy, s.policy)
	switch {
	case fields != nil:
	case s.asIs || req.Mode == OpenAsIs:
		fields = conflicts(s.made, s.engine, req)
	default:
		fields = s.req.Differences(req)
	}
	if fields != nil {
		return &ConflictError{Key: s.key, Fields: fields}
	}
	if s.asIs && req.Mode != OpenAsIs { // the hash does not cover values of variables; only requests contain them
		s.control.SetDefaults(req.Env, req.ExecTimeout, req.Egress)
	}
	return nil
}

// reopened records another opener. It reports whether the session is open.
func (s *Session) reopened(req Request) bool {
	if !s.control.Touch() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extendIdle(req)
	return true
}

// spawn runs fn in a goroutine and makes the manager wait for it. If the manager is closed, spawn calls fn directly.
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

// awaitAgain waits for done and returns errAgain, or the error of ctx if ctx ends first.
func awaitAgain(ctx context.Context, done <-chan struct{}) error {
	return cmp.Or(wait(ctx, done), errAgain)
}

// wait waits for done or for the end of ctx.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// launch starts a creation with one waiter. A pooled sandbox in ready or evict already counts against MaxSandboxes, and
// the new sandbox takes over this place. The caller must hold mu.
func (m *Manager) launch(ctx context.Context, key Key, f *flight) *flight {
	// The creation belongs to all waiters, so it keeps the first caller's trace but not the caller's cancellation.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f.cancel, f.done, f.waiters = cancel, make(chan struct{}), 1
	f.req.OnPull = f.pulls.report
	m.entries[key] = &entry{flight: f}
	if f.ready == nil && f.evict == nil {
		m.used++
	}
	m.wg.Go(func() {
		defer cancel()
		m.create(ctx, key, f)
	})
	return f
}

// await waits for a creation. The caller is one of the waiters.
func (m *Manager) await(ctx context.Context, f *flight, req Request) (_ *Session, created bool, _ error) {
	leave := f.pulls.join(req.OnPull)
	_ = wait(ctx, f.done) // f.finished shows whether it is done
	leave()
	m.mu.Lock()
	defer m.mu.Unlock()
	f.waiters--
	if !f.finished {
		if f.waiters == 0 {
			f.abandon(errAbandoned, "")
		}
		return nil, false, ctx.Err()
	}
	if f.err != nil {
		return nil, false, f.err
	}
	created = !f.announced && !f.adopted
	f.announced = true
	f.session.reopened(req)
	return f.session, created, nil
}

// create creates the sandbox of a flight and sets the flight's outcome.
func (m *Manager) create(ctx context.Context, key Key, f *flight) {
	s, adopted, err := m.provide(ctx, key, f)
	m.mu.Lock()
	if s != nil && f.abandoned != nil {
		m.mu.Unlock()
		m.discard(s, adopted) // until it returns, other openers of the key wait for f
		m.mu.Lock()
		s, err = nil, f.abandoned
	}
	if f.former != nil && f.end != "" {
		m.mu.Unlock()
		m.endFormer(ctx, f)
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

// provide finds the sandbox of a flight's key, assigns a pooled sandbox, or creates a new one.
func (m *Manager) provide(ctx context.Context, key Key, f *flight) (s *Session, adopted bool, err error) {
	if f.former != nil {
		if err := m.finishClose(ctx, f.former, owner.Ready, owner.Opened); err != nil {
			return nil, false, err
		}
	}
	if f.evict != nil {
		_ = m.removePooled(ctx, f.evict.session) // it logs a failure, and a sweep tries again
	}
	if f.ready != nil {
		if s, adopted, err = m.assign(ctx, key, f.req, f.ready); !errors.Is(err, errStale) {
			return s, adopted, err
		}
	}
	return m.build(ctx, key, f.req)
}

// build finds or creates the sandbox of a key and connects to it. If build fails, it removes the sandbox or records it
// for the reaper.
func (m *Manager) build(ctx context.Context, key Key, req Request) (_ *Session, adopted bool, _ error) {
	s := m.newSession(key, req, record.SandboxPrefix+record.NewID())
	insert := func() error { return m.keeper.Insert(ctx, s.creating()) }
	if adopted, err := m.reserve(ctx, s, req, insert); adopted != nil || err != nil {
		return adopted, true, engineError(err) // the store's error contains a path of the host
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

// begin connects to a new sandbox and prepares it.
func (m *Manager) begin(ctx context.Context, s *Session, req Request) error {
	err := m.canStop(s.policy, s.engine.Limits, s.engine.Workspace) // the runtime may enforce limits differently
	if err == nil {
		if err = s.connect(ctx); errors.Is(err, backend.ErrNotFound) {
			err = fmt.Errorf("%w: it was removed while it was being created", backend.ErrLost)
		}
	}
	if err == nil {
		err = s.settle(ctx, true, req.Prepare)
	}
	return err
}

// settle completes a sandbox for the first or next opener and records it as ready. If the sandbox is lost before, the
// opener removes it or leaves it as it was.
func (s *Session) settle(ctx context.Context, fresh bool, with func(context.Context, *Session) error) error {
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

// creating returns the record of a sandbox during creation.
func (s *Session) creating() record.Record {
	return s.recordAs(record.Creating, s.created.Add(custody.Lifetimes.Remembered))
}

// guarded converts a panic of a caller's function to an error. The function runs in a goroutine of the manager, so the
// caller cannot recover the panic. The sandbox must still be removed.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("a function of the request panicked: %v", r)
		}
	}()
	return f()
}

// newSession returns a session without a sandbox.
func (m *Manager) newSession(key Key, req Request, id string) *Session {
	now := m.now()
	s := &Session{
		m: m, id: id, key: key, req: req, made: req.shape().encode(), owned: true, created: now, idle: req.IdleTimeout,
		policy: cmp.Or(req.IdlePolicy, record.IdleRemove), lossRecorded: make(chan struct{}), closing: make(chan struct{}),
	}
	s.req.OnPull, s.req.Prepare, s.req.OnAdopt = nil, nil, nil // only the creation needs these functions of the caller
	s.Sandbox, s.control = sandbox.New(m.b, sandbox.Options{
		ID: id, Key: key.String(), Run: key.Run(), Limits: req.Limits, Env: req.Env, ExecTimeout: req.ExecTimeout,
		MaxFileBytes: m.opts.MaxFileBytes, Egress: m.opts.Egress, Hosts: req.Egress, Shared: m.opts.Join,
		Settings:       sync.OnceValue(func() sandbox.Settings { return s.Info().Settings() }),
		TracerProvider: m.tracers, Logger: m.log, Now: func() time.Time { return m.now() },
		OnUse: s.recordUse, OnLost: s.noteLost,
	})
	return s
}

// spec returns the driver's specification of a sandbox. It omits the environment variables, because all users of the
// engine can read a container's configuration.
func (m *Manager) spec(s *Session, onPull func(backend.PullProgress)) backend.Spec {
	return backend.Spec{
		ID: s.id, Instance: m.opts.Instance, Key: s.key.String(), Run: s.key.Run(), Hash: s.req.shape().hash(),
		Image: s.req.Image, Pull: s.req.Pull, User: s.req.User, Root: s.req.Root, Limits: s.req.Limits,
		Network: s.req.Network, OCIRuntime: s.req.OCIRuntime, Isolation: s.req.Isolation, Mounts: m.mounts(s.req),
		Labels: maps.Clone(m.opts.Labels), OnPull: onPull, Fork: s.req.fork, Created: s.created,
		OrphanTimeout: s.orphanTimeout(), Ephemeral: m.alone,
	}
}

// connect opens the session's first connection.
func (s *Session) connect(ctx context.Context) error {
	return s.control.Connect(ctx, s.engine, s.imageEnv())
}

// refused reports whether a creation failed and left nothing behind. The driver adds the error of a failed cleanup.
func refused(err error) bool {
	if errors.Is(err, backend.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	kinds := []error{
		backend.ErrImage, backend.ErrInvalid, backend.ErrPermission, backend.ErrUnsupported, backend.ErrEnvironment,
	}
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// discard removes the sandbox of a session without a caller.
func (m *Manager) discard(s *Session, adopted bool) {
	to := owner.Gone
	if adopted {
		to = owner.Ready // it existed before this creation
	}
	if err := m.closeSession(m.ctx, s, to, owner.RunEnded); err != nil {
		m.log.Warn("cannot remove an abandoned sandbox yet", "sandbox", s.id, "error", err)
	}
}

// endFormer ends the sandbox of the former session of an abandoned creation, unless another process has the sandbox.
func (m *Manager) endFormer(ctx context.Context, f *flight) {
	ctx = context.WithoutCancel(ctx)
	if f.former.wasLost() {
		<-f.former.lossRecorded // then the record has no owner
	}
	rec, err := m.store.Get(ctx, f.former.id)
	if err == nil && rec.State.Live() {
		err = m.endUnowned(ctx, rec, f.end)
	}
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		m.log.WarnContext(ctx, "cannot remove an abandoned sandbox yet", "sandbox", f.former.id, "error", err)
	}
}

// forget records the cleanup after a failed creation. If the creation was refused, nothing is left, and forget deletes
// the record. Otherwise the driver's cleanup may have failed. The reaper then looks for the sandbox by id,
// repeatedly, because a slow engine may create the sandbox later.
func (m *Manager) forget(s *Session, cause error) {
	if !refused(cause) {
		m.keeper.Save(s.recordAs(record.Removing, m.now()))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), custody.StoreTimeout)
	defer cancel()
	if m.store.Delete(ctx, s.id) != nil {
		m.keeper.Save(s.recordAs(record.Closed, m.now())) // at least the record no longer occupies the key
	}
}

// pullRelay reports the progress of one pull to all waiting openers. It does not call openers after they leave.
type pullRelay struct {
	mu    sync.Mutex // guards heard; held during calls, to make leave wait for them
	heard []*func(backend.PullProgress)
}

// join adds a listener and returns a function to remove it. The listener may be nil.
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

// report calls the listeners. After a panic, a listener is not called again. The pull continues for the others.
func (p *pullRelay) report(progress backend.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.heard {
		if *l != nil && guarded(func() error { (*l)(progress); return nil }) != nil {
			*l = nil
		}
	}
}
