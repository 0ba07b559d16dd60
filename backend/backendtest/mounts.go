package backendtest

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

func mountChecks() []check {
	return []check{
		{"shown", (*suite).mountsShown},
		{"refused", (*suite).mountsRefused},
	}
}

// shared creates a host directory with a file. All users can read and write both.
func shared(t *testing.T, text string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Chmod(dir, 0o777)) // #nosec G302 -- the users of sandboxes write to it
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, []byte(text), 0o666)) // #nosec G306 -- and to this
	must(t, os.Chmod(file, 0o666))                   // #nosec G302
	return dir
}

// mountsShown verifies that programs see the mounted directories, can write only to writable mounts, and find the same
// files after a restart.
func (s *suite) mountsShown(t *testing.T) {
	data, out := shared(t, "given\n"), shared(t, "old\n")
	spec := s.lone(t)
	spec.Mounts = []backend.Mount{{Source: data, Target: "/data"}, {Source: out, Target: "/srv/a/out", Writable: true}}
	if s.h.Cluster {
		Fails(t, "Create", second(s.b.Create(t.Context(), spec)), backend.ErrUnsupported)
		return
	}
	info := s.create(t, spec)
	if again, err := s.b.Get(t.Context(), info.ID); err != nil || !slices.Equal(info.Mounts, spec.Mounts) || !slices.Equal(again.Mounts, spec.Mounts) {
		t.Errorf("Info tells of %+v, Get of %+v, %v", info.Mounts, again.Mounts, err)
	}
	const script = "cat /data/file; (echo x > /data/file || rm /data/file || touch /data/new || ln -s x /data/new) 2>/dev/null || echo readonly; cat /srv/a/out/file; echo new > /srv/a/out/file; " +
		"ls /proc/self/fd >/dev/null; mount -o remount,rw /data 2>/dev/null && echo remounted; true"
	Prints(t, s.dial(t, info.ID), script, "given\nreadonly\nold\n")
	if text, err := os.ReadFile(filepath.Join(out, "file")); string(text) != "new\n" {
		t.Errorf("outside: %q, %v", text, err)
	}
	must(t, s.b.Stop(t.Context(), info.ID))
	must(t, s.b.Start(t.Context(), info.ID))
	const again = "cat /data/file /srv/a/out/file; touch /data/x 2>/dev/null || echo readonly"
	Prints(t, s.dial(t, info.ID), again, "given\nnew\nreadonly\n")
	Remove(t, s.b, info.ID)
	if text, err := os.ReadFile(filepath.Join(out, "file")); string(text) != "new\n" {
		t.Errorf("after the sandbox: %q, %v", text, err)
	}
}

// mountsRefused verifies that mounts of system paths of the sandbox or the host are rejected under any name.
func (s *suite) mountsRefused(t *testing.T) {
	dir := shared(t, "")
	must(t, errors.Join(os.Symlink("/etc", filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, ".ssh"), 0o700)))
	for _, m := range []backend.Mount{
		{Source: dir, Target: "/"}, {Source: dir, Target: "/workspace"}, {Source: dir, Target: "/workspace/x"}, {Source: dir, Target: "/proc"},
		{Source: dir, Target: "/proc/sys"}, {Source: dir, Target: "/tmp/x"}, {Source: dir, Target: "/dev/shm"}, {Source: dir, Target: "/data/../proc"},
		{Source: dir, Target: "data"}, {Source: dir, Target: ""}, {Source: dir, Target: "/.workcell"}, {Source: dir, Target: "/opt"}, {Source: dir, Target: "/a:b"},
		{Source: "/", Target: "/data"}, {Source: "/etc", Target: "/data"}, {Source: "/proc/1", Target: "/data"}, {Source: "/var/run/x", Target: "/data"},
		{Source: "/var", Target: "/data"}, {Source: "/var/lib/workcell", Target: "/data"}, {Source: "", Target: "/data"}, {Source: "x", Target: "/data"}, {Source: dir + "/../..", Target: "/data"},
		{Source: filepath.Join(dir, "link"), Target: "/data"}, {Source: filepath.Join(dir, "file"), Target: "/data"}, {Source: filepath.Join(dir, "none"), Target: "/data"},
		{Source: filepath.Join(dir, ".ssh"), Target: "/data"},
	} {
		spec := s.lone(t)
		spec.Mounts = []backend.Mount{m}
		err := s.tried(t, spec)
		if !errors.Is(err, backend.ErrInvalid) && !errors.Is(err, backend.ErrPermission) && !(s.h.Cluster && errors.Is(err, backend.ErrUnsupported)) {
			t.Errorf("%+v: %v", m, err)
			continue
		}
		forAgents(t, err)
	}
	spec := s.lone(t)
	spec.Mounts = []backend.Mount{{Source: dir, Target: "/data"}, {Source: dir, Target: "/data/x"}}
	Fails(t, "one in another", second(s.b.Create(t.Context(), spec)), backend.ErrInvalid)
	// A process with write access to a directory could replace a subdirectory before the next mount.
	below := filepath.Join(dir, "below")
	must(t, os.Mkdir(below, 0o700))
	alias := filepath.Join(shared(t, ""), "link")
	must(t, os.Symlink(below, alias))
	for _, source := range []string{below, alias} {
		spec.Mounts = []backend.Mount{{Source: dir, Target: "/data", Writable: true}, {Source: source, Target: "/more"}}
		if _, err := s.b.Create(t.Context(), spec); !errors.Is(err, backend.ErrInvalid) && !(s.h.Cluster && errors.Is(err, backend.ErrUnsupported)) {
			t.Errorf("%s in a writable one: %v", source, err)
		}
	}
}
