package backendtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/workcell-dev/workcell/backend"
)

func lifecycleChecks() []check {
	return []check{
		{"life", (*suite).life},
		{"workspace is kept", (*suite).workspaceKept},
		{"info", (*suite).info},
		{"name", (*suite).name},
	}
}

// life verifies all states of a sandbox. It performs each step twice.
func (s *suite) life(t *testing.T) {
	ctx := t.Context()
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	boot := conn.Hello().BootID
	Sh(t, conn, "echo kept > /workspace/f; echo lost > /tmp/f")
	must(t, s.b.Start(ctx, info.ID))
	Prints(t, conn, "echo still here", "still here\n")
	for range 2 {
		must(t, s.b.Stop(ctx, info.ID))
		s.inState(t, info.ID, backend.StateStopped)
	}
	Fails(t, "Dial of a stopped one", second(s.b.Dial(ctx, info.ID)), backend.ErrLost)
	for range 2 {
		must(t, s.b.Start(ctx, info.ID))
		s.inState(t, info.ID, backend.StateRunning)
	}
	conn = s.dial(t, info.ID)
	if conn.Hello().BootID == boot {
		t.Error("the guest is the same one after a restart")
	}
	want := map[bool]string{true: "kept\n", false: ""}[s.caps.Persistent]
	Prints(t, conn, "cat /workspace/f; ls /tmp", want)
	for range 2 {
		must(t, s.b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}))
	}
	s.gone(t, info.ID)
	s.nothingLeft(t, spec.Instance)
}

// gone fails the test if the driver knows a sandbox.
func (s *suite) gone(t *testing.T, id string) {
	t.Helper()
	calls := Calls(s.b, id, s.spec)
	for _, name := range []string{"Get", "Dial", "Start", "Stop"} {
		Fails(t, fmt.Sprintf("%s of %.80q", name, id), calls[name](t.Context()), backend.ErrNotFound)
	}
}

func (s *suite) inState(t *testing.T, id string, want backend.State) {
	t.Helper()
	if got, err := s.b.Get(t.Context(), id); err != nil || got.State != want {
		t.Errorf("state %s, %v, want %s", got.State, err, want)
	}
}

// workspaceKept verifies that a sandbox can be removed without the workspace, and a new sandbox of the session uses the
// workspace again.
func (s *suite) workspaceKept(t *testing.T) {
	spec := s.lone(t)
	info := s.create(t, spec)
	Sh(t, s.dial(t, info.ID), "echo kept > /workspace/f")
	other := s.backend(t) // knows the sandbox
	must(t, second(other.Get(t.Context(), info.ID)))
	must(t, s.b.Remove(t.Context(), info.ID, backend.RemoveOptions{}))
	again := s.create(t, spec)
	if !s.caps.Persistent {
		if got := Sh(t, s.dial(t, again.ID), "ls -A"); got != "" {
			t.Errorf("kept, though files do not survive a stop: %q", got)
		}
		return
	}
	must(t, other.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true})) // nothing to remove
	Fails(t, "a workspace in use", s.b.RemoveWorkspace(t.Context(), spec.Instance, spec.ID), backend.ErrExists)
	Prints(t, s.dial(t, again.ID), "cat /workspace/f; stat -c %u /workspace", "kept\n1000\n")
	must(t, s.b.Remove(t.Context(), again.ID, backend.RemoveOptions{}))
	stranger := spec
	stranger.Instance += "-x"
	Fails(t, "the session of another instance", second(s.b.Create(t.Context(), stranger)), backend.ErrExists)
	failing := spec
	failing.Image = "workcelltest/none:none"
	Fails(t, "a missing image", second(s.b.Create(t.Context(), failing)), s.noImage())
	limited := spec
	if !s.unlimited() {
		limited.Limits.WorkspaceBytes = workspaceLimit
	}
	last := s.create(t, limited)
	Prints(t, s.dial(t, last.ID), "cat /workspace/f", "kept\n")
	if !s.unlimited() && last.Workspace != backend.WorkspaceWatched {
		t.Errorf("an existing directory without a limit got a limit, enforced as %q", last.Workspace)
	}
	must(t, s.b.Remove(t.Context(), last.ID, backend.RemoveOptions{}))
	s.hasWorkspace(t, spec.Instance, spec.ID, true)
	s.hasWorkspace(t, stranger.Instance, spec.ID, false)
	others := s.b.RemoveWorkspace(t.Context(), stranger.Instance, spec.ID)
	Fails(t, "the workspace of another instance", others, backend.ErrExists)
	for range 2 { // the second call does nothing
		must(t, s.b.RemoveWorkspace(t.Context(), spec.Instance, spec.ID))
		s.hasWorkspace(t, spec.Instance, spec.ID, false)
	}
	s.nothingLeft(t, spec.Instance)
}

// hasWorkspace verifies the result of HasWorkspace for a workspace without a sandbox.
func (s *suite) hasWorkspace(t *testing.T, instance, session string, want bool) {
	t.Helper()
	if got, err := s.b.HasWorkspace(t.Context(), instance, session); err != nil || got != want {
		t.Errorf("HasWorkspace = %v, %v, want %v", got, err, want)
	}
}

