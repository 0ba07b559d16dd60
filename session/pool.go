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

// A pooled sandbox is one that runs and is nobody's yet. Its record is that of a sandbox that is being created, under a
// key of its own, so that everybody who comes upon it leaves it alone while its process lives, and removes it at once
// when that has died. It becomes a session by an update of the record, to the session's key. The engine's labels do not
// change: see custody.Identify.

// Bounds of the pool.
const (
	maxPoolSize  = 1000
	claimTimeout = 10 * time.Second // for a guest that is ready to answer
	warmTimeout  = 5 * time.Second  // for one of the languages of a sandbox that is being made
)

// PoolSpec keeps sandboxes ready for one kind of request.
type PoolSpec struct {
	// Request describes them: an Open takes one whose request has the same image, user, root, limits, network and OCI
	// runtime, all of them as they are after defaults and ceiling. Its other fields must be empty, or do not count.
	Request Request
	// Size is how many are ready.
	Size int
	// IdleTimeout: when no Open asked for one for so long they go, and the next Open that does finds none. Zero is
	// DefaultPoolIdle, negative never.
	IdleTimeout time.Duration
}

// pooled is a sandbox that is nobody's yet.
type pooled struct {
	session *Session      // never returned by Open; its connection passes to the key's session
	sources []fs.FileInfo // of what is mounted, when it was made
}

// warmPool is the manager's side of the pool: it makes and removes what package pool counts.
type warmPool struct {
	*pool.Pool[string, *pooled]
	m     *Manager
	kinds map[string]Request
}

// newPool returns the pool that the options ask for; nil when they ask for none.
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
		kinds = append(kinds, pool.Kind[string]{Of: req.kind(), Size: spec.Size, Idle: cmp.Or(spec.IdleTimeout, DefaultPoolIdle)})
	}
	w.Pool = pool.New(w, kinds)
	return w, nil
}

// kind returns what a prepared request has in common with all whose sandboxes differ in nothing that is settled when
// they are made. Variables and hosts of the network come with a session.
func (r Request) kind() string {
	s := r.shape()
	s.Env, s.Egress = nil, sandbox.Egress{}
	return s.encode()
}

// run keeps the pool filled until the manager ends, and removes then what nobody took.
func (w *warmPool) run() {
	ctx := untraced(w.m.ctx)
	bound.Each(closeTogether, w.Run(ctx), func(p *pooled) error {
		w.Drop(ctx, p)
		return nil
	})
}

// take returns a ready sandbox for a prepared request; nil without one.
func (w *warmPool) take(req Request) *pooled {
	if w == nil || req.Pull == backend.PullAlways || req.fork != nil {
		return nil
	}
	if req.Isolation != "" && w.m.CheckIsolation(req) != nil {
		return nil // and a new one is refused
	}
	p, _ := w.Take(req.kind())
	return p
}

// evict returns any ready sandbox; nil without one.
func (w *warmPool) evict() *pooled {
	if w == nil {
		return nil
	}
	p, _ := w.Evict()
	return p
}

// Make makes a sandbox that is nobody's yet.
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
	if err := m.store.Insert(ctx, s.creating()); err != nil {
		return nil, err
	}
	if s.engine, err = m.b.Create(ctx, m.spec(s, nil)); err != nil {
		m.forget(s, err)
		return nil, engineError(err)
	}
	if err = s.control.Greet(ctx, s.engine); err == nil {
		s.control.Warm(ctx, warmTimeout)
		err = m.store.Update(ctx, s.creating()) // with the engine's id: it is ready
	}
	if err != nil {
		return nil, errors.Join(err, m.removePooled(ctx, s))
	}
	return &pooled{s, sources}, nil
}

// Usable returns what tells whether a sandbox can still be handed out: its guest is connected, and its image and mounts
// are still what the request names.
func (w *warmPool) Usable(ctx context.Context, kind string) func(*pooled) bool {
	id, known, err := w.m.imageID(ctx, w.kinds[kind].Image)
	if err != nil && ctx.Err() == nil {
		w.m.log.WarnContext(ctx, "cannot check whether the image of pooled sandboxes has changed", "error", err)
	}
	return func(p *pooled) bool {
		return p.session.control.Greeted() && p.seesSources() && (err != nil || !known || id == p.session.engine.ImageID)
	}
}

