package docker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/versions"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// minAPI is the oldest API version with private cgroup namespaces and platforms.
const minAPI = "1.41"

// engine is the result of learn. It is immutable.
type engine struct {
	caps           backend.Capabilities
	arch           string // architecture name in images
	cpus           int
	memory         bool   // memory can be limited, even if swap cannot
	seccomp        bool   // containers have a seccomp filter
	profile        string // seccomp profile; empty means the engine's own
	defaultRuntime string
	root           string // data directory of the engine, on the engine's host
	terminals      bool   // the engine can mount our devpts
}

// probe checks whether the engine responds and is usable.
func (b *driver) probe(ctx context.Context) error {
	ping, err := kit.Call(ctx, b.calls, "connect", b.api.Ping)
	if err != nil {
		return err
	}
	if ping.OSType != "linux" {
		return fmt.Errorf("docker: the engine runs %q containers, not linux: %w", ping.OSType, backend.ErrUnsupported)
	}
	if ping.APIVersion == "" || versions.LessThan(ping.APIVersion, minAPI) {
		return fmt.Errorf("docker: engine API %s, Workcell requires %s: %w", ping.APIVersion, minAPI, backend.ErrUnsupported)
	}
	b.api.NegotiateAPIVersionPing(ping)
	return nil
}

// learn reads the engine's properties once. This call takes the engine longer than most calls for existing sandboxes.
// Only calls that need the location of the workspaces use learn. learn is safe for concurrent use.
func (b *driver) learn(ctx context.Context) (*engine, error) {
	if e := b.known.Load(); e != nil {
		return e, nil
	}
	info, err := kit.Call(ctx, b.calls, "connect", b.api.Info)
	if err != nil {
		return nil, err
	}
	e, err := describe(info)
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	b.known.CompareAndSwap(nil, &e)
	return b.known.Load(), nil
}

// Capabilities returns the engine's capabilities at the time of their first use. If the engine does not respond in
// time, it returns the capabilities of all engines, with unknown isolation.
func (b *driver) Capabilities() backend.Capabilities {
	ctx, cancel := context.WithTimeout(context.Background(), b.opts.Patience)
	defer cancel()
	if e, err := b.learn(ctx); err == nil {
		return e.caps
	}
	unknown := kit.ContainerCapabilities(nil, "", false)
	unknown.Isolation = nil // an empty value would mean weak isolation
	return unknown
}

func describe(info system.Info) (engine, error) {
	programs := map[string]string{}
	for name, r := range info.Runtimes {
		programs[name] = cmp.Or(r.Path, r.Type, name)
	}
	e := engine{
		caps:           kit.ContainerCapabilities(programs, info.DefaultRuntime, kernelNetwork(info.DefaultRuntime)),
		arch:           goArch(info.Architecture),
		cpus:           info.NCPU,
		memory:         info.MemoryLimit,
		defaultRuntime: info.DefaultRuntime,
		root:           info.DockerRootDir,
		terminals:      mountsTerminals(info),
	}
	e.caps.Memory, e.caps.CPU = info.MemoryLimit && info.SwapLimit, info.CPUCfsQuota && info.CPUCfsPeriod
	e.caps.PIDs = info.PidsLimit
	var err error
	e.profile, e.seccomp, err = seccompChoice(info.SecurityOptions)
	return e, err
}

// mountsTerminals reports whether the engine can mount, label, and unmount a devpts volume.
func mountsTerminals(info system.Info) bool {
	for _, option := range info.SecurityOptions {
		switch name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ","); name {
		case "userns", "rootless", "selinux":
			return false
		}
	}
	// Engines before 23.0 count mounts of containers incorrectly if the containers outlive the daemon, and then never
	// remove the volume.
	return !info.LiveRestoreEnabled
}

// goArch returns the name of an architecture in Go and in images.
func goArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// kernelNetwork reports whether a runtime's containers use the kernel's network stack. Only then, rules in their
// network namespace apply. A separate network stack, for example in gVisor or a virtual machine, bypasses these rules.
// NVIDIA's runtime calls runc.
func kernelNetwork(runtime string) bool {
	switch runtime {
	case "", "runc", "crun", "youki", "nvidia", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux":
		return true
	}
	return false
}

// supports returns an error if the engine cannot run the plan. The limits have already been checked.
func (e *engine) supports(p *kit.Plan) error {
	switch s := p.Spec; {
	case !e.seccomp:
		return fmt.Errorf("docker: the engine does not support seccomp: %w", backend.ErrUnsupported)
	case s.Network == backend.NetworkBridge && !kernelNetwork(e.runtime(s)):
		return fmt.Errorf("docker: network filtering is not supported with OCI runtime %.40q: %w",
			e.runtime(s), backend.ErrUnsupported)
	}
	return p.Supports(e.caps, e.arch)
}

func (e *engine) runtime(s backend.Spec) string { return cmp.Or(s.OCIRuntime, e.defaultRuntime) }

// Ping checks the connection to the engine and returns information about it.
func (b *driver) Ping(ctx context.Context) (backend.EngineInfo, error) {
	info, err := kit.Call(ctx, b.calls, "ping", b.api.Info)
	if err != nil {
		return backend.EngineInfo{}, err
	}
	return backend.EngineInfo{
		Name:        "docker",
		Version:     info.ServerVersion,
		API:         b.api.ClientVersion(),
		Kernel:      info.KernelVersion,
		OS:          info.OperatingSystem,
		Arch:        goArch(info.Architecture),
		Cgroup:      info.CgroupVersion,
		OCIRuntimes: slices.Sorted(maps.Keys(info.Runtimes)),
		Details: map[string]string{
			"storage":             info.Driver,
			"default_oci_runtime": info.DefaultRuntime,
			"security":            strings.Join(info.SecurityOptions, " "),
		},
	}, nil
}
