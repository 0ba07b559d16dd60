package promises

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/e2e/machinetest"
	"github.com/workcell-dev/workcell/session"
)

// broken is an engine of a test's own, of the kind that is attacked.
type broken struct {
	*machinetest.Machine
	engine  engine
	runtime string            // one of its own, by path; empty where there is no such thing
	restart map[string]func() // ways in which it is ended and comes back
	shim    string            // program that stands between engine and sandbox
}

// newBroken starts one, with the plain image in it. With liveRestore, what runs on a Docker Engine outlives it.
func newBroken(t *testing.T, disk string, liveRestore bool) *broken {
	t.Helper()
	m := machinetest.New(t, disk)
	x := &broken{Machine: m, shim: "containerd-shim"}
	switch e := w.engine.(type) {
	case *dockerEngine:
		x.runtime = m.OwnRuntime(t)
		m.StartContainerd(t)
		m.StartDockerd(t, liveRestore)
		api, err := dockerclient.NewClientWithOpts(dockerclient.WithHost(m.DockerHost()), dockerclient.WithAPIVersionNegotiation())
		must(t, err)
		t.Cleanup(func() { must(t, api.Close()) })
		own := &dockerEngine{api: api, host: m.DockerHost()}
		x.engine = own
		tar, err := e.api.ImageSave(t.Context(), []string{debianImage})
		must(t, err)
		defer tar.Close()
		res, err := own.api.ImageLoad(t.Context(), tar)
		must(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		must(t, errors.Join(err, res.Body.Close()))
		x.restart = map[string]func(){
			"dockerd ended":     func() { m.Kill(t, "dockerd", "TERM"); m.StartDockerd(t, liveRestore) },
			"dockerd killed":    func() { m.Kill(t, "dockerd", "KILL"); m.StartDockerd(t, liveRestore) },
			"containerd killed": func() { m.Kill(t, "containerd", "KILL"); m.StartContainerd(t) },
		}
	case *containerdEngine:
		x.runtime = m.OwnRuntime(t)
		m.StartContainerd(t)
		api, err := ctrd.New(m.ContainerdSocket(), ctrd.WithDefaultNamespace(containerd.DefaultNamespace))
		must(t, err)
		t.Cleanup(func() { _ = api.Close() }) // it may have been cut
		own := &containerdEngine{api: api, socket: m.ContainerdSocket(), state: filepath.Join(m.Disk, "state"),
			runtimes: map[string]string{"own": x.runtime}}
		x.engine = own
		var tar bytes.Buffer
		ctx := namespaces.WithNamespace(t.Context(), containerd.DefaultNamespace)
		must(t, e.api.Export(ctx, &tar, archive.WithImage(e.api.ImageService(), "docker.io/"+debianImage)))
		_, err = own.api.Import(ctx, &tar)
		must(t, err)
		x.restart = map[string]func(){
			"containerd ended":  func() { m.Kill(t, "containerd", "TERM"); m.StartContainerd(t) },
			"containerd killed": func() { m.Kill(t, "containerd", "KILL"); m.StartContainerd(t) },
		}
	case *localEngine:
		x.engine, x.shim = &localEngine{state: filepath.Join(m.Disk, "state")}, ""
	}
	return x
}

// open connects to it and gives a manager, which must leave nothing.
func (x *broken) open(t *testing.T) *session.Manager {
	t.Helper()
	driver, err := x.engine.connect(t.Context(), connection{})
	must(t, err)
	m, err := session.NewManager(driver, &session.Options{Instance: w.instance + "-" + session.NewID()})
	must(t, err)
	t.Cleanup(func() {
		must(t, errors.Join(m.Close(context.Background()), driver.Close()))
		x.nothingLeft(t, m.Instance())
	})
	return m
}

// nothingLeft waits until nothing of an instance is there any more.
func (x *broken) nothingLeft(t testing.TB, instance string) {
	t.Helper()
	eventually(t, "nothing is left of "+instance, func() bool {
		left, err := x.engine.left(context.Background(), instance)
		return err == nil && len(left) == 0
	})
}
