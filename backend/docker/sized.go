package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/volume"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
)

// A workspace with a limit is a file system of its own where the engine lets this process make one. It lies in a
// file in the directory that the engine has for the volume, beside the one that it mounts over, and so is removed with the
// volume. The volume's options have the engine mount what deviceLink leads to: a loop device, which is
// there for the moment of the start only. From then on the mount holds it, and the kernel releases it with that: no death
// of this process, of the engine or of the sandbox leaves anything.
const (
	imageFile  = "workspace.img"
	deviceLink = "workspace.dev"
	// labelBytes is the size of such a workspace.
	labelBytes = backend.LabelPrefix + "workspace-bytes"
	// labelProbe marks the volume by which it is found out whether there can be such, with the time when it was made.
	labelProbe = backend.LabelPrefix + "probe"
)

const (
	probeAge  = 5 * time.Minute // from here on a probe's volume is one that a dead process left
	probeMark = "workcell-mark"
)

// volumeDir is where the engine keeps a volume, if it is on this machine.
func (b *driver) volumeDir(v volumeName) string {
	return filepath.Join(b.engine().root, "volumes", string(v))
}

// sizedOptions have the engine mount the file system of a workspace.
func (b *driver) sizedOptions(v volumeName) map[string]string {
	return map[string]string{
		"type": "ext4", "device": filepath.Join(b.volumeDir(v), deviceLink), "o": "nosuid,nodev," + sizedfs.Options,
	}
}

// probeSized makes a small workspace and has the engine look into it. Only one that runs on this machine, sees the same
// files and has the same devices finds the mark there.
func (b *driver) probeSized(ctx context.Context) error {
	if err := sizedfs.Allowed(); err != nil {
		return err
	}
	if b.engine().watch != "" {
		return errors.New(b.engine().watch)
	}
	if err := b.sweepProbes(ctx); errors.Is(err, backend.ErrUnavailable) {
		return err
	}
	name := volumeName(namePre + "probe-" + strings.ToLower(rand.Text()))
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if err := b.removeWorkspace(ctx, name); err != nil {
			b.log.Warn("docker: cannot remove a probe", "volume", name, "error", err)
		}
	}()
	if _, err := kit.Finish(ctx, b.calls, "probe workspace", func(ctx context.Context) (volume.Volume, error) {
		return b.api.VolumeCreate(ctx, volume.CreateOptions{
			Name: string(name), Driver: "local", DriverOpts: b.sizedOptions(name),
			Labels: map[string]string{labelProbe: time.Now().UTC().Format(time.RFC3339)},
		})
	}); err != nil {
		return kit.Classed(err) // any engine can make a volume: this one is out of order
	}
	image := filepath.Join(b.volumeDir(name), imageFile)
	if err := sizedfs.Format(ctx, image, sizedfs.Spec{Files: 16, Mark: probeMark}); err != nil {
		return err
	}
	return b.linked(ctx, name, func() error {
		id, err := b.createFromInit(ctx, "", kit.User{}, map[string]string{backend.LabelRole: backend.RoleInit},
			quietHost(mount.Mount{Type: mount.TypeVolume, Source: string(name), Target: backend.Workdir}), nil)
		if err != nil {
			return err
		}
		_, err = b.statPath(ctx, id, backend.Workdir+"/"+probeMark)
		return err
	})
}

// sweepProbes removes what processes that died while they found out have left.
func (b *driver) sweepProbes(ctx context.Context) error {
	list, err := kit.Call(ctx, b.calls, "list probes", func(ctx context.Context) (volume.ListResponse, error) {
		return b.api.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelProbe))})
	})
	for _, v := range list.Volumes {
		made, perr := time.Parse(time.RFC3339, v.Labels[labelProbe])
		if perr == nil && time.Since(made) > probeAge && strings.HasPrefix(v.Name, namePre+"probe-") {
			err = errors.Join(err, b.removeWorkspace(ctx, volumeName(v.Name)))
		}
	}
	if err != nil {
		b.log.Warn("docker: sweeping", "error", err)
	}
	return err
}

// Enforcement returns what can hold the limit of a workspace under the default runtime.
func (b *driver) Enforcement(ctx context.Context) (backend.Enforcement, error) {
	e, err := b.learn(ctx)
	if err != nil {
		return "", err
	}
	return b.enforcement(ctx, e.defaultRuntime)
}

// enforcement is what can hold the limit of a workspace under a runtime. Only those that leave mounts to the kernel are
// known to show the sandbox the file system as it is.
func (b *driver) enforcement(ctx context.Context, runtime string) (backend.Enforcement, error) {
	if !kernelNetwork(runtime) {
		return backend.WorkspaceWatched, nil
	}
	enforcement, err := b.sizing.Enforcement(ctx)
	switch {
	case err == nil:
		return enforcement, nil
	case ctx.Err() != nil || errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrClosed) || errors.Is(err, backend.ErrQuota):
		return "", b.calls.Fail(ctx, "probe workspace", err)
	}
	return "", b.workspaceError(ctx, "making", err)
}

