//go:build linux

package local_test

import (
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// BenchmarkOpen takes a sandbox from nothing to the answer of its first command, and removes it outside of the clock.
func BenchmarkOpen(b *testing.B) {
	be := newBackend(b, stateDir(b))
	for b.Loop() {
		t0 := time.Now()
		info, err := be.Create(b.Context(), newSpec())
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		conn := dial(b, be, info.ID)
		run(b, conn, "/bin/true")
		t2 := time.Now()
		b.StopTimer()
		b.Log(t1.Sub(t0), t2.Sub(t1))
		if err := be.Remove(b.Context(), info.ID, backend.RemoveOptions{Volumes: true}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkExec(b *testing.B) {
	be := newBackend(b, stateDir(b))
	conn := dial(b, be, create(b, be, newSpec()).ID)
	for b.Loop() {
		run(b, conn, "/bin/true")
	}
}
