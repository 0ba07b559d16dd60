package docker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"
	"go.uber.org/goleak"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const (
	pythonImage = "workcell/python:3.11"
	debianImage = "workcell/debian:12"
)

// instance marks everything that this run of the tests makes.
var instance = "test-" + strings.ToLower(rand.Text())

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left, err := leftovers(context.Background(), instance); len(left) != 0 || err != nil {
			fmt.Fprintln(os.Stderr, "left behind:", left, err)
			code = 1
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// leftovers lists what an instance has on the engine.
func leftovers(ctx context.Context, instance string) ([]string, error) {
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	defer api.Close() //nolint:errcheck // only asked
	ours := filters.NewArgs(filters.Arg("label", backend.LabelInstance+"="+instance))
	var left []string
	cs, err := api.ContainerList(ctx, container.ListOptions{All: true, Filters: ours})
	if err != nil {
		return nil, err
	}
	for _, c := range cs {
		left = append(left, fmt.Sprintf("container %v (%s)", c.Names, c.State))
	}
	vs, err := api.VolumeList(ctx, volume.ListOptions{Filters: ours})
	if err != nil {
		return nil, err
	}
	for _, v := range vs.Volumes {
		left = append(left, "volume "+v.Name)
	}
	return left, nil
}

func newBackend(t testing.TB, adjust func(*docker.Options)) *docker.Backend {
	t.Helper()
	o := &docker.Options{Host: os.Getenv("DOCKER_HOST")}
	if adjust != nil {
		adjust(o)
	}
	b, err := docker.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func engineAPI(t testing.TB) *dockerclient.Client {
	t.Helper()
	api, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	return api
}

func newSpec() backend.Spec {
	id := "sbx_" + strings.ToLower(rand.Text())
	return backend.Spec{
		ID: id, Instance: instance, Key: "user:" + id, Run: "run_" + id, Hash: "hash", Image: debianImage, Pull: backend.PullNever,
	}
}

// create makes a sandbox that the test's end removes.
func create(t testing.TB, b *docker.Backend, spec backend.Spec) backend.Info {
	t.Helper()
	info, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { remove(t, b, info.ID) })
	return info
}

// dropInits deletes, at the test's end, the images that sandboxes of unusual users needed, if there were any.
func dropInits(t testing.TB, users ...string) {
	t.Helper()
	api := engineAPI(t)
	t.Cleanup(func() {
		for _, u := range users {
			_, err := api.ImageRemove(context.Background(), "workcell/init:"+u, image.RemoveOptions{Force: true})
			if err != nil && !cerrdefs.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
}

// removeContainer removes what is no sandbox.
func removeContainer(t testing.TB, api *dockerclient.Client, id string) {
	t.Helper()
	if err := api.ContainerRemove(context.Background(), id, container.RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
}

func remove(t testing.TB, b *docker.Backend, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Remove(ctx, id, backend.RemoveOptions{Volumes: true}); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

func connect(t testing.TB, rw io.ReadWriteCloser, err error) *client.Conn {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := client.New(t.Context(), rw, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func dial(t testing.TB, b *docker.Backend, id string) *client.Conn {
	t.Helper()
	rw, err := b.Dial(t.Context(), id)
	return connect(t, rw, err)
}

// run runs a command to its end.
func run(t testing.TB, conn *client.Conn, argv ...string) wire.RunResult {
	t.Helper()
	res, err := conn.Run(t.Context(), wire.RunRequest{
		Spawn: wire.Spawn{
			Argv: argv, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/workspace", "LANG=C.UTF-8"}, TimeoutMillis: 60_000,
		},
		ExecID: rand.Text(), YieldMillis: -1, HeadBytes: 64 << 10, TailBytes: 64 << 10,
	})
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return res
}

// output runs a command that must succeed, and returns its output.
func output(t testing.TB, conn *client.Conn, argv ...string) string {
	t.Helper()
	res := run(t, conn, argv...)
	if res.ExitCode != 0 || res.Signal != "" || res.State != wire.ExecCompleted {
		t.Fatalf("%q: %+v\n%s%s", argv, res.ExecStatus, res.Stdout.Head, res.Stderr.Head)
	}
	return string(res.Stdout.Head) + string(res.Stdout.Tail)
}

func sh(t testing.TB, conn *client.Conn, script string) string {
	t.Helper()
	return output(t, conn, "/bin/sh", "-c", script)
}