// chooseEnforcement chooses how the workspace's limit is enforced. A workspace that was kept stays what it is: one that had no
// file system of its own gets none.
func (b *driver) chooseEnforcement(ctx context.Context, p *plan) error {
	if !p.Sized {
		p.enforcement = backend.WorkspaceWatched
		return nil
	}
	runtime := p.engine.runtime(p.Spec)
	v, err := b.inspectVolume(ctx, p.volume)
	switch {
	case err == nil:
		if p.enforcement = b.keptEnforcement(v, runtime); p.enforcement != "" {
			return nil
		}
	case !errors.Is(err, backend.ErrNotFound):
		return err
	}
	p.enforcement, err = b.enforcement(ctx, runtime)
	return err
}

// keptEnforcement is the enforcement of a workspace that was kept; empty when a look at it is not enough. To find out what could
// be made takes room on the engine's disk, of which a workspace that is there needs none.
func (b *driver) keptEnforcement(v volume.Volume, runtime string) backend.Enforcement {
	if len(v.Options) == 0 {
		return backend.WorkspaceWatched
	}
	if !kernelNetwork(runtime) || b.engine().watch != "" || sizedfs.Allowed() != nil {
		return ""
	}
	if _, err := os.Lstat(filepath.Join(b.volumeDir(volumeName(v.Name)), imageFile)); err != nil {
		return ""
	}
	return backend.WorkspaceSized
}

// volumeOptions are those of the workspace's volume; nil for one that is a directory of the engine's.
func (b *driver) volumeOptions(p *plan) map[string]string {
	if p.enforcement != backend.WorkspaceSized {
		return nil
	}
	return b.sizedOptions(p.volume)
}

// volumeSize is the size of a workspace that is a file system of its own, as in its volume's label; empty for others.
func (p *plan) volumeSize() string {
	if p.enforcement != backend.WorkspaceSized {
		return ""
	}
	return strconv.FormatInt(p.Spec.Limits.WorkspaceBytes, 10)
}

func (p *plan) sizedSpec() sizedfs.Spec {
	size := p.Spec.Limits.WorkspaceBytes
	return sizedfs.Spec{Bytes: size, Files: kit.Inodes(size), UID: int(p.User.UID), GID: int(p.User.GID)}
}

// formatWorkspace makes the file system of a workspace that has none, which belongs to the sandbox's user. It has its name,
// and may be mounted, when it is whole and on the disk. Until then its name is this call's own: what made an earlier one
// may still be at it, though its caller is dead.
func (b *driver) formatWorkspace(ctx context.Context, p *plan, nonce string) error {
	image := filepath.Join(b.volumeDir(p.volume), imageFile)
	_, err := os.Lstat(image)
	if err == nil {
		return nil
	}
	half, _ := filepath.Glob(image + ".*") // the pattern is well-formed
	for _, name := range half {
		_ = os.Remove(name) // it takes room, nothing else
	}
	own := image + "." + nonce
	if err = sizedfs.Format(ctx, own, p.sizedSpec()); err == nil {
		err = host.Sync(own)
	}
	if err == nil {
		err = os.Rename(own, image)
	}
	if err != nil {
		return b.workspaceError(ctx, "making", err)
	}
	return nil
}

// mounted runs f, in which the engine mounts a sandbox's workspace.
func (b *driver) mounted(ctx context.Context, enforcement backend.Enforcement, v volumeName, f func() error) error {
	if enforcement != backend.WorkspaceSized {
		return f()
	}
	return b.linked(ctx, v, f)
}

func (b *driver) linked(ctx context.Context, v volumeName, f func() error) error {
	if _, err := b.learn(ctx); err != nil { // where it keeps volumes
		return err
	}
	dir := b.volumeDir(v)
	link, err := sizedfs.Link(ctx, filepath.Join(dir, imageFile), filepath.Join(dir, deviceLink))
	if err != nil {
		return b.workspaceError(ctx, "mounting", err)
	}
	defer func() {
		if err := link.Close(); err != nil {
			b.log.Warn("docker: cannot release a workspace's device", "volume", v, "error", err)
		}
	}()
	return f()
}

// workspaceError classifies an error of this machine's own.
func (b *driver) workspaceError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return b.calls.Fail(ctx, what+" the workspace", ctx.Err())
	}
	b.log.Warn("docker: "+what+" a workspace", "error", err)
	kind := backend.ErrUnavailable
	switch allowed := sizedfs.Allowed(); {
	case allowed != nil:
		err, kind = allowed, backend.ErrPermission
	case errors.Is(err, fs.ErrPermission):
		kind = backend.ErrPermission
	case errors.Is(err, os.ErrNotExist):
		kind = backend.ErrLost
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		kind = backend.ErrNoRoom
	}
	return fmt.Errorf("docker: %s the workspace's file system: %s: %w", what, kit.Scrub(err.Error()), kind)
}
