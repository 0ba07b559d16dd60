package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/reaper"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// engines returns the engines that the environment leads to.
func (a *app) engines() engines.Set {
	s := engines.Set{Env: a.opts.Env, Machine: a.machine(), Logger: a.logger(), Notice: func(text string) { a.notice("engine: %s", text) }}
	if conf, err := a.config(); err == nil { // else the command fails for it anyway
		s.Cluster = engines.Cluster(conf.Kubernetes)
	}
	return s
}

// managerUse is what a command needs of a manager.
type managerUse struct {
	state      stateUse
	backend    string             // if empty, the configured one
	sandboxes  []string           // that the command is about
	idlePolicy session.IdlePolicy // of sandboxes that name none
	pool       *session.Request   // what sandboxes of the pool are besides their image; nil keeps none ready
	join       bool               // its sandboxes are those of several servers (session.Options.Join)
}

// manager is a session manager with the records of its sandboxes.
type manager struct {
	*session.Manager
	app     *app
	records state.Records // nil when the command does without
	engine  string        // the id in the records; empty without them
	done    func()        // for after it was closed or detached
}

// openManager connects to an engine and returns a manager with this installation's identity and the records of its
// sandboxes. When the command is about sandboxes and --backend is not given, the engine is the one that the record of the
// first of them names, and the configured one counts for those without a record. The caller must call done after it closed
// or detached the manager.
func (a *app) openManager(ctx context.Context, use managerUse) (_ *manager, err error) {
	var open []func() // what done ends, in reverse
	end := func() {
		for _, f := range slices.Backward(open) {
			f()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	set, err := a.loaded()
	if err != nil {
		return nil, err
	}
	conf, name := set.conf, cmp.Or(use.backend, set.conf.Backend)
	opts := &session.Options{
		Logger: a.logger(), AllowRoot: rootAllowed(a.opts.Env), MaxSandboxes: a.opts.MaxSandboxes, Join: use.join,
		Images: imagePolicy{conf}, Defaults: set.defaults, IdleTimeout: conf.IdleTimeout,
	}
	opts.Defaults.IdlePolicy = cmp.Or(use.idlePolicy, opts.Defaults.IdlePolicy)
	mapping, err := engines.ParseImageMap(conf.MapImages)
	if err != nil {
		return nil, err
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	if opts.Egress, err = a.egress(dir); err != nil {
		return nil, err
	}
	if opts.Environments, err = a.environments(dir); err != nil {
		return nil, err
	}
	caches, err := a.caches()
	if err != nil {
		return nil, err
	}
	opts.Caches = caches.Caches()
	place, err := a.state()
	if err != nil {
		return nil, err
	}
	store, err := a.openStore(ctx, place, use.state)
	if err != nil {
		return nil, err
	}
	m := &manager{app: a, records: store, done: end}
	if store != nil {
		open = append(open, func() { store.Close() }) // every change was on the disk before it was acknowledged
	}
	if opts.Instance, err = place.Instance(ctx, store); err != nil {
		return nil, err
	}
	if name, err = a.backendOf(ctx, store, name, use.sandboxes); err != nil {
		return nil, err
	}
	driver, err := a.engines().Open(ctx, name)
	if err != nil {
		return nil, err
	}
	open = append(open, func() { driver.Close() }) // its sandboxes stay; there is nothing left to lose
	if opts.Engine, err = a.engines().ID(ctx, driver.Name()); err != nil {
		return nil, err
	}
	opts.Pool = poolSpecs(conf, use.pool)
	if driver.Name() == engines.Local {
		opts.Defaults.Images = nil // it has no images: its own names stand for the machine's programs
	}
	if store != nil {
		m.engine = opts.Engine
		opts.Store = a.guarded(store, place, driver.Name(), m.engine)
	}
	m.Manager, err = session.NewManager(engines.MapImages(driver, mapping), opts)
	if err != nil && store != nil && use.state == stateWanted { // no file of an owner can be made
		a.withoutRecords(err)
		opts.Store = nil
		m.Manager, err = session.NewManager(engines.MapImages(driver, mapping), opts)
	}
	return m, err
}

// poolSpecs returns the sandboxes that a server keeps ready; none for other commands.
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

// poolFlag adds --pool to a server.
func (a *command) poolFlag(f *pflag.FlagSet) {
	f.StringArrayVar(&a.Options.Pool, "pool", nil, "`IMAGE=N`: keep N pooled sandboxes of this image for fast opening (repeatable)")
}

// guarded returns the store that a manager of this command is to use.
func (a *app) guarded(store state.Records, place state.Place, backendName, engine string) session.Store {
	if !reaper.Supported || a.opts.NoReaper || strings.EqualFold(a.opts.Env.Get(reaper.Variable), "off") {
		return store
	}
	return reaper.Guard(store, reaper.Options{
		Dir: string(place.Dir), Backend: backendName, Engine: engine,
		Environ: func() ([]string, error) {
			vars, err := a.engines().Environ()
			return append(vars, a.databaseVariables(place)...), err
		},
		Failed: func(err error) {
			a.notice("cannot start the cleanup process (if this command is killed, its sandboxes stay until the next command): %v", err)
		},
	})
}

// rootAllowed reports whether sandboxes may run as root here.
func rootAllowed(e environ.Lookup) bool { return e.Get("WORKCELL_ALLOW_ROOT") == "1" }

// imagePolicy is the configured lists of allowed images as session has a policy.
type imagePolicy struct{ *config.Config }

// Check returns nil for an image that may be used.
func (p imagePolicy) Check(ref string) error { return p.CheckImage(ref) }

// logger writes what operators should know to standard error.
func (a *app) logger() *slog.Logger {
	if a.opts.Env.Get("WORKCELL_DEBUG") != "" {
		return slog.New(slog.NewTextHandler(a.opts.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(newLineLog(a.opts.Stderr))
}

// lineLog writes warnings and errors as this command's other lines on standard error: what happened, then why.
type lineLog struct {
	mu    *sync.Mutex // guards w, of all loggers that came of one
	w     io.Writer
	attrs []slog.Attr
}

func newLineLog(w io.Writer) *lineLog { return &lineLog{mu: &sync.Mutex{}, w: w} }

// Enabled is for warnings and what is worse.
func (l *lineLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// WithAttrs returns a log that says more.
func (l *lineLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &lineLog{l.mu, l.w, append(slices.Clip(l.attrs), attrs...)}
}

// WithGroup changes nothing: names that are the same in two groups are rare enough.
func (l *lineLog) WithGroup(string) slog.Handler { return l }

// Handle writes one line.
func (l *lineLog) Handle(_ context.Context, r slog.Record) error {
	word, why := "warning", ""
	if r.Level >= slog.LevelError {
		word = "error"
	}
	var about []string
	add := func(a slog.Attr) bool {
		if text := a.Value.Resolve().String(); a.Key == "error" {
			why = ": " + text
		} else {
			about = append(about, a.Key+" "+text)
		}
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	line := r.Message
	if len(about) > 0 {
		line += " (" + strings.Join(about, ", ") + ")"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintf(l.w, "workcell: %s: %s\n", word, sanitize.Line(line+why))
	return err
}

// stateUse is how much a command needs the records of sandboxes.
type stateUse int

const (
	stateNeeded stateUse = iota // nothing may be made that is not recorded
	stateWanted                 // without them the labels on the sandboxes must do
	stateUnused
)

// stateDir returns the directory for what must outlive a command.
func (a *app) stateDir() (state.Dir, error) { return state.Locate(a.opts.Env, a.opts.StateDir) }

// state returns where records and journals are kept.
func (a *app) state() (state.Place, error) {
	return state.Find(a.opts.Env, a.opts.State, a.opts.StateDir)
}

// databaseVariables returns the variables by which another process gets to the same database.
func (a *app) databaseVariables(place state.Place) (vars []string) {
	if place.URL == "" {
		return nil
	}
	for _, name := range []string{
		"PGPASSFILE", "PGPASSWORD", "PGSERVICE", "PGSERVICEFILE", "PGSSLMODE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "PGUSER", "PGHOST", "PGPORT",
	} {
		if v, ok := a.opts.Env(name); ok {
			vars = append(vars, name+"="+v)
		}
	}
	return append(vars, state.Variable+"="+place.URL)
}

// machine returns what tells this machine from others that share its database, where its sandboxes have to be told apart;
// empty where the state is of one machine anyway.
func (a *app) machine() string {
	if cmp.Or(a.opts.State, a.opts.Env.Get(state.Variable)) == "" {
		return ""
	}
	id, err := os.ReadFile("/etc/machine-id")
	if name := strings.TrimSpace(string(id)); err == nil && name != "" {
		return name
	}
	name, _ := os.Hostname() // the last thing to tell them apart by
	return name
}

// openStore opens the records of sandboxes; nil when the command does without.
func (a *app) openStore(ctx context.Context, place state.Place, use stateUse) (state.Records, error) {
	if use == stateUnused {
		return nil, nil
	}
	store, err := place.OpenRecords(ctx)
	if err != nil && use == stateWanted && ctx.Err() == nil && place.URL == "" { // a database knows whose the sandboxes are
		a.withoutRecords(err)
		return nil, nil
	}
	return store, err
}

// withoutRecords warns that a command does without the records: with a full disk, a directory that cannot be written or a
// damaged file it must still be possible to see and remove sandboxes.
func (a *app) withoutRecords(err error) {
	a.notice("sandbox records not available, using labels only: %v", err)
}

// openJournal opens the journals of runs.
func (a *app) openJournal(ctx context.Context) (runstore.Store, error) {
	place, err := a.state()
	if err != nil {
		return nil, err
	}
	return place.OpenJournal(ctx)
}

// saveEnv keeps what `sessions open -e` set: later commands come from other processes. It lies in the state file, which is
// the user's alone: on the engine others could read it, and what lies in the sandbox belongs to the code there.
func (m *manager) saveEnv(env map[string]string) func(context.Context, *session.Session) error {
	if len(env) == 0 {
		return nil
	}
	return func(ctx context.Context, s *session.Session) error { return m.records.AddEnv(ctx, s.ID(), env) }
}

// loadEnv returns the environment of a command: what the sandbox was opened with, and own over it.
func (m *manager) loadEnv(ctx context.Context, s *session.Session, own map[string]string) (map[string]string, error) {
	if m.records == nil {
		m.app.notice("variables of `sessions open -e` are not available without sandbox records")
		return own, nil
	}
	env, err := m.records.Env(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	maps.Copy(env, own)
	return env, nil
}
