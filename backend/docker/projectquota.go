package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// An engine whose data lies on a file system with project quotas gives a volume a size of its own, which it sets whenever
// it mounts the volume. That needs nothing on this side: the engine may be elsewhere, remap users or keep containers alive.
// The quota is of bytes alone, and the owner of a file can take it out of its project; so the guest watches as well.

// optionSize is the volume option of the engine's local driver; one that has no quotas refuses it.
const optionSize = "size"

// quotaProbe is what this process knows of the engine's project quotas. Both answers last: they come with the mount that
// the engine started on.
type quotaProbe struct {
	mu           sync.Mutex // held while it is found out
	known, works bool
}

// projectQuota tells whether the engine gives volumes a size, which is found out when it first matters.
func (b *Backend) projectQuota(ctx context.Context) (bool, error) {
	q := &b.quota
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known {
		return q.works, nil
	}
	err := b.probeQuota(ctx)
	switch {
	case err == nil:
		q.known, q.works = true, true
	case errors.Is(err, backend.ErrInvalid), errors.Is(err, backend.ErrUnsupported), errors.Is(err, backend.ErrPermission):
		b.log.Info("docker: the engine gives volumes no size, workspaces are watched", "error", err)
		q.known, err = true, nil
	}
	return q.works, err
}

// probeQuota makes a volume with a size, and removes it.
func (b *Backend) probeQuota(ctx context.Context) (err error) {
	if err := b.sweepProbes(ctx); errors.Is(err, backend.ErrUnavailable) {
		return err
	}
	name := volumeName(namePre + "probe-" + strings.ToLower(rand.Text()))
	if _, err = kit.Finish(ctx, b.calls, "probe quota", func(ctx context.Context) (volume.Volume, error) {
		return b.api.VolumeCreate(ctx, volume.CreateOptions{
			Name: string(name), Driver: "local", DriverOpts: quotaOptions(1 << 20),
			Labels: map[string]string{labelProbe: time.Now().UTC().Format(time.RFC3339)},
		})
	}); errors.Is(err, backend.ErrInvalid) {
		return err // nothing was made
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if rerr := b.removeWorkspace(ctx, name); rerr != nil && !errors.Is(rerr, backend.ErrNotFound) {
		b.log.Warn("docker: a probe is left behind", "volume", name, "error", rerr)
	}
	return err
}

func quotaOptions(size int64) map[string]string {
	return map[string]string{optionSize: strconv.FormatInt(size, 10)}
}

// keptMeans is what holds a workspace that is there: it stays what it was made as, whatever could be had today.
func keptMeans(options map[string]string, today backend.WorkspaceMeans) backend.WorkspaceMeans {
	switch {
	case len(options) == 0:
		return backend.WorkspaceWatched
	case options[optionSize] != "":
		return backend.WorkspaceProject
	}
	return today
}

// guestWatches tells whether the guest looks what lies in a workspace.
func guestWatches(means backend.WorkspaceMeans) bool {
	return means == backend.WorkspaceWatched || means == backend.WorkspaceProject
}
