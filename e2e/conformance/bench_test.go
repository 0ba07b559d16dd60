package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

// BenchmarkSession measures engines as users of package session meet them:
//
//	go test -run '^$' -bench Session/docker/Exec ./e2e/conformance
//
// Figures of one machine at one time say little by themselves; the program in e2e/bench compares engines with their own
// interfaces in one run.
func BenchmarkSession(b *testing.B) {
	for _, name := range engineNames() {
		b.Run(name, func(b *testing.B) { benchmark(b, engineOf(name, privateDir(b))) })
	}
}

func benchmark(b *testing.B, e engine) {
	w := &workbench{m: manager(b, e.connect(b), session.Options{})}
	w.s = w.open(b)
	b.Run("Exec", w.exec)
	b.Run("Exec16", w.exec16)
	b.Run("Open", w.openToAnswer)
	for _, file := range []struct {
		name string
		size int
	}{{"1KiB", 1 << 10}, {"100MiB", 100 << 20}} {
		data := sessiontest.Noise(file.size)
		b.Run("Write"+file.name, func(b *testing.B) { w.write(b, data) })
		b.Run("Read"+file.name, func(b *testing.B) { w.read(b, data) })
	}
}

// workbench is a sandbox to measure in.
type workbench struct {
	m *session.Manager
	s *session.Session
}

func (w *workbench) open(b *testing.B) *session.Session {
	b.Helper()
	s, _, err := w.m.Open(b.Context(), session.AgentKey(session.NewRunID(), session.DefaultName), request())
	must(b, err)
	return s
}

func (w *workbench) try(ctx context.Context, s *session.Session) error {
	res, err := s.Exec(ctx, session.ExecRequest{Argv: []string{"/bin/true"}})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("/bin/true exited with %d", res.ExitCode)
	}
	return err
}

// median reports the median of durations, which says more of a shared machine than their mean.
func median(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

func (w *workbench) exec(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		must(b, w.try(b.Context(), w.s))
		took = append(took, time.Since(begin))
	}
	median(b, took)
}

// exec16 has 16 callers at a time, or the next multiple of the processors.
func (w *workbench) exec16(b *testing.B) {
	b.SetParallelism(max(1, 16/max(1, runtime.GOMAXPROCS(0))))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := w.try(b.Context(), w.s); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// openToAnswer goes from nothing to the answer of a first command; the removal is not counted.
func (w *workbench) openToAnswer(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		s := w.open(b)
		must(b, w.try(b.Context(), s))
		took = append(took, time.Since(begin))
		b.StopTimer()
		must(b, s.Close(b.Context()))
		b.StartTimer()
	}
	median(b, took)
}

func (w *workbench) write(b *testing.B, data []byte) {
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, err := w.s.WriteFile(b.Context(), "bench", bytes.NewReader(data), session.WriteFileOptions{Overwrite: true, Size: int64(len(data))})
		must(b, err)
	}
}

func (w *workbench) read(b *testing.B, data []byte) {
	_, err := w.s.WriteFile(b.Context(), "bench", bytes.NewReader(data), session.WriteFileOptions{Overwrite: true, Size: int64(len(data))})
	must(b, err)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		_, err := w.s.ReadFile(b.Context(), "bench", io.Discard, session.ReadFileOptions{})
		must(b, err)
	}
}
