//go:build linux

package session_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/session"
)

// BenchmarkDocker measures what a session costs on the real engine.
func BenchmarkDocker(b *testing.B) {
	driver, err := docker.New(b.Context(), nil)
	must(b, err)
	b.Cleanup(func() { must(b, driver.Close()) })
	m := newManager(b, driver, &session.Options{Instance: "session-bench-" + session.NewID()})
	s, _, err := m.Open(b.Context(), session.WorkflowKey("run_1", "default"), dockerRequest())
	must(b, err)
	req := session.ExecRequest{Argv: []string{"/bin/true"}}
	b.Run("Exec", func(b *testing.B) {
		for b.Loop() {
			_, err := s.Exec(b.Context(), req)
			must(b, err)
		}
	})
	b.Run("Exec16", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := s.Exec(b.Context(), req); err != nil {
					b.Error(err)
				}
			}
		})
	})
	for name, size := range map[string]int{"1KiB": 1 << 10, "100MiB": 100 << 20} {
		data := noise(size)
		b.Run("WriteFile"+name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				_, err := s.WriteFile(b.Context(), "bench", bytes.NewReader(data), session.WriteFileOptions{Overwrite: true, Size: int64(size)})
				must(b, err)
			}
		})
		b.Run("ReadFile"+name, func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				_, err := s.ReadFile(b.Context(), "bench", io.Discard, session.ReadFileOptions{})
				must(b, err)
			}
		})
	}
}
