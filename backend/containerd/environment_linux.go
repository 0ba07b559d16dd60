package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const (
	// environments is the prefix of the names of environment snapshots.
	environments = backend.LabelPrefix + "environment/"
	// labelRoot protects unreferenced objects from containerd's garbage collector.
	labelRoot = "containerd.io/gc.root"
)

// findEnvironment returns the image with the sandbox's environment as layers. If the sandbox is for installing an
// environment, name is the environment's name. Otherwise name is empty.
func (b *driver) findEnvironment(ctx context.Context, p *plan, img *image) (_ *image, name string, _ error) {
	if p.Spec.Environment == "" {
		return img, "", nil
	}
	name, err := p.EnvironmentName(img.id, img.volumes...)
	if err != nil || p.Spec.Building {
		return img, name, err
	}
	_, err = b.environment(ctx, name)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, "", b.calls.NoEnvironment(p.Plan)
	}
	installed := *img
	installed.chain, installed.target = environments+name, environments+name
	return &installed, "", err
}

// environment returns the snapshot of an environment.
func (b *driver) environment(ctx context.Context, name string) (snapshots.Info, error) {
	s := b.api.SnapshotService(b.engine.snapshotter)
	return kit.Call(ctx, b.calls, "look for environment", kit.With(s.Stat, environments+name))
}

// prepareBuilding creates the install directory. The sandbox has no running task yet.
func (b *driver) prepareBuilding(ctx context.Context, mounts []mount.Mount, o kit.User) error {
	err := inPrivateMount(b.state.empty(), mounts, func(root *os.Root) error {
		dir := strings.TrimPrefix(backend.EnvironmentDir, "/")
		for _, d := range []string{path.Dir(dir), dir} { // regardless of the umask
			if err := root.Mkdir(d, 0o755); err == nil {
				err = root.Chmod(d, 0o755)
				if err != nil {
					return err
				}
			} else if !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		link := strings.TrimPrefix(backend.NodeModulesLink, "/")
		err := root.Symlink(backend.EnvironmentDir+backend.NodeModulesLink, link)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return root.Chown(dir, int(o.UID), int(o.GID))
	})
	return b.calls.Fail(ctx, "create the installation directory", err)
}

// CommitEnvironment saves the root of a sandbox as a snapshot. It uses the sandbox's own snapshot, so the sandbox
// cannot be started again.
func (b *driver) CommitEnvironment(ctx context.Context, id string) error {
	return b.alone(ctx, id, func(r *record) error {
		if r.config.Building == "" {
			return fmt.Errorf("containerd: %w", kit.ErrNotBuilding)
		}
		if err := b.deleteTask(ctx, r); err != nil {
			return err
		}
		labels := kit.EnvironmentLabels(&r.config.Record, r.labels, time.Now())
		labels[labelRoot] = labels[backend.LabelCreated]
		_, err := kit.Finish(ctx, b.calls, "keep environment", func(ctx context.Context) (struct{}, error) {
			s, name := b.api.SnapshotService(r.snapshotter), environments+r.config.Building
			return struct{}{}, s.Commit(ctx, name, r.id, snapshots.WithLabels(labels))
		})
		return kit.Ignore(err, backend.ErrExists)
	})
}

// Environments returns the snapshots of an instance's environments.
func (b *driver) Environments(ctx context.Context, instance string) ([]backend.Environment, error) {
	return kit.Call(ctx, b.calls, "list environments", func(ctx context.Context) ([]backend.Environment, error) {
		var out []backend.Environment
		s := b.api.SnapshotService(b.engine.snapshotter)
		err := s.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
			name, ok := strings.CutPrefix(info.Name, environments)
			e, described := kit.DescribeEnvironment(name, instance, info.Labels)
			if !ok || !described {
				return nil
			}
			usage, err := s.Usage(ctx, info.Name)
			if cerrdefs.IsNotFound(err) {
				return nil // removed concurrently
			}
			e.Bytes = usage.Size
			out = append(out, e)
			return err
		}, fmt.Sprintf("labels.%q==%s", backend.LabelRole, backend.RoleEnvironment))
		return out, err
	})
}

// RemoveEnvironment removes the snapshot of an environment. containerd refuses to remove the snapshot if a sandbox uses
// it.
func (b *driver) RemoveEnvironment(ctx context.Context, instance, name string) error {
	info, err := b.environment(ctx, name)
	if err == nil {
		if _, ok := kit.DescribeEnvironment(name, instance, info.Labels); !ok {
			return fmt.Errorf("containerd: environment %.80q belongs to another instance: %w", name, backend.ErrExists)
		}
		var used bool
		err = b.calls.Do(ctx, "remove environment", func(ctx context.Context) error {
			err := b.api.SnapshotService(b.engine.snapshotter).Remove(ctx, info.Name)
			used = cerrdefs.IsFailedPrecondition(err)
			return err
		})
		if used {
			return fmt.Errorf("containerd: the environment is in use by a sandbox: %w", backend.ErrExists)
		}
	}
	return kit.Ignore(err, backend.ErrNotFound)
}

// inPrivateMount mounts the mounts in a private mount namespace and calls f with their root. The namespace always ends
// with the call.
func inPrivateMount(at string, mounts []mount.Mount, f func(*os.Root) error) error {
	return inThread(unix.CLONE_NEWNS, func() error {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		if err := mount.All(mounts, at); err != nil {
			return err
		}
		root, err := os.OpenRoot(at)
		if err != nil {
			return err
		}
		return errors.Join(f(root), root.Close(), unix.Unmount(at, unix.MNT_DETACH))
	})
}
