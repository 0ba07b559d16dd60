package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

// Manager opens and tracks sandboxes on one backend. It is safe for concurrent use. NewManager starts a goroutine for
// the reaper, unless Options.ReapEvery is negative, and another for Options.Pool. Close or Detach stops them.
type Manager struct {
	b       backend.SandboxBackend
	opts    Options
	store   record.Store
	keeper  *custody.Keeper
	log     *slog.Logger
	tracers trace.TracerProvider
	driver  string
	owner   string           // owner id in this manager's records
	leave   func() error     // releases the owner id
	alone   bool             // no other process ever uses the instance
	shared  bool             // other processes of the instance use the same store
	now     func() time.Time // includes a monotonic reading, to prevent expiry at clock jumps

	// ctx ends when the manager is closed. It is a field because it bounds the manager's goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // reaper, creations, and cleanup after abandoned creations

	mu        sync.Mutex // guards the fields below; never held across a call to the engine, the guest, or the store
	entries   map[Key]*entry
	byID      map[string]*Session        // sandboxes of this manager
	secondary map[*Session]struct{}      // sessions from Connect
	owed      map[string]struct{}        // ids of closed sessions whose sandboxes still exist and count
	sealed    map[record.Scope]time.Time // closed scopes and the times of their closing
	inUse     map[record.Scope]int       // callers of KeepInUse
	used      int                        // number of sandboxes counted against MaxSandboxes
	closed    bool
	finished  chan struct{} // closed when Close or Detach has returned
	closeErr  error

	meters meters
	pool   *warmPool // nil without a pool
}

// meters are the metric instruments for sandboxes.
type meters struct {
	active  metric.Int64UpDownCounter
	opened  metric.Float64Histogram
	removed metric.Int64Counter
}

// measured returns the attributes of a measurement. Attributes have few values and contain no ids.
func (m *Manager) measured(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(append(attrs, telemetry.KeyBackend.String(m.driver))...)
}

// entry is a key's creation or session. The session may be closing.
type entry struct {
	flight  *flight
	session *Session
}

// NewManager returns a Manager for b. The caller must close b after the manager. opts may be nil. If the process dies,
// the manager's sandboxes stay until another process sweeps them. See admin.Sweep.
func NewManager(b backend.SandboxBackend, opts *Options) (*Manager, error) {
	if b == nil {
		return nil, fmt.Errorf("%w: no backend specified", backend.ErrInvalid)
	}
	o := *cmp.Or(opts, &Options{})
	if o.Environments != nil && o.Instance == "" {
		return nil, fmt.Errorf("%w: Options.Environments requires an Instance, because environments outlive this process",
			backend.ErrInvalid)
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
		b: b, owner: owner, leave: leave, alone: alone, shared: shared, opts: o, store: o.Store, log: o.Logger,
		tracers: o.TracerProvider, driver: b.Name(), now: time.Now,
		entries: map[Key]*entry{}, byID: map[string]*Session{}, secondary: map[*Session]struct{}{},
		owed: map[string]struct{}{}, sealed: map[record.Scope]time.Time{}, inUse: map[record.Scope]int{},
		finished: make(chan struct{}),
		meters: meters{
			active: telemetry.UpDownCounter(telemetry.MetricActive),
			opened: telemetry.Histogram(telemetry.MetricOpenDuration), removed: telemetry.Counter(telemetry.MetricRemoved),
		},
	}
	m.keeper = &custody.Keeper{
		Backend: b, Store: o.Store, Owner: owner, Instance: o.Instance, Engine: o.Engine, Shared: shared, Log: o.Logger,
		Now: func() time.Time { return m.now() },
		Open: func(id string) bool {
			s := m.own(id)
			return s != nil && !s.wasLost()
		},
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

// complete sets defaults and validates the options.
func (o *Options) complete() error {
	o.Instance = cmp.Or(o.Instance, record.NewID())
	if err := record.ValidatePart("instance", o.Instance); err != nil {
		return err
	}
	for name := range o.Labels {
		if strings.HasPrefix(name, backend.LabelPrefix) {
			return fmt.Errorf("%w: label %q: names below %s are reserved",
				backend.ErrInvalid, sanitize.Message(name), backend.LabelPrefix)
		}
	}
	if o.MaxSandboxes < 0 || o.MaxFileBytes < 0 {
		return fmt.Errorf("%w: MaxSandboxes and MaxFileBytes must not be negative", backend.ErrInvalid)
	}
	o.Labels = maps.Clone(o.Labels)
	o.Defaults.Images = maps.Clone(o.Defaults.Images)
	_, err := sandbox.ExecTimeout(o.Defaults.ExecTimeout, sandbox.DefaultExecTimeout)
	if err := cmp.Or(o.Defaults.Limits.Validate(), checkIsolation(o.Defaults.Isolation), err); err != nil {
		return err
	}
	o.Store = cmp.Or(o.Store, record.NewMemoryStore())
	o.IdleTimeout = cmp.Or(o.IdleTimeout, DefaultIdleTimeout)
	o.ReapEvery = cmp.Or(o.ReapEvery, DefaultReapEvery)
	o.MaxFileBytes = cmp.Or(o.MaxFileBytes, sandbox.DefaultMaxFileBytes)
	o.TracerProvider = cmp.Or(o.TracerProvider, otel.GetTracerProvider())
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return nil
}

// Backend returns the manager's driver.
func (m *Manager) Backend() backend.SandboxBackend { return m.b }

// Owner returns this manager's id in the shared store. Records of the manager's sandboxes contain the id.
func (m *Manager) Owner() string { return m.owner }

// Instance returns the name of this installation on the engine.
func (m *Manager) Instance() string { return m.opts.Instance }

// keyAttributes returns the span attributes for a key and the key's run.
func (m *Manager) keyAttributes(key Key) []attribute.KeyValue {
	return telemetry.SandboxAttributes(m.driver, key.String(), key.Run())
}

// Close closes all sessions of this manager and stops the goroutines. It waits until the sandboxes are removed and
// returns the errors of failed removals. ctx does not limit the removal. Calling Close again has no effect.
func (m *Manager) Close(ctx context.Context) error { return m.end(ctx, owner.Gone) }

// Detach stops the manager's goroutines and connections but leaves the sandboxes running. Another process of the same
// instance can adopt them.
func (m *Manager) Detach(ctx context.Context) error { return m.end(ctx, owner.Ready) }

// end closes the manager once. to is the state of the manager's sandboxes afterwards.
func (m *Manager) end(ctx context.Context, to owner.State) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		if err := wait(ctx, m.finished); err != nil {
			return err
		}
		return m.closeErr
	}
	m.closed = true
	end := map[owner.State]owner.Event{owner.Gone: owner.RunEnded}[to]
	for _, e := range m.entries {
		if e.flight != nil {
			e.flight.abandon(errManagerClosed, end)
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

// errManagerClosed is the error of calls on a closed manager.
var errManagerClosed = sanitize.NewError("the session manager is closed", backend.ErrClosed)

// own returns the session with the specified id, except sessions from Connect. If there is none, it returns nil.
func (m *Manager) own(id string) *Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id]
}

// sessions returns the sessions for which want returns true, including sessions from Connect.
func (m *Manager) sessions(want func(*Session) bool) []*Session {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.AppendSeq(slices.Collect(maps.Values(m.byID)), maps.Keys(m.secondary))
	return slices.DeleteFunc(all, func(s *Session) bool { return !want(s) })
}
