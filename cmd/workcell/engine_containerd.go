package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
)

func (a *app) containerdDriver() driver {
	return driver{
		name: backendContainerd,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			dir, err := a.engineDir(backendContainerd)
			if err != nil {
				return nil, err
			}
			return asBackend(containerd.New(ctx, &containerd.Options{
				Address: a.containerdAddress(), Namespace: a.env.get("CONTAINERD_NAMESPACE"), Snapshotter: a.env.get("CONTAINERD_SNAPSHOTTER"),
				StateDir: dir, ConfigDir: dockerConfigDir(a.env), Logger: a.logger(), Patience: enginePatience,
			}))
		},
		absent: func(ctx context.Context) string { return socketProblem(ctx, a.containerdAddress()) },
		fix:    containerdFix,
		at: func() string {
			if a.env.get("CONTAINERD_ADDRESS") != "" {
				return a.containerdAddress() + " (CONTAINERD_ADDRESS)"
			}
			return a.containerdAddress() + " (the default; CONTAINERD_ADDRESS is not set)"
		},
	}
}

// containerdAddress is containerd's socket as its own commands find it.
func (a *app) containerdAddress() string {
	if address := a.env.get("CONTAINERD_ADDRESS"); address != "" {
		return strings.TrimPrefix(address, "unix://")
	}
	return containerdSocket
}

// containerdFix says what to do when containerd cannot be used.
func containerdFix(err error) string {
	switch {
	case runtime.GOOS != "linux":
		return "containerd can be used on Linux only"
	case os.Geteuid() != 0:
		return "run as root: containerd's socket, and what its sandboxes need on this machine, are root's"
	case errors.Is(err, backend.ErrUnavailable):
		return "start containerd (`systemctl start containerd`, or `containerd`), or point CONTAINERD_ADDRESS at its socket"
	default:
		return ""
	}
}
