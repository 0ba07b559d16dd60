//go:build linux

package containerd_test

import (
	"math"
	"testing"
	"time"

	cgroupsv1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroupsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// TestUsageOf reads what engines on either version of control groups tell; a test machine has one of them.
func TestUsageOf(t *testing.T) {
	t.Parallel()
	want := backend.Usage{CPU: 1500 * time.Millisecond, MemoryBytes: 4096}
	for name, c := range map[string]struct {
		metrics any
		want    backend.Usage
	}{
		"version 1": {&cgroupsv1.Metrics{
			CPU:    &cgroupsv1.CPUStat{Usage: &cgroupsv1.CPUUsage{Total: 1_500_000_000}},
			Memory: &cgroupsv1.MemoryStat{Usage: &cgroupsv1.MemoryEntry{Usage: 4096}},
		}, want},
		"version 2": {&cgroupsv2.Metrics{CPU: &cgroupsv2.CPUStat{UsageUsec: 1_500_000}, Memory: &cgroupsv2.MemoryStat{Usage: 4096}}, want},
		"absurd":    {&cgroupsv2.Metrics{CPU: &cgroupsv2.CPUStat{UsageUsec: math.MaxUint64}}, backend.Usage{CPU: 1 << 62 / 1000 * 1000}},
		"nothing":   {&cgroupsv1.Metrics{}, backend.Usage{}},
		"unknown":   {"?", backend.Usage{}},
	} {
		if got := containerd.UsageOf(c.metrics); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
