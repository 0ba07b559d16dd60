// Package docker runs sandboxes on a Docker Engine, local or remote, from API 1.41 on.
//
// Everything goes through the Engine API: no command, no bind mount, no socket shared with a sandbox. A sandbox is one
// container whose main process is the Workcell guest, delivered through a read-only volume that is filled once per
// engine and guest version, and one workspace volume. The engine keeps the labels.
//
// Dial connects to the guest's Unix socket in the sandbox's network namespace. If this process cannot enter the
// namespace, for example because the engine is on another host, Dial runs `workcell-guest connect` with the engine's
// exec.
//
// What every container gets, whatever its image says: a numeric non-root user, no capabilities, no-new-privileges, the
// engine's seccomp filter, a read-only root (unless the Spec asks for a writable one), private namespaces, limits on
// memory (swap included), CPU, processes, files and core dumps, a sized /tmp and /dev/shm, no log, no health check, no
// restart. docs/docker.md has the whole list.
//
// # Networks
//
// The default is no network at all. A bridged sandbox reaches public addresses only: what is private, link-local (cloud
// metadata), on the sandbox network itself (gateway, other sandboxes) or an address of the engine's own machine is
// rejected inside the sandbox's network namespace by rules that the sandbox has no privilege to change, except the
// engine's resolvers on port 53 and what Options.AllowNets lists. Where such rules cannot be installed, Create fails
// with ErrUnsupported.
//
// # Spans
//
// docker.Create, docker.Pull, docker.Start, docker.Stop, docker.Dial, docker.Remove,
// docker.Snapshot, docker.Rollback.
package docker

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/client"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// Options refine New. The zero value, and nil, mean the defaults named at each field.
type Options struct {
	// Host is the engine's address: "unix:///run/docker.sock", "tcp://host:2376", "npipe:////./pipe/docker_engine".
	// Empty is the platform's default. The environment is not looked at: a command that honours DOCKER_HOST reads it
	// and sets this.
	Host string
	// TLS protects a tcp Host; nil speaks plain HTTP.
	TLS *tls.Config
	// ConfigDir is the directory of Docker's config.json, which holds registry credentials or names their helpers.
	// Empty asks registries anonymously.
	ConfigDir string
	// Images are those that may be used; nil allows all.
	Images *backend.ImagePolicy
	// Limits replace the defaults (1 core, 2 GiB, 256 processes, 256 MiB of /tmp but at most half of the
	// memory, 16384 open files) where not zero.
	Limits backend.Limits
	// AllowNets are addresses that bridged sandboxes may reach although they are private or the engine's own.
	AllowNets []netip.Prefix
	// CallTimeout bounds one call of the engine's API, pulls excluded; 0 means 2 minutes.
	CallTimeout time.Duration
	// Patience is how long the engine may answer nothing, not even a ping, before a call fails with ErrUnavailable;
	// 0 means 5 s.
	Patience time.Duration
	// PullTimeout bounds one pull; 0 means 30 minutes.
	PullTimeout time.Duration
	// Guest replaces the guest that the library carries.
	Guest *backend.Guest
	// TracerProvider makes the spans; nil means that of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger gets what operators may need and callers may not see, such as the engine's own error texts; nil drops it.
	Logger *slog.Logger
}

// Backend is a [backend.SandboxBackend] on one Docker Engine. Its methods may be called concurrently. Streams of Dial
// outlive Close.
type Backend struct {
	*common
	d *driver
}

type common = kit.Driver // without a name of its own in Backend

// driver is what is Docker's own.
type driver struct {
	workspaceSnapshots

	opts  Options
	api   *client.Client
	log   *slog.Logger
	known atomic.Pointer[engine] // what learn found out, nil before
	near  atomic.Bool            // the engine's containers are processes of this machine

	calls *kit.Calls

	pulls   *kit.Pulls
	guest   guestVolumes
	network sandboxNetwork

	installed  sync.Map // image id by name of an environment that was seen
	workspaces sync.Map // volumeName by container id, so that a container that is gone does not hide its volume
}

// New connects to an engine, within the bounds of ctx and Options.Patience. An engine that does not answer is
// ErrUnavailable, one that cannot run Linux containers ErrUnsupported.
func New(ctx context.Context, opts *Options) (*Backend, error) {
	b := new(driver)
	if opts != nil {
		b.opts = *opts
		b.opts.AllowNets = slices.Clone(opts.AllowNets)
	}
	o := &b.opts
	if err := kit.Defaults("docker", o.Limits, &o.Guest, &o.Logger); err != nil {
		return nil, err
	}
	b.guest.init(o.Guest)
	kit.Times(&o.CallTimeout, &o.Patience, &o.PullTimeout)
	b.log = o.Logger
	api, err := newClient(b.opts)
	if err != nil {
		return nil, err
	}
	b.api = api
	b.workspaceSnapshots = b.snapshotMethods()
	b.calls = kit.New(kit.Options{
		Name: "docker", Log: b.log, Tracer: o.TracerProvider, Limit: o.CallTimeout, Patience: o.Patience, Classify: classify,
		Ping: func(ctx context.Context) error { _, err := api.Ping(ctx); return err },
	})
	b.pulls = kit.NewPulls(b.calls, o.PullTimeout)
	if err := b.probe(ctx); err != nil {
		return nil, errors.Join(err, b.calls.Close(api.Close))
	}
	return &Backend{kit.NewDriver(b, b.calls, o.Images, o.Limits), b}, nil
}

// Capabilities are those that the engine had when they first mattered; none when it does not answer.
func (b *driver) Capabilities() backend.Capabilities { return b.engine().caps }

// Enforcement returns WorkspaceWatched: the engine's volumes have no size.
func (b *driver) Enforcement(context.Context) (backend.Enforcement, error) {
	return backend.WorkspaceWatched, nil
}

// Release closes the client.
func (b *driver) Release() error { return b.api.Close() }

var _ backend.SandboxBackend = (*Backend)(nil)
