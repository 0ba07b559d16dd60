package backendtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

// RunBenchmarks measures a driver as users of package session meet it:
//
//	func BenchmarkBackend(b *testing.B) { backendtest.RunBenchmarks(b, harness(b)) }
//
//	go test -run '^$' -bench Backend/Exec ./backend/docker/
//
// Only the Name, New and Debian of the harness are needed. Figures of one machine at one time say little by themselves;
// the program in bench compares engines with their own interfaces in one run.
func RunBenchmarks(b *testing.B, h Harness) {
	b.Helper()
	driver := h.New(b)
	b.Cleanup(func() { must(b, driver.Close()) })
	m, err := session.NewManager(driver, &session.Options{Instance: freshInstance()})
	must(b, err)
	b.Cleanup(func() { must(b, m.Close(context.Background())) })
	w := &workbench{m: m, driver: driver, req: session.Request{Image: h.Debian, Pull: backend.PullNever}}
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
	b.Run("GuestMemory", w.guestMemory)
}

// workbench is a sandbox to measure in.
type workbench struct {
	m      *session.Manager
	driver backend.SandboxBackend
	req    session.Request
	s      *session.Session
}

func (w *workbench) open(b *testing.B) *session.Session {
	b.Helper()
	s, _, err := w.m.Open(b.Context(), session.AgentKey(session.NewRunID(), session.DefaultName), w.req)
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

// guestMemory reports what the guest holds after commands and large files.
func (w *workbench) guestMemory(b *testing.B) {
	for b.Loop() {
		must(b, w.try(b.Context(), w.s))
	}
	res, err := w.s.Exec(b.Context(), session.ExecRequest{Argv: []string{"readlink", "/proc/self/ns/pid"}})
	must(b, err)
	status, err := os.ReadFile("/proc/" + strconv.Itoa(mainProcess(b, string(res.Stdout.Bytes()))) + "/status")
	must(b, err)
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.Atoi(f[1])
			must(b, err)
			b.ReportMetric(float64(kib)/1024, "MiB")
		}
	}
}
