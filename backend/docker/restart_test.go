//go:build unix

package docker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// restartable is an engine that a test can take away and bring back.
type restartable struct {
	host     string
	survives bool // containers outlive the engine's absence
	kill     func(testing.TB)
	start    func(testing.TB)
}

// TestEngineRestart takes the engine away under a running command and brings it back. The same backend must tell, and
// then go on. The engine is the machine's own behind a socket that goes and comes, and where this process may start
// engines, private ones that are killed.
func TestEngineRestart(t *testing.T) {
	t.Parallel()
	for name, start := range engines() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testRestart(t, start(t))
		})
	}
}

func testRestart(t *testing.T, e *restartable) {
	b := newBackend(t, func(o *docker.Options) { o.Host = e.host })
	ctx := t.Context()
	spec := newSpec()
	spec.Limits.WorkspaceBytes = 8 << 20 // so that the engine has something mounted, where it can
	info, err := b.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if !e.survives && info.Workspace != backend.WorkspaceSized { // that is an engine on this machine, without live restore
		t.Errorf("the workspace is held by %q", info.Workspace)
	}
	conn := dial(t, b, info.ID)
	sh(t, conn, "echo kept > /workspace/f")
	running := make(chan error, 1)
	go func() {
		_, err := conn.Run(context.Background(), wire.RunRequest{
			Spawn: wire.Spawn{Argv: []string{"/bin/sleep", "1000"}}, ExecID: "long", YieldMillis: -1,
		})
		running <- err
	}()
	waitFor(t, "the command to run", func() bool {
		l, err := conn.Execs(ctx)
		return err == nil && len(l) == 2
	})

	e.kill(t)
	begin := time.Now()
	for name, err := range map[string]error{
		"Get": second(b.Get(ctx, info.ID)), "List": second(b.List(ctx, backend.Filter{})), "Create": second(b.Create(ctx, newSpec())),
		"Dial": second(b.Dial(ctx, info.ID)), "Remove": b.Remove(ctx, info.ID, backend.RemoveOptions{}),
		"New": second(docker.New(ctx, &docker.Options{Host: e.host})),
	} {
		if !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%s without an engine: %v, want ErrUnavailable", name, err)
		}
	}
	if d := time.Since(begin); d > prompt {
		t.Errorf("the news took %v", d)
	}
	select {
	case err := <-running:
		if !errors.Is(err, client.ErrConnLost) {
			t.Errorf("the running command: %v, want ErrConnLost", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the running command waits for ever")
	}

	e.start(t)
	waitFor(t, "the engine", func() bool { _, err := b.Get(ctx, info.ID); return err == nil })
	got, err := b.Get(ctx, info.ID)
	if want := map[bool]backend.State{true: backend.StateRunning, false: backend.StateStopped}[e.survives]; err != nil || got.State != want {
		t.Errorf("afterwards: %s, %v, want %s", got.State, err, want)
	}
	if !e.survives {
		if _, err := b.Dial(ctx, info.ID); !errors.Is(err, backend.ErrLost) {
			t.Errorf("Dial: %v, want ErrLost", err)
		}
		if err := b.Start(ctx, info.ID); err != nil {
			t.Fatal(err)
		}
	}
	conn = dial(t, b, info.ID)
	if got := sh(t, conn, "cat /workspace/f"); got != "kept\n" {
		t.Errorf("files: %q", got)
	}
	if e.survives {
		l, err := conn.Execs(ctx)
		if err != nil || len(l) < 2 {
			t.Errorf("the guest forgot its commands: %v, %v", l, err)
		}
	}
	remove(t, b, info.ID)
	engineEmpty(t, e.host, spec.ID)
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

func engineEmpty(t *testing.T, host, id string) {
	t.Helper()
	api, err := dockerclient.NewClientWithOpts(dockerclient.WithHost(host), dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close() //nolint:errcheck // only asked
	cs, err := api.ContainerList(t.Context(), container.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cs {
		if c.Labels[backend.LabelID] == id {
			t.Errorf("container %v is left", c.Names)
		}
	}
	vs, err := api.VolumeList(t.Context(), volume.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vs.Volumes {
		if v.Labels[backend.LabelID] == id {
			t.Errorf("volume %s is left", v.Name)
		}
	}
}
