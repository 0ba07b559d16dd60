package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Manager opens sessions. All methods may be called concurrently. NewManager starts one goroutine, the reaper;
// Close or Detach ends it.
type Manager struct {
	b       backend.SandboxBackend
	opts    Options
	store   record.Store
	keeper  *custody.Keeper
	log     *slog.Logger
	tracers trace.TracerProvider
	driver  string
	owner   string           // whose records are this manager's
	leave   func() error     // ends the owner
	alone   bool             // nobody else ever knows the instance
	shared  bool             // other processes of the instance have the same store
	now     func() time.Time // carries a monotonic reading, so that clock jumps reap nobody

	// ctx ends with the manager. It is kept because it is the life of the manager's goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // reaper, creations and what follows an abandoned one

	mu        sync.Mutex // guards the fields below; never held across a call to the engine, the guest or the store
	entries   map[Key]*entry
	byID      map[string]*Session        // sandboxes of this manager
	secondary map[*Session]struct{}      // from Connect
	owed      map[string]struct{}        // ids of closed sessions whose sandboxes remain, and count until they are removed
	sealed    map[record.Scope]time.Time // scopes that were closed, and when
	used      int                        // sandboxes that count against MaxSandboxes
	closed    bool
	finished  chan struct{} // closed when Close or Detach ended
	closeErr  error

	meters meters
	pool   *warmPool // nil without one
}

// meters are the instruments of what happens to sandboxes.
type meters struct {
	active  metric.Int64UpDownCounter
	opened  metric.Float64Histogram
	removed metric.Int64Counter
}

func newMeters() meters {
	return meters{
		active: telemetry.UpDownCounter(telemetry.MetricActive), opened: telemetry.Histogram(telemetry.MetricOpenDuration),
		removed: telemetry.Counter(telemetry.MetricRemoved),
	}
}

// measured are the attributes of a measurement: few values each, and no ids.
func (m *Manager) measured(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(attrs, telemetry.KeyBackend.String(m.driver))...)
}

// entry is what the manager knows of a key: a creation under way or a session, closing ones included.
type entry struct {
	flight  *flight
	session *Session
}

// NewManager makes a manager on b, which stays the caller's to close. opts may be nil. What the manager has when its
// process dies goes only when another process sweeps: see Sweep.
func NewManager(b backend.SandboxBackend, opts *Options) (*Manager, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: no backend specified", backend.ErrInvalid)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Environments != nil && o.Instance == "" {
		return nil, fmt.Errorf("%w: Options.Environments requires an Instance, because environments outlive this process", backend.ErrInvalid)
	}
	alone, shared := o.Instance == "", o.Instance != "" && o.Store != nil
	o.Engine = cmp.Or(o.Engine, b.Name())
	if err := o.complete(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), custody.StoreTimeout)
	defer cancel()
	owner, leave, err := o.Store.Join(ctx)
	if err != nil {
		return nil, fmt.Errorf("session store: %w", err)
	}
	m := &Manager{
		b: b, owner: owner, leave: leave, alone: alone, shared: shared, opts: o, store: o.Store, log: o.Logger, tracers: o.TracerProvider, driver: b.Name(), now: time.Now,
		entries: map[Key]*entry{}, byID: map[string]*Session{}, secondary: map[*Session]struct{}{},
		owed: map[string]struct{}{}, sealed: map[record.Scope]time.Time{}, finished: make(chan struct{}), meters: newMeters(),
	}
	m.keeper = &custody.Keeper{
		Backend: b, Store: o.Store, Owner: owner, Instance: o.Instance, Engine: o.Engine, Shared: shared, Log: o.Logger,
		Now: func() time.Time { return m.now() },
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	if m.pool, err = m.newPool(o.Pool); err != nil {
		m.cancel()
		return nil, errors.Join(err, leave())
	}
	if m.pool != nil {
		m.wg.Go(m.pool.run)
	}
	if o.ReapEvery > 0 {
		m.wg.Go(m.reapLoop)
	}
	return m, nil
}

