package local

import (
	"fmt"
	"runtime"
	"strconv"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/seccomp"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// machine is the information about this host detected by New. It is immutable.
type machine struct {
	kernel   string
	os       string
	boot     string
	cpus     int
	blocks   bool // sandboxes can have separate user IDs
	landlock int  // Landlock version; 0 means none
	layers   bool // a writable root is supported
	cgroups  cgroups
	filter   []byte
}

func inspectMachine() (machine, error) {
	m := machine{
		cpus: runtime.NumCPU(), blocks: mayMapBlocks(), landlock: launch.LandlockVersion(),
		cgroups: findCgroups(),
	}
	m.os, m.kernel = host.Machine()
	var err error
	if m.boot, err = bootID(); err != nil {
		return m, fmt.Errorf("local: /proc is not mounted: %w: %w", host.Public(err), backend.ErrUnsupported)
	}
	m.filter, err = seccomp.Program(seccomp.Target{Arch: runtime.GOARCH, Kernel: m.kernel})
	if err != nil {
		return m, fmt.Errorf("local: %w: %w", err, backend.ErrUnsupported)
	}
	return m, nil
}

// details returns the available isolation, for display.
func (m machine) details() map[string]string {
	d := map[string]string{"user namespace": "separate user IDs", "landlock": "none", "limits": "cgroup"}
	if !m.blocks {
		d["user namespace"] = "the calling user's ID"
	}
	if m.landlock >= launch.MinLandlock {
		d["landlock"] = "version " + strconv.Itoa(m.landlock)
	}
	if !m.cgroups.memory() {
		d["limits"] = "no memory cgroup: the limit applies to each process, not the sandbox"
	}
	return d
}
