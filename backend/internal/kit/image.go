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
	maxImageVolumes = 32         // an image that declares more is up to something
	maxImageEnv     = 128 * 1024 // bytes; the kernel refuses to start a process with much more
)

// JudgeImage checks what an image declares, and returns the paths of its volumes to mount over, clean and sorted. What
// our own mounts cover anyway is left out; what would hide the system's or our own files is refused, with an error for
// people that has no sentinel.
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

// dangerous reports whether nothing may be mounted at p: at or below what the runtime and we provide, and at what every
// program needs.
func dangerous(p string) bool {
	for _, d := range []string{backend.Workdir, embed.Dir, "/dev", "/proc", "/sys"} {
		if p == d || strings.HasPrefix(p, d+"/") {
			return true
		}
	}
	switch p {
	case "/", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/local", "/etc":
		return true
	}
	return strings.HasPrefix(p, "/etc/")
}

// EnsureImage finds the plan's image, or has it fetched as its policy says. find returns ErrNotFound for an image that
// the engine does not have.
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
