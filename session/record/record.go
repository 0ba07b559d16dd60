// Package record names sandboxes and stores their owners and states, to keep this information when a process exits. The
// processes of an installation share one [Store]. Packages sqlite and postgres implement it.
package record

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// State is the state of a recorded sandbox.
type State string

// States of records. Records in states Creating and Ready are live: they occupy their key.
const (
	Creating State = "creating" // the engine may or may not have it yet
	Ready    State = "ready"
	Removing State = "removing" // to be removed at Expires, or lost; the engine may still have it
	Closed   State = "closed"   // removed; the id is remembered
)

// Live reports whether a record in this state occupies the key.
func (s State) Live() bool { return s == Creating || s == Ready }

// IdlePolicy is the action for a sandbox whose idle timeout has passed.
type IdlePolicy string

// Idle policies.
const (
	IdleRemove IdlePolicy = "remove" // remove the sandbox and the workspace
	IdleStop   IdlePolicy = "stop"   // stop the processes and keep the files; Open and Connect start it again
)

// Record is the stored state of one sandbox in addition to the labels on the engine. It contains no values of
// environment variables and no secrets.
type Record struct {
	ID       string // session id
	Key      Key
	Engine   string // Options.Engine of the creating manager
	EngineID string // empty while the sandbox is being created
	Owner    string // owner id; if empty or of a dead owner, the sandbox has no owner
	Request  string // creating request, as JSON; empty if only the engine's description is known
	State    State
	Created  time.Time
	LastUsed time.Time
	Expires  time.Time // expiry time, or removal time in state Removing; zero means never
	// Idle is the idle timeout. A negative value means no timeout.
	Idle       time.Duration
	IdlePolicy IdlePolicy    // if empty, IdleRemove
	Retention  time.Duration // Request.Retention
	// KeepWorkspace in state Ready means a workspace kept for the next opener of the key even if the engine does not
	// have the sandbox. The sandbox is being rebuilt (OpenRebuild), was removed without the workspace
	// (CloseOptions.KeepWorkspace), or was lost by the engine.
	KeepWorkspace bool
	// Reason is the reason why the sandbox is not ready: "removed" (on request), "idle", "run ended" (ended or closed),
	// "owner died", or "engine lost". For a ready sandbox, it is empty.
	Reason string `json:",omitempty"`
	// Ended reports a session closed by the owner. Manager.Gone does not report such a sandbox.
	Ended bool
	// User, WorkspaceBytes, and Workspace are the sandbox's values from backend.Info. Another sandbox with the same
	// workspace must have the same values. They are empty while the sandbox is being created.
	User           string
	WorkspaceBytes int64
	Workspace      backend.Enforcement
}

// Compare orders records by Created, then ID.
func (r Record) Compare(other Record) int {
	return cmp.Or(r.Created.Compare(other.Created), strings.Compare(r.ID, other.ID))
}

// WorkspaceOnly reports whether the engine has only the workspace of the record's sandbox, or soon will.
func (r Record) WorkspaceOnly() bool { return r.State == Ready && r.KeepWorkspace }

// Expired reports whether the record has expired.
func (r Record) Expired(now time.Time) bool { return !r.Expires.IsZero() && !r.Expires.After(now) }

// Update replaces r, a stored record, by rec according to the rules of Store.Update. It does not know other records.
func (r *Record) Update(rec Record) error {
	if rec.State.Live() && r.State == Closed {
		return fmt.Errorf("%w: sandbox %s has ended", backend.ErrExists, rec.ID)
	}
	*r = rec
	return nil
}

// Take changes the owner of r, a stored record, according to the rules of Store.Take.
func (r *Record) Take(from, to string) error {
	if r.Owner != from {
		return fmt.Errorf("%w: sandbox %s has another owner", backend.ErrExists, r.ID)
	}
	r.Owner = to
	return nil
}

// Touch records a use of r, a stored record, according to the rules of Store.Touch.
func (r *Record) Touch(lastUsed, expires time.Time) error {
	if !r.State.Live() {
		return NotFound(r.ID)
	}
	if !lastUsed.Before(r.LastUsed) { // else another process has recorded a later use
		r.LastUsed, r.Expires = lastUsed, expires
	}
	return nil
}

// NotFound returns a store's error for an id without a record.
func NotFound(id string) error {
	return fmt.Errorf("%w: record of sandbox %s", backend.ErrNotFound, id)
}

// ErrHeld is the error if another process has a key's sandbox, or may have it by now. It wraps backend.ErrExists.
var ErrHeld = sanitize.NewError("another process is using the sandbox", backend.ErrExists)

// ErrOwnerLost means that a store refuses a change because other processes treat an owner of this process as dead, or
// may do so.
var ErrOwnerLost = sanitize.NewError("another process may own the sandbox by now", ErrHeld)

// Store stores records. It must be safe for concurrent use. Times may lose their monotonic reading and precision below
// a microsecond. Package storetest contains the tests that every implementation must pass.
type Store interface {
	// Join must create a new owner. The owner lives until leave is called or the process exits in any way. leave may be
	// called twice.
	Join(ctx context.Context) (owner string, leave func() error, err error)
	// Lives must report whether an owner is alive. The result must be reliable: other processes never touch the sandboxes
	// of a living owner, and any process may take the sandboxes of a dead owner. The empty owner is never alive.
	Lives(ctx context.Context, owner string) (bool, error)

	// If owners live by leases, the store must refuse every change with ErrOwnerLost after one of this process's owners
	// was treated as dead. It must also refuse changes while that is possible because the server cannot be reached.

	// Insert must add rec. If the id exists or a live record has the same key and engine, Insert must return an error
	// wrapping backend.ErrExists. Therefore two processes cannot both create the sandbox of one key.
	Insert(ctx context.Context, rec Record) error
	// Update must replace the record with rec.ID. If no such record exists, the error must wrap backend.ErrNotFound. If
	// rec is live and the stored record is closed, the update is late, and the error must wrap backend.ErrExists. The same
	// applies if another live record has the same key and engine.
	Update(ctx context.Context, rec Record) error
	// If the record's owner is from, Take must make to the owner and return the changed record. If the record does not
	// exist, the error must wrap backend.ErrNotFound. If the owner of the record is not from, the error must wrap
	// backend.ErrExists. Of several concurrent calls, only one may succeed.
	Take(ctx context.Context, id, from, to string) (Record, error)
	// Touch must set LastUsed and Expires of a live record, unless the record's LastUsed is later. Without a live record,
	// the error must wrap backend.ErrNotFound.
	Touch(ctx context.Context, id string, lastUsed, expires time.Time) error
	// Get must return the record. If it does not exist, the error must wrap backend.ErrNotFound.
	Get(ctx context.Context, id string) (Record, error)
	// List must return the records in one of the states in the order of Record.Compare. Without states, it must return all
	// records.
	List(ctx context.Context, states ...State) ([]Record, error)
	// Delete must delete a record. If the id is unknown, Delete must do nothing.
	Delete(ctx context.Context, id string) error
}
