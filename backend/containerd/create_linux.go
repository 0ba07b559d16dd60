package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// creation is a running Create. It records the created objects to allow their removal after a failure.
type creation struct {
	b   *driver
	p   *plan
	img *image
	rec *record

	building string // name of the environment to install in the sandbox

	tried     bool // a container record was requested
	workspace bool // this creation created the workspace
}

// Create creates a sandbox and starts it.
func (b *driver) Create(ctx context.Context, checked *kit.Plan) (_ backend.Info, err error) {
	p, err := b.newPlan(ctx, checked)
	if err != nil {
		return backend.Info{}, err
	}
	c := &creation{b: b, p: p}
	c.img, err = kit.EnsureImage(ctx, b.pulls, checked, kit.With(b.findImage, p.Ref), b.fetchImage)
	if err == nil {
		c.img, c.building, err = b.findEnvironment(ctx, p, c.img)
	}
	if err != nil {
		return backend.Info{}, err
	}
	defer func() {
		if err != nil {
			err = b.calls.Undo(ctx, p.Spec.ID, err, c.rollback)
		}
	}()
	if err := c.make(ctx); err != nil {
		return backend.Info{}, b.outlive(ctx, err)
	}
	b.known.Store(c.rec.name(), c.rec)
	return c.rec.info(backend.StateRunning), nil
}

// make creates the sandbox. It creates the container's record first. containerd's garbage collector keeps all objects
// of a record. If this process dies, another process can find all other objects through the record.
func (c *creation) make(ctx context.Context) error {
	if err := c.b.installGuest(c.p.Spec.OCIRuntime); err != nil {
		return err
	}
	c.rec = c.b.newRecord(c.p, c.img, rand.Text())
	c.rec.config.Building = c.building
	if err := c.createRecord(ctx); err != nil {
		return err
	}
	defer c.rec.letGo()
	mounts, made, err := c.b.materialize(ctx, c.rec)
	c.workspace = made
	if err != nil {
		return err
	}
	if c.building != "" {
		if err := c.b.prepareBuilding(ctx, mounts, c.p.User); err != nil {
			return err
		}
	}
	if err := c.b.startTask(ctx, c.rec, mounts, false); !errors.Is(err, errStarted) {
		return err
	}
	return nil
}

// outlive returns the real reason of a failure: the end of ctx, or the original error. If an object needed by the
// sandbox is missing, the error must not look like a missing sandbox.
func (b *driver) outlive(ctx context.Context, err error) error {
	switch {
	case err != nil && ctx.Err() != nil:
		return b.calls.Fail(ctx, "create", ctx.Err())
	case errors.Is(err, backend.ErrNotFound) && !errors.Is(err, snapshots.ErrNone):
		return fmt.Errorf("containerd: a resource of the sandbox was removed: %v: %w", err, backend.ErrUnavailable)
	}
	return err
}

// createRecord creates the container's record, unless the session already has a record.
func (c *creation) createRecord(ctx context.Context) error {
	spec, err := typeurl.MarshalAny(c.b.ociSpec(c.p, c.rec, c.img.volumes))
	if err != nil {
		return fmt.Errorf("containerd: container: %w", err)
	}
	runtime, err := typeurl.MarshalAny(&options.Options{BinaryName: c.p.runtime})
	if err != nil {
		return fmt.Errorf("containerd: container: %w", err)
	}
	unlock, err := c.b.lock(ctx, c.rec.session)
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.b.only(ctx, c.rec.session, c.rec); err != nil {
		return err
	}
	c.tried = true
	_, err = kit.Finish(ctx, c.b.calls, "create container", func(ctx context.Context) (containers.Container, error) {
		return c.b.api.ContainerService().Create(ctx, containers.Container{
			ID: c.rec.id, Labels: c.rec.labels, Image: c.rec.image, Spec: spec,
			Runtime:     containers.RuntimeInfo{Name: plugins.RuntimeRuncV2, Options: runtime},
			Snapshotter: c.rec.snapshotter, SnapshotKey: c.rec.id,
			Extensions: map[string]typeurl.Any{configKey: c.rec.extension()},
		})
	})
	if err != nil {
		return err
	}
	return c.b.only(ctx, c.rec.session, c.rec) // other installations have other locks, and a request may be late
}

// only returns an error if the session has a record of a sandbox other than r, which may be nil.
func (b *driver) only(ctx context.Context, session sessionName, r *record) error {
	others, err := b.others(ctx, session, r)
	if err == nil && len(others) > 0 {
		err = fmt.Errorf("containerd: sandbox %s already has a container: %w",
			others[0].labels[backend.LabelID], backend.ErrExists)
	}
	return err
}

// materialize creates the missing objects of a record: snapshot, files, control groups, and workspace.
func (b *driver) materialize(ctx context.Context, r *record) (mounts []mount.Mount, workspace bool, err error) {
	var accounts kit.Accounts
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if mounts, err = b.prepareSnapshot(gctx, r); err == nil {
			accounts, err = b.accountsOf(gctx, r, mounts)
		}
		return err
	})
	g.Go(func() (err error) {
		if err = makeFiles(r); err == nil {
			err = b.makeCgroup(r)
		}
		if err == nil {
			workspace, err = b.makeWorkspace(gctx, r)
		}
		return err
	})
	if err = g.Wait(); err == nil {
		err = writeAccounts(r, accounts)
	}
	return mounts, workspace, err
}

// prepareSnapshot creates the sandbox's writable layer on top of the image's layers.
func (b *driver) prepareSnapshot(ctx context.Context, r *record) ([]mount.Mount, error) {
	s := b.api.SnapshotService(r.snapshotter)
	mounts, err := kit.Finish(ctx, b.calls, "prepare snapshot", func(ctx context.Context) ([]mount.Mount, error) {
		return s.Prepare(ctx, r.id, r.config.Parent)
	})
	switch {
	case errors.Is(err, backend.ErrExists):
		return kit.Call(ctx, b.calls, "find snapshot", kit.With(s.Mounts, r.id))
	case errors.Is(err, backend.ErrNotFound):
		b.images.Range(func(target, img any) bool { // the next creation unpacks the image again
			if img.(*image).chain == r.config.Parent {
				b.images.Delete(target)
			}
			return true
		})
		return nil, fmt.Errorf("containerd: image %s was removed during the call: %w", familiar(r.image), backend.ErrImage)
	}
	return mounts, err
}

// rollback removes the created objects. The record may exist even without an answer to the creation.
func (c *creation) rollback(ctx context.Context) error {
	if !c.tried {
		return nil
	}
	err := c.b.alone(ctx, c.rec.name(), func(r *record) error { return c.b.destroy(ctx, r, c.workspace) })
	return kit.Ignore(err, backend.ErrNotFound)
}
