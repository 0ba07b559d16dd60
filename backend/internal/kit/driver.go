package kit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// engine has the methods of each driver. [Driver] calls them for the methods of [backend.SandboxBackend] after it
// admits the call. Environments and List may return their results in any order. List may also return other sandboxes.
// ImageID gets a full reference.
type engine interface {
	Create(ctx context.Context, p *Plan) (backend.Info, error)
	Get(ctx context.Context, id string) (backend.Info, error)
	List(ctx context.Context, filter backend.Filter) ([]backend.Info, error)
	Start(ctx context.Context, id string) error
	Stop(ctx context.Context, id string) error
	Remove(ctx context.Context, id string, opts backend.RemoveOptions) error
	Dial(ctx context.Context, id string) (io.ReadWriteCloser, error)
	Ping(ctx context.Context) (backend.EngineInfo, error)
	ImageID(ctx context.Context, ref string) (id string, err error)
	HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error)
	RemoveWorkspace(ctx context.Context, instance, sessionID string) error
	CommitEnvironment(ctx context.Context, id string) error
	Environments(ctx context.Context, instance string) ([]backend.Environment, error)
	RemoveEnvironment(ctx context.Context, instance, name string) error
	Snapshot(ctx context.Context, id, name string) (backend.Snapshot, error)
	Snapshots(ctx context.Context, id string) ([]backend.Snapshot, backend.SnapshotMechanism, error)
	CopySnapshot(ctx context.Context, id string, from backend.ForkOf) error
	RemoveSnapshot(ctx context.Context, id, name string) error
	Rollback(ctx context.Context, id, name string) error
	// Capabilities may omit Workspace. The caller owns the returned slices.
	Capabilities() backend.Capabilities
	// Enforcement returns how the default runtime enforces a workspace's limit.
	Enforcement(ctx context.Context) (backend.Enforcement, error)
	// Release frees the resources for calls. Driver calls it after the last call.
	Release() error
}

// Driver implements [backend.SandboxBackend] for an engine. It admits calls until it is closed, checks the specs of new
// sandboxes, and creates the spans.
type Driver struct {
	engine engine
	calls  *Calls
	images *backend.ImagePolicy
	limits backend.Limits
}

// NewDriver returns a driver for an engine. images is the policy for sandbox images. limits are the limits of sandboxes
// without requested limits.
func NewDriver(e engine, c *Calls, images *backend.ImagePolicy, limits backend.Limits) *Driver {
	return &Driver{e, c, images, limits}
}

// Admit runs f as a call of the driver. It fails if the driver is closed. Close cancels f and waits for it. If name is
// not empty, Admit creates a span, and the error of f becomes the span's error.
func Admit[T any](
	ctx context.Context, c *Calls, name string, f func(context.Context) (T, error), attrs ...attribute.KeyValue,
) (v T, err error) {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return v, err
	}
	defer done()
	if name != "" {
		var span trace.Span
		ctx, span = c.Span(ctx, name, attrs...)
		defer func() { telemetry.End(span, err) }()
	}
	v, err = f(ctx)
	if Unexplained(err) { // for example a full disk or a missing runtime; the same request may succeed later
		err = fmt.Errorf("%w: %w", err, backend.ErrUnavailable)
	}
	return v, err
}

// admit is like Admit, for functions without a result.
func (d *Driver) admit(ctx context.Context, name string, f func(context.Context) error) error {
	_, err := Admit(ctx, d.calls, name, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}

// Name returns the driver's name.
func (d *Driver) Name() string { return d.calls.o.Name }

// Create creates a sandbox and starts it.
func (d *Driver) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	return Admit(ctx, d.calls, telemetry.SpanDriverCreate, func(ctx context.Context) (backend.Info, error) {
		p, err := NewPlan(d.Name(), spec, d.images, d.limits)
		if err != nil {
			return backend.Info{}, err
		}
		trace.SpanFromContext(ctx).SetAttributes(telemetry.Text(telemetry.KeyImage, p.Image)) // only valid references
		return d.engine.Create(ctx, p)
	}, telemetry.Text(telemetry.KeyRunID, spec.Run))
}

