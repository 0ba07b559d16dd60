package promises

import (
	"fmt"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// TestN4Inspect reads the posture from outside, from the engine's own description where there is one: nothing of the
// machine is shared.
func TestN4Inspect(t *testing.T) {
	t.Parallel()
	eachNetwork(t, w.engine.inspect)
}

// TestN6InspectMounts: what is mounted is ours, and nothing of the machine but what is documented.
func TestN6InspectMounts(t *testing.T) {
	t.Parallel()
	eachNetwork(t, w.engine.inspectMounts)
}

// TestN12Benchmark holds every field of a sandbox's description to what is promised of it.
func TestN12Benchmark(t *testing.T) {
	t.Parallel()
	eachNetwork(t, w.engine.benchmark)
}

// diskLimits is what the guest of a container is told: when to end alone (some minutes after the sandbox's idle time), and the
// limits of the workspace and the root, where nobody asked for one.
func diskLimits(b *box) []string {
	alone := max(b.s.Info().IdleTimeout, 3*time.Minute) + 2*time.Minute
	args := []string{fmt.Sprintf("--orphan-timeout=%v", alone), "--workspace-bytes=524288000", "--workspace-files=128000", "--workspace-watched=true"}
	if b.s.Info().Root == backend.RootReadonly {
		return args
	}
	return append(args, "--root-bytes=4294967296", "--root-files=1048576")
}

// fileLimit is the largest file that a process of such a container may make, in MiB.
func fileLimit(b *box) int64 {
	if b.s.Info().Root == backend.RootReadonly {
		return 500
	}
	return 4096
}
