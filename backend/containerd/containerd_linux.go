package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
)

// Backend is a [backend.SandboxBackend] on one containerd. Its methods may be called concurrently.
type Backend struct {
	opts   Options
	api    *ctrd.Client
	log    *slog.Logger
	engine engine
	state  stateDir
	sizing *kit.Sizing

	calls  *kit.Calls
	pulls  kit.Pulls
	images imageCache

	mu    sync.Mutex         // guards what follows
	known map[string]*record // sandboxes that are ours, by id; their records never change
	swept time.Time          // when List last looked for stray shims
}

// New connects to containerd, within the bounds of ctx and Options.Patience. A containerd that does not answer is
// ErrUnavailable, a machine that cannot run sandboxes as they must be ErrUnsupported.
func New(ctx context.Context, opts *Options) (*Backend, error) {
	b := &Backend{known: map[string]*record{}}
	if opts != nil {
		b.opts = *opts
		b.opts.AllowNets = slices.Clone(opts.AllowNets)
		b.opts.CNI.BinDirs = slices.Clone(opts.CNI.BinDirs)
		b.opts.Runtimes = maps.Clone(opts.Runtimes)
	}
	if err := b.applyDefaults(); err != nil {
		return nil, err
	}
	api, err := newClient(b.opts)
	if err != nil {
		return nil, err
	}
	b.api = api
	b.calls = kit.New(kit.Options{
		Name: "containerd", Log: b.log, Tracer: b.opts.TracerProvider, Limit: b.opts.CallTimeout, Patience: b.opts.Patience, Context: muted, Native: native, Classify: classify,
		Ping: func(ctx context.Context) error { _, err := api.Version(ctx); return err },
	})
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(err, b.calls.Close(api.Close))
	}
	return b, nil
}

// prepare probes the engine and lays out the state directory.
func (b *Backend) prepare(ctx context.Context) error {
	var err error
	if b.engine, err = b.probe(ctx); err != nil {
		return err
	}
	b.sizing = kit.NewSizing("containerd", b.log, func(ctx context.Context) error { return sizedfs.Probe(ctx, b.state.root) })
	b.state, err = openState(b.opts.StateDir)
	return err
}

func (b *Backend) applyDefaults() error {
	o := &b.opts
	if err := o.Limits.Validate(); err != nil {
		return fmt.Errorf("containerd: default limits: %w", err)
	}
	setDefault(&o.Address, DefaultAddress)
	setDefault(&o.Namespace, DefaultNamespace)
	setDefault(&o.Runtime, DefaultRuntime)
	setDefault(&o.StateDir, DefaultStateDir)
	setDefault(&o.CgroupParent, "/"+o.Namespace)
	setDefault(&o.CallTimeout, 2*time.Minute)
	setDefault(&o.Patience, 5*time.Second)
	setDefault(&o.PullTimeout, 30*time.Minute)
	if !filepath.IsAbs(o.StateDir) {
		return fmt.Errorf("containerd: Options.StateDir is not absolute: %w", backend.ErrInvalid)
	}
	if o.CgroupParent == "/" || path.Clean(o.CgroupParent) != o.CgroupParent || !path.IsAbs(o.CgroupParent) {
		return fmt.Errorf("containerd: Options.CgroupParent is not the absolute name of a control group: %w", backend.ErrInvalid)
	}
	if err := o.CNI.applyDefaults(); err != nil {
		return err
	}
	if o.Guest == nil {
		o.Guest = kit.DefaultGuest()
	}
	b.log = o.Logger
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Name is "containerd".
func (b *Backend) Name() string { return "containerd" }

// Capabilities returns what can be enforced here, as found by New.
func (b *Backend) Capabilities() backend.Capabilities {
	c := b.engine.caps
	c.Workspace = backend.WorkspaceWatched // by the guest, which runs everywhere
	if enforcement, err := b.enforcement(b.calls.Life(), b.opts.Runtime); err == nil {
		c.Workspace = enforcement
	}
	c.Networks, c.Runtimes = slices.Clone(c.Networks), slices.Clone(c.Runtimes)
	return c
}

// Close ends pending calls and waits, for a bounded time, for them and for the clean-up that earlier calls left to the
// background. Sandboxes keep running, and so do streams of Dial; streams of Connect end with their connection to
// containerd.
func (b *Backend) Close() error { return b.calls.Close(b.api.Close) }

// remember keeps the record of a sandbox, so that a later call need not ask for it.
func (b *Backend) remember(r *record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known[r.name()] = r
}

func (b *Backend) forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, id)
}

var (
	_ backend.SandboxBackend = (*Backend)(nil)
	_ backend.Namer          = (*Backend)(nil)
	_ backend.Connector      = (*Backend)(nil)
	_ backend.Pinger         = (*Backend)(nil)
	_ backend.OOMReporter    = (*Backend)(nil)
	_ backend.UsageReporter  = (*Backend)(nil)
	_ backend.ImageChecker   = (*Backend)(nil)
	_ io.Closer              = (*Backend)(nil)
)
