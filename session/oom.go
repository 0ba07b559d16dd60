package session

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Bounds of the question whether a kill was for lack of memory.
const (
	oomAskTimeout = 3 * time.Second
	// oomShared is how long after a rise of the engine's count another killed command may belong to it: one shortage
	// of memory often ends several commands.
	oomShared = 2 * time.Second
	// maxAge bounds what a guest may report as an age.
	maxAge = 100 * 365 * 24 * time.Hour
	// killedExit is what shells exit with when their child was ended by SIGKILL.
	killedExit = 128 + 9
)

// execStatus converts a status. began is a time before the command's last known state, to tell OOM kills apart.
func (s *Session) execStatus(ctx context.Context, id string, w wire.ExecStatus, began time.Time) ExecStatus {
	st := guestStatus(w)
	st.ExecID = id
	if st.Status == ExecCompleted && wasKilled(st) && !s.guestCounts(ctx) && s.oomKilled(ctx, began) {
		st.Status = ExecOOMKilled
	}
	return st
}

// guestStatus converts what the guest alone knows of a command.
func guestStatus(w wire.ExecStatus) ExecStatus {
	st := ExecStatus{
		ExecID: w.ExecID, Status: ExecState(w.State), ExitCode: w.ExitCode, Signal: cleanSignal(w.Signal),
		Duration:    time.Duration(w.DurationMicros) * time.Microsecond,
		StdoutBytes: w.StdoutBytes, StderrBytes: w.StderrBytes, PeakRSSBytes: w.PeakRSSBytes, Leaked: w.Leaked,
		QuotaExceeded: w.QuotaExceeded, QuotaOutside: w.QuotaExceeded && w.QuotaOutside, Terminal: w.Terminal,
	}
	if w.EndedMillis > 0 || st.Status == ExecRunning {
		st.Age = st.Duration + time.Duration(min(w.EndedMillis, maxAge.Milliseconds()))*time.Millisecond
	}
	if st.Status == ExecCompleted && wasKilled(st) && w.OOMKills > 0 {
		st.Status = ExecOOMKilled
	}
	return st
}

// wasKilled reports whether a command ended as the kernel ends one that has no memory, or with a shell's exit code for that.
func wasKilled(st ExecStatus) bool {
	return st.Signal == "SIGKILL" || st.Signal == "" && st.ExitCode == killedExit
}

// guestCounts reports whether the guest sees its control group, and so the kernel's own count of OOM kills. Then its word
// holds; engines learn late of a kill and forget early.
func (s *Session) guestCounts(ctx context.Context) bool {
	s.mu.Lock()
	known := s.counts
	s.mu.Unlock()
	if known != nil {
		return *known
	}
	ctx, cancel := context.WithTimeout(ctx, oomAskTimeout)
	defer cancel()
	conn, err := s.connection(ctx)
	if err != nil {
		return false
	}
	health, err := conn.Health(ctx)
	if err != nil {
		return false
	}
	counts := health.MemoryUsed > 0
	s.mu.Lock()
	s.counts = &counts
	s.mu.Unlock()
	return counts
}

// oomKilled reports whether the engine counted an OOM kill in the sandbox since the last look, or just before. A command
// that ends by SIGKILL is no proof: anybody may send it.
func (s *Session) oomKilled(ctx context.Context, began time.Time) bool {
	reporter, ok := s.m.b.(backend.OOMReporter)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, oomAskTimeout)
	defer cancel()
	count, err := reporter.OOMKills(ctx, s.engine.ID)
	if err != nil {
		s.m.log.WarnContext(ctx, "cannot tell whether a command ran out of memory", "sandbox", s.id, "error", err)
		return false
	}
	now := s.m.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.oomSeen < 0 { // what was counted before is of no use
		s.oomSeen = count
		return false
	}
	if count > s.oomSeen {
		s.oomSeen, s.oomRise = count, now
		return true
	}
	return !s.oomRise.IsZero() && now.Sub(s.oomRise) < oomShared && s.oomRise.After(began)
}
