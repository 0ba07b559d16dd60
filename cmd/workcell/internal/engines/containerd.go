//go:build !no_containerd

package engines

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
)

func (s Set) containerd() Engine {
	return Engine{
		Name: Containerd,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			dir, err := s.stateDir(Containerd)
			if err != nil {
				return nil, err
			}
			return asBackend(containerd.New(ctx, &containerd.Options{
				Address: s.containerdAddress(), Namespace: s.Env.Get("CONTAINERD_NAMESPACE"),
				Snapshotter: s.Env.Get("CONTAINERD_SNAPSHOTTER"),
				StateDir:    dir, ConfigDir: s.dockerConfigDir(), Logger: s.Logger, Patience: patience,
			}))
		},
		id:     s.containerdID,
		absent: func(ctx context.Context) string { return socketProblem(ctx, s.containerdAddress()) },
		Fix:    containerdFix,
		at: func() string {
			if s.Env.Get("CONTAINERD_ADDRESS") != "" {
				return s.containerdAddress() + " (CONTAINERD_ADDRESS)"
			}
			return s.containerdAddress() + " (the default; CONTAINERD_ADDRESS is not set)"
		},
	}
}

// containerdAddress returns containerd's socket, found like containerd's own commands do.
func (s Set) containerdAddress() string {
	return strings.TrimPrefix(cmp.Or(s.Env.Get("CONTAINERD_ADDRESS"), containerd.DefaultAddress), "unix://")
}

// containerdID returns the address and the namespace of the engine.
func (s Set) containerdID(context.Context) (string, error) {
	return s.containerdAddress() + " " + cmp.Or(s.Env.Get("CONTAINERD_NAMESPACE"), containerd.DefaultNamespace), nil
}

// containerdFix returns a remedy if containerd is not usable.
func containerdFix(err error) string {
	switch {
	case runtime.GOOS != "linux":
		return "containerd requires Linux"
	case os.Geteuid() != 0: // with the user's HOME, root would create files in the user's state directory
		return "run `sudo --preserve-env=GEMINI_API_KEY,GOOGLE_API_KEY,ANTHROPIC_API_KEY,OPENAI_API_KEY," +
			"CONTAINERD_ADDRESS,WORKCELL_BACKEND,WORKCELL_STATE,WORKCELL_CONFIG $(command -v workcell) …`, because " +
			"containerd requires root"
	case errors.Is(err, backend.ErrUnavailable):
		return "start containerd (`systemctl start containerd`, or `containerd`), or set CONTAINERD_ADDRESS to its socket"
	default:
		return ""
	}
}
