package session

import (
	"cmp"
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Stats is what a sandbox uses now, as far as it is known.
type Stats struct {
	Uptime      time.Duration // of its main process
	Running     int           // commands under way
	CPU         time.Duration // used since it was started; zero is unknown
	MemoryBytes int64         // with the pages of files in memory; zero is unknown
	PIDs        int64         // processes and threads; zero is unknown
	// WorkspaceBytes is the size of the files below the work directory, WorkspaceMore that there are more files than
	// were counted.
	WorkspaceBytes int64
	WorkspaceMore  bool
}

// Stats asks what the sandbox uses. The question does not count as use: an idle session stays idle. What the engine does
// not report is the guest's answer, which is untrusted.
func (s *Session) Stats(ctx context.Context) (st Stats, err error) {
	defer func() { err = wrapError("Stats", s.m.driver, s.id, err) }()
	if s.isClosing() {
		return Stats{}, errSessionClosed
	}
	conn, err := s.connection(ctx)
	if err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	h, err := conn.Health(ctx)
	if err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	st = Stats{
		Uptime: max(0, time.Duration(h.UptimeMillis)*time.Millisecond), Running: max(0, h.Running),
		MemoryBytes: max(0, h.MemoryUsed), PIDs: max(0, h.PIDsUsed),
	}
	if err := st.countFiles(ctx, conn); err != nil {
		return Stats{}, s.explain(ctx, err)
	}
	if r := s.m.usageReporter(); r != nil {
		usage, err := r.Usage(ctx, s.engine.ID)
		if err != nil {
			return Stats{}, s.explain(ctx, engineError(err))
		}
		st.CPU, st.MemoryBytes = usage.CPU, cmp.Or(st.MemoryBytes, usage.MemoryBytes)
	}
	return st, nil
}

// countFiles adds up the sizes of the files below the work directory.
func (st *Stats) countFiles(ctx context.Context, conn *client.Conn) error {
	list, err := conn.List(ctx, wire.ListRequest{Path: ".", Recursive: true, Limit: MaxListEntries})
	if err != nil {
		return err
	}
	for _, e := range list.Entries {
		if info := fileInfo(e); info.Type == TypeFile {
			st.WorkspaceBytes += max(0, info.Size)
		}
	}
	st.WorkspaceMore = list.Truncated
	return nil
}

// usageReporter finds the driver's, behind wrappers; nil when the engine cannot be asked.
func (m *Manager) usageReporter() backend.UsageReporter {
	for b := m.b; b != nil; {
		if r, ok := b.(backend.UsageReporter); ok {
			return r
		}
		w, ok := b.(interface{ Unwrap() backend.SandboxBackend })
		if !ok {
			return nil
		}
		b = w.Unwrap()
	}
	return nil
}
