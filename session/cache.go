package session

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
)

// Cache is a read-only directory of the engine's host for sandboxes. It also holds the settings that sandboxed programs
// need to find the cached files. See docs/guides/packages-and-caches.md. Package session/cache maintains caches.
type Cache struct {
	Name   string // letters, digits and '-'
	Source string // directory on the engine's host; if it does not exist, the cache has no effect
	// Env are environment variables for commands. They override the image's variables, and the request's variables
	// override them. A star stands for the cache directory in the sandbox.
	Env map[string]string
	// Begin is a shell command that runs once in the workspace of a new sandbox, with Env. It can prepare a writable
	// cache, for example by copying files. If it fails, the sandbox is opened anyway, and Env still applies.
	Begin string
}

// Dir returns the cache directory in the sandbox.
func (c Cache) Dir() string { return CacheDir + "/" + c.Name }

// Variables returns Env with each star replaced by dir.
func (c Cache) Variables(dir string) map[string]string {
	env := make(map[string]string, len(c.Env))
	for name, value := range c.Env {
		env[name] = strings.ReplaceAll(value, "*", dir)
	}
	return env
}

// checkCaches returns the names of caches in canonical order. If a name is unknown, checkCaches returns an error.
func (m *Manager) checkCaches(names []string) ([]string, error) {
	var known []string
	for _, c := range m.opts.Caches {
		known = append(known, c.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%w: unknown cache %q, available: %s",
				backend.ErrInvalid, sanitize.Message(name), strings.Join(known, ", "))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(names))), nil
}

// mounts returns the request's mounts and a mount for each requested cache with an existing directory.
func (m *Manager) mounts(req Request) []backend.Mount {
	list := slices.Clone(req.Mounts)
	for _, c := range m.opts.Caches {
		if st, err := os.Stat(c.Source); slices.Contains(req.Caches, c.Name) && err == nil && st.IsDir() {
			list = append(list, backend.Mount{Source: c.Source, Target: c.Dir()})
		}
	}
	return list
}

// splitMounts separates the names of mounted caches from the other mounts.
func splitMounts(all []backend.Mount) (mounts []backend.Mount, caches []string) {
	for _, mount := range all {
		if name, ok := strings.CutPrefix(mount.Target, CacheDir+"/"); ok && !mount.Writable {
			caches = append(caches, name)
		} else {
			mounts = append(mounts, mount)
		}
	}
	slices.Sort(caches)
	return mounts, caches
}

// caches returns the caches mounted in the sandbox.
func (s *Session) caches() (list []Cache) {
	for _, c := range s.m.opts.Caches {
		if slices.ContainsFunc(s.engine.Mounts, func(m backend.Mount) bool { return m.Target == c.Dir() && !m.Writable }) {
			list = append(list, c)
		}
	}
	return list
}

// beginCaches runs the Begin commands of the sandbox's caches.
func (s *Session) beginCaches(ctx context.Context) {
	for _, c := range s.caches() {
		if c.Begin == "" {
			continue
		}
		res, err := s.Exec(ctx, sandbox.ExecRequest{Command: c.Begin})
		if err != nil || res.Status != sandbox.ExecCompleted || res.ExitCode != 0 {
			s.m.log.WarnContext(ctx, "opening a sandbox without a cache", "sandbox", s.id, "cache", c.Name, "error", err)
		}
	}
}
