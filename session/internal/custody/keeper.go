package custody

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// StoreTimeout bounds bookkeeping that must not depend on a caller's context.
const StoreTimeout = 30 * time.Second

// Keeper keeps the records of one manager, and changes on the engine what they name. All methods may be called
// concurrently.
type Keeper struct {
	Backend  backend.SandboxBackend
	Store    record.Store
	Owner    string // whose records are the manager's
	Instance string
	Engine   string // name of the engine in the store
	Shared   bool   // other processes of the instance have the same store
	Now      func() time.Time
	Log      *slog.Logger

	mu      sync.Mutex               // guards unsaved; no other lock is taken while it is held
	unsaved map[string]record.Record // what the store did not take, by session id
}

// Unsaved reports whether the store did not take the latest record of a sandbox.
func (k *Keeper) Unsaved(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.unsaved[id]
	return ok
}

// Save updates a record. The store's failure must not keep a sandbox from being closed, so it is logged, and the
// reaper tries again. Only states that hold no key come here, so a late one does no harm. It reports whether the
// sandbox may be another owner's by now. One that was taken for dead is refused for good, one that only may have been
// is not.
func (k *Keeper) Save(rec record.Record) (overtaken bool) {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	err := k.Store.Update(ctx, rec)
	if errors.Is(err, backend.ErrNotFound) {
		err = nil // somebody deleted it: there is nothing to update
	}
	overtaken = errors.Is(err, backend.ErrExists)
	k.mu.Lock()
	if err == nil || overtaken && !errors.Is(err, record.ErrOwnerLost) {
		delete(k.unsaved, rec.ID)
	} else {
		if k.unsaved == nil {
			k.unsaved = map[string]record.Record{}
		}
		k.unsaved[rec.ID] = rec
	}
	k.mu.Unlock()
	if err != nil {
		k.Log.Error("cannot record the state of a sandbox yet", "sandbox", rec.ID, "state", string(rec.State), "error", err)
	}
	return overtaken
}

// SaveClosed updates the record of a sandbox that is gone.
func (k *Keeper) SaveClosed(rec record.Record) {
	rec.State, rec.Expires = record.Closed, k.Now().Add(Lifetimes.Remembered)
	k.Save(rec)
}

// SaveAgain tries to save what the store did not take. Where it refuses one for the sake of the owner, it does all.
func (k *Keeper) SaveAgain() {
	k.mu.Lock()
	unsaved := slices.Collect(maps.Values(k.unsaved))
	k.mu.Unlock()
	for _, rec := range unsaved {
		if k.Save(rec) {
			return
		}
	}
}

// TakenOver reports whether another process made the record of a sandbox its own, as one does that removes all but the
// workspace, or ended it.
func (k *Keeper) TakenOver(id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	rec, err := k.Store.Get(ctx, id)
	removed := rec.State == record.Removing && rec.Reason != string(owner.EngineLost) || rec.State == record.Closed
	return err == nil && (rec.Owner != k.Owner || removed)
}

// NoOwner is the owner of what this manager has no use for any more: itself where no other process knows of it.
func (k *Keeper) NoOwner() string {
	if k.Shared {
		return ""
	}
	return k.Owner
}

// isFree returns ErrInTransition or ErrHeld for a record that a living process has.
func (k *Keeper) isFree(ctx context.Context, rec record.Record) error {
	lives, err := k.Store.Lives(ctx, rec.Owner)
	switch {
	case lives && err == nil && inTransition(rec, k.Now()):
		return ErrInTransition
	case lives && err == nil:
		return ErrHeld
	}
	return err
}

// TakeUnowned makes a record that no living process has this manager's.
func (k *Keeper) TakeUnowned(ctx context.Context, rec record.Record) (record.Record, error) {
	if err := k.isFree(ctx, rec); err != nil {
		return rec, err
	}
	rec, err := k.Store.Take(ctx, rec.ID, rec.Owner, k.Owner)
	if IsOvertaken(err) { // by a sweep, or by a process that opened the key
		err = ErrInTransition
	}
	return rec, err
}

// IsOvertaken reports whether another process was faster at a record: took, removed or made it.
func IsOvertaken(err error) bool {
	return errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) && !errors.Is(err, record.ErrOwnerLost)
}

// Holder returns the live record of a key on this manager's engine, or backend.ErrNotFound.
func (k *Keeper) Holder(ctx context.Context, key record.Key) (record.Record, error) {
	live, err := k.Store.List(ctx, record.Creating, record.Ready)
	if err != nil {
		return record.Record{}, err
	}
	for _, rec := range live {
		if rec.Key == key && rec.Engine == k.Engine {
			if !record.ValidSandboxID(rec.ID) {
				return rec, fmt.Errorf("%w: the record contains an invalid sandbox ID; delete the record", backend.ErrInvalid)
			}
			return rec, nil
		}
	}
	return record.Record{}, ErrNoSandbox
}

