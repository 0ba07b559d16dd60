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

// StoreTimeout is the timeout of store calls without a caller's context.
const StoreTimeout = 30 * time.Second

// Keeper maintains the records of one manager and changes the recorded sandboxes on the engine. It is safe for
// concurrent use.
type Keeper struct {
	Backend  backend.SandboxBackend
	Store    record.Store
	Owner    string // owner id in the manager's records
	Instance string
	Engine   string // name of the engine in the store
	Shared   bool   // other processes of the instance use the same store
	Now      func() time.Time
	Open     func(id string) bool // the manager has an open session of the sandbox, which is not lost
	Log      *slog.Logger

	mu      sync.Mutex               // guards the maps; no other lock is taken while it is held
	unsaved map[string]record.Record // unwritten records, by session id
	working map[string]bool          // ids of taken records until Done
	unsure  map[string]time.Time     // when an Insert or Take failed with an unknown result, by session id
}

// Unsaved reports whether the latest record of a sandbox could not be written.
func (k *Keeper) Unsaved(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.unsaved[id]
	return ok
}

// Save updates a record. If the store fails, Save logs the failure and the reaper tries again, because the sandbox must
// still be closed. A late update does no harm, because the store refuses to make a closed record live again. overtaken
// reports whether the sandbox may have another owner by now. Then Save discards the record, except if the store only
// reports ErrOwnerLost.
func (k *Keeper) Save(rec record.Record) (overtaken bool) {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	return k.save(ctx, rec, false)
}

// save implements Save. If again is true, rec was unsaved, and a newer record replaces it.
func (k *Keeper) save(ctx context.Context, rec record.Record, again bool) (overtaken bool) {
	err := k.Store.Update(ctx, rec)
	if errors.Is(err, backend.ErrNotFound) {
		err = nil // another process deleted it, so nothing needs to be updated
	}
	overtaken = errors.Is(err, backend.ErrExists)
	k.mu.Lock()
	switch {
	case again && k.unsaved[rec.ID] != rec:
	case err == nil || overtaken && !errors.Is(err, record.ErrOwnerLost):
		delete(k.unsaved, rec.ID)
	default:
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

// SaveClosed updates the record of a removed sandbox.
func (k *Keeper) SaveClosed(rec record.Record) {
	rec.State, rec.Expires = record.Closed, k.Now().Add(Lifetimes.Remembered)
	if missed(rec) {
		rec.Expires = k.Now().Add(Lifetimes.Missed)
	}
	k.Save(rec)
}

// missed reports whether Gone must report a removed sandbox when its run is resumed.
func missed(rec record.Record) bool {
	return !rec.Ended && rec.Key.Namespace == record.NamespaceWorkflow && rec.EngineID != ""
}

// SaveAgain retries the unwritten records and gives up unused ones, at most for StoreTimeout. It stops if the store
// refuses one because of the owner, because the store would refuse all of them.
func (k *Keeper) SaveAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	k.mu.Lock()
	unsaved, unsure := slices.Collect(maps.Values(k.unsaved)), slices.Collect(maps.Keys(k.unsure))
	k.mu.Unlock()
	for _, rec := range unsaved {
		if k.settled(ctx, rec) {
			k.mu.Lock()
			if k.unsaved[rec.ID] == rec {
				delete(k.unsaved, rec.ID)
			}
			k.mu.Unlock()
		} else if k.save(ctx, rec, true) || ctx.Err() != nil {
			return
		}
	}
	if k.Shared {
		for _, id := range unsure {
			k.giveUpUnused(ctx, id)
		}
	}
}

// giveUpUnused gives up a ready record that is unused here, because other processes regard it as used.
func (k *Keeper) giveUpUnused(ctx context.Context, id string) {
	rec, err := k.Store.Get(ctx, id)
	if err != nil || rec.State != record.Ready || !k.Unused(rec) {
		return
	}
	if rec, err = k.Take(ctx, rec); err == nil { // prevents a concurrent use in this process
		rec.Owner = ""
		k.save(ctx, rec, false)
		k.Done(id)
	}
}

// settled reports whether a record must not be written again: the failed update succeeded in fact, or the sandbox has
// another owner, or another process has changed the record since.
func (k *Keeper) settled(ctx context.Context, rec record.Record) bool {
	stored, err := k.Store.Get(ctx, rec.ID)
	switch {
	case err != nil || stored.Owner == k.Owner || stored.Owner == "" && rec.Owner == k.Owner:
		return false
	case stored.Owner == "" && rec.State.Live(): // it was given up, and perhaps used since
		return true
	}
	return stored.Owner != rec.Owner || stored.State == rec.State
}

// TakenOver reports whether another process has taken or ended the sandbox of a record. A process also takes a record
// to remove the sandbox and keep the workspace.
func (k *Keeper) TakenOver(id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	rec, err := k.Store.Get(ctx, id)
	removed := rec.State == record.Removing && rec.Reason != string(owner.EngineLost) || rec.State == record.Closed
	return err == nil && (rec.Owner != k.Owner || removed)
}

// NoOwner returns the owner of records given up by this manager. Without a shared store, the manager stays the owner.
func (k *Keeper) NoOwner() string {
	if k.Shared {
		return ""
	}
	return k.Owner
}

// isFree returns ErrInTransition or ErrOpenElsewhere if a living process owns the record.
func (k *Keeper) isFree(ctx context.Context, rec record.Record) error {
	lives, err := k.Store.Lives(ctx, rec.Owner)
	switch {
	case k.Unused(rec):
		return nil
	case lives && err == nil && inTransition(rec, k.Now()):
		return ErrInTransition
	case lives && err == nil:
		return ErrOpenElsewhere
	}
	return err
}

// TakeUnowned makes this manager the owner of a record without a living owner.
func (k *Keeper) TakeUnowned(ctx context.Context, rec record.Record) (record.Record, error) {
	if err := k.isFree(ctx, rec); err != nil {
		return rec, err
	}
	rec, err := k.Take(ctx, rec)
	if IsOvertaken(err) { // by a sweep, or by an opener of the key
		err = ErrInTransition
	}
	return rec, err
}

// Insert records a new sandbox.
func (k *Keeper) Insert(ctx context.Context, rec record.Record) error {
	err := k.Store.Insert(ctx, rec)
	if err != nil && !errors.Is(err, backend.ErrExists) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.noteUnsure(rec.ID)
	}
	return err
}

