// Package docker runs sandboxes on a local or remote Docker Engine, from API 1.41 on.
//
// The driver only uses the Engine API. It shares no commands, bind mounts, or sockets with a sandbox. A sandbox
// consists of one container and one workspace volume. The main process of the container is the Workcell guest agent.
// The guest agent is in a read-only volume, which is filled once per engine and guest version. The engine stores the
// labels.
//
// Dial connects to the guest agent's Unix socket in the sandbox's network namespace. If this process cannot enter the
// namespace, for example because the engine is on another host, Dial runs `workcell-guest connect` with the engine's
// exec.
//
// Every container has these settings, regardless of the image: a numeric non-root user, no capabilities,
// no-new-privileges, the engine's seccomp filter, a read-only root (unless the Spec requests a writable root), private
// namespaces, limits for memory (including swap), CPU, processes, files, and core dumps, a sized /tmp and /dev/shm, no
// log, no health check, and no restart. docs/operations/docker.md has the complete list.
//
// # Networks
//
// By default, a sandbox has no network. A bridged sandbox can only reach public addresses. Rules inside the sandbox's
// network namespace, which the sandbox has no privilege to change, reject all other addresses: private addresses,
// link-local addresses (cloud metadata), addresses on the sandbox network (gateway, other sandboxes), and addresses of
// the engine's host. Exceptions are the engine's resolvers on port 53 and the addresses in Options.AllowNets. If the
// rules cannot be installed, Create fails with ErrUnsupported.
//
// # Spans
//
// docker.Create, docker.Pull, docker.Start, docker.Stop, docker.Dial, docker.Remove, docker.Snapshot, docker.Rollback.
package docker

import (
	"cmp"
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

// Options configure New. A nil *Options and the zero value select the defaults.
type Options struct {
	// Host is the engine's address, for example "unix:///run/docker.sock", "tcp://host:2376", or
	// "npipe:////./pipe/docker_engine". If empty, Host is the platform's default. New does not read the environment:
	// commands with support for DOCKER_HOST must read the variable and set this field.
	Host string
	// TLS protects a tcp Host. If nil, the client uses plain HTTP.
	TLS *tls.Config
	// ConfigDir is the directory of Docker's config.json, which contains registry credentials or names credential
	// helpers. If empty, pulls are anonymous.
	ConfigDir string
	// Images is the policy for images. If nil, all images are allowed.
	Images *backend.ImagePolicy
	// Limits override the defaults if they are not zero. The defaults are 1 core, 2 GiB of memory, 256 processes, 256
	// MiB of /tmp but at most half of the memory, and 16384 open files.
	Limits backend.Limits
	// AllowNets lists private addresses and addresses of the engine's host to which bridged sandboxes may connect.
	AllowNets []netip.Prefix
	// CallTimeout bounds one call of the engine's API, except pulls. If zero, it defaults to 2 minutes.
	CallTimeout time.Duration
	// Patience is how long the engine may leave a call and all pings unanswered before the call fails with
	// ErrUnavailable. If zero, it defaults to 5 seconds.
	Patience time.Duration
	// PullTimeout bounds one pull. If zero, it defaults to 30 minutes.
	PullTimeout time.Duration
	// Guest replaces the embedded guest agent.
	Guest *backend.Guest
	// TracerProvider creates the spans. If nil, the driver uses the provider of the span in the caller's context.
	TracerProvider trace.TracerProvider
	// Logger receives information only for operators, not for callers, for example the engine's original error texts.
	// If nil, log messages are discarded.
	Logger *slog.Logger
}

// Backend is a [backend.SandboxBackend] on one Docker Engine. It is safe for concurrent use. Streams of Dial stay open
// after Close.
type Backend struct {
	*common
	d *driver
}

type common = kit.Driver // alias to avoid an exported field name in Backend

// driver implements the engine-specific methods for Docker.
type driver struct {
	workspaceSnapshots

	opts  Options
	api   *client.Client
	known atomic.Pointer[engine] // result of learn; nil before
	near  atomic.Bool            // the engine's containers are processes of this host

	calls *kit.Calls

	pulls   *kit.Pulls
	guest   guestVolumes
	network sandboxNetwork

	installed  sync.Map // image ID by name of known environments
	workspaces sync.Map // volumeName by container ID, to find the volume of a removed container
}

// New connects to an engine. ctx and Options.Patience bound the connection attempt. If the engine does not respond, New
// returns ErrUnavailable. If the engine cannot run Linux containers, New returns ErrUnsupported.
func New(ctx context.Context, opts *Options) (*Backend, error) {
	b := &driver{opts: *cmp.Or(opts, &Options{})}
	o := &b.opts
	o.AllowNets = slices.Clone(o.AllowNets)
	if err := kit.Defaults("docker", o.Limits, &o.Guest, &o.Logger); err != nil {
		return nil, err
	}
	b.guest.init(o.Guest)
	kit.Times(&o.CallTimeout, &o.Patience, &o.PullTimeout)
	var err error
	if b.api, err = newClient(b.opts); err != nil {
		return nil, err
	}
	b.workspaceSnapshots = b.snapshotMethods()
	b.calls = kit.New(kit.Options{
		Name: "docker", Log: o.Logger, Tracer: o.TracerProvider, Limit: o.CallTimeout, Patience: o.Patience,
		Classify: classify, Ping: func(ctx context.Context) error { _, err := b.api.Ping(ctx); return err },
	})
	b.pulls = kit.NewPulls(b.calls, o.PullTimeout)
	if err := b.probe(ctx); err != nil {
		return nil, errors.Join(err, b.calls.Close(b.api.Close))
	}
	return &Backend{kit.NewDriver(b, b.calls, o.Images, o.Limits), b}, nil
}

// Enforcement returns WorkspaceWatched, because the engine's volumes have no size limit.
func (b *driver) Enforcement(context.Context) (backend.Enforcement, error) {
	return backend.WorkspaceWatched, nil
}

// Release closes the client.
func (b *driver) Release() error { return b.api.Close() }

var _ backend.SandboxBackend = (*Backend)(nil)