// Get describes a sandbox.
func (d *Driver) Get(ctx context.Context, id string) (backend.Info, error) {
	return Admit(ctx, d.calls, "", With(d.engine.Get, id))
}

// List describes the sandboxes matching filter, oldest first.
func (d *Driver) List(ctx context.Context, filter backend.Filter) ([]backend.Info, error) {
	return Admit(ctx, d.calls, "", func(ctx context.Context) ([]backend.Info, error) {
		infos, err := d.engine.List(ctx, filter)
		return Select(infos, filter), err
	})
}

// Start starts a stopped sandbox.
func (d *Driver) Start(ctx context.Context, id string) error {
	return d.admit(ctx, telemetry.SpanDriverStart, func(ctx context.Context) error { return d.engine.Start(ctx, id) })
}

// Stop kills the processes of a sandbox immediately, because the guest agent has no state to save.
func (d *Driver) Stop(ctx context.Context, id string) error {
	return d.admit(ctx, telemetry.SpanDriverStop, func(ctx context.Context) error { return d.engine.Stop(ctx, id) })
}

// Remove stops a sandbox and deletes it. If the workspace is kept, a later Create for the same session uses it again.
func (d *Driver) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	return d.admit(ctx, telemetry.SpanDriverRemove, Bind(d.engine.Remove, id, opts))
}

// Dial opens a new stream to the guest agent.
func (d *Driver) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	return Admit(ctx, d.calls, telemetry.SpanDriverDial, With(d.engine.Dial, id))
}

// Ping checks the connection to the engine and returns information about it.
func (d *Driver) Ping(ctx context.Context) (backend.EngineInfo, error) {
	return Admit(ctx, d.calls, "", d.engine.Ping)
}

// ImageID returns the ID of the image with this reference. If the engine does not have the image, ImageID returns an
// empty string.
func (d *Driver) ImageID(ctx context.Context, ref string) (string, error) {
	full, err := backend.NormalizeImage(ref)
	if err != nil {
		return "", err
	}
	id, err := Admit(ctx, d.calls, "", With(d.engine.ImageID, full))
	if err != nil {
		return "", Ignore(err, backend.ErrNotFound, backend.ErrImage)
	}
	return id, nil
}

// HasWorkspace reports whether a session has a workspace.
func (d *Driver) HasWorkspace(ctx context.Context, instance, sessionID string) (bool, error) {
	return Admit(ctx, d.calls, "", func(ctx context.Context) (bool, error) {
		return d.engine.HasWorkspace(ctx, instance, sessionID)
	})
}

// RemoveWorkspace deletes the workspace of a session without a sandbox.
func (d *Driver) RemoveWorkspace(ctx context.Context, instance, sessionID string) error {
	return d.admit(ctx, "", Bind(d.engine.RemoveWorkspace, instance, sessionID))
}

// CommitEnvironment saves the installed files of a sandbox as an environment.
func (d *Driver) CommitEnvironment(ctx context.Context, id string) error {
	return d.admit(ctx, "", func(ctx context.Context) error { return d.engine.CommitEnvironment(ctx, id) })
}

// Environments returns the environments of an instance, oldest first.
func (d *Driver) Environments(ctx context.Context, instance string) ([]backend.Environment, error) {
	return Admit(ctx, d.calls, "", func(ctx context.Context) ([]backend.Environment, error) {
		list, err := d.engine.Environments(ctx, instance)
		slices.SortFunc(list, func(a, b backend.Environment) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
		})
		return list, err
	})
}

// RemoveEnvironment removes an environment by name.
func (d *Driver) RemoveEnvironment(ctx context.Context, instance, name string) error {
	return d.admit(ctx, "", Bind(d.engine.RemoveEnvironment, instance, name))
}

// Snapshot saves the files of a workspace.
func (d *Driver) Snapshot(ctx context.Context, id, name string) (backend.Snapshot, error) {
	return Admit(ctx, d.calls, telemetry.SpanDriverSnapshot, func(ctx context.Context) (backend.Snapshot, error) {
		return d.engine.Snapshot(ctx, id, name)
	})
}

