package promises

import (
	"testing"

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

// rootLimit is what the guest of a container is told of a root that can be written to, where the workspace has no limit.
func rootLimit(b *box) []string {
	if b.s.Info().Root == backend.RootReadonly {
		return nil
	}
	return []string{"--root-bytes=4294967296", "--root-files=1048576"}
}
