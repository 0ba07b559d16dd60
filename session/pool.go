package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/pool"
	"github.com/workcell-dev/workcell/session/record"
)

// A pooled sandbox runs but has no user yet. The record has state Creating and a unique key. Therefore other processes
// ignore the sandbox while the owner process lives, and remove the sandbox at once if the owner has died. Open turns it
// into a session by changing the key in the record. The engine's labels do not change. See custody.Identify.

// Limits of the pool.
const (
	maxPoolSize  = 1000
	claimTimeout = 10 * time.Second // time for a pooled sandbox's guest to answer
	warmTimeout  = 5 * time.Second  // time to start one of the languages in a new sandbox
)

// PoolSpec describes pooled sandboxes for one kind of request.
type PoolSpec struct {
	// Request describes the sandboxes. An Open uses one of them if image, user, root, limits, network, OCI runtime,
	// environment, mounts, and caches are the same after defaults and ceiling have been applied. Env, Egress, Prepare, and
	// OnAdopt must be empty. Other fields are ignored.
	Request Request
	// Size is the number of sandboxes to keep ready.
	Size int
	// IdleTimeout is the time without an Open for this kind after which the sandboxes are removed. The next such Open
	// creates a sandbox. If zero, it is DefaultPoolIdle. If negative, the sandboxes do not time out.
	IdleTimeout time.Duration
}

// pooled is a sandbox without a user.
type pooled struct {
	session *Session      // never returned by Open; the key's session takes over the connection
	sources []fs.FileInfo // mount sources at the time of creation
}

// warmPool creates and removes the sandboxes counted by package pool.
type warmPool struct {
	*pool.Pool[string, *pooled]
	m     *Manager
	kinds map[string]Request
}

// newPool returns the pool for Options.Pool. If the list is empty, it returns nil.
func (m *Manager) newPool(specs []PoolSpec) (*warmPool, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	w := &warmPool{m: m, kinds: map[string]Request{}}
	var kinds []pool.Kind[string]
	for _, spec := range specs {
		req, err := m.prepare(spec.Request)
		switch {
		case err != nil:
		case spec.Size < 1 || spec.Size > maxPoolSize:
			err = fmt.Errorf("%w: size %d must be 1 to %d", backend.ErrInvalid, spec.Size, maxPoolSize)
		case req.Pull == backend.PullAlways:
			err = fmt.Errorf("%w: pooled sandboxes cannot use an image that is always pulled", backend.ErrInvalid)
		case req.Prepare != nil || req.OnAdopt != nil || len(req.Env) > 0 || !req.Egress.IsZero():
			err = fmt.Errorf("%w: pooled sandboxes cannot use Env, Egress, Prepare, or OnAdopt", backend.ErrInvalid)
		case w.kinds[req.kind()].Image != "":
			err = fmt.Errorf("%w: duplicate request", backend.ErrInvalid)
		}
		if err != nil {
			return nil, fmt.Errorf("pool of %s: %w", sanitize.Message(spec.Request.Image), err)
		}
		w.kinds[req.kind()] = req
		idle := cmp.Or(spec.IdleTimeout, DefaultPoolIdle)
		kinds = append(kinds, pool.Kind[string]{Of: req.kind(), Size: spec.Size, Idle: idle})
	}
	w.Pool = pool.New(w, kinds)
	return w, nil
}

// kind identifies the prepared requests for which the same pooled sandbox can be used. It omits environment variables
// and allowed hosts, because a session sets them after creation.
func (r Request) kind() string {
	s := r.shape()
	s.Env, s.Egress = nil, sandbox.Egress{}
	return s.encode()
}

// run keeps the pool filled until the manager is closed. Then it removes the unused sandboxes.
func (w *warmPool) run() {
	ctx := untraced(w.m.ctx)
	left := w.Run(ctx)
	bound.Each(closeTogether, len(left), func(i int) error {
		w.Drop(ctx, left[i])
		return nil
	})
}

// take returns a pooled sandbox for a prepared request, or nil.
func (w *warmPool) take(req Request) *pooled {
	if w == nil || req.Pull == backend.PullAlways || req.fork != nil ||
		req.Isolation != "" && w.m.CheckIsolation(req) != nil {
		return nil
	}
	p, _ := w.Take(req.kind())
	return p
}

// evict takes any pooled sandbox out of the pool. If the pool is empty, it returns nil.
func (w *warmPool) evict() *pooled {
	if w == nil {
		return nil
	}
	p, _ := w.Evict()
	return p
}

// Make creates a pooled sandbox.
func (w *warmPool) Make(ctx context.Context, kind string) (_ *pooled, err error) {
	m, id := w.m, record.NewID()
	if !m.occupy() {
		return nil, pool.ErrLater
	}
	key := Key{Namespace: record.NamespacePool, ID: id, Name: record.DefaultName}
	s := m.newSession(key, w.kinds[kind], record.SandboxPrefix+id)
	sources := m.sources(s.req)
	defer func() {
		if err != nil {
			m.vacate()
			if ctx.Err() == nil {
				m.log.WarnContext(ctx, "cannot create a pooled sandbox", "image", s.req.Image, "error", err)
			}
		}
	}()
	if err := m.keeper.Insert(ctx, s.creating()); err != nil {
		return nil, err
	}
	if s.engine, err = m.make(ctx, s, s.req); err != nil {
		m.forget(s, err)
		return nil, engineError(err)
	}
	if err = s.control.Greet(ctx, s.engine); err == nil {
		s.control.Warm(ctx, warmTimeout)
		err = m.store.Update(ctx, s.creating()) // the engine's id in the record marks it as ready
	}
	if err != nil {
		return nil, errors.Join(err, m.removePooled(ctx, s))
	}
	return &pooled{s, sources}, nil
}

