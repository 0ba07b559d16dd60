package containerd_test

import (
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

func BenchmarkBackend(b *testing.B) { backendtest.RunBenchmarks(b, harness(b)) }

// BenchmarkOpen is the time to the answer of a new sandbox's first command.
func BenchmarkOpen(b *testing.B) {
	be := newBackend(b, nil)
	var create, dialed, removed time.Duration
	for b.Loop() {
		start := time.Now()
		info, err := be.Create(b.Context(), newSpec())
		if err != nil {
			b.Fatal(err)
		}
		create += time.Since(start)
		start = time.Now()
		rw, err := be.Dial(b.Context(), info.ID)
		if err != nil {
			b.Fatal(err)
		}
		conn, err := client.New(b.Context(), rw, &client.Options{Fresh: true})
		if err != nil {
			b.Fatal(err)
		}
		run(b, conn, "/bin/true")
		dialed += time.Since(start)
		_ = conn.Close()
		start = time.Now()
		if err := be.Remove(b.Context(), info.ID, backend.RemoveOptions{Volumes: true}); err != nil {
			b.Fatal(err)
		}
		removed += time.Since(start)
	}
	n := float64(b.N) * 1e6
	b.ReportMetric(float64(create)/n, "create-ms")
	b.ReportMetric(float64(dialed)/n, "first-ms")
	b.ReportMetric(float64(removed)/n, "remove-ms")
}

// BenchmarkExec is the time of one command in a sandbox that runs.
func BenchmarkExec(b *testing.B) {
	be := newBackend(b, nil)
	conn := dial(b, be, create(b, be, newSpec()).ID)
	for b.Loop() {
		run(b, conn, "/bin/true")
	}
}
