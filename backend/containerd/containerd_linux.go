package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"sync"

	ctrd "github.com/containerd/containerd/v2/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// Backend is a [backend.SandboxBackend] on one containerd. It is safe for concurrent use. Streams of Dial stay open
// after Close.
type Backend struct{ *common }

type common = kit.Driver // alias to avoid an exported field name in Backend

// driver implements the engine-specific methods for containerd.
type driver struct {
	snapshots.Methods[*record]

	opts   Options
	api    *ctrd.Client
	engine engine
	state  stateDir
	sizing func(context.Context) (backend.Enforcement, error)

	calls    *kit.Calls
	pulls    *kit.Pulls
	accounts sync.Map // kit.Accounts of images, by the chain id of their layers
	images   sync.Map // unpacked *image by the digest of its manifest: content never changes

	known sync.Map // *record by ID, of sandboxes of this driver; records are immutable
}

// New connects to containerd. ctx and Options.Patience bound the connection attempt. If containerd does not respond,
// New returns ErrUnavailable. If the host cannot run hardened sandboxes, New returns ErrUnsupported.
func New(ctx context.Context, opts *Options) (*Backend, error) {
	b := &driver{opts: *cmp.Or(opts, &Options{})}
	b.opts.AllowNets = slices.Clone(b.opts.AllowNets)
	b.opts.CNI.BinDirs = slices.Clone(b.opts.CNI.BinDirs)
	b.opts.OCIRuntimes = maps.Clone(b.opts.OCIRuntimes)
	if err := b.applyDefaults(); err != nil {
		return nil, err
	}
	o := b.opts
	// The client connects on first use and reconnects if necessary.
	api, err := ctrd.New(o.Address, ctrd.WithDefaultNamespace(o.Namespace), ctrd.WithTimeout(reconnectPause))
	if err != nil { // the text contains the address, which may be a path
		return nil, fmt.Errorf("containerd: Options.Address is not a socket address: %w", backend.ErrInvalid)
	}
	b.api = api
	b.calls = kit.New(kit.Options{
		Name: "containerd", Log: o.Logger, Tracer: o.TracerProvider, Limit: o.CallTimeout, Patience: o.Patience,
		Context: muted, Native: native, Classify: classify,
		Ping: func(ctx context.Context) error { _, err := api.Version(ctx); return err },
	})
	b.pulls = kit.NewPulls(b.calls, o.PullTimeout)
	b.Methods = snapshots.Methods[*record]{
		Driver: "containerd", Own: b.own, Hold: b.alone, Workspace: b.snapshots, Origin: b.origin,
		Dir: func(_ context.Context, r *record) (string, error) { return r.state().workspaces(r.session), nil },
	}
	b.sizing = kit.NewSizing(b.calls, func(ctx context.Context) error { return sizedfs.Probe(ctx, b.state.root) })
	if b.engine, err = b.probe(ctx); err == nil {
		b.state, err = openState(o.StateDir)
	}
	if err != nil {
		return nil, errors.Join(err, b.calls.Close(api.Close))
	}
	return &Backend{kit.NewDriver(b, b.calls, o.Images, o.Limits)}, nil
}

func (b *driver) applyDefaults() error {
	o := &b.opts
	if err := kit.Defaults("containerd", o.Limits, &o.Guest, &o.Logger); err != nil {
		return err
	}
	kit.Times(&o.CallTimeout, &o.Patience, &o.PullTimeout)
	o.Address = cmp.Or(o.Address, DefaultAddress)
	o.Namespace = cmp.Or(o.Namespace, DefaultNamespace)
	o.OCIRuntime = cmp.Or(o.OCIRuntime, "runc")
	o.StateDir = cmp.Or(o.StateDir, DefaultStateDir)
	o.CgroupParent = cmp.Or(o.CgroupParent, "/"+o.Namespace)
	if !filepath.IsAbs(o.StateDir) {
		return fmt.Errorf("containerd: Options.StateDir is not absolute: %w", backend.ErrInvalid)
	}
	if o.CgroupParent == "/" || path.Clean(o.CgroupParent) != o.CgroupParent || !path.IsAbs(o.CgroupParent) {
		return fmt.Errorf("containerd: Options.CgroupParent is not an absolute control group name: %w", backend.ErrInvalid)
	}
	return o.CNI.applyDefaults()
}

// Capabilities returns the capabilities detected by New.
func (b *driver) Capabilities() backend.Capabilities { return b.engine.caps }

// Release closes the client.
func (b *driver) Release() error { return b.api.Close() }

var _ backend.SandboxBackend = (*Backend)(nil)
