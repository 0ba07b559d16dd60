//go:build linux

package faults

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/e2e/machinetest"
	"github.com/workcell-dev/workcell/e2e/rig"
)

// private is a private engine of a test, which the test may damage, and a host with this engine.
type private struct {
	*host
	*machinetest.Machine
}

// newPrivate starts a private engine for a test, with the image loaded. For the local driver, it creates only a disk.
func newPrivate(t *testing.T, engine, disk string, liveRestore bool) *private {
	t.Helper()
	m := machinetest.New(t, disk)
	x := &private{Machine: m, host: &host{rig.Host{State: filepath.Join(t.TempDir(), "state")}, engine}}
	x.named(t)
	if engine != "local" {
		m.OwnRuntime(t)
		m.StartEngine(t, engine, liveRestore)
		m.LoadImage(t, engine, image)
	}
	return x
}

// forgetImage removes the image, even if sandboxes use it.
func (x *private) forgetImage(t *testing.T) {
	t.Helper()
	if x.engine == "docker" {
		output(t, "docker", "--host", x.DockerHost(), "rmi", "--force", image)
	} else {
		output(t, "ctr", "--address", x.ContainerdSocket(), "--namespace", containerd.DefaultNamespace, "images", "rm", "--sync", "docker.io/"+image)
	}
}

// driver connects to the engine.
func (x *private) driver(t *testing.T) backend.SandboxBackend {
	t.Helper()
	address := map[string]string{"docker": x.DockerHost(), "containerd": x.ContainerdSocket()}[x.engine]
	b, err := openDriver(t.Context(), x.engine, address, filepath.Join(x.Disk, "state"), 0)
	must(t, err)
	return b
}

// pipes returns the driver's FIFOs. Killed engines leave their FIFOs too.
func (x *private) pipes(t *testing.T) []string {
	t.Helper()
	return strings.Fields(x.Run(t, "find "+x.Disk+"/state -type p 2>/dev/null; true"))
}
