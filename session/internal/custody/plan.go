package custody

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Plan is the work of a sweep, according to the engine and the store.
type Plan struct {
	Unrecorded []record.Record // records for sandboxes unknown to the store
	// Strays are sandboxes without a record. The labels may be forged, or the only owner is gone. Used sandboxes are kept.
	Strays  []backend.Info
	Reclaim []reclaimable // sandboxes without an owner
}

// reclaimable is an ownerless record and the due rule for the sandbox.
type reclaimable struct {
	record.Record
	Rule owner.Rule
}

// Plan lists the engine and the store. open reports whether the manager has a sandbox open.
func (k *Keeper) Plan(ctx context.Context, open func(id string) bool) (Plan, error) {
	var plan Plan
	// List the engine first: then the record of every listed sandbox is in the store before the store is read.
	found, err := k.Backend.List(ctx, backend.Filter{})
	if err != nil {
		return plan, sanitize.EngineError(err)
	}
	recs, err := k.Store.List(ctx)
	if err != nil {
		return plan, err
	}
	slices.Reverse(found) // the newest sandbox of a key was used last
	known := map[string]bool{}
	for _, rec := range recs {
		known[rec.ID] = true
	}
	now := k.Now()
	k.mu.Lock()
	maps.DeleteFunc(k.unsure, func(id string, at time.Time) bool {
		return !known[id] && now.Sub(at) > Lifetimes.Remembered // it was never inserted
	})
	k.mu.Unlock()
	there, unreadable := map[string]backend.Info{}, map[string]bool{}
	for _, engine := range found {
		age := now.Sub(engine.Created)
		others := engine.Instance != k.Instance || !k.Shared && !known[engine.SessionID]
		if others && Ended(engine) && age >= Lifetimes.Ended {
			plan.Strays = append(plan.Strays, engine) // no other process removes it
		}
		if !record.ValidSandboxID(engine.SessionID) || engine.Instance != k.Instance {
			continue // not a sandbox of this instance
		}
		key, err := record.ParseKey(engine.Key)
		if err != nil {
			unreadable[engine.SessionID] = true
			continue
		}
		there[engine.SessionID] = engine
		switch {
		case !k.Shared && !known[engine.SessionID] && age > Lifetimes.CreationGrace && IsPooled(engine):
			plan.Strays = append(plan.Strays, engine)
		case !k.Shared || known[engine.SessionID] || age <= Lifetimes.CreationGrace:
		case !k.Forged(ctx, engine.SessionID):
			plan.Unrecorded = append(plan.Unrecorded, k.recordOf(engine, key))
		case key.Namespace != record.NamespaceUser && age > Lifetimes.Unrecorded:
			// If records were lost, users must remove named sandboxes.
			plan.Strays = append(plan.Strays, engine)
		}
	}
	for _, rec := range recs {
		engine, onEngine := there[rec.ID]
		switch {
		case rec.Engine != k.Engine && !onEngine, unreadable[rec.ID]:
			continue // on another engine, or unreadable and left to the user
		case !k.Shared && rec.Owner != k.Owner && rec.Owner != "":
			continue // the owner is unknown
		}
		rule, isDue := Due(rec, now, engine.State)
		if !isDue {
			continue
		}
		held, err := k.held(ctx, rec, open)
		if err != nil {
			return plan, err
		}
		if !held {
			plan.Reclaim = append(plan.Reclaim, reclaimable{rec, rule})
		}
	}
	return plan, nil
}

// Ended reports whether an ephemeral sandbox, known only to the creator, has stopped.
func Ended(engine backend.Info) bool { return engine.Ephemeral && engine.State == backend.StateStopped }

// held reports whether a living process has the sandbox of a record. This process has open sandboxes and sandboxes
// during creation. It does not have lost sandboxes, or closed sandboxes after a failed removal.
func (k *Keeper) held(ctx context.Context, rec record.Record, open func(id string) bool) (bool, error) {
	if rec.Owner == k.Owner {
		return rec.State.Live() && !k.Unused(rec) || open(rec.ID), nil
	}
	return k.Store.Lives(ctx, rec.Owner)
}