// Take makes this manager the owner of a record. The caller must call Done after using the record, or after a session
// uses it. If this manager already uses the live record, Take returns ErrInTransition.
func (k *Keeper) Take(ctx context.Context, rec record.Record) (record.Record, error) {
	open := k.Open(rec.ID)
	k.mu.Lock()
	_, unsure := k.unsure[rec.ID]
	busy := k.working[rec.ID] || rec.Owner == k.Owner && (open || !unsure)
	works := rec.State.Live() && !busy
	if works {
		if k.working == nil {
			k.working = map[string]bool{}
		}
		k.working[rec.ID] = true
	}
	k.mu.Unlock()
	if rec.State.Live() && busy {
		return record.Record{}, ErrInTransition
	}
	taken, err := k.Store.Take(ctx, rec.ID, rec.Owner, k.Owner)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.unsure, rec.ID)
		delete(k.unsaved, rec.ID) // was written in fact, because the record had no owner
		return taken, nil
	}
	if works {
		delete(k.working, rec.ID)
	}
	if !IsOvertaken(err) {
		k.noteUnsure(rec.ID)
	}
	return taken, err
}

// Done ends the use of a record from Take.
func (k *Keeper) Done(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.working, id)
	delete(k.unsure, id) // of an old record that another call could not take
}

// noteUnsure notes that an Insert or Take returned an error but may have succeeded. For example, it was canceled, or the
// answer was lost. The caller must hold mu.
func (k *Keeper) noteUnsure(id string) {
	if k.unsure == nil {
		k.unsure = map[string]time.Time{}
	}
	k.unsure[id] = k.Now()
}

