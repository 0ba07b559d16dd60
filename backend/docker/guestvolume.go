package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/semaphore"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// readyFile is written after the guest agent. A volume with this file is complete.
const readyFile = guestDir + "/ready"

// guestVolume caches the state of a volume with the guest agent.
type guestVolume struct {
	guest *backend.Guest
	lock  *semaphore.Weighted // held while a caller examines or fills the volume
	ready atomic.Bool
}

// guestVolumes are the volumes of this version's guest agent.
type guestVolumes struct {
	plain    guestVolume
	readable guestVolume // for sandboxes with a separate kernel
	unnamed  atomic.Bool // the engine cannot mount the files of accountMounts
	// patience is the maximum time for another process to fill a volume. After that, the process's lock counts as stale.
	patience time.Duration
	// grace is the minimum age at which another version's volume counts as unused.
	grace time.Duration
}

func (vs *guestVolumes) init(g *backend.Guest) {
	vs.plain.guest, vs.readable.guest = g, kit.ReadableGuest(g)
	vs.plain.lock, vs.readable.lock = semaphore.NewWeighted(1), semaphore.NewWeighted(1)
	vs.patience, vs.grace = 15*time.Second, 24*time.Hour
}

// of returns the volume for containers with this OCI runtime.
func (vs *guestVolumes) of(runtime string) *guestVolume {
	if kernelNetwork(runtime) {
		return &vs.plain
	}
	return &vs.readable
}

func (v *guestVolume) name() volumeName { return volumeName(namePre + "guest-" + v.guest.Version) }

func (v *guestVolume) labels(role string) map[string]string {
	return map[string]string{backend.LabelRole: role, backend.LabelGuest: v.guest.Version}
}

// mount returns the mount of the volume.
func (v *guestVolume) mount(readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: string(v.name()), Target: guestDir, ReadOnly: readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: v.labels(backend.RoleGuest)},
	}
}

// ensureGuest fills the volume if it is incomplete. It inspects the volume through a container with the volume. A
// complete volume is not inspected again unless a start fails.
func (b *driver) ensureGuest(ctx context.Context, v *guestVolume, container string) error {
	if v.ready.Load() {
		return nil
	}
	if err := v.lock.Acquire(ctx, 1); err != nil {
		return b.calls.Fail(ctx, "prepare guest", err)
	}
	defer v.lock.Release(1)
	if v.ready.Load() {
		return nil
	}
	whole, err := b.guestWhole(ctx, container)
	if err == nil && !whole {
		err = b.fillGuest(ctx, v)
	}
	if err == nil {
		v.ready.Store(true)
	}
	return err
}

func (b *driver) guestWhole(ctx context.Context, container string) (bool, error) {
	_, err := b.statPath(ctx, container, readyFile)
	return err == nil, kit.Ignore(err, backend.ErrNotFound)
}

// fillGuest copies the guest agent to the guest volume.
func (b *driver) fillGuest(ctx context.Context, v *guestVolume) error {
	return b.fillOnce(ctx, v, string(v.name()), b.guestWhole, func(ctx context.Context, id string) error {
		err := b.copyGuest(ctx, v, id)
		if err == nil {
			b.removeOldGuests(ctx)
		}
		return err
	})
}

// fillOnce calls fill with a helper container that has the guest volume, unless whole reports that another process has
// written the files. The name of the helper container is a lock against other processes. A stale lock of a dead process
// is taken over after a while.
func (b *driver) fillOnce(ctx context.Context, v *guestVolume, name string,
	whole func(context.Context, string) (bool, error), fill func(context.Context, string) error) error {
	h := helper{name: name, labels: v.labels(backend.RoleInit), host: quietHost(v.mount(false))}
	var lock guestLock
	return b.calls.Retry(ctx, func() (bool, error) {
		locked := false
		err := b.withHelper(ctx, h, func(id string) error {
			locked = true
			if there, err := whole(ctx, id); there || err != nil {
				return err
			}
			return fill(ctx, id)
		})
		if !locked && errors.Is(err, backend.ErrExists) {
			return b.awaitGuest(ctx, h.name, &lock, whole)
		}
		return true, err
	})
}

