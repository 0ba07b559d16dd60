package session

import (
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/internal/owner"
)

// What becomes of a sandbox is decided by the table of package owner. Here are the facts for it.

// kind returns what kind of key a sandbox has.
func (s Scope) kind() owner.Kind {
	switch s.Namespace {
	case NamespaceUser:
		return owner.Named
	case NamespaceWorkflow:
		return owner.Run
	case NamespaceAgent, NamespaceMCP:
		return owner.Process
	}
	return owner.Foreign
}

// state returns where a record's sandbox is in its life.
func (r Record) state() owner.State {
	switch {
	case r.State == RecordCreating:
		return owner.Creating
	case r.workspaceOnly():
		return owner.WorkspaceOnly
	case r.State == RecordReady && r.IdlePolicy == IdleStop && r.Owner == "" && r.Expires.IsZero():
		return owner.Suspended
	case r.State == RecordReady:
		return owner.Ready
	case r.State == RecordRemoving && r.Retention > 0:
		return owner.Retained
	case r.State == RecordRemoving:
		return owner.Removing
	}
	return owner.Gone
}

// workspaceOnly reports whether a record is that of a sandbox of which the engine has the workspace alone, or will in a moment.
func (r Record) workspaceOnly() bool { return r.State == RecordReady && r.KeepWorkspace }

// used is when a record's sandbox was last used, calls under way included.
func (r Record) used() time.Time {
	if r.Idle > 0 && !r.Expires.IsZero() {
		return r.Expires.Add(-r.Idle)
	}
	return r.LastUsed
}

// expired reports whether a record's time is over.
func (r Record) expired(now time.Time) bool { return !r.Expires.IsZero() && !r.Expires.After(now) }

// facts returns what the table asks about a record's sandbox; on is its state on the engine, empty when it has none.
func (r Record) facts(on backend.State) owner.Facts {
	return owner.Facts{
		State: r.state(), Kind: r.Key.Scope().kind(), Owned: r.Owner != "" || r.State == RecordCreating, OnEngine: on != "",
		StopIdle:  r.IdlePolicy == IdleStop,
		Retention: r.Retention, Created: r.Created, Used: r.used(), Expires: r.Expires,
	}
}

// due returns what time has brought about by now for a record that belongs to nobody.
func (r Record) due(now time.Time, on backend.State) (owner.Rule, bool) {
	return owner.Due(r.facts(on), lifetimes, now)
}

// inTransition reports whether a living process that has a record is about to let go of it: it makes the sandbox, or removes
// it or a part of it. What nobody has used for so long that a sweep would take it is most likely in the hands of one.
func (r Record) inTransition(now time.Time) bool {
	_, due := r.due(now, backend.StateRunning)
	state := r.state()
	return due || state != owner.Ready && state != owner.Suspended
}

// ReclaimAt returns when the next sweep will have something to do for a record, if no living process has it then: to remove
// its sandbox, or to stop it, unless somebody uses that until then. ok is false when time alone changes nothing, as for what
// never expires, or when sweeps have failed at it for a day.
func (r Record) ReclaimAt(now time.Time) (at time.Time, ok bool) {
	if r.State == RecordClosed { // when its process died the engine may have been about to make it, and be late
		at = r.Created.Add(lifetimes.CreationGrace)
		return at, r.EngineID == "" && at.After(now)
	}
	at, ok = owner.Next(r.facts(""), lifetimes)
	return at, ok && now.Sub(at) < lifetimes.Silent
}

// on returns the state that the sandbox of an open session comes into when something happens to it.
func (s *Session) on(e owner.Event) owner.State {
	rule, _ := owner.On(owner.Facts{
		State: owner.Ready, Kind: s.key.Scope().kind(), Owned: true, StopIdle: s.policy == IdleStop, Retention: s.req.Retention,
		Keep: s.m.keepsFiles(s.engine.Limits, s.engine.Workspace),
	}, e)
	return rule.To
}

// survives reports whether the files of an open session's sandbox are kept if its engine loses it.
func (s *Session) survives() bool { return s.on(owner.EngineLost) != owner.Removing }