// Unused reports whether this manager owns a record without using it, because an Insert or Take succeeded but returned
// an error. Then the record is free, like a record without an owner.
func (k *Keeper) Unused(rec record.Record) bool {
	open := k.Open(rec.ID) // the manager has its own lock
	k.mu.Lock()
	defer k.mu.Unlock()
	_, unsure := k.unsure[rec.ID]
	_, unsaved := k.unsaved[rec.ID]
	return rec.Owner == k.Owner && unsure && !unsaved && !open && !k.working[rec.ID]
}

// IsOvertaken reports whether another process has taken, removed, or created the record first.
func IsOvertaken(err error) bool {
	return errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) && !errors.Is(err, record.ErrOwnerLost)
}

// Holder returns the live record of a key on this manager's engine. If the key has none, Holder returns an error
// wrapping backend.ErrNotFound.
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

// Find returns the sandbox of this instance with the specified id. It accepts neither engine ids nor prefixes of ids.
// If the sandbox exists but the key is unreadable, Find returns errUnreadable with the sandbox.
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

// FindRecorded returns the sandbox of a record. Other programs may write to the store, so the sandbox must have the
// record's key.
func (k *Keeper) FindRecorded(ctx context.Context, rec record.Record) (backend.Info, error) {
	engine, key, err := k.Find(ctx, rec.ID)
	if err == nil && key != rec.Key && !IsPooled(engine) { // only the record knows the key of a pooled sandbox
		err = fmt.Errorf("%w: the record contains the ID of another sandbox; delete the record", backend.ErrInvalid)
	}
	return engine, err
}

// Forged reports whether another user may have created a sandbox: it has no record, and the labels prove nothing.
func (k *Keeper) Forged(ctx context.Context, id string) bool {
	if !k.Backend.Capabilities().Forgeable {
		return false
	}
	_, err := k.Store.Get(ctx, id)
	return err != nil
}

// RecordFound creates missing records for the sandboxes in a scope. Their process used another store. If labels can be
// forged, RecordFound only logs these sandboxes.
func (k *Keeper) RecordFound(ctx context.Context, filter backend.Filter, scope record.Scope) error {
	filter.Instance = k.Instance
	found, err := k.Backend.List(ctx, filter)
	if err != nil {
		return sanitize.EngineError(err)
	}
	for _, engine := range slices.Backward(found) { // newest first, to give the key to the newest
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

// recordOf creates the record of a sandbox from the labels. Settings missing in the labels get values to keep the
// sandbox as long as possible.
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
	case !k.Shared: // no other process will ever know the sandbox
		rec.Idle = 0
	}
	return rec
}

// LeavesWorkspace reports whether Open can find the workspace of an ownerless record if the engine does not have the
// sandbox.
func (k *Keeper) LeavesWorkspace(rec record.Record) bool {
	facts := Facts(rec, "")
	facts.Owned = false
	lost, _ := owner.On(facts, owner.EngineLost)
	return lost.To == owner.WorkspaceOnly && rec.Engine == k.Engine
}

// ErrNoSandbox is the error for every id hidden from the caller, whether the id exists or not.
var ErrNoSandbox = fmt.Errorf("%w: sandbox not found", backend.ErrNotFound)

// ErrOpenElsewhere reports a living owner of the key's sandbox.
var ErrOpenElsewhere = sanitize.NewError("the sandbox is open in another process", record.ErrHeld)

// ErrInTransition reports a creation or removal of the key's sandbox by a living process.
var ErrInTransition = sanitize.NewError("another process is opening or removing the sandbox", record.ErrHeld)

// ErrOvertaken is the error if another process may own the sandbox by now, because this process may have been treated
// as dead.
var ErrOvertaken = sanitize.NewError("not removing the sandbox, which may have another owner by now", backend.ErrExists)

// errUnreadable reports a sandbox with damaged labels.
var errUnreadable = sanitize.NewError("the engine's data of the sandbox is damaged", backend.ErrLost)
