package app

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/otel"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/reaper"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/audit"
	spans "github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// Engines returns the container engines configured in the environment.
func (a *App) Engines() engines.Set {
	s := engines.Set{
		Env: a.opts.Env, Machine: a.machine(), Logger: a.Logger(), Notice: func(text string) { a.Notice("%s", text) },
	}
	if conf, err := a.Config(); err == nil { // otherwise the command fails with this error anyway
		s.Cluster = conf.Kubernetes
	}
	return s
}

// Use configures a manager for a command.
type Use struct {
	State      StateUse
	Backend    string            // default: the configured backend
	Sandboxes  []string          // sandboxes specified for the command
	IdlePolicy record.IdlePolicy // default for new sandboxes
	Pool       *session.Request  // request for pooled sandboxes, without their image; nil disables the pool
	Join       bool              // several servers share the sandboxes (session.Options.Join)
	Waits      bool              // see engines.Set; for servers and workers
}

// Manager is a session.Manager with the records of the sandboxes.
type Manager struct {
	*session.Manager
	app     *App
	conf    *config.Config
	place   state.Place
	runtime string // OCI runtime of new sandboxes
	driver  backend.SandboxBackend
	Records state.Records // nil if the command does not use them
	Engine  string        // engine ID in the records; empty without records
}

// OpenManager connects to an engine and returns a manager with this installation's identity and sandbox records. If
// the command specifies sandboxes and --backend is not set, the engine is the recorded engine of the first sandbox.
// Sandboxes without a record use the configured engine. After closing or detaching the manager, the caller must call
// Done.
func (a *App) OpenManager(ctx context.Context, use Use) (_ *Manager, err error) {
	conf, err := a.Config()
	if err != nil {
		return nil, err
	}
	place, err := a.State()
	if err != nil {
		return nil, err
	}
	opts, err := a.sessionOptions(conf, place.Dir, use)
	if err != nil {
		return nil, err
	}
	m := &Manager{app: a, conf: conf, place: place, runtime: opts.Defaults.OCIRuntime}
	defer func() {
		if err != nil {
			m.Done()
		}
	}()
	if m.Records, err = a.openStore(ctx, place, use.State); err != nil {
		return nil, err
	}
	if opts.Instance, err = place.Instance(ctx, m.Records); err != nil {
		return nil, err
	}
	name, err := a.backendOf(ctx, m.Records, cmp.Or(use.Backend, conf.Backend), use.Sandboxes)
	if err != nil {
		return nil, err
	}
	set := a.Engines()
	set.Waits = use.Waits
	if m.driver, err = set.Open(ctx, name); err != nil {
		return nil, err
	}
	name = m.driver.Name()
	if opts.Engine, err = set.ID(ctx, name); err != nil {
		return nil, err
	}
	if name == engines.Local {
		opts.Defaults.Images = nil // the local backend has no images; image names stand for host programs
	}
	if m.Records != nil {
		m.Engine = opts.Engine
		opts.Store = a.guarded(m.Records, place, name, m.Engine)
	}
	driver := engines.MapImages(m.driver, conf.MapImages)
	m.Manager, err = session.NewManager(driver, opts)
	if err != nil && opts.Store != nil && use.State == StateWanted { // the owner's lock file cannot be created
		a.withoutRecords(err)
		opts.Store = nil
		m.Manager, err = session.NewManager(driver, opts)
	}
	return m, err
}

// sessionOptions returns the options of a manager, without the engine and the records.
func (a *App) sessionOptions(conf *config.Config, dir state.Dir, use Use) (*session.Options, error) {
	opts := &session.Options{
		Logger: a.Logger(), AllowRoot: RootAllowed(a.opts.Env), MaxSandboxes: a.opts.MaxSandboxes, Join: use.Join,
		Images: imagePolicy{conf}, Defaults: a.defaults(conf), IdleTimeout: conf.IdleTimeout,
		Pool: poolSpecs(conf, use.Pool),
	}
	opts.Defaults.IdlePolicy = cmp.Or(use.IdlePolicy, opts.Defaults.IdlePolicy)
	var err error
	if opts.Egress, err = a.egress(dir); err != nil {
		return nil, err
	}
	if opts.Environments, err = a.environments(dir); err != nil {
		return nil, err
	}
	caches, err := a.Caches()
	if err != nil {
		return nil, err
	}
	opts.Caches = caches.Caches()
	return opts, nil
}

// Done closes the engine and the records. Call it after Close or Detach.
func (m *Manager) Done() {
	if m.driver != nil {
		m.driver.Close() // the sandboxes stay, and nothing can be lost
	}
	if m.Records != nil {
		m.Records.Close() // every change was written to disk before it was acknowledged
	}
}

// Audited returns a context whose audit records have the backend and the isolation of new sandboxes, unless they are
// about a sandbox.
func (m *Manager) Audited(ctx context.Context) context.Context {
	return audit.With(ctx, func(r *audit.Record) {
		r.Backend, r.Isolation = m.Backend().Name(), string(m.NewIsolation())
	})
}

// NewIsolation returns the isolation of new sandboxes.
func (m *Manager) NewIsolation() backend.Isolation {
	return m.Backend().Capabilities().Isolation[m.runtime]
}

// WithManager runs fn with a manager and then leaves every sandbox as it is. All of it is one trace.
func (a *App) WithManager(ctx context.Context, use Use, fn func(context.Context, *Manager) error) (err error) {
	ctx, tel, err := a.startTracing(ctx, false)
	if err != nil {
		return err
	}
	defer tel.Close(ctx)
	ctx, span := spans.StartWith(ctx, otel.GetTracerProvider(), a.opts.Command)
	defer func() { spans.End(span, spanError(err)) }()
	m, err := a.OpenManager(ctx, use)
	if err != nil {
		return err
	}
	defer m.Done()
	defer func() { err = errors.Join(err, m.Detach(context.WithoutCancel(ctx))) }()
	return m.whereElse(ctx, fn(ctx, m))
}

// spanError returns the error for a command's span. The exit code of a program is not an error.
func spanError(err error) error {
	if IsResult(err) {
		return nil
	}
	return err
}

// poolSpecs returns the pooled sandboxes of a server. It returns nil for other commands.
func poolSpecs(conf *config.Config, of *session.Request) (specs []session.PoolSpec) {
	if of == nil {
		return nil
	}
	for image, n := range conf.Pool {
		req := *of
		req.Image = image
		specs = append(specs, session.PoolSpec{Request: req, Size: n})
	}
	return specs
}

// guarded returns the record store for a manager of this command, with a reaper if one is supported and enabled.
func (a *App) guarded(store state.Records, place state.Place, backendName, engine string) record.Store {
	if !reaper.Supported || a.opts.NoReaper || strings.EqualFold(a.opts.Env.Get(reaper.Variable), "off") {
		return store
	}
	return reaper.Guard(store, reaper.Options{
		State: place, Env: a.opts.Env, Backend: backendName, Engine: engine, Environ: a.Engines().Environ,
		Failed: func(err error) {
			a.Notice("cannot start the cleanup process (if this command is killed, its sandboxes stay until the next "+
				"command): %v", err)
		},
	})
}

// RootAllowed reports whether sandboxes may run as root.
func RootAllowed(e environ.Lookup) bool { return e.Get("WORKCELL_ALLOW_ROOT") == "1" }

// imagePolicy adapts the configured lists of allowed images to session's policy interface.
type imagePolicy struct{ *config.Config }

// Check returns nil if the image is allowed.
func (p imagePolicy) Check(ref string) error { return p.CheckImage(ref) }
