// Package record names sandboxes and stores their owners and states, so that they survive the process that opened
// them. The processes of an installation share one [Store]. Packages sqlite and postgres implement it.
package record

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// State is the state of a recorded sandbox.
type State string

// States of records. Creating and ready records are live: they hold their key.
const (
	Creating State = "creating" // the engine may or may not have it yet
	Ready    State = "ready"
	Removing State = "removing" // to be removed at Expires, or lost; the engine may still have it
	Closed   State = "closed"   // gone, its id is remembered
)

// Live reports whether a record in that state holds its key.
func (s State) Live() bool { return s == Creating || s == Ready }

// IdlePolicy is what becomes of a sandbox that was idle for its idle timeout.
type IdlePolicy string

// Idle policies.
const (
	IdleRemove IdlePolicy = "remove" // it is removed with its workspace
	IdleStop   IdlePolicy = "stop"   // its processes end and its files stay; Open and Connect start it again
)

// Record is what is kept of one sandbox besides the labels on the engine. It holds no value of a variable and no
// secret.
type Record struct {
	ID       string // session id
	Key      Key
	Engine   string // Options.Engine of the manager that made it
	EngineID string // empty while creating
	Owner    string // who has it; nobody has what belongs to no owner or to one that died
	Request  string // what it was made for, as JSON; empty when only the engine's description of it is known
	State    State
	Created  time.Time
	LastUsed time.Time
	Expires  time.Time // when it may be reaped, or removed in Removing; zero is never
	// Idle is how long it may be idle; negative is for ever.
	Idle       time.Duration
	IdlePolicy IdlePolicy    // empty is IdleRemove
	Retention  time.Duration // Request.Retention
	// KeepWorkspace in Ready: when the engine has no such sandbox, its workspace is kept for the next opener of the
	// key. The sandbox is being rebuilt (OpenRebuild), was removed without its workspace
	// (CloseOptions.KeepWorkspace), or was lost by its engine.
	KeepWorkspace bool
	// Reason is why the sandbox is not ready any more: "removed" by hand, "idle", "run ended", by itself or closed,
	// "owner died", "engine lost". It is empty for one that is.
	Reason string `json:",omitempty"`
	// Ended: the session was closed by who had it, so that nobody misses its files (Manager.Gone).
	Ended bool
	// User, WorkspaceBytes and Workspace are the sandbox's (backend.Info), which no other sandbox with its workspace
	// may have otherwise. All are empty while it is made.
	User           string
	WorkspaceBytes int64
	Workspace      backend.Enforcement
}

// Compare orders records by Created, then ID.
func (r Record) Compare(other Record) int {
	return cmp.Or(r.Created.Compare(other.Created), strings.Compare(r.ID, other.ID))
}

// WorkspaceOnly reports whether the engine has only the workspace of the record's sandbox, or will in a moment.
func (r Record) WorkspaceOnly() bool { return r.State == Ready && r.KeepWorkspace }

// Expired reports whether the record's time is over.
func (r Record) Expired(now time.Time) bool { return !r.Expires.IsZero() && !r.Expires.After(now) }

// ErrHeld means that another process has a key's sandbox, or may have it by now. It wraps backend.ErrExists.
var ErrHeld error = &sanitize.Error{Text: "another process is using the sandbox", Err: backend.ErrExists}

// ErrOwnerLost means that a store refuses a change because an owner of this process was taken for dead, or may have
// been.
var ErrOwnerLost error = &sanitize.Error{Text: "another process may own the sandbox by now", Err: ErrHeld}

// Store keeps records. All methods may be called concurrently. Times may lose their monotonic part and precision
// below a microsecond. Package storetest holds the suite that every implementation must pass.
type Store interface {
	// Join must make a new owner. It lives until leave is called, which may be done twice, or the process ends, however
	// that happens.
	Join(ctx context.Context) (owner string, leave func() error, err error)
	// Lives must report whether an owner lives. It must be sure: what a living one has is never touched by others,
	// and what it had is free for all when it is dead. The empty owner never lives.
	Lives(ctx context.Context, owner string) (bool, error)

	// A store whose owners live by leases must refuse every change, with ErrOwnerLost, once one of its own owners was
	// taken for dead, and while that is possible because it cannot be asked.

	// Insert must add rec. It must fail with backend.ErrExists when the id is known or a live record holds the key on the
	// same engine, so that two processes cannot both make the sandbox of one key.
	Insert(ctx context.Context, rec Record) error
	// Update must replace the record with rec.ID; backend.ErrNotFound when there is none. A live rec must fail with
	// backend.ErrExists when the record is closed, because its update is late, and when another live record
	// holds the key on the same engine.
	Update(ctx context.Context, rec Record) error
	// Take must pass the record of owner from to owner to and return it as it is then; backend.ErrNotFound
	// when there is none, backend.ErrExists when it does not belong to from. Of several that take a record at once, one
	// gets it.
	Take(ctx context.Context, id, from, to string) (Record, error)
	// Touch must set LastUsed and Expires of a live record; backend.ErrNotFound when there is none.
	Touch(ctx context.Context, id string, lastUsed, expires time.Time) error
	// Get must return the record, or backend.ErrNotFound.
	Get(ctx context.Context, id string) (Record, error)
	// List must return the records in one of states (all when none is given), in the order of Record.Compare.
	List(ctx context.Context, states ...State) ([]Record, error)
	// Delete must forget a record; an unknown id is no error.
	Delete(ctx context.Context, id string) error
}