// Snapshots returns the snapshots of a sandbox.
func (d *Driver) Snapshots(
	ctx context.Context, id string,
) (list []backend.Snapshot, m backend.SnapshotMechanism, err error) {
	list, err = Admit(ctx, d.calls, "", func(ctx context.Context) ([]backend.Snapshot, error) {
		list, m, err = d.engine.Snapshots(ctx, id)
		return list, err
	})
	return list, m, err
}

// CopySnapshot copies a snapshot from another sandbox.
func (d *Driver) CopySnapshot(ctx context.Context, id string, from backend.ForkOf) error {
	if !IsSessionID(from.SessionID) {
		return fmt.Errorf("%s: session ID %.140q: %w", d.Name(), from.SessionID, backend.ErrInvalid)
	}
	return d.admit(ctx, "", Bind(d.engine.CopySnapshot, id, from))
}

// RemoveSnapshot deletes a snapshot.
func (d *Driver) RemoveSnapshot(ctx context.Context, id, name string) error {
	return d.admit(ctx, "", Bind(d.engine.RemoveSnapshot, id, name))
}

// Rollback restores a workspace from a snapshot.
func (d *Driver) Rollback(ctx context.Context, id, name string) error {
	return d.admit(ctx, telemetry.SpanDriverRollback, Bind(d.engine.Rollback, id, name))
}

// Capabilities returns the enforceable features of the engine, as detected when the driver was created. The first call
// detects how the engine enforces workspace limits.
func (d *Driver) Capabilities() backend.Capabilities {
	c := d.engine.Capabilities()
	c.Workspace = backend.WorkspaceWatched // by the guest agent, which is always present
	if e, err := Admit(context.Background(), d.calls, "", d.engine.Enforcement); err == nil {
		c.Workspace = e
	}
	c.Networks, c.OCIRuntimes = slices.Clone(c.Networks), slices.Clone(c.OCIRuntimes)
	c.Isolation = maps.Clone(c.Isolation)
	return c
}

// Close cancels pending calls. It waits for a bounded time for them and for background cleanup of earlier calls.
// Sandboxes keep running.
func (d *Driver) Close() error { return d.calls.Close(d.engine.Release) }

// Defaults fills in the options common to all drivers. It validates the limits. If no guest agent is set, it uses the
// embedded guest agent. If no logger is set, it discards log messages.
func Defaults(driver string, limits backend.Limits, guest **backend.Guest, logger **slog.Logger) error {
	if err := limits.Validate(); err != nil {
		return fmt.Errorf("%s: default limits: %w", driver, err)
	}
	*guest = cmp.Or(*guest, defaultGuest())
	*logger = cmp.Or(*logger, slog.New(slog.DiscardHandler))
	return nil
}

// Times sets defaults for the time limits of calls to an engine: 2 minutes for call, 5 seconds for patience, and 30
// minutes for pull.
func Times(call, patience, pull *time.Duration) {
	*call = cmp.Or(max(*call, 0), 2*time.Minute)
	*patience = cmp.Or(max(*patience, 0), 5*time.Second)
	*pull = cmp.Or(max(*pull, 0), 30*time.Minute)
}

// Undo removes the objects of a failed creation and returns the creation's error. If the engine does not respond, Undo
// retries in the background to avoid a long wait of the caller. The retries help because an engine may lose one request
// but answer the next. rollback may run after the caller's context ended.
func (c *Calls) Undo(ctx context.Context, session string, err error, rollback func(context.Context) error) error {
	try := func(ctx context.Context, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		left := rollback(ctx)
		if left != nil {
			c.o.Log.Warn(c.o.Name+": cannot clean up after a failed create", "session", session, "error", left)
		}
		return left
	}
	if !errors.Is(err, backend.ErrUnavailable) {
		return errors.Join(err, try(ctx, CleanupTimeout))
	}
	c.Background(ctx, func(ctx context.Context) {
		_ = c.Retry(ctx, func() (bool, error) { // try logs the failure
			left := try(ctx, CleanupTimeout/4)
			return !errors.Is(left, backend.ErrUnavailable) && !errors.Is(left, context.DeadlineExceeded), left
		})
	})
	return err
}