// sources returns what is now at the directories that are mounted for a request. One of another machine is not among
// it.
func (m *Manager) sources(req Request) (list []fs.FileInfo) {
	for _, mount := range m.mounts(req) {
		if st, err := os.Stat(mount.Source); err == nil {
			list = append(list, st)
		}
	}
	return list
}

// seesSources reports whether what is mounted is still what a new sandbox would see: caches are exchanged as a whole.
func (p *pooled) seesSources() bool {
	return slices.EqualFunc(p.sources, p.session.m.sources(p.session.req), os.SameFile)
}

// Drop removes a sandbox that nobody took, and gives its place back.
func (w *warmPool) Drop(ctx context.Context, p *pooled) {
	if w.m.removePooled(ctx, p.session) == nil {
		w.m.vacate()
		return
	}
	w.m.mu.Lock()
	w.m.owed[p.session.id] = struct{}{} // it has its place until a sweep has removed it
	w.m.mu.Unlock()
}

// removePooled removes a sandbox that belongs to nobody, also one whose claim failed.
func (m *Manager) removePooled(ctx context.Context, s *Session) error {
	s.control.Close()
	err := m.keeper.Delete(context.WithoutCancel(ctx), s.recordAs(record.Creating, m.now()))
	if err != nil {
		m.log.WarnContext(ctx, "cannot remove a pooled sandbox yet", "sandbox", s.id, "error", err)
	}
	return err
}

// occupy takes a place for a sandbox, if there is one.
func (m *Manager) occupy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.opts.MaxSandboxes > 0 && m.used >= m.opts.MaxSandboxes {
		return false
	}
	m.used++
	return true
}

// vacate gives a place back.
func (m *Manager) vacate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used--
}

// imageID returns the ID of the image that a reference names on the engine now. known is false if the engine does not
// know it.
func (m *Manager) imageID(ctx context.Context, ref string) (id string, known bool, err error) {
	id, err = m.b.ImageID(ctx, ref)
	if errors.Is(err, backend.ErrUnsupported) {
		return "", false, nil
	}
	return id, true, engineError(err)
}

// errStale: a sandbox that was ready cannot be handed out any more.
var errStale = errors.New("session: a pooled sandbox is no longer usable")

// fit claims the guest of a pooled sandbox for the session. It fails with errStale if the guest does not answer, or if
// the request's image or mounts were replaced.
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
	if err != nil || known && id != ready.session.engine.ImageID || !ready.seesSources() {
		return errors.Join(errStale, err)
	}
	return nil
}

// assign hands a pooled sandbox to a key. If the key already has a sandbox, assign returns that and removes the pooled
// one. It fails with errStale if the pooled sandbox was unusable and is removed.
func (m *Manager) assign(ctx context.Context, key Key, req Request, ready *pooled) (_ *Session, adopted bool, _ error) {
	s := m.newSession(key, req, ready.session.id)
	s.byDefault(req, ready.session.engine)
	fit := make(chan error, 1) // runs while the record is written
	m.wg.Go(func() { fit <- s.fit(ctx, ready) })
	plain := req.Prepare == nil && req.Egress.IsZero() && req.Caches == nil // then there is nothing to do before it is ready
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
	case errors.Is(err, backend.ErrNotFound): // somebody removed it
		err = errStale
	case err == nil && other == nil:
		err = unfit
	}
	if err == nil && other == nil {
		s.engine = ready.engineOf(s)
		s.control.Take(ready.session.control, s.engine, s.imageEnv())
		if !plain {
			err = s.prepare(ctx, true, req.Prepare)
		}
	}
	if err == nil && other == nil {
		return s, false, nil
	}
	s.control.Close()
	_ = m.removePooled(ctx, ready.session) // its failure is logged, and a sweep's
	return other, other != nil, engineError(err)
}

// engineOf returns what the engine says of the sandbox, as that of a session.
func (p *pooled) engineOf(s *Session) backend.Info {
	return custody.Identify(record.Record{ID: s.id, Key: s.key, Created: s.created}, p.session.engine)
}
