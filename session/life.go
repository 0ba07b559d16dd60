package session

import (
	"time"

	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// on returns the state that the sandbox of an open session comes into when something happens to it.
func (s *Session) on(e owner.Event) owner.State {
	rule, _ := owner.On(owner.Facts{
		State: owner.Ready, Kind: custody.Kind(s.key.Scope()), Owned: true, StopIdle: s.policy == IdleStop, Retention: s.req.Retention,
		Keep: s.m.keepsFiles(s.engine.Limits, s.engine.Workspace),
	}, e)
	return rule.To
}

// survives reports whether the files of an open session's sandbox are kept if its engine loses it.
func (s *Session) survives() bool { return s.on(owner.EngineLost) != owner.Removing }

// ReclaimAt returns when the next sweep will have something to do for a record, if no living process has it then: to remove
// its sandbox, or to stop it, unless somebody uses that until then. ok is false when time alone changes nothing, as for what
// never expires, or when sweeps have failed at it for a day.
func ReclaimAt(rec record.Record, now time.Time) (at time.Time, ok bool) {
	return custody.ReclaimAt(rec, now)
}
