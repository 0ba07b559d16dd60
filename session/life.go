package session

import (
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// on returns the next state of an open session's sandbox after an event.
func (s *Session) on(e owner.Event) owner.State {
	rule, _ := owner.On(owner.Facts{
		State: owner.Ready, Kind: custody.Kind(s.key.Scope()), Owned: true, StopIdle: s.policy == record.IdleStop,
		Retention: s.req.Retention, Keep: s.m.keeper.KeepsFiles(s.engine.Limits, s.engine.Workspace),
	}, e)
	return rule.To
}

// survives reports whether the sandbox's files are kept if the engine loses the sandbox.
func (s *Session) survives() bool { return s.on(owner.EngineLost) != owner.Removing }

// outlives reports whether lost files are kept beyond the idle timeout, because another process may open the key.
func (s *Session) outlives() bool { return custody.Kind(s.key.Scope())&(owner.Named|owner.Run) != 0 }