// complete fills in defaults and checks what can be wrong.
func (o *Options) complete() error {
	o.Instance = cmp.Or(o.Instance, record.NewID())
	if err := record.ValidatePart("instance", o.Instance); err != nil {
		return err
	}
	for name := range o.Labels {
		if strings.HasPrefix(name, backend.LabelPrefix) {
			return fmt.Errorf("%w: label %q: names below %s are reserved", backend.ErrInvalid, sanitize.Message(name), backend.LabelPrefix)
		}
	}
	if o.MaxSandboxes < 0 || o.MaxFileBytes < 0 {
		return fmt.Errorf("%w: MaxSandboxes and MaxFileBytes must not be negative", backend.ErrInvalid)
	}
	o.Labels = maps.Clone(o.Labels)
	o.Defaults.Images = maps.Clone(o.Defaults.Images)
	if err := o.Defaults.Limits.Validate(); err != nil {
		return err
	}
	if _, err := sandbox.ExecTimeout(o.Defaults.ExecTimeout, sandbox.DefaultExecTimeout); err != nil {
		return err
	}
	if o.Store == nil {
		o.Store = record.NewMemoryStore()
	}
	o.IdleTimeout = cmp.Or(o.IdleTimeout, DefaultIdleTimeout)
	o.ReapEvery = cmp.Or(o.ReapEvery, DefaultReapEvery)
	o.MaxFileBytes = cmp.Or(o.MaxFileBytes, sandbox.DefaultMaxFileBytes)
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Backend returns the driver that the manager stands on.
func (m *Manager) Backend() backend.SandboxBackend { return m.b }

// Owner names this manager among those that share its store: records of its sandboxes carry it.
func (m *Manager) Owner() string { return m.owner }

// Instance returns the name of this installation on the engine.
func (m *Manager) Instance() string { return m.opts.Instance }

// keyAttributes returns the run and key that a span is about.
func (m *Manager) keyAttributes(key Key) []attribute.KeyValue {
	return telemetry.SandboxAttributes(m.driver, key.String(), key.Run())
}

// Close closes every session that this manager opened and ends its goroutines. It returns when all is removed, or the
// errors of what could not be. Closing twice is no error; ctx does not shorten it.
func (m *Manager) Close(ctx context.Context) error { return m.end(ctx, owner.Gone) }

// Detach ends the manager's goroutines and connections and leaves the sandboxes running, for another process of the
// same instance to find.
func (m *Manager) Detach(ctx context.Context) error { return m.end(ctx, owner.Ready) }

// end closes the manager once, so that its sandboxes come into state to.
func (m *Manager) end(ctx context.Context, to owner.State) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		select {
		case <-m.finished:
			return m.closeErr
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.closed = true
	for _, e := range m.entries {
		if e.flight != nil {
			e.flight.abandon(errManagerClosed)
		}
	}
	m.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	m.cancel()
	m.wg.Wait()
	err := m.closeAll(ctx, m.sessions(func(s *Session) bool { return s.joined }), owner.Ready)
	err = errors.Join(err, m.closeAll(ctx, m.sessions(func(s *Session) bool { return !s.joined }), to))
	if to == owner.Gone {
		err = errors.Join(err, m.removeOwed(ctx))
	}
	m.closeErr = errors.Join(err, m.leave())
	close(m.finished)
	return m.closeErr
}

// errManagerClosed is the answer of a manager that was closed.
var errManagerClosed error = &sanitize.Error{Text: "the session manager is closed", Err: backend.ErrClosed}

// sessions returns the sessions that want accepts, including those from Connect.
func (m *Manager) sessions(want func(*Session) bool) []*Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*Session
	for _, s := range m.byID {
		if want(s) {
			list = append(list, s)
		}
	}
	for s := range m.secondary {
		if want(s) {
			list = append(list, s)
		}
	}
	return list
}

// noteLost logs and records a lost sandbox.
func (m *Manager) noteLost(s *Session, reason string) {
	m.log.Warn("sandbox lost", "sandbox", s.id, "key", s.key.String(), "engine_id", s.engine.ID, "reason", reason)
	if !s.owned || !s.settled.Load() {
		return
	}
	if m.keeper.TakenOver(s.id) {
		s.mu.Lock()
		s.taken = true
		s.mu.Unlock()
		return
	}
	now := m.now()
	if to := s.on(owner.EngineLost); to != owner.Removing {
		m.giveUpLost(s, to, now)
		return
	}
	rec := s.recordAs(record.Removing, now)
	rec.Reason = string(owner.EngineLost)
	m.keeper.Save(rec)
}