// noImage returns the expected error for a missing image.
func (s *suite) noImage() error {
	if s.h.NoImages {
		return backend.ErrUnsupported
	}
	return backend.ErrImage
}

// info verifies that Get and List return the settings passed to Create, even in another process.
func (s *suite) info(t *testing.T) {
	spec := s.lone(t)
	spec.User = "1234"
	if s.caps.WritableRoot {
		spec.Root = backend.RootWritable
	}
	spec.Labels = map[string]string{"team": "blue", "empty": "", "odd": "a=b,\"c\" d\n/ü"}
	spec.Created = time.Date(2026, 1, 2, 3, 4, 5, 678, time.FixedZone("x", 3600))
	made := s.create(t, spec)
	want := backend.Info{
		ID: made.ID, SessionID: spec.ID, Instance: spec.Instance, Key: spec.Key, Run: spec.Run, Hash: "hash", Image: spec.Image,
		ImageID: made.ImageID, ImageEnv: made.ImageEnv, User: "1234:1234", Network: backend.NetworkNone, Root: spec.Root,
		Isolation: s.caps.Isolation[""],
		Limits:    made.Limits, State: backend.StateRunning, Created: spec.Created, Labels: spec.Labels,
	}
	if !s.unlimited() {
		want.Workspace = backend.WorkspaceWatched // the default, regardless of the host
	}
	if spec.Root == backend.RootWritable {
		if want.RootBytes, want.RootEnforcement = made.RootBytes, s.caps.RootEnforcement; made.RootBytes <= 0 {
			t.Error("Create does not report the size of a writable root")
		}
	}
	if s.h.NoImages {
		want.Image = "host"
	} else if len(made.ImageEnv) == 0 || made.ImageID == "" && !s.h.Cluster { // a cluster's node reports these later
		t.Errorf("Create does not report the image: id %q, environment %q", made.ImageID, made.ImageEnv)
	}
	same := cmp.Options{cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })}
	if s.h.Cluster {
		same = append(same, cmpopts.IgnoreFields(backend.Info{}, "ImageID"))
	}
	if diff := cmp.Diff(want, made, same); diff != "" {
		t.Errorf("Create (-want +got)\n%s", diff)
	}
	for _, b := range []backend.SandboxBackend{s.b, s.backend(t)} {
		got, err := b.Get(t.Context(), made.ID)
		if diff := cmp.Diff(made, got, same); err != nil || diff != "" {
			t.Errorf("Get: %v (-Create +Get)\n%s", err, diff)
		}
		listed := want
		listed.ImageEnv = nil
		for _, f := range []backend.Filter{{SessionID: spec.ID}, {Key: spec.Key, Instance: spec.Instance}, {Run: spec.Run}, {Instance: spec.Instance}} {
			list, err := b.List(t.Context(), f)
			if diff := cmp.Diff([]backend.Info{listed}, list, same); err != nil || diff != "" {
				t.Errorf("List(%+v): %v (-want +got)\n%s", f, err, diff)
			}
		}
		for _, f := range []backend.Filter{{Run: spec.Run, Instance: "another"}, {SessionID: spec.ID + "x"}, {Key: spec.Key[1:]}, {Instance: spec.Instance[1:]}} {
			if list, err := b.List(t.Context(), f); err != nil || len(list) != 0 {
				t.Errorf("List(%+v): %v, %v, want nothing", f, list, err)
			}
		}
	}
	s.defaults(t, made.Limits)
}

// defaults verifies that the default limits apply if the request sets none and the engine can enforce them.
func (s *suite) defaults(t *testing.T, got backend.Limits) {
	t.Helper()
	want := backend.DefaultLimits()
	want.ShmBytes = want.MemoryBytes / 4
	if s.h.Cluster {
		want.CPUMillis = got.CPUMillis // the cluster of the tests has few CPUs
	}
	if !s.caps.CPU {
		want.CPUMillis = 0
	}
	if !s.caps.Memory {
		want.MemoryBytes = 0
	}
	if !s.caps.PIDs {
		want.PIDs = 0
	}
	if s.unlimited() {
		want.WorkspaceBytes = 0
	}
	if got != want {
		t.Errorf("default limits %+v, want %+v", got, want)
	}
}

// name verifies the driver's name and the result of Ping.
func (s *suite) name(t *testing.T) {
	if got := s.b.Name(); got != s.h.Name {
		t.Errorf("the driver's name is %q, want %q", got, s.h.Name)
	}
	e, err := s.b.Ping(t.Context())
	machine := e.Kernel != "" && e.Arch != "" && e.Cgroup != ""
	if err != nil || e.Name != s.h.Name || e.Version == "" || e.OS == "" || machine == s.h.Cluster {
		t.Errorf("Ping: %+v, %v", e, err)
	}
	if !slices.Contains(s.caps.Networks, backend.NetworkNone) {
		t.Errorf("capabilities without network none: %+v", s.caps)
	}
}
