package sandbox

import (
	"math"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestLimitIsNamed verifies that a result names each limit that was reached, with its value.
func TestLimitIsNamed(t *testing.T) {
	t.Parallel()
	limits := backend.Limits{MemoryBytes: 256 << 20, PIDs: 64, WorkspaceBytes: 500 << 20, FileBytes: 4096}
	limits.ShmBytes = 64 << 20
	s := &Sandbox{engine: backend.Info{Limits: limits, RootBytes: 8 << 20}}
	for want, w := range map[string]wire.ExecStatus{
		"": {ExitCode: 1},
		"memory limit of 256 MiB reached (processes killed: 2)":                       {OOMKills: 2},
		"limit of 64 processes and threads reached (not started: 3)":                  {ForksDenied: 3},
		"workspace limit of 500 MiB reached":                                          {QuotaExceeded: true},
		"limit of 8 MiB for files outside /workspace reached":                         {QuotaExceeded: true, QuotaOutside: true},
		"file size limit of 4096 bytes reached":                                       {Signal: "SIGXFSZ"},
		"/tmp is full (256 MiB); /dev/shm is full (64 MiB)":                           {TmpFull: 256 << 20, ShmFull: 64 << 20},
		"/dev/shm is full (32 MiB)":                                                   {ShmFull: 32 << 20, ExitCode: 135},
		"SIGBUS: perhaps /dev/shm was full (64 MiB)":                                  {ExitCode: 135},
		"memory limit of 256 MiB reached (processes killed: 1); /tmp is full (1 MiB)": {OOMKills: 1, TmpFull: 1 << 20},
	} {
		if got := s.execStatus(w).Limit; got != want {
			t.Errorf("%+v: %q, want %q", w, got, want)
		}
	}
}

// TestHugeDuration verifies that a guest's durations do not overflow.
func TestHugeDuration(t *testing.T) {
	t.Parallel()
	w := wire.ExecStatus{DurationMicros: math.MaxInt64, EndedMillis: math.MaxInt64}
	if got := (&Sandbox{}).execStatus(w); got.Duration != maxAge || got.Age != 2*maxAge {
		t.Errorf("duration %v, age %v", got.Duration, got.Age)
	}
}

// TestTransferTime verifies that files above the default limit have time for the transfer.
func TestTransferTime(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]time.Duration{DefaultMaxFileBytes: 18 * time.Minute, 3.6e9: time.Hour} {
		if got := transferTime(size); got != want {
			t.Errorf("%d bytes: %v, want %v", size, got, want)
		}
	}
	if got := transferTime(math.MaxInt64); got < time.Hour {
		t.Errorf("without a limit: %v", got)
	}
}