// Usable returns a function to check whether a pooled sandbox can still be used. The guest must be connected, and the
// image and mounts must not have changed since the creation.
func (w *warmPool) Usable(ctx context.Context, kind string) func(*pooled) bool {
	id, known, err := w.m.imageID(ctx, w.kinds[kind].Image)
	if err != nil && ctx.Err() == nil {
		w.m.log.WarnContext(ctx, "cannot check whether the image of pooled sandboxes has changed", "error", err)
	}
	return func(p *pooled) bool { return p.session.control.Greeted() && p.isCurrent(id, known) }
}

// sources returns the current mount sources of a request. It omits sources missing on this host, because the engine may
// be on another host.
func (m *Manager) sources(req Request) (list []fs.FileInfo) {
	for _, mount := range m.mounts(req) {
		if st, err := os.Stat(mount.Source); err == nil {
			list = append(list, st)
		}
	}
	return list
}

// isCurrent reports whether the image, unless unknown, and the mount sources have not changed. For example, filling a
// cache replaces the whole directory.
func (p *pooled) isCurrent(imageID string, known bool) bool {
	return (!known || imageID == p.session.engine.ImageID) &&
		slices.EqualFunc(p.sources, p.session.m.sources(p.session.req), os.SameFile)
}

// Drop removes an unused pooled sandbox and frees the place in MaxSandboxes.
func (w *warmPool) Drop(ctx context.Context, p *pooled) {
	if w.m.removePooled(ctx, p.session) == nil {
		w.m.vacate()
		return
	}
	w.m.mu.Lock()
	w.m.owed[p.session.id] = struct{}{} // it counts until a sweep has removed it
	w.m.mu.Unlock()
}

// removePooled removes a sandbox without a user, for example after a failed claim.
func (m *Manager) removePooled(ctx context.Context, s *Session) error {
	s.control.Close()
	err := m.keeper.Delete(context.WithoutCancel(ctx), s.recordAs(record.Creating, m.now()))
	if err != nil {
		m.log.WarnContext(ctx, "cannot remove a pooled sandbox yet", "sandbox", s.id, "error", err)
	}
	return err
}

// occupy reserves a place in MaxSandboxes, if one is free.
func (m *Manager) occupy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.opts.MaxSandboxes > 0 && m.used >= m.opts.MaxSandboxes {
		return false
	}
	m.used++
	return true
}

// vacate frees a place in MaxSandboxes.
func (m *Manager) vacate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used--
}

// imageID returns the ID of the image to which a reference currently resolves on the engine. If the engine does not have
// the image, id is empty. After an error, or if the engine does not support this, known is false.
func (m *Manager) imageID(ctx context.Context, ref string) (id string, known bool, err error) {
	id, err = m.b.ImageID(ctx, ref)
	if errors.Is(err, backend.ErrUnsupported) {
		return "", false, nil
	}
	return id, err == nil, engineError(err)
}

// errStale reports a dead or outdated pooled sandbox.
var errStale = errors.New("session: a pooled sandbox is no longer usable")

// fit claims the guest of a pooled sandbox for the session. It returns errStale if the guest does not answer, or if the
// request's image or mounts were replaced.
func (s *Session) fit(ctx context.Context, ready *pooled) error {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	if err := s.m.canStop(s.policy, ready.session.engine.Limits, ready.session.engine.Workspace); err != nil {
		return err
	}
	if err := ready.session.control.Claim(ctx, s.orphanTimeout()); err != nil {
		return errors.Join(errStale, err)
	}
	id, known, err := s.m.imageID(ctx, s.req.Image)
	if err != nil || !ready.isCurrent(id, known) {
		return errors.Join(errStale, err)
	}
	return nil
}

// assign assigns a pooled sandbox to a key. If the key already has a sandbox, assign returns the existing sandbox and
// removes the pooled one. If the pooled sandbox was unusable, assign removes it and returns errStale.
func (m *Manager) assign(ctx context.Context, key Key, req Request, ready *pooled) (_ *Session, adopted bool, _ error) {
	s := m.newSession(key, req, ready.session.id)
	s.byDefault(req, ready.session.engine)
	fit := make(chan error, 1) // receives the result of fit, which runs while the record is written
	m.wg.Go(func() { fit <- s.fit(ctx, ready) })
	plain := req.Prepare == nil && req.Egress.IsZero() && req.Caches == nil // no preparation is needed
	other, err := m.reserve(ctx, s, req, func() error {
		if !plain {
			return m.store.Update(ctx, s.creating())
		}
		s.engine = ready.engineOf(s)
		s.settled.Store(true)
		return m.store.Update(ctx, s.recordAs(record.Ready, s.expiry()))
	})
	unfit := <-fit
	switch {
	case errors.Is(err, backend.ErrNotFound): // another process removed it
		err = errStale
	case err == nil && other == nil:
		err = unfit
	}
	if err == nil && other == nil {
		s.engine = ready.engineOf(s)
		s.control.Take(ready.session.control, s.engine, s.imageEnv())
		if !plain {
			err = s.settle(ctx, true, req.Prepare)
		}
	}
	if err == nil && other == nil {
		return s, false, nil
	}
	s.control.Close()
	_ = m.removePooled(ctx, ready.session) // it logs a failure, and a sweep tries again
	return other, other != nil, engineError(err)
}

// engineOf returns the engine's description of the pooled sandbox with the id and key of s.
func (p *pooled) engineOf(s *Session) backend.Info {
	return custody.Identify(record.Record{ID: s.id, Key: s.key, Created: s.created}, p.session.engine)
}
