package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// readyFile is written after the guest: a volume that has it is whole.
const readyFile = guestDir + "/ready"

// guestVolume is what this process knows of the volume that carries the guest.
type guestVolume struct {
	lock  chan struct{} // holds one token, taken while the volume is looked at or filled
	ready atomic.Bool
	// patience is how long another process is seen to fill the volume before its lock counts as left behind.
	patience time.Duration
	// grace is how old another version's volume must be to be one that is not needed.
	grace time.Duration
}

func guestPath() string { return embed.Path }

func (b *driver) guestVolumeName() volumeName {
	return volumeName(namePre + "guest-" + b.opts.Guest.Version)
}

func (b *driver) guestLabels(role string) map[string]string {
	return map[string]string{backend.LabelRole: role, backend.LabelGuest: b.opts.Guest.Version}
}

// ensureGuest makes sure that the guest's volume is filled, looking through a container that mounts it. Once seen whole
// it is taken to stay so; a start that fails looks again.
func (b *driver) ensureGuest(ctx context.Context, container string) error {
	if b.guest.ready.Load() {
		return nil
	}
	select {
	case b.guest.lock <- struct{}{}:
		defer func() { <-b.guest.lock }()
	case <-ctx.Done():
		return b.calls.Fail(ctx, "prepare guest", ctx.Err())
	}
	if b.guest.ready.Load() {
		return nil
	}
	whole, err := b.guestWhole(ctx, container)
	if err == nil && !whole {
		err = b.fillGuest(ctx)
	}
	if err == nil {
		b.guest.ready.Store(true)
	}
	return err
}

func (b *driver) guestWhole(ctx context.Context, container string) (bool, error) {
	_, err := b.statPath(ctx, container, readyFile)
	if errors.Is(err, backend.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// fillGuest puts the guest into its volume. The name of the container through which it does is the lock against other
// processes; one that was left behind by a dead process is taken over after a while.
func (b *driver) fillGuest(ctx context.Context) error {
	name := string(b.guestVolumeName())
	var lock guestLock
	return b.calls.Retry(ctx, func() (bool, error) {
		id, err := b.createFromInit(ctx, name, kit.User{}, b.guestLabels(backend.RoleInit), quietHost(b.guestMount(false)), nil)
		if errors.Is(err, backend.ErrExists) {
			return b.awaitGuest(ctx, name, &lock)
		}
		if err == nil {
			err = b.copyGuest(ctx, id)
		}
		if id != "" {
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			err = errors.Join(err, b.removeContainer(cctx, id))
		}
		return true, err
	})
}

// guestLock is another process's lock as this one has seen it. The engine's clock may differ from ours, so that only
// the time since it was first seen counts.
type guestLock struct {
	id    string
	since time.Time
}

// awaitGuest looks whether the process that holds the lock is done, through its own container.
func (b *driver) awaitGuest(ctx context.Context, name string, lock *guestLock) (bool, error) {
	holder, err := b.inspect(ctx, name)
	if errors.Is(err, backend.ErrNotFound) {
		return false, nil // just removed: try to take the lock, and find the volume whole
	}
	if err != nil {
		return true, err
	}
	if lock.id != holder.ID {
		*lock = guestLock{id: holder.ID, since: time.Now()}
	}
	whole, err := b.guestWhole(ctx, holder.ID)
	switch {
	case whole:
		return true, nil
	case err != nil && !errors.Is(err, backend.ErrExists) && !kit.Unexplained(err): // as while it is being removed
		return true, err
	case time.Since(lock.since) > b.guest.patience && holder.Config.Labels[backend.LabelRole] == backend.RoleInit:
		b.log.Warn("docker: removing a stale guest lock", "container", name)
		return false, b.removeContainer(ctx, holder.ID)
	}
	return false, nil
}

// copyGuest writes the guest and then the mark, unless another process was faster.
func (b *driver) copyGuest(ctx context.Context, id string) error {
	if whole, err := b.guestWhole(ctx, id); whole || err != nil {
		return err
	}
	bin, err := b.opts.Guest.Binary(b.engine().arch)
	if err != nil {
		return fmt.Errorf("docker: no guest for %s: %v: %w", b.engine().arch, err, backend.ErrUnsupported)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range []struct {
		name string
		mode int64
		data []byte
	}{
		{path.Base(embed.Path), embed.Mode, bin},
		{path.Base(readyFile), 0o444, []byte(b.opts.Guest.Version + "\n")},
	} {
		err := tw.WriteHeader(&tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: f.mode, Size: int64(len(f.data))})
		if err == nil {
			_, err = tw.Write(f.data)
		}
		if err != nil {
			return fmt.Errorf("docker: pack guest: %w", err)
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("docker: pack guest: %w", err)
	}
	if err := b.calls.Do(ctx, "copy guest", func(ctx context.Context) error {
		return b.api.CopyToContainer(ctx, id, guestDir, &buf, container.CopyToContainerOptions{})
	}); err != nil {
		return err
	}
	st, err := b.statPath(ctx, id, embed.Path)
	if err == nil && st.Size != int64(len(bin)) {
		err = fmt.Errorf("docker: the engine stored %d of the guest's %d bytes: %w", st.Size, len(bin), backend.ErrUnavailable)
	}
	return err
}
