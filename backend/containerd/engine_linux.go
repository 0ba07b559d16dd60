package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	ctrd "github.com/containerd/containerd/v2/client"
	cerrdefs "github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/seccomp"
)

// engine is the information detected by New. It is immutable.
type engine struct {
	caps        backend.Capabilities
	arch        string // architecture name in images
	system      string // name of the distribution
	kernel      string
	cpus        int
	memory      bool // memory can be limited, even if swap cannot
	cgroups     cgroups
	runtimes    map[string]string // path of the program by name
	snapshotter string
	seccomp     *specs.LinuxSeccomp
}

// probe detects the properties of containerd and of this host.
func (b *driver) probe(ctx context.Context) (engine, error) {
	e := engine{arch: runtime.GOARCH, cpus: runtime.NumCPU()}
	e.system, e.kernel = host.Machine()
	// The client would wait for a missing socket, as it does for a socket without a listener.
	if _, err := os.Stat(b.opts.Address); errors.Is(err, fs.ErrNotExist) && filepath.IsAbs(b.opts.Address) {
		return e, b.calls.Error("connect", backend.ErrUnavailable, "socket not found")
	}
	if _, err := kit.Call(ctx, b.calls, "connect", b.api.Version); err != nil {
		return e, err
	}
	var err error
	if e.snapshotter, err = b.findSnapshotter(ctx); err != nil {
		return e, err
	}
	if e.cgroups, err = probeCgroups(); err != nil {
		return e, fmt.Errorf("containerd: %v: %w", err, backend.ErrUnsupported)
	}
	if _, err := os.Stat("/proc/sys/kernel/seccomp"); err != nil {
		return e, fmt.Errorf("containerd: this kernel has no seccomp: %w", backend.ErrUnsupported)
	}
	if e.seccomp, err = seccomp.OCI(seccomp.Target{Arch: e.arch, Kernel: e.kernel}); err != nil {
		return e, fmt.Errorf("containerd: %v: %w", err, backend.ErrUnsupported)
	}
	if e.runtimes, err = findRuntimes(b.opts.OCIRuntimes); err != nil {
		return e, err
	}
	if e.runtimes[b.opts.OCIRuntime] == "" {
		return e, fmt.Errorf("containerd: OCI runtime %.40q not found on this host: %w",
			b.opts.OCIRuntime, backend.ErrUnsupported)
	}
	e.memory = e.cgroups.has("memory")
	bridge := b.opts.CNI.available() && kernelNetwork(b.opts.OCIRuntime)
	e.caps = kit.ContainerCapabilities(e.runtimes, b.opts.OCIRuntime, bridge)
	e.caps.Memory, e.caps.CPU, e.caps.PIDs = e.memory && e.cgroups.swap, e.cgroups.has("cpu"), e.cgroups.has("pids")
	return e, nil
}

// findSnapshotter returns the snapshotter to use.
func (b *driver) findSnapshotter(ctx context.Context) (string, error) {
	names := []string{b.opts.Snapshotter}
	if b.opts.Snapshotter == "" {
		names = []string{"overlayfs", "native"}
	}
	for _, name := range names {
		err := b.calls.Do(ctx, "look for snapshotter "+name, func(ctx context.Context) error {
			_, err := b.api.SnapshotService(name).Stat(ctx, "workcell-none")
			if cerrdefs.IsNotFound(err) {
				return nil
			}
			return err
		})
		if err == nil || errors.Is(err, backend.ErrUnavailable) || ctx.Err() != nil {
			return name, err
		}
	}
	return "", fmt.Errorf("containerd: no snapshotter found among %q: %w", names, backend.ErrUnsupported)
}

// findRuntimes returns the OCI runtimes on this host.
func findRuntimes(configured map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for _, name := range []string{"runc", "crun", "runsc"} {
		path, err := exec.LookPath(name)
		if err != nil {
			path, err = exec.LookPath("/usr/sbin/" + name) // not in the PATH of ordinary users
		}
		if err == nil && filepath.IsAbs(path) {
			out[name] = path
		}
	}
	for name, path := range configured {
		if st, err := os.Stat(path); err != nil || !filepath.IsAbs(path) || st.IsDir() || st.Mode()&0o111 == 0 {
			return nil, fmt.Errorf("containerd: Options.OCIRuntimes: %.40q is not the absolute path of a program: %w",
				name, backend.ErrInvalid)
		}
		out[name] = path
	}
	return out, nil
}

// Ping checks the connection to containerd and returns information about it.
func (b *driver) Ping(ctx context.Context) (backend.EngineInfo, error) {
	v, err := kit.Call(ctx, b.calls, "ping", func(ctx context.Context) (ctrd.Version, error) { return b.api.Version(ctx) })
	if err != nil {
		return backend.EngineInfo{}, err
	}
	return backend.EngineInfo{
		Name:        "containerd",
		Version:     v.Version,
		API:         "v1",
		Kernel:      b.engine.kernel,
		OS:          b.engine.system,
		Arch:        b.engine.arch,
		Cgroup:      b.engine.cgroups.version(),
		OCIRuntimes: slices.Clone(b.engine.caps.OCIRuntimes),
		Details: map[string]string{
			"namespace":           b.opts.Namespace,
			"storage":             b.engine.snapshotter,
			"default_oci_runtime": b.opts.OCIRuntime,
			"revision":            v.Revision,
		},
	}, nil
}
