package session

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// An idle named sandbox with IdleStop is suspended: the processes are killed and the files are kept. The record then
// has no owner and does not expire.

// policyField returns the field for a ConflictError if a request specifies a policy other than the existing policy.
func policyField(p, have record.IdlePolicy) []string {
	if p != "" && p != have {
		return []string{"idle policy"}
	}
	return nil
}

// byDefault sets the idle policy of a new sandbox if req has none. Defaults.IdlePolicy applies to named sandboxes whose
// files survive a stop.
func (s *Session) byDefault(req Request, engine backend.Info) {
	named := s.key.Namespace == record.NamespaceUser && s.key.User() == "" && s.m.shared
	if named && req.IdlePolicy == "" && s.idle >= 0 && s.m.keeper.KeepsFiles(engine.Limits, engine.Workspace) {
		s.policy = cmp.Or(s.m.opts.Defaults.IdlePolicy, s.policy)
	}
}

// checkDurable validates the settings of a request for sandboxes with a life beyond this manager.
func (m *Manager) checkDurable(key Key, req Request) error {
	switch req.IdlePolicy {
	case "", record.IdleRemove:
		if req.Mode != OpenRebuild {
			return nil
		}
	case record.IdleStop:
	default:
		return fmt.Errorf("%w: invalid idle policy %q: must be %q or %q",
			backend.ErrInvalid, sanitize.Message(string(req.IdlePolicy)), record.IdleRemove, record.IdleStop)
	}
	what := "idle policy stop"
	if req.Mode == OpenRebuild {
		what = "a rebuild"
	}
	switch {
	case key.Namespace != record.NamespaceUser:
		return fmt.Errorf("%w: %s of sandbox %s: only named sandboxes support it", backend.ErrInvalid, what, key)
	case !m.shared:
		return fmt.Errorf("%w: %s requires a manager with an Instance and a Store", backend.ErrInvalid, what)
	}
	var enforcement backend.Enforcement
	if req.Limits.WorkspaceBytes > 0 { // the driver may need a while to find out
		enforcement = m.b.Capabilities().Workspace
	}
	return m.canStop(req.IdlePolicy, req.Limits, enforcement)
}

// canStop returns an error if a sandbox with these limits does not support the policy. enforcement is the mechanism for
// the workspace limit.
func (m *Manager) canStop(policy record.IdlePolicy, limits backend.Limits, enforcement backend.Enforcement) error {
	if policy != record.IdleStop || m.keeper.KeepsFiles(limits, enforcement) {
		return nil
	}
	return fmt.Errorf("%w: idle policy stop is not supported, because the sandbox loses its files when it stops",
		backend.ErrUnsupported)
}

// extendIdle sets the idle timeout to the longest timeout of all openers. If the sandbox is only suspended when idle,
// an opener without a policy changes nothing. The caller must hold s.mu, or be the only user of s.
func (s *Session) extendIdle(req Request) {
	switch {
	case s.policy == record.IdleStop && req.IdlePolicy == "":
	case s.idle < 0 || req.IdleTimeout < 0:
		s.idle = -1
	default:
		s.idle = max(s.idle, req.IdleTimeout)
	}
}

// follow copies the previous session's idle policy and idle timeout to a session without a caller. req may override
// them.
func (s *Session) follow(rec record.Record, req Request) {
	s.policy, s.idle = cmp.Or(req.IdlePolicy, rec.IdlePolicy, record.IdleRemove), rec.Idle
	s.extendIdle(req)
}

// giveUpLost gives up a lost sandbox with kept files. The next process to open the key starts the sandbox or recreates
// it with the workspace.
func (m *Manager) giveUpLost(s *Session, to owner.State, now time.Time) {
	rec := s.recordAs(record.Ready, s.expiry())
	if to == owner.WorkspaceOnly {
		if s.outlives() || rec.Expires.IsZero() {
			rec.LastUsed, rec.Expires = now, now.Add(max(custody.Lifetimes.Workspace, s.req.Retention))
		}
		rec.KeepWorkspace, rec.Reason = true, string(owner.EngineLost)
	}
	rec.Owner, rec.LastUsed = "", rec.LastUsed.Truncate(time.Microsecond) // stores have microseconds
	ctx, cancel := context.WithTimeout(context.Background(), custody.StoreTimeout)
	defer cancel()
	if m.store.Update(ctx, rec) == nil {
		s.disowned = rec
		return
	}
	m.keeper.Save(rec) // logs the failure, and the reaper tries again
}

// holds reports whether this manager may remove the sandbox of a closing session. If the sandbox was lost and given up,
// holds takes it back, but only if it was not used since. If a use is possible, holds returns false.
func (m *Manager) holds(ctx context.Context, s *Session, to owner.State) (bool, error) {
	switch {
	case !s.owned || s.taken.Load():
		return false, nil
	case !s.wasLost() || !s.survives():
		return true, nil
	case to == owner.Ready || to == owner.Suspended:
		return false, nil
	}
	<-s.lossRecorded // then s.disowned may be read
	from := ""
	if s.disowned.ID == "" {
		from = m.owner // giving it up failed
	}
	rec, err := m.keeper.Take(ctx, record.Record{ID: s.id, Owner: from})
	switch {
	case err == nil && from != "":
		return true, nil
	case custody.IsOvertaken(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("the sandbox was lost but not removed, because another process may own it: %w", err)
	case rec.State == s.disowned.State && rec.EngineID == s.disowned.EngineID && rec.LastUsed.Equal(s.disowned.LastUsed):
		return true, nil
	}
	_, err = m.store.Take(ctx, s.id, m.owner, "")
	return false, err
}

// UsedElsewhere reports whether another process has recorded a use of the sandbox since this process last recorded a
// use. It counts such a use as happening now, because clocks of different processes may differ or may be changed.
func (s *Session) UsedElsewhere(ctx context.Context) bool {
	rec, err := s.m.store.Get(ctx, s.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || rec.LastUsed.UnixMicro() == s.recorded.UnixMicro() { // stores have microseconds
		return false
	}
	s.control.Touch()
	return true
}
