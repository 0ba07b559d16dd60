package promises

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/e2e/machinetest"
	"github.com/workcell-dev/workcell/session"
)

// broken is an engine of a test's own, of the kind that is attacked.
type broken struct {
	*machinetest.Machine
	engine  engine
	runtime string // one of its own, by path; empty where there is no such thing
}

// newBroken starts one, with the plain image in it. With liveRestore, what runs on a Docker Engine outlives it.
func newBroken(t *testing.T, disk string, liveRestore bool) *broken {
	t.Helper()
	m := machinetest.New(t, disk)
	x := &broken{Machine: m}
	if _, ok := w.engine.(served); ok {
		x.runtime = m.OwnRuntime(t)
		m.StartEngine(t, w.name, liveRestore)
		m.LoadImage(t, w.name, debianImage)
	}
	state := filepath.Join(m.Disk, "state")
	switch w.name {
	case "docker":
		api, err := dockerclient.NewClientWithOpts(dockerclient.WithHost(m.DockerHost()), dockerclient.WithAPIVersionNegotiation())
		must(t, err)
		x.engine = &dockerEngine{api: api, host: m.DockerHost()}
	case "containerd":
		api, err := ctrd.New(m.ContainerdSocket(), ctrd.WithDefaultNamespace(containerd.DefaultNamespace))
		must(t, err)
		x.engine = &containerdEngine{api: api, socket: m.ContainerdSocket(), state: state, runtimes: map[string]string{"own": x.runtime}}
	case "local":
		x.engine = &localEngine{state: state}
	}
	t.Cleanup(func() { _ = x.engine.close() }) // it may have been cut off
	return x
}

// open connects to it and returns a manager, which must leave nothing.
func (x *broken) open(t *testing.T) *session.Manager {
	t.Helper()
	driver, err := x.engine.connect(t.Context(), connection{})
	must(t, err)
	m, err := session.NewManager(driver, &session.Options{Instance: w.instance + "-" + session.NewID()})
	must(t, err)
	t.Cleanup(func() {
		must(t, errors.Join(m.Close(context.Background()), driver.Close()))
		x.nothingLeft(t, m)
	})
	return m
}

// nothingLeft waits until nothing of a manager is there any more.
func (x *broken) nothingLeft(t testing.TB, m *session.Manager) {
	t.Helper()
	eventually(t, "nothing is left of "+m.Instance(), func() bool {
		left, err := x.engine.left(context.Background(), m.Instance())
		return err == nil && len(left) == 0
	})
}
