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
	"github.com/workcell-dev/workcell/session"
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
	switch engine {
	case "docker":
		m.OwnRuntime(t)
		m.StartContainerd(t)
		m.StartDockerd(t, liveRestore)
		x.environ = []string{"DOCKER_HOST=" + m.DockerHost()}
	case "containerd":
		m.StartContainerd(t)
		x.environ = []string{"CONTAINERD_ADDRESS=" + m.ContainerdSocket()}
	}
	x.loadImage(t)
	return x
}

// loadImage gives the engine the image that the system's has.
func (x *private) loadImage(t *testing.T) {
	t.Helper()
	switch x.engine {
	case "docker":
		pipeline(t, x.environ, "docker save "+image, "docker load")
	case "containerd":
		ctr := "ctr --namespace " + containerd.DefaultNamespace + " images "
		pipeline(t, x.environ, ctr+"export - docker.io/"+image, ctr+"import -")
	}
}

// forgetImage takes it away, also from under sandboxes.
func (x *private) forgetImage(t *testing.T) {
	t.Helper()
	switch x.engine {
	case "docker":
		output(t, x.environ, "docker", "rmi", "--force", image)
	case "containerd":
		output(t, x.environ, "ctr", "--namespace", containerd.DefaultNamespace, "images", "rm", "--sync", "docker.io/"+image)
	}
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

// pipes lists the FIFOs of the driver. Engines that were killed leave their own.
func (x *private) pipes(t *testing.T) []string {
	t.Helper()
	return strings.Fields(x.Run(t, "find "+x.Disk+"/state -type p 2>/dev/null; true"))
}

// killShim kills what stands between the engine and a sandbox.
func (x *private) killShim(t *testing.T, s *session.Session) {
	t.Helper()
	container := s.Info().EngineID
	if x.engine == "containerd" {
		container = strings.TrimSpace(output(t, x.environ, "ctr", "--namespace", containerd.DefaultNamespace,
			"containers", "ls", "-q", `labels."`+backend.LabelID+`"==`+s.ID()))
	}
	x.Run(t, `found=; for p in /proc/[0-9]*; do
		if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "containerd-shim.* -id `+container+`"; then kill -9 ${p#/proc/}; found=1; fi
	done; test -n "$found"`)
}
