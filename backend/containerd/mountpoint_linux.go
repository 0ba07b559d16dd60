package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// checkImage is checkMountPoints for a snapshot that nobody has written to: an image that passed is not looked at again.
func (b *driver) checkImage(ctx context.Context, mounts []mount.Mount, img *image, more []string) error {
	if _, known := b.images.checked.Load(img.target); known && len(more) == 0 {
		return nil
	}
	err := b.checkMountPoints(ctx, mounts, slices.Concat(img.volumes, more))
	if err == nil {
		b.images.checked.Store(img.target, nil)
	}
	return err
}

// checkMountPoints refuses a root file system in which a place where something is mounted is a link, as an image may have
// it or a sandbox may have made it: the mount would land where the link points. It looks before a runtime does.
func (b *driver) checkMountPoints(ctx context.Context, mounts []mount.Mount, volumes []string) error {
	targets := append([]string{guestDir, backend.Workdir, "/tmp", "/etc", "/dev", "/proc", "/sys"}, volumes...)
	err := inPrivateMount(b.state.empty(), readOnly(mounts), func(root *os.Root) error { return plainDirs(root, targets) })
	return b.calls.Fail(ctx, "inspect the mount points", err)
}

// plainDirs makes sure that every component of the targets that is there is a directory and no link.
func plainDirs(root *os.Root, targets []string) error {
	for _, target := range targets {
		for i, c := range target {
			if c != '/' || i == 0 {
				continue
			}
			if err := plainDir(root, target[:i]); err != nil {
				return err
			}
		}
		if err := plainDir(root, target); err != nil {
			return err
		}
	}
	return nil
}

func plainDir(root *os.Root, at string) error {
	st, err := root.Lstat(strings.TrimPrefix(path.Clean(at), "/"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the runtime makes a plain directory
	}
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return &kit.Error{Driver: "containerd", What: "root file system", Kind: backend.ErrInvalid, Detail: at + " is not a plain directory"}
	}
	return nil
}

// readOnly turns a snapshot's mounts into such as change nothing and lock nothing.
func readOnly(ms []mount.Mount) []mount.Mount {
	out := make([]mount.Mount, 0, len(ms))
	for _, m := range ms {
		var options, lower []string
		upper := ""
		for _, o := range m.Options {
			switch {
			case m.Type == "overlay" && strings.HasPrefix(o, "upperdir="):
				upper = strings.TrimPrefix(o, "upperdir=")
			case m.Type == "overlay" && strings.HasPrefix(o, "lowerdir="):
				lower = append(lower, strings.TrimPrefix(o, "lowerdir="))
			case o == "rw", m.Type == "overlay" && (strings.HasPrefix(o, "workdir=") || o == "volatile" || o == "index=off"):
			default:
				options = append(options, o)
			}
		}
		if upper != "" {
			lower = append([]string{upper}, lower...)
		}
		if len(lower) > 0 {
			options = append(options, "lowerdir="+strings.Join(lower, ":"))
		}
		out = append(out, mount.Mount{Type: m.Type, Source: m.Source, Options: append(options, "ro")})
	}
	return out
}

// inPrivateMount calls f with the root of mounts made in a mount namespace that only this call sees and that ends with
// it, whatever happens.
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

// inThread runs f on a thread of its own in new namespaces; the thread, and with it the namespaces that nothing else
// holds, ends with f.
func inThread(namespaces int, f func() error) error {
	return host.OnThread(func() error {
		if err := unix.Unshare(namespaces); err != nil {
			return fmt.Errorf("new namespaces: %w", err)
		}
		return f()
	})
}
