package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// tidyDelay is the delay before the helper container of a workspace is removed.
const tidyDelay = 250 * time.Millisecond

// creation is a running Create. It records the created objects to allow their removal after a failure.
type creation struct {
	b     *driver
	p     *plan
	img   *image
	nonce string

	requested bool                        // a container, and possibly a volume, was requested
	id        string                      // ID of the container, once known
	prepared  func(context.Context) error // removes the helper container of the workspace; may be nil
}

// Create creates a sandbox and starts it.
func (b *driver) Create(ctx context.Context, checked *kit.Plan) (_ backend.Info, err error) {
	p, err := b.newPlan(ctx, checked)
	if err != nil {
		return backend.Info{}, err
	}
	c := &creation{b: b, p: p, nonce: rand.Text()}
	c.img, err = kit.EnsureImage(ctx, b.pulls, checked, kit.With(b.inspectImage, p), b.fetchImage)
	if err != nil {
		return backend.Info{}, err
	}
	p.labels[labelImage] = c.img.id
	if err := b.findEnvironment(ctx, p, c.img); err != nil {
		return backend.Info{}, err
	}
	defer func() {
		if err != nil {
			err = b.calls.Undo(ctx, p.Spec.ID, err, c.rollback)
		}
	}()
	if err := c.start(ctx); err != nil {
		return backend.Info{}, c.explain(ctx, err)
	}
	info, err := c.verify(ctx)
	if err != nil {
		return backend.Info{}, c.explain(ctx, err)
	}
	b.workspaces.Store(c.id, p.volume)
	c.tidyLater(ctx)
	return info, nil
}

// tidyLater removes the helper container of the workspace in the background.
func (c *creation) tidyLater(ctx context.Context) {
	if c.prepared == nil {
		return
	}
	c.b.calls.Background(ctx, func(ctx context.Context) {
		bound.Pause(c.b.calls.Life(), tidyDelay) // the caller's first command has priority over cleanup
		if err := c.prepared(ctx); err != nil {
			c.b.opts.Logger.Warn("docker: cannot remove an init container", "session", c.p.Spec.ID, "error", err)
		}
	})
}

// start creates the container. It then launches the container and sets the owner of a new workspace concurrently.
func (c *creation) start(ctx context.Context) error {
	if c.p.Spec.Network == backend.NetworkBridge {
		if err := c.b.ensureNetwork(ctx); err != nil {
			return err
		}
	}
	if err := c.requestContainer(ctx); err != nil {
		return err
	}
	made, err := c.b.claimWorkspace(ctx, c.p, c.nonce)
	incomplete := errors.Is(err, errIncompleteFork) && c.p.Spec.Fork != nil
	if err != nil && !incomplete {
		return err
	}
	if !made {
		if err := c.b.removeTerminals(ctx, c.p.volume); err != nil {
			return err
		}
	}
	if incomplete || made && c.p.Spec.Fork != nil {
		if err := c.forkFiles(ctx); err != nil {
			return err
		}
		return c.launch(ctx)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		c.prepared, err = c.b.prepareWorkspace(gctx, c.p)
		return err
	})
	g.Go(func() error { return c.launch(gctx) })
	return g.Wait()
}

// launch starts the container with the guest agent.
func (c *creation) launch(ctx context.Context) error {
	if err := c.b.ensureGuest(ctx, c.b.guest.of(c.p.engine.runtime(c.p.Spec)), c.id); err != nil {
		return err
	}
	if c.p.Spec.Building {
		if err := c.b.prepareBuilding(ctx, c.id, c.p.User); err != nil {
			return err
		}
	}
	ctx, span := c.b.calls.Span(ctx, telemetry.SpanDriverStart)
	err := c.b.startContainer(ctx, c.id)
	telemetry.End(span, err)
	return err
}

// explain returns the real reason of a failure: the end of ctx, or the removal of the sandbox. If an object needed by
// the sandbox is missing, for example its network, the error must not look like a missing sandbox.
func (c *creation) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return c.b.calls.Fail(ctx, "create", ctx.Err())
	case errors.Is(err, snapshots.ErrNone), errors.Is(err, backend.ErrUnavailable): // asking again would take as long
		return err
	case c.id != "" && c.b.isRemoved(ctx, c.id):
		return fmt.Errorf("docker: the sandbox was removed while it was being created: %w", backend.ErrLost)
	case errors.Is(err, backend.ErrNotFound):
		return fmt.Errorf("docker: a resource of the sandbox was removed: %v: %w", err, backend.ErrUnavailable)
	}
	return err
}

// isRemoved reports whether an existing container was removed or is being removed.
func (b *driver) isRemoved(ctx context.Context, id string) bool {
	res, err := b.inspect(ctx, id)
	if err != nil {
		return errors.Is(err, backend.ErrNotFound)
	}
	return res.State.Dead || res.State.Status == container.StateRemoving
}

// requestContainer creates the container, which is not started yet.
func (c *creation) requestContainer(ctx context.Context) error {
	c.p.labels[labelNonce] = c.nonce
	c.requested = true
	platform := &ocispec.Platform{OS: "linux", Architecture: c.p.engine.arch}
	return c.requestError(c.createWithAccounts(ctx, func() (err error) {
		config, host := c.b.containerConfig(c.p), c.b.hostConfig(c.p, c.img, c.nonce)
		c.id, err = c.b.createContainer(ctx, "create container", c.p.name, config, host, platform)
		return err
	}))
}

