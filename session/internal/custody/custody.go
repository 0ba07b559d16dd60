// Package custody keeps records of sandboxes and changes on the engine what they name. The table of package owner
// decides what happens to a sandbox; this package provides its facts.
package custody

import (
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Lifetimes are how long what is left of a sandbox stays.
var Lifetimes = owner.Lifetimes()

// TouchEvery is the default time between two rounds in which a process notes its use of sandboxes.
const TouchEvery = time.Minute

// Kind returns what kind of keys a scope has.
func Kind(s record.Scope) owner.Kind {
	switch s.Namespace {
	case record.NamespaceUser:
		return owner.Named
	case record.NamespaceWorkflow:
		return owner.Run
	case record.NamespaceAgent, record.NamespaceMCP:
		return owner.Process
	}
	return owner.Foreign
}

// State returns where a record's sandbox is in its life.
func State(r record.Record) owner.State {
	switch {
	case r.State == record.Creating:
		return owner.Creating
	case r.WorkspaceOnly():
		return owner.WorkspaceOnly
	case r.State == record.Ready && r.IdlePolicy == record.IdleStop && r.Owner == "" && r.Expires.IsZero():
		return owner.Suspended
	case r.State == record.Ready:
		return owner.Ready
	case r.State == record.Removing && r.Retention > 0:
		return owner.Retained
	case r.State == record.Removing:
		return owner.Removing
	}
	return owner.Gone
}

// used is when a record's sandbox was last used, calls under way included.
func used(r record.Record) time.Time {
	if r.Idle > 0 && !r.Expires.IsZero() {
		return r.Expires.Add(-r.Idle)
	}
	return r.LastUsed
}

// Facts returns what the table asks about a record's sandbox; on is its state on the engine, empty when it has none.
func Facts(r record.Record, on backend.State) owner.Facts {
	return owner.Facts{
		State: State(r), Kind: Kind(r.Key.Scope()), Owned: r.Owner != "" || r.State == record.Creating, OnEngine: on != "",
		StopIdle:  r.IdlePolicy == record.IdleStop,
		Retention: r.Retention, Created: r.Created, Used: used(r), Expires: r.Expires,
	}
}

// Due returns what time has brought about by now for a record that belongs to nobody.
func Due(r record.Record, now time.Time, on backend.State) (owner.Rule, bool) {
	return owner.Due(Facts(r, on), Lifetimes, now)
}

// inTransition reports whether a living process that has a record is about to let go of it: it makes the sandbox, or
// removes it or a part of it. What nobody has used for so long that a sweep would take it is most likely in the hands
// of one.
func inTransition(r record.Record, now time.Time) bool {
	_, due := Due(r, now, backend.StateRunning)
	state := State(r)
	return due || state != owner.Ready && state != owner.Suspended
}

// Identify returns what the engine says of a sandbox with whose it is by its record. The engine's labels cannot be
// changed: of one that was ready they say that it belongs to nobody.
func Identify(r record.Record, engine backend.Info) backend.Info {
	if r.ID == engine.SessionID && IsPooled(engine) {
		engine.Key, engine.Run, engine.Created = r.Key.String(), r.Key.Run(), r.Created
	}
	return engine
}

// IsPooled reports whether a sandbox was made for nobody, by its labels.
func IsPooled(engine backend.Info) bool {
	key, err := record.ParseKey(engine.Key)
	return err == nil && key.Namespace == record.NamespacePool
}

// SecondaryIdle is how long a sandbox with secondary connections may be idle: those record their use only once in a
// while.
func SecondaryIdle(rec record.Record) time.Duration {
	if rec.Idle < 0 {
		return rec.Idle
	}
	return max(rec.Idle, 2*TouchEvery)
}

// NoteUse counts as a use of a sandbox that belongs to no session.
func NoteUse(r *record.Record, now time.Time) {
	r.LastUsed, r.Expires = now, time.Time{}
	if idle := SecondaryIdle(*r); idle >= 0 {
		r.Expires = now.Add(idle)
	}
}

// SetWorkspace notes what a sandbox with the same workspace must have, too.
func SetWorkspace(r *record.Record, engine backend.Info) {
	r.User, r.WorkspaceBytes, r.Workspace = engine.User, engine.Limits.WorkspaceBytes, engine.Workspace
}

// Workspace returns what SetWorkspace noted.
func Workspace(r record.Record) backend.Info {
	return backend.Info{User: r.User, Limits: backend.Limits{WorkspaceBytes: r.WorkspaceBytes}, Workspace: r.Workspace}
}
