package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// tidyDelay is how long the container that prepared a workspace is left alone.
const tidyDelay = 250 * time.Millisecond

// creation is a Create under way: what it made so far, and so what a failure has to take back.
type creation struct {
	b     *driver
	p     *plan
	img   *image
	nonce string

	tried    bool                        // a container was asked for, and so perhaps a volume
	id       string                      // of the container, once known
	prepared func(context.Context) error // removes what prepared the workspace
}

// Create makes a sandbox and starts it.
func (b *driver) Create(ctx context.Context, checked *kit.Plan) (_ backend.Info, err error) {
	p, err := b.newPlan(ctx, checked)
	if err != nil {
		return backend.Info{}, err
	}
	c := &creation{b: b, p: p, nonce: rand.Text()}
	if c.img, err = b.ensureImage(ctx, p); err != nil {
		return backend.Info{}, err
	}
	if err := b.findEnvironment(ctx, p, c.img); err != nil {
		return backend.Info{}, err
	}
	defer func() {
		if err != nil {
			err = b.calls.Undo(ctx, p.Spec.ID, err, c.rollback)
		}
	}()
	if err := c.make(ctx); err != nil {
		return backend.Info{}, c.why(ctx, err)
	}
	info, err := c.verify(ctx)
	if err != nil {
		return backend.Info{}, c.why(ctx, err)
	}
	b.workspaces.Store(c.id, p.volume)
	if remove := c.prepared; remove != nil {
		b.calls.Background(ctx, func(ctx context.Context) {
			select { // the caller's first command matters more than tidiness
			case <-time.After(tidyDelay):
			case <-b.calls.Life().Done():
			}
			if err := remove(ctx); err != nil {
				b.log.Warn("docker: cannot remove an init container", "session", p.Spec.ID, "error", err)
			}
		})
	}
	return info, nil
}

// make creates the container, then starts it while a new workspace gets its owner.
func (c *creation) make(ctx context.Context) error {
	if c.p.Spec.Network == backend.NetworkBridge {
		if err := c.b.ensureNetwork(ctx); err != nil {
			return err
		}
	}
	if err := c.createContainer(ctx); err != nil {
		return err
	}
	made, half, err := c.b.claimWorkspace(ctx, c.p, c.nonce)
	if err == nil && !made {
		err = c.b.removeTerminals(ctx, c.p.volume)
	}
	if err != nil {
		return err
	}
	if (made || half) && c.p.Spec.Fork != nil {
		if err := c.forkFiles(ctx); err != nil {
			return err
		}
		return c.launch(ctx)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		var err error
		c.prepared, err = c.b.prepareWorkspace(gctx, c.p)
		return err
	})
	g.Go(func() error { return c.launch(gctx) })
	return g.Wait()
}

// launch starts the container with the guest in it.
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

// why returns the true reason of a failure: the end of ctx, whatever it made fail, or the removal of the sandbox. That
// something is missing which the sandbox needs, such as its network, must not read as if the sandbox were.
func (c *creation) why(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return c.b.calls.Fail(ctx, "create", ctx.Err())
	case errors.Is(err, snapshots.ErrNone), errors.Is(err, backend.ErrUnavailable): // to ask would take as long again
		return err
	case c.id != "" && c.b.isRemoved(ctx, c.id):
		return fmt.Errorf("docker: the sandbox was removed while it was being created: %w", backend.ErrLost)
	case errors.Is(err, backend.ErrNotFound):
		return fmt.Errorf("docker: a resource of the sandbox was removed: %v: %w", err, backend.ErrUnavailable)
	}
	return err
}

// isRemoved reports whether a container that was there is gone, or about to be.
func (b *driver) isRemoved(ctx context.Context, id string) bool {
	res, err := b.inspect(ctx, id)
	if err != nil {
		return errors.Is(err, backend.ErrNotFound)
	}
	return res.State != nil && (res.State.Dead || res.State.Status == container.StateRemoving)
}

