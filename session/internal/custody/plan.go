package custody

import (
	"context"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Plan is what a look at engine and store found to be done.
type Plan struct {
	Unrecorded []record.Record // of sandboxes that the store does not know
	// Strays are sandboxes without a record: labels may be forged, or the only owner is gone. If one is used, it stays.
	Strays  []backend.Info
	Reclaim []Reclaimable // sandboxes without an owner
}

// Reclaimable is a record that belongs to nobody, and what time has brought about for its sandbox.
type Reclaimable struct {
	record.Record
	Rule owner.Rule
}

// Plan looks at engine and store. open reports whether the manager has the session of a sandbox open.
func (k *Keeper) Plan(ctx context.Context, open func(id string) bool) (Plan, error) {
	var plan Plan
	// The engine first: a sandbox that is made meanwhile has its record before the store is read.
	found, err := k.Backend.List(ctx, backend.Filter{})
	if err != nil {
		return plan, sanitize.EngineError(err)
	}
	recs, err := k.Store.List(ctx)
	if err != nil {
		return plan, err
	}
	slices.Reverse(found) // the newest of a key is the one that was used last
	known := map[string]bool{}
	for _, rec := range recs {
		known[rec.ID] = true
	}
	there, unreadable := map[string]backend.Info{}, map[string]bool{}
	now := k.Now()
	for _, engine := range found {
		age := now.Sub(engine.Created)
		others := engine.Instance != k.Instance || !k.Shared && !known[engine.SessionID]
		if others && Ended(engine) && age >= Lifetimes.Ended {
			plan.Strays = append(plan.Strays, engine) // no other process looks for it
		}
		if !record.ValidSandboxID(engine.SessionID) || engine.Instance != k.Instance {
			continue // looks like ours and is not
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
			// If records were lost, users remove named sandboxes.
			plan.Strays = append(plan.Strays, engine)
		}
	}
	for _, rec := range recs {
		engine, onEngine := there[rec.ID]
		switch {
		case rec.Engine != k.Engine && !onEngine, unreadable[rec.ID]:
			continue // another engine's, or for somebody to look at
		case !k.Shared && rec.Owner != k.Owner && rec.Owner != "":
			continue // its owner is unknown
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
			plan.Reclaim = append(plan.Reclaim, Reclaimable{rec, rule})
		}
	}
	return plan, nil
}

// Ended reports whether a sandbox that only its creator looks for has stopped.
func Ended(engine backend.Info) bool { return engine.Ephemeral && engine.State == backend.StateStopped }

// held reports whether a living process has what a record is about. This one has what it makes or has open, not what it
// lost, or could not remove, and closed.
func (k *Keeper) held(ctx context.Context, rec record.Record, open func(id string) bool) (bool, error) {
	if rec.Owner == k.Owner {
		return rec.State.Live() || open(rec.ID), nil
	}
	return k.Store.Lives(ctx, rec.Owner)
}
