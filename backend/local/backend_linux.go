package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// Backend is a [backend.SandboxBackend] without an engine. It is safe for concurrent use. Streams of Dial stay open
// after Close.
type Backend struct{ *common }

type common = kit.Driver // alias to avoid an exported field name in Backend

// driver implements the driver-specific methods.
type driver struct {
	snapshots.Methods[*sandbox]

	opts    Options
	dirs    dirs
	machine machine
	guest   string // directory with the guest agent's binary
	sizing  func(context.Context) (backend.Enforcement, error)

	calls *kit.Calls
}

// New examines this host and tests the isolation with a trial process. If a part of the isolation is not available, New
// returns an error wrapping ErrUnsupported. The text names the missing part and how to enable it.
func New(ctx context.Context, opts *Options) (*Backend, error) {
	b := &driver{opts: *cmp.Or(opts, &Options{})}
	if err := b.applyDefaults(); err != nil {
		return nil, err
	}
	var err error
	if b.dirs, err = openDirs(b.opts.StateDir); err != nil {
		return nil, err
	}
	if b.guest, err = b.dirs.installGuest(b.opts.Guest); err != nil {
		return nil, err
	}
	if b.machine, err = inspectMachine(); err != nil {
		return nil, err
	}
	if err := b.tryIsolation(ctx); err != nil {
		return nil, err
	}
	b.Methods = b.snapshotMethods()
	b.sweep(ctx)
	b.calls = kit.New(kit.Options{Name: name, Log: b.opts.Logger, Tracer: b.opts.TracerProvider})
	b.sizing = kit.NewSizing(b.calls, func(ctx context.Context) error { return sizedfs.Probe(ctx, b.dirs.tmp()) })
	return &Backend{kit.NewDriver(b, b.calls, b.opts.Images, b.opts.Limits)}, nil
}

// sweep removes leftovers of dead processes from the state directory and the control groups.
func (b *driver) sweep(ctx context.Context) {
	err := errors.Join(b.dirs.sweep(ctx), b.sweepGroups())
	if err != nil {
		b.opts.Logger.Warn("local: cannot remove leftovers of exited processes", "error", err)
	}
}

func (b *driver) applyDefaults() error {
	o := &b.opts
	if err := kit.Defaults(name, o.Limits, &o.Guest, &o.Logger); err != nil {
		return err
	}
	var err error
	if o.StateDir == "" {
		if o.StateDir, err = defaultStateDir(); err != nil {
			return err
		}
	}
	if o.StateDir, err = filepath.Abs(o.StateDir); err != nil {
		return fmt.Errorf("local: state directory: %w", err)
	}
	return nil
}

func defaultStateDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/workcell/local", nil
	}
	u, err := user.Current()
	if err != nil || u.HomeDir == "" {
		return "", fmt.Errorf("local: no home directory for state found; set a state directory: %w", backend.ErrInvalid)
	}
	return filepath.Join(u.HomeDir, ".local/state/workcell/local"), nil
}

// Capabilities returns the capabilities detected by New.
func (b *driver) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Memory:          b.machine.cgroups.memory(),
		CPU:             b.machine.cgroups.cpu(),
		PIDs:            true, // by cgroup, otherwise by RLIMIT_NPROC, which counts inside the sandbox's user namespace
		Networks:        []backend.NetworkMode{backend.NetworkNone},
		WritableRoot:    b.machine.layers,
		RootEnforcement: backend.WorkspaceMemory,
		Persistent:      true,
		Isolation:       map[string]backend.Isolation{"": backend.IsolationProcess},
	}
}

// Enforcement returns the enforcement of workspace limits.
func (b *driver) Enforcement(ctx context.Context) (backend.Enforcement, error) {
	return b.sizing(ctx)
}

// Ping describes this host. It never fails, because no engine is involved.
func (b *driver) Ping(context.Context) (backend.EngineInfo, error) {
	m := b.machine
	return backend.EngineInfo{
		Name: name, Version: b.opts.Guest.Version, Kernel: m.kernel, OS: m.os, Arch: runtime.GOARCH,
		Cgroup: m.cgroups.version(), Details: m.details(),
	}, nil
}

// Release does nothing, because the driver holds no resources.
func (b *driver) Release() error { return nil }

// ended returns the reason why a call's context ended: the caller's reason, or the end of the backend.
func ended(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, backend.ErrClosed) {
		return err
	}
	return fmt.Errorf("local: %w", ctx.Err())
}

var _ backend.SandboxBackend = (*Backend)(nil)
