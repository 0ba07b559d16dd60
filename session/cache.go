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

// Cache is a directory of the engine's machine that sandboxes read and never write to, and how their programs find what
// is in it; see docs/caches.md. Package session/cache keeps such directories.
type Cache struct {
	Name   string // letters, digits and '-'
	Source string // the directory; while it is not there, sandboxes do without
	// Env are variables of commands that are neither the image's nor the request's; a star stands for the directory in the
	// sandbox.
	Env map[string]string
	// Begin is a line of shell that runs once in a new sandbox, in its work directory and with Env, for programs that only
	// use what they can write to. When it fails the sandbox is as it would be without.
	Begin string
}

// Dir returns where sandboxes find the cache.
func (c Cache) Dir() string { return CacheDir + "/" + c.Name }

// Variables returns Env for a directory.
func (c Cache) Variables(dir string) map[string]string {
	env := make(map[string]string, len(c.Env))
	for name, value := range c.Env {
		env[name] = strings.ReplaceAll(value, "*", dir)
	}
	return env
}

// checkCaches returns the names of caches in the one order that they have, or an error for one that there is none of.
func (m *Manager) checkCaches(names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var known []string
	for _, c := range m.opts.Caches {
		known = append(known, c.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%w: unknown cache %q, available: %s", backend.ErrInvalid, sanitize.Message(name), strings.Join(known, ", "))
		}
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names), nil
}

// mounts returns all that a sandbox for a request sees of the machine.
func (m *Manager) mounts(req Request) []backend.Mount {
	return slices.Concat(req.Mounts, m.cacheMounts(req.Caches))
}

// cacheMounts returns the mounts of those caches that have something in them.
func (m *Manager) cacheMounts(names []string) (list []backend.Mount) {
	for _, c := range m.opts.Caches {
		if st, err := os.Stat(c.Source); slices.Contains(names, c.Name) && err == nil && st.IsDir() {
			list = append(list, backend.Mount{Source: c.Source, Target: c.Dir()})
		}
	}
	return list
}

// splitMounts tells the names of the caches among mounts from what else is mounted.
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

// caches returns those that the sandbox was made with.
func (s *Session) caches() (list []Cache) {
	for _, c := range s.m.opts.Caches {
		if slices.ContainsFunc(s.engine.Mounts, func(m backend.Mount) bool { return m.Target == c.Dir() && !m.Writable }) {
			list = append(list, c)
		}
	}
	return list
}

// beginCaches runs in a new sandbox what its caches begin with.
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