func (c *creation) createContainer(ctx context.Context) error {
	c.p.labels[labelNonce] = c.nonce
	c.tried = true
	platform := &ocispec.Platform{OS: "linux", Architecture: c.p.engine.arch}
	err := c.createNamed(ctx, func() error {
		res, err := kit.Finish(ctx, c.b.calls, "create container", func(ctx context.Context) (container.CreateResponse, error) {
			return c.b.api.ContainerCreate(ctx, c.b.containerConfig(c.p), c.b.hostConfig(c.p, c.img, c.nonce), nil, platform, c.p.name)
		})
		c.id = res.ID
		return err
	})
	switch {
	case errors.Is(err, backend.ErrNotFound) && c.p.installed != "": // it was removed, perhaps by another process
		c.b.installed.Delete(c.p.installed)
		return c.b.calls.NoEnvironment(c.p.Plan)
	case errors.Is(err, backend.ErrInvalid) && len(c.p.Spec.Mounts) > 0: // its words name directories of its machine
		return fmt.Errorf("docker: a directory to mount does not exist on the engine's host: %w", backend.ErrInvalid)
	case errors.Is(err, backend.ErrNotFound):
		return fmt.Errorf("docker: image %s was removed during the call: %w", c.p.Image, backend.ErrImage)
	case errors.Is(err, backend.ErrExists):
		return fmt.Errorf("docker: sandbox %s already has a container: %w", c.p.Spec.ID, backend.ErrExists)
	}
	return err
}

// startContainer starts a container. A guest volume that was emptied behind our back, as by a prune, is filled again.
func (b *driver) startContainer(ctx context.Context, id string) error {
	start := func() error {
		return b.calls.Do(ctx, "start container", func(ctx context.Context) error { return b.api.ContainerStart(ctx, id, container.StartOptions{}) })
	}
	err := start()
	if err == nil || ctx.Err() != nil || errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrNotFound) && b.isRemoved(ctx, id) {
		return err
	}
	res, ierr := b.inspect(ctx, id)
	if ierr != nil {
		return err
	}
	volume := b.guest.of(res.HostConfig.Runtime)
	volume.ready.Store(false)
	whole, werr := b.guestWhole(ctx, id)
	if whole || werr != nil {
		volume.ready.Store(whole)
		return err
	}
	b.log.Warn("docker: the guest agent's volume is empty, filling it again")
	if err := b.ensureGuest(ctx, volume, id); err != nil {
		return err
	}
	return start()
}

// verify describes what now runs, and makes sure that it is what was checked and that its network is closed.
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
	if res.State == nil || !res.State.Running {
		return backend.Info{}, fmt.Errorf("docker: the sandbox exited immediately after its start: %w", backend.ErrLost)
	}
	if err := c.b.guardNetwork(ctx, res); err != nil {
		return backend.Info{}, err
	}
	info := describeContainer(res)
	info.ImageEnv = c.img.env
	return info, nil
}

// sameImage reports whether a container's image is the one that was checked. Engines with another image store may call
// it by another of its digests, and then know it by both.
func (c *creation) sameImage(ctx context.Context, id string) (bool, error) {
	if id == c.img.id {
		return true, nil
	}
	res, err := c.b.lookUp(ctx, id)
	if errors.Is(err, backend.ErrNotFound) {
		return false, nil
	}
	return err == nil && res.ID == c.img.id, err
}

// rollback removes what was made.
func (c *creation) rollback(ctx context.Context) error {
	var errs []error
	if c.prepared != nil {
		errs = append(errs, c.prepared(ctx))
	}
	if c.id == "" && c.tried {
		errs = append(errs, c.findContainer(ctx))
	}
	if c.id != "" {
		errs = append(errs, c.b.removeContainer(ctx, c.id))
		c.b.network.guarded.Delete(c.id)
	}
	if c.tried { // the engine keeps a container's own volume if it reads the container's files at that moment
		errs = append(errs, c.b.removeTerminals(ctx, c.p.volume), c.dropWorkspace(ctx))
	}
	return errors.Join(errs...)
}

// findContainer looks for a container that was asked for and whose creation was not answered. One of the same name that
// another Create made stays.
func (c *creation) findContainer(ctx context.Context) error {
	res, err := c.b.inspect(ctx, c.p.name)
	if err == nil && res.Config.Labels[labelNonce] == c.nonce {
		c.id = res.ID
	}
	return kit.Ignore(err, backend.ErrNotFound)
}

// dropWorkspace removes the volume if the container's creation made it.
func (c *creation) dropWorkspace(ctx context.Context) error {
	made, _, err := c.b.claimWorkspace(ctx, c.p, c.nonce)
	if made {
		return c.b.removeWorkspace(ctx, c.p.volume)
	}
	return kit.Ignore(err, backend.ErrNotFound, backend.ErrExists, errHalf)
}