// guestLock describes another process's lock. The engine's clock may differ from the local clock, so only the time
// since the first observation counts.
type guestLock struct {
	id    string
	since time.Time
}

// awaitGuest checks through the lock's container whether the lock's holder has finished.
func (b *driver) awaitGuest(ctx context.Context, name string, lock *guestLock,
	whole func(context.Context, string) (bool, error)) (bool, error) {
	holder, err := b.inspect(ctx, name)
	if errors.Is(err, backend.ErrNotFound) {
		return false, nil // just removed: acquire the lock and find the volume complete
	}
	if err != nil {
		return true, err
	}
	if lock.id != holder.ID {
		*lock = guestLock{id: holder.ID, since: time.Now()}
	}
	there, err := whole(ctx, holder.ID)
	switch {
	case there:
		return true, nil
	case err != nil && !errors.Is(err, backend.ErrExists) && !kit.Unexplained(err): // for example, during the removal
		return true, err
	case time.Since(lock.since) > b.guest.patience && holder.Config.Labels[backend.LabelRole] == backend.RoleInit:
		b.opts.Logger.Warn("docker: removing a stale guest lock", "container", name)
		return false, b.removeContainer(ctx, holder.ID)
	}
	return false, nil
}

// copyGuest writes the guest agent and then readyFile.
func (b *driver) copyGuest(ctx context.Context, v *guestVolume, id string) error {
	e, err := b.learn(ctx)
	if err != nil {
		return err
	}
	mark := embed.File{Path: path.Base(readyFile), Mode: 0o444, Data: []byte(v.guest.Version + "\n")}
	var buf bytes.Buffer
	size, err := kit.TarGuest(&buf, v.guest, e.arch, mark)
	if err != nil {
		return fmt.Errorf("docker: pack the guest agent: %w", err)
	}
	if err := b.copyTo(ctx, "copy guest", id, guestDir, &buf); err != nil {
		return err
	}
	st, err := b.statPath(ctx, id, embed.Path)
	if err == nil && st.Size != int64(size) {
		err = fmt.Errorf("docker: stored %d of %d bytes of the guest agent: %w", st.Size, size, backend.ErrUnavailable)
	}
	return err
}

// removeOldGuests removes unused volumes of other guest versions after the grace period. The first use of a version
// calls it. If a removal fails, the next version tries again. The engine refuses to remove the volume of a container.
// If a process of the other version is creating a sandbox, the start of the container fails, and the process fills the
// volume again.
func (b *driver) removeOldGuests(ctx context.Context) {
	list, err := b.unusedVolumes(ctx, backend.LabelRole, backend.RoleGuest)
	if err != nil {
		b.opts.Logger.Warn("docker: cannot list guest agents of other versions", "error", err)
		return
	}
	for _, v := range list {
		if b.guest.isOld(v) && b.calls.Do(ctx, "remove guest", kit.Bind(b.api.VolumeRemove, v.Name, false)) == nil {
			b.opts.Logger.Info("docker: removed a guest agent of another version", "volume", v.Name)
		}
	}
}

// isOld reports whether a volume has the guest agent of another version and is older than the grace period.
func (vs *guestVolumes) isOld(v *volume.Volume) bool {
	other := guestVolume{guest: &backend.Guest{Version: v.Labels[backend.LabelGuest]}}
	ours := v.Name == string(other.name()) // another program may use the labels
	current := other.name() == vs.plain.name() || other.name() == vs.readable.name()
	created, err := time.Parse(time.RFC3339, v.CreatedAt)
	// The engine's clock may differ from the local clock, but by much less than the grace period.
	return ours && !current && err == nil && time.Since(created) >= vs.grace
}
