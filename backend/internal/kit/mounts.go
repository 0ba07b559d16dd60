package kit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// maxMounts is the maximum number of mounted directories in a sandbox.
const maxMounts = 32

// heldTargets returns the sandbox's own paths. A mount must not cover these paths, their contents, or their parent
// directories.
func heldTargets() []string {
	return []string{
		backend.Workdir, embed.Dir, backend.EnvironmentDir, backend.NodeModulesLink,
		"/tmp", "/proc", "/sys", "/dev", "/run", "/var/run",
	}
}

// heldSources returns the host paths forbidden in every sandbox. A process with write access to them, or to a socket in
// them, controls the host.
func heldSources() []string {
	return []string{
		"/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/etc", "/root/.ssh",
		"/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/etcd",
		"/var/lib/workcell/local", "/var/lib/workcell/containerd", // other subdirectories may be mounted: caches
	}
}

// overlap reports whether two clean paths are equal or one contains the other.
func overlap(a, b string) bool {
	in := func(x, y string) bool { return y == "/" || x == y || strings.HasPrefix(x, y+"/") }
	return in(a, b) || in(b, a)
}

// checkMounts returns an error for mounts not supported by any driver.
func checkMounts(list []backend.Mount) error {
	if len(list) > maxMounts {
		return fmt.Errorf("%d mounted directories, the limit is %d: %w", len(list), maxMounts, backend.ErrInvalid)
	}
	for i, m := range list {
		for what, p := range map[string]string{"source": m.Source, "target": m.Target} {
			if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, "\x00\n:,") {
				return fmt.Errorf("mount: a %s is not a clean absolute path: %w", what, backend.ErrInvalid)
			}
		}
		if err := checkSource(m, m.Source); err != nil {
			return err
		}
		if slices.ContainsFunc(heldTargets(), func(held string) bool { return overlap(m.Target, held) }) {
			return fmt.Errorf("mount: a target conflicts with a path of the sandbox: %w", backend.ErrInvalid)
		}
		for _, other := range list[:i] {
			if overlap(m.Target, other.Target) {
				return fmt.Errorf("mount: two targets overlap: %w", backend.ErrInvalid)
			}
		}
	}
	return checkSources(list)
}

// checkSources returns an error if a source directory is inside a writable source. Otherwise, the sandbox could replace
// the inner directory before the next mount.
func checkSources(list []backend.Mount) error {
	for _, m := range list {
		for _, other := range list {
			if other.Writable && strings.HasPrefix(m.Source, other.Source+"/") {
				return fmt.Errorf("mount: the source of %s is inside the writable source of %s: %w",
					m.Target, other.Target, backend.ErrInvalid)
			}
		}
	}
	return nil
}

// checkSource returns an error if a host directory may not be mounted. The error does not contain the directory,
// because models read errors.
func checkSource(m backend.Mount, dir string, held ...string) error {
	if slices.Contains(strings.Split(dir, "/"), ".ssh") ||
		slices.ContainsFunc(append(held, heldSources()...), func(held string) bool { return overlap(dir, held) }) {
		return fmt.Errorf("mount: the source of %s may not be mounted in a sandbox: %w", m.Target, backend.ErrPermission)
	}
	return nil
}

// ResolveMounts resolves the symbolic links in the sources of the plan's mounts, and checks the results. held lists
// directories of the driver; they may not be mounted. If skip is not nil and returns true for a source, ResolveMounts
// leaves this source to the engine.
func (p *Plan) ResolveMounts(skip func(dir string) bool, held ...string) error {
	keys, err := filepath.Glob("/home/*/.ssh")
	if err != nil {
		return err
	}
	p.Spec.Mounts = slices.Clone(p.Spec.Mounts)
	for i, m := range p.Spec.Mounts {
		if skip != nil && skip(m.Source) {
			continue
		}
		if p.Spec.Mounts[i].Source, err = resolveSource(m, keys, held); err != nil {
			return fmt.Errorf("%s: %w", p.driver, err)
		}
	}
	if err := checkSources(p.Spec.Mounts); err != nil {
		return fmt.Errorf("%s: %w", p.driver, err)
	}
	return nil
}

// resolveSource returns the source of a mount without symbolic links.
func resolveSource(m backend.Mount, keys, held []string) (string, error) {
	real, err := filepath.EvalSymlinks(m.Source)
	var st os.FileInfo
	if err == nil {
		st, err = os.Stat(real)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("mount: the source directory of %s does not exist: %w", m.Target, backend.ErrInvalid)
	case err != nil:
		return "", fmt.Errorf("mount: cannot access the source directory of %s: %w", m.Target, backend.ErrInvalid)
	case !st.IsDir():
		return "", fmt.Errorf("mount: the source of %s is not a directory: %w", m.Target, backend.ErrInvalid)
	case slices.ContainsFunc(held, func(dir string) bool { return dir != "" && overlap(real, dir) }):
		return "", fmt.Errorf("mount: the source of %s contains Workcell's own files: %w", m.Target, backend.ErrPermission)
	}
	return real, checkSource(m, real, keys...)
}
