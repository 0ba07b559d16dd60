package faults

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/e2e/machinetest"
)

// private is an engine that belongs to a test, which may break it, and a host on it.
type private struct {
	*host
	*machinetest.Machine
	liveRestore bool
}

// newPrivate starts an engine of its own for a test, with the image in it. The local driver has no engine, but a disk.
func newPrivate(t *testing.T, engine, disk string, liveRestore bool) *private {
	t.Helper()
	m := machinetest.New(t, disk)
	x := &private{Machine: m, liveRestore: liveRestore, host: &host{engine: engine, state: filepath.Join(t.TempDir(), "state")}}
	x.named(t)
	tar := filepath.Join(m.Dir, "image.tar")
	switch engine {
	case "docker":
		m.OwnRuntime(t)
		m.StartContainerd(t)
		m.StartDockerd(t, liveRestore)
		x.environ = []string{"DOCKER_HOST=" + m.DockerHost()}
		output(t, nil, "docker", "save", "--output", tar, image)
		output(t, x.environ, "docker", "load", "--input", tar)
	case "containerd":
		m.StartContainerd(t)
		x.environ = []string{"CONTAINERD_ADDRESS=" + m.ContainerdSocket()}
		output(t, nil, "ctr", "--namespace", containerd.DefaultNamespace, "images", "export", tar, "docker.io/"+image)
		output(t, x.environ, "ctr", "--namespace", containerd.DefaultNamespace, "images", "import", tar)
	}
	m.Run(t, "rm -f "+tar)
	return x
}

// driver connects to the engine.
func (x *private) driver(t *testing.T) (b backend.SandboxBackend) {
	t.Helper()
	var err error
	switch x.engine {
	case "docker":
		b, err = docker.New(t.Context(), &docker.Options{Host: x.DockerHost()})
	case "containerd":
		b, err = containerd.New(t.Context(), &containerd.Options{Address: x.ContainerdSocket(), StateDir: filepath.Join(x.Disk, "state")})
	case "local":
		b, err = local.New(t.Context(), &local.Options{StateDir: filepath.Join(x.Disk, "state")})
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// restart ends a daemon and starts it again.
func (x *private) restart(t *testing.T, daemon, signal string) {
	t.Helper()
	x.Kill(t, daemon, signal)
	if daemon == "dockerd" {
		x.StartDockerd(t, x.liveRestore)
	} else {
		x.StartContainerd(t)
	}
}

// pipes lists the FIFOs of the engine and of the driver.
func (x *private) pipes(t *testing.T) []string {
	t.Helper()
	return strings.Fields(x.Run(t, "find "+x.Dir+" -type p 2>/dev/null; true"))
}

// killShim kills what stands between the engine and a sandbox.
func (x *private) killShim(t *testing.T, container string) {
	t.Helper()
	x.Run(t, `for p in /proc/[0-9]*; do
		if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "containerd-shim.* -id `+container+`"; then kill -9 ${p#/proc/}; fi
	done; true`)
}
