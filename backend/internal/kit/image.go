package kit

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

const (
	maxImageVolumes = 32         // no ordinary image declares more
	maxImageEnv     = 128 * 1024 // bytes; the kernel refuses to start a process with a much larger environment
)

// JudgeImage checks the configuration of an image and returns the mount points for the image's volumes, clean and
// sorted. It omits volumes covered by Workcell's own mounts. If a volume would hide system files or Workcell files,
// JudgeImage returns an error for display, without a sentinel.
func JudgeImage(env []string, declared map[string]struct{}) (volumes []string, err error) {
	size := 0
	for _, e := range env {
		size += len(e)
	}
	if size > maxImageEnv {
		return nil, fmt.Errorf("it declares an environment of %d bytes, at most %d", size, maxImageEnv)
	}
	if len(declared) > maxImageVolumes {
		return nil, fmt.Errorf("it declares %d volumes, at most %d", len(declared), maxImageVolumes)
	}
	for v := range declared {
		c := path.Clean(v)
		switch {
		case c == backend.Workdir, c == embed.Dir, c == "/tmp":
			continue
		case !path.IsAbs(c), strings.ContainsAny(c, ":,\x00\n"), len(c) > 1024, dangerous(c):
			return nil, fmt.Errorf("it declares a volume at %.100q, which cannot be overridden safely", v)
		}
		volumes = append(volumes, c)
	}
	slices.Sort(volumes)
	return slices.Compact(volumes), nil
}

// dangerous reports whether a mount at p is forbidden. Forbidden paths are the paths provided by the runtime and
// Workcell, all paths below them, and the directories needed by every program.
func dangerous(p string) bool {
	for _, d := range []string{backend.Workdir, embed.Dir, "/dev", "/proc", "/sys"} {
		if p == d || strings.HasPrefix(p, d+"/") {
			return true
		}
	}
	switch p {
	case "/", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64",
		"/usr/local", "/etc":
		return true
	}
	return strings.HasPrefix(p, "/etc/")
}

// EnsureImage returns the plan's image and pulls it if the pull policy requires it. find returns ErrNotFound if the
// engine does not have the image.
func EnsureImage[T any](
	ctx context.Context, ps *Pulls, p *Plan, find func(context.Context) (T, error), get fetcher,
) (T, error) {
	var img T
	driver := ps.calls.o.Name
	if p.Spec.Pull != backend.PullAlways {
		if found, err := find(ctx); !errors.Is(err, backend.ErrNotFound) {
			return found, err
		}
	}
	if p.Spec.Pull == backend.PullNever {
		return img, fmt.Errorf("%s: image %s not found on the engine, and pulling is disabled: %w",
			driver, p.Image, backend.ErrImage)
	}
	if err := ps.wait(ctx, p, get); err != nil {
		return img, err
	}
	img, err := find(ctx)
	if errors.Is(err, backend.ErrNotFound) {
		err = fmt.Errorf("%s: image %s was removed while it was pulled: %w", driver, p.Image, backend.ErrImage)
	}
	return img, err
}