// Find returns the one sandbox of this instance with id. Ids of the engine, and beginnings of ids, find nothing. One
// whose key cannot be read comes with errUnreadable: the sandbox exists.
func (k *Keeper) Find(ctx context.Context, id string) (backend.Info, record.Key, error) {
	if !record.ValidSandboxID(id) {
		return backend.Info{}, record.Key{}, ErrNoSandbox
	}
	found, err := k.Backend.List(ctx, backend.Filter{Instance: k.Instance, SessionID: id})
	if err != nil {
		return backend.Info{}, record.Key{}, sanitize.EngineError(err)
	}
	for _, engine := range found {
		if engine.SessionID != id || engine.Instance != k.Instance {
			continue
		}
		if IsPooled(engine) {
			rec, err := k.Store.Get(ctx, id)
			if err != nil && !errors.Is(err, backend.ErrNotFound) {
				return backend.Info{}, record.Key{}, err
			}
			engine = Identify(rec, engine)
		}
		key, err := record.ParseKey(engine.Key)
		if err != nil {
			err = errUnreadable
		}
		return engine, key, err
	}
	return backend.Info{}, record.Key{}, ErrNoSandbox
}

// FindRecorded is Find for a record. Others may write to the store, so the sandbox must have the key of the record.
func (k *Keeper) FindRecorded(ctx context.Context, rec record.Record) (backend.Info, error) {
	engine, key, err := k.Find(ctx, rec.ID)
	if err == nil && key != rec.Key && !IsPooled(engine) { // whose a pooled one is, the record alone says
		err = fmt.Errorf("%w: the record contains the ID of another sandbox; delete the record", backend.ErrInvalid)
	}
	return engine, err
}

// Forged reports whether another user may have created a sandbox: it has no record, and its labels prove nothing.
func (k *Keeper) Forged(ctx context.Context, id string) bool {
	if !k.Backend.Capabilities().Forgeable {
		return false
	}
	_, err := k.Store.Get(ctx, id)
	return err != nil
}

// RecordFound makes records of the sandboxes in a scope that have none: their process had another store, or none. If
// labels can be forged, it only logs them.
func (k *Keeper) RecordFound(ctx context.Context, filter backend.Filter, scope record.Scope) error {
	filter.Instance = k.Instance
	found, err := k.Backend.List(ctx, filter)
	if err != nil {
		return sanitize.EngineError(err)
	}
	for _, engine := range slices.Backward(found) { // the newest first: the others find the key taken
		key, err := record.ParseKey(engine.Key)
		if err != nil || key.Scope() != scope || engine.Instance != k.Instance || !record.ValidSandboxID(engine.SessionID) {
			continue
		}
		if k.Forged(ctx, engine.SessionID) {
			k.Log.WarnContext(ctx, "ignoring a sandbox without a record; remove it if it is not needed",
				"sandbox", engine.SessionID, "key", key.String())
			continue
		}
		if err := k.Store.Insert(ctx, k.recordOf(engine, key)); err != nil && !errors.Is(err, backend.ErrExists) {
			return err
		}
	}
	return nil
}

// recordOf makes the record of a sandbox from its labels. What nobody knows any more is decided for keeping it.
func (k *Keeper) recordOf(engine backend.Info, key record.Key) record.Record {
	now := k.Now()
	rec := record.Record{
		ID: engine.SessionID, Key: key, Engine: k.Engine, EngineID: engine.ID, State: record.Ready,
		Created: engine.Created, LastUsed: now, Idle: -1,
	}
	SetWorkspace(&rec, engine)
	switch {
	case key.Namespace != record.NamespaceUser:
		rec.Idle = Lifetimes.Unrecorded
		rec.Expires = now.Add(rec.Idle)
	case !k.Shared: // this manager is all who will know of it
		rec.Idle = 0
	}
	return rec
}

// LeavesWorkspace reports whether Open finds the workspace of a record without an owner also when the engine has no
// sandbox.
func (k *Keeper) LeavesWorkspace(rec record.Record) bool {
	facts := Facts(rec, "")
	facts.Owned = false
	lost, _ := owner.On(facts, owner.EngineLost)
	return lost.To == owner.WorkspaceOnly && rec.Engine == k.Engine
}

// ErrNoSandbox is the answer for every id that the asker may not know of, whether it exists or not.
var ErrNoSandbox = fmt.Errorf("%w: sandbox not found", backend.ErrNotFound)

// ErrHeld: the key's sandbox belongs to a process that lives.
var ErrHeld error = &sanitize.Error{Text: "the sandbox is open in another process", Err: record.ErrHeld}

// ErrInTransition: a process that lives has the key's sandbox for now, to make or to remove it.
var ErrInTransition error = &sanitize.Error{
	Text: "another process is opening or removing the sandbox", Err: record.ErrHeld,
}

// ErrOvertaken: this process was taken for dead, or may have been, and another one may have the sandbox.
var ErrOvertaken error = &sanitize.Error{
	Text: "not removing the sandbox, which may have another owner by now", Err: backend.ErrExists,
}

// errUnreadable: the engine has a sandbox of that id with damaged labels.
var errUnreadable error = &sanitize.Error{Text: "the engine's data of the sandbox is damaged", Err: backend.ErrLost}
