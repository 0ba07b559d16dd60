// Package custody maintains the records of sandboxes and changes the recorded sandboxes on the engine. The table of
// package owner decides the next state of a sandbox; this package provides the facts for the decision.
package custody

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// TouchEvery is the default interval between a process's records of use.
const TouchEvery = time.Minute

// Kind returns the kind of a scope's keys.
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

// State returns the lifecycle state of a record's sandbox.
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

// used returns the time of a sandbox's last use according to the record. Running calls count as a use.
func used(r record.Record) time.Time {
	if r.Idle > 0 && !r.Expires.IsZero() {
		return r.Expires.Add(-r.Idle)
	}
	return r.LastUsed
}

// Facts returns the facts about a record's sandbox. on is the state of the sandbox on the engine, or empty if the
// engine does not have the sandbox.
func Facts(r record.Record, on backend.State) owner.Facts {
	return owner.Facts{
		State: State(r), Kind: Kind(r.Key.Scope()), Owned: r.Owner != "" || r.State == record.Creating, OnEngine: on != "",
		StopIdle:  r.IdlePolicy == record.IdleStop,
		Retention: r.Retention, Created: r.Created, Used: used(r), Expires: r.Expires,
	}
}

// Due returns the due rule for an ownerless record at time now.
func Due(r record.Record, now time.Time, on backend.State) (owner.Rule, bool) {
	return owner.Due(Facts(r, on), now)
}

// inTransition reports whether a living process with this record is about to release it, because the process is
// creating or removing the sandbox or a part of it. If a sandbox has been unused long enough for a sweep, the owner is
// probably removing it.
func inTransition(r record.Record, now time.Time) bool {
	_, due := Due(r, now, backend.StateRunning)
	state := State(r)
	return due || state != owner.Ready && state != owner.Suspended
}

// Identify returns the engine's description of a sandbox with the key from the record. The labels of a pooled sandbox
// still name the pool after assignment, because labels cannot be changed.
func Identify(r record.Record, engine backend.Info) backend.Info {
	if r.ID == engine.SessionID && IsPooled(engine) {
		engine.Key, engine.Run, engine.Created = r.Key.String(), r.Key.Run(), r.Created
	}
	return engine
}

// IsPooled reports whether a sandbox was created for the pool, according to the labels.
func IsPooled(engine backend.Info) bool {
	key, err := record.ParseKey(engine.Key)
	return err == nil && key.Namespace == record.NamespacePool
}

// SecondaryIdle returns the idle timeout of a sandbox with secondary connections. The timeout is longer because these
// connections record their use only at intervals.
func SecondaryIdle(idle time.Duration) time.Duration {
	if idle < 0 {
		return idle
	}
	return max(idle, 2*TouchEvery)
}

// NoteUse records a use of a sandbox without a session.
func NoteUse(r *record.Record, now time.Time) {
	r.LastUsed, r.Expires = now, time.Time{}
	if idle := SecondaryIdle(r.Idle); idle >= 0 {
		r.Expires = now.Add(idle)
	}
}

// SetWorkspace records the fields needed to use the workspace in another sandbox.
func SetWorkspace(r *record.Record, engine backend.Info) {
	r.User, r.WorkspaceBytes, r.Workspace = engine.User, engine.Limits.WorkspaceBytes, engine.Workspace
}

// Workspace returns the fields recorded by SetWorkspace.
func Workspace(r record.Record) backend.Info {
	return backend.Info{User: r.User, Limits: backend.Limits{WorkspaceBytes: r.WorkspaceBytes}, Workspace: r.Workspace}
}

// Operations are the methods of a session.Manager for package session/admin.
type Operations interface {
	Sweep(ctx context.Context) error
	RemoveScope(ctx context.Context, scope record.Scope) (removed []string, err error)
	Abandoned(ctx context.Context) ([]record.Record, error)
	RemoveAbandoned(ctx context.Context, rec record.Record) error
	// EnvironmentUsed returns when a sandbox last used the environment with the recipe. If unknown, it returns zero.
	EnvironmentUsed(recipe string) time.Time
	Store() record.Store
	// AfterClose calls f with the closed manager's error when the manager is closed, unless stop is called first.
	AfterClose(f func(error)) (stop func() bool)
	// Error wraps an operation's error as the manager's methods do.
	Error(op string, err error) error
}

// Strict is a context key. With a value, List fails if the store fails.
type Strict struct{}

// Of returns the operations of a *session.Manager. Package session sets it.
var Of func(manager any) Operations