// requestError returns the error of Create for an error of requestContainer's request.
func (c *creation) requestError(err error) error {
	switch {
	case errors.Is(err, backend.ErrNotFound) && c.p.installed != "": // removed, perhaps by another process
		c.b.installed.Delete(c.p.installed)
		return c.b.calls.NoEnvironment(c.p.Plan)
	case refusesMount(err) && len(c.p.Spec.Mounts) > 0: // the text may contain host directories
		if !strings.Contains(err.Error(), "does not exist") {
			return fmt.Errorf("docker: the engine refused a directory to mount: %w", backend.ErrInvalid)
		}
		return fmt.Errorf("docker: a directory to mount does not exist on the engine's host: %w", backend.ErrInvalid)
	case errors.Is(err, backend.ErrNotFound):
		return fmt.Errorf("docker: image %s was removed during the call: %w", c.p.Image, backend.ErrImage)
	case errors.Is(err, backend.ErrExists):
		return fmt.Errorf("docker: sandbox %s already has a container: %w", c.p.Spec.ID, backend.ErrExists)
	}
	return err
}

// createContainer creates a container. If ctx ends, createContainer returns the ID together with the error.
func (b *driver) createContainer(ctx context.Context, what, name string, config *container.Config,
	host *container.HostConfig, platform *ocispec.Platform,
) (id string, err error) {
	res, err := kit.Finish(ctx, b.calls, what, func(ctx context.Context) (container.CreateResponse, error) {
		return b.api.ContainerCreate(ctx, config, host, nil, platform, name)
	})
	return res.ID, err
}

// startContainer starts a container. If another program emptied the guest volume, for example with docker volume prune,
// startContainer fills the volume again.
func (b *driver) startContainer(ctx context.Context, id string) error {
	start := kit.Bind(b.api.ContainerStart, id, container.StartOptions{})
	err := b.calls.Do(ctx, "start container", start)
	// Other processes may be creating the network too, one after the other.
	for tries := 0; tries < 20 && err != nil && strings.Contains(err.Error(), "is ambiguous"); tries++ {
		if err = b.ensureNetwork(ctx); err == nil {
			err = b.calls.Do(ctx, "start container", start)
		}
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, backend.ErrUnavailable) ||
		errors.Is(err, backend.ErrNotFound) && b.isRemoved(ctx, id) {
		return err
	}
	res, ierr := b.inspect(ctx, id)
	if ierr != nil {
		return err
	}
	volume := b.guest.of(res.HostConfig.Runtime)
	whole, werr := b.guestWhole(ctx, id)
	volume.ready.Store(whole)
	if whole || werr != nil {
		return err
	}
	b.opts.Logger.Warn("docker: the guest agent's volume is empty, filling it again")
	if err := b.ensureGuest(ctx, volume, id); err != nil {
		return err
	}
	return b.calls.Do(ctx, "start container", start)
}

// verify describes the running sandbox. It verifies the identity of the image and the filter of the network.
func (c *creation) verify(ctx context.Context) (backend.Info, error) {
	res, err := c.b.inspect(ctx, c.id)
	if err != nil {
		return backend.Info{}, err
	}
	if same, err := c.sameImage(ctx, res.Image); err != nil {
		return backend.Info{}, err
	} else if !same {
		return backend.Info{}, fmt.Errorf("docker: image %s changed while it was used: %w", c.p.Image, backend.ErrImage)
	}
	if !res.State.Running {
		return backend.Info{}, fmt.Errorf("docker: the sandbox exited immediately after its start: %w", backend.ErrLost)
	}
	if err := c.b.guardNetwork(ctx, res); err != nil {
		return backend.Info{}, err
	}
	info := describeContainer(res)
	info.ImageEnv = c.img.env
	return info, nil
}

// sameImage reports whether a container uses the checked image. Engines with the containerd image store may use another
// digest of the image as the ID, and then find it under both digests.
func (c *creation) sameImage(ctx context.Context, id string) (bool, error) {
	if id == c.img.id {
		return true, nil
	}
	res, err := c.b.inspectRef(ctx, id)
	return err == nil && res.ID == c.img.id, kit.Ignore(err, backend.ErrNotFound)
}

// rollback removes the created objects.
func (c *creation) rollback(ctx context.Context) error {
	var errs []error
	if c.prepared != nil {
		errs = append(errs, c.prepared(ctx))
	}
	if c.id == "" && c.requested {
		errs = append(errs, c.findContainer(ctx))
	}
	if c.id != "" {
		errs = append(errs, c.b.removeContainer(ctx, c.id))
		c.b.network.guarded.Delete(c.id)
	}
	if c.requested { // the engine keeps an anonymous volume if it reads the container's files at this moment
		errs = append(errs, c.b.removeTerminals(ctx, c.p.volume), c.dropWorkspace(ctx))
	}
	return errors.Join(errs...)
}

// findContainer looks for a container whose creation was requested but not answered. It ignores a container of the same
// name from another Create.
func (c *creation) findContainer(ctx context.Context) error {
	res, err := c.b.inspect(ctx, c.p.name)
	if err == nil && res.Config.Labels[labelNonce] == c.nonce {
		c.id = res.ID
	}
	return kit.Ignore(err, backend.ErrNotFound)
}

// dropWorkspace removes the volume if this creation created it.
func (c *creation) dropWorkspace(ctx context.Context) error {
	made, err := c.b.claimWorkspace(ctx, c.p, c.nonce)
	if made {
		return kit.Ignore(c.b.removeWorkspace(ctx, c.p.volume), errReplaced)
	}
	return kit.Ignore(err, backend.ErrNotFound, backend.ErrExists, errIncompleteFork)
}
