package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/reaper"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// engineFlags choose the engine. Every command that touches sandboxes has them.
type engineFlags struct {
	backend string
	// maxSandboxes bounds what one process may have open; 0 is no bound. Only servers have a flag for it.
	maxSandboxes int
}

func (f *engineFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.backend, "backend", "",
		"what runs the sandboxes: docker, containerd, local (no engine, a weaker wall than a container), or auto: docker, "+
			"else containerd (default $WORKCELL_BACKEND, else auto)")
}

// imageFlags say which images may be used and where they come from.
type imageFlags struct {
	mapped  []string
	allowed []string
}

func (f *imageFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.mapped, "map-image", nil,
		"FROM=TO: use image TO where FROM is asked for, for machines behind a mirror; may be repeated")
	cmd.Flags().StringArrayVar(&f.allowed, "allow-image", nil,
		"allow only images that match this pattern (python:3.*, ghcr.io/acme/**); may be repeated")
}

// engines returns the engines that the environment leads to.
func (a *app) engines() engines.Set {
	return engines.Set{Env: a.env, Logger: a.logger(), Notice: func(text string) {
		fmt.Fprintf(a.stderr, "workcell: engine: %s\n", sanitize.Line(text))
	}}
}

// backendName returns what the flag says, else WORKCELL_BACKEND, else auto.
func (a *app) backendName(f engineFlags) string {
	return cmp.Or(f.backend, a.env.Get("WORKCELL_BACKEND"), engines.Auto)
}

// openManager connects to the engine and returns a manager with this installation's identity and the records of its
// sandboxes. The caller must call done after it closed or detached the manager.
func (a *app) openManager(ctx context.Context, f engineFlags, images imageFlags, use stateUse) (m *session.Manager, done func(), err error) {
	opts := &session.Options{Logger: a.logger(), AllowRoot: rootAllowed(a.env), MaxSandboxes: f.maxSandboxes}
	mapped := images.mapped
	if list := a.env.Get("WORKCELL_IMAGE_MAP"); list != "" {
		mapped = append(strings.Split(list, ","), mapped...) // flags win
	}
	mapping, err := engines.ParseImageMap(mapped)
	if err != nil {
		return nil, nil, err
	}
	if len(images.allowed) > 0 {
		policy, err := backend.NewImagePolicy(images.allowed...)
		if err != nil {
			return nil, nil, usageError(err, "see --allow-image in --help")
		}
		opts.Images = imagePolicy{policy}
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, nil, err
	}
	store, err := a.openStore(ctx, dir, use)
	if err != nil {
		return nil, nil, err
	}
	closeStore := func() {}
	if store != nil {
		a.records = store
		closeStore = func() { store.Close() } // every change was on the disk before it was acknowledged
	}
	if opts.Instance, err = dir.Instance(ctx, store); err != nil {
		closeStore()
		return nil, nil, err
	}
	driver, err := a.engines().Open(ctx, a.backendName(f))
	if err != nil {
		closeStore()
		return nil, nil, err
	}
	opts.Engine = a.engines().ID(engines.NameOf(driver))
	if store != nil {
		opts.Store = a.guarded(store, dir, engines.NameOf(driver))
	}
	m, err = session.NewManager(engines.MapImages(driver, mapping), opts)
	if err != nil && store != nil && use == stateWanted { // no file of an owner can be made
		a.withoutRecords(err)
		opts.Store = nil
		m, err = session.NewManager(engines.MapImages(driver, mapping), opts)
	}
	if err != nil {
		driver.Close()
		closeStore()
		return nil, nil, err
	}
	return m, func() { // its sandboxes stay; there is nothing left to lose
		driver.Close()
		closeStore()
	}, nil
}

// guarded returns the store that a manager of this command is to use.
func (a *app) guarded(store *sqlitestore.Store, dir state.Dir, backendName string) session.Store {
	if !reaper.Supported || strings.EqualFold(a.env.Get(reaper.Variable), "off") {
		return store
	}
	return reaper.Guard(store, reaper.Options{
		Dir: string(dir), Backend: backendName, Engine: a.engines().ID(backendName), Environ: a.engines().Environ,
		Failed: func(err error) {
			fmt.Fprintf(a.stderr, "workcell: should this process be killed, its sandboxes stay until the next command: no reaper can be started: %s\n",
				sanitize.Line(err.Error()))
		},
	})
}

// rootAllowed reports whether sandboxes may run as root here.
func rootAllowed(e environ.Lookup) bool { return e.Get("WORKCELL_ALLOW_ROOT") == "1" }

// imagePolicy fits backend's policy to session.
type imagePolicy struct{ *backend.ImagePolicy }

// Allow is Check.
func (p imagePolicy) Allow(ref string) error { return p.Check(ref) }

// logger writes what operators should know to standard error.
func (a *app) logger() *slog.Logger {
	if a.env.Get("WORKCELL_DEBUG") != "" {
		return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(newLineLog(a.stderr))
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
