// Package admin is for operators. It watches the sandboxes of all processes of an installation and removes those that
// are no longer needed. Programs that only use sandboxes need package session alone.
package admin

import (
	"context"
	"errors"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Sweep runs one round of the manager's sweep, which also runs when the manager starts and every Options.ReapEvery.
// It removes expired sandboxes of processes that have ended. It does not touch sandboxes of running processes. Of
// other instances, it removes only sandboxes that have ended. Without an Instance and a Store that processes share,
// it retries only the removals that failed in this manager.
//
// Sandboxes of a process that was killed remain until another process sweeps. If no other process of the program
// runs, open a manager with the same Instance, Store and Engine from time to time, for example from a timer. The
// workcell command starts a process for this. With the command's state directory, `workcell sandbox gc --yes` sweeps
// as well. ReclaimAt returns when the next sweep is due.
//
// Sweep fails if it cannot list the sandboxes of the engine or the records of the store. Removals that fail are
// logged, and the next sweep repeats them.
func Sweep(ctx context.Context, m *session.Manager) error { return custody.Of(m).Sweep(ctx) }

// RemoveScope removes the sandboxes of a scope whose processes have ended, with their workspaces, and returns their
// ids. If a running process has a sandbox, the sandbox stays, and the error wraps backend.ErrExists. Unlike
// CloseScope, RemoveScope needs no session.
func RemoveScope(ctx context.Context, m *session.Manager, scope record.Scope) (removed []string, err error) {
	return custody.Of(m).RemoveScope(ctx, scope)
}

// Abandoned returns the records of the sandboxes on this engine that no running process has: sandboxes of interrupted
// runs and of killed processes, retained sandboxes, and sandboxes that Detach left. The sweep removes each of them
// when it expires.
func Abandoned(ctx context.Context, m *session.Manager) ([]record.Record, error) {
	return custody.Of(m).Abandoned(ctx)
}

// Forsaken returns records of the ended sandboxes on this engine whose managers had no Instance and whose programs may
// have been killed. The sweep of any manager removes each of them when it expires.
func Forsaken(ctx context.Context, m *session.Manager) (recs []record.Record, err error) {
	found, err := m.Backend().List(ctx, backend.Filter{})
	for _, engine := range found {
		if key, invalid := record.ParseKey(engine.Key); invalid == nil && engine.Instance != m.Instance() && custody.Ended(engine) {
			expires := engine.Created.Add(custody.Lifetimes.Ended)
			recs = append(recs, record.Record{
				ID: engine.SessionID, Key: key, EngineID: engine.ID, State: record.Removing, LastUsed: engine.Created, Expires: expires,
			})
		}
	}
	return recs, sanitize.EngineError(err)
}

// RemoveAbandoned removes a sandbox that Abandoned returned, with its workspace. If another process has adopted it
// since then, or is connected to it, the sandbox stays, and the error wraps backend.ErrExists.
func RemoveAbandoned(ctx context.Context, m *session.Manager, rec record.Record) error {
	return custody.Of(m).RemoveAbandoned(ctx, rec)
}

// CountSnapshots returns the number of snapshots of a record's sandbox. It is zero if the engine does not have the
// sandbox.
func CountSnapshots(ctx context.Context, m *session.Manager, rec record.Record) (int, error) {
	if rec.EngineID == "" {
		return 0, nil
	}
	list, _, err := m.Backend().Snapshots(ctx, rec.EngineID)
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrUnsupported) {
		return 0, nil
	}
	return len(list), sanitize.EngineError(err)
}

// ReclaimAt returns when the next sweep stops or removes the sandbox of a record, if no running process has it then
// and nothing uses it until then. ok is false for sandboxes that never expire, and if sweeps have failed for a day.
func ReclaimAt(rec record.Record, now time.Time) (at time.Time, ok bool) {
	if rec.State == record.Closed { // when its process died the engine may have been about to make it, and be late
		at = rec.Created.Add(custody.Lifetimes.CreationGrace)
		return at, rec.EngineID == "" && at.After(now)
	}
	at, ok = owner.Next(custody.Facts(rec, ""), custody.Lifetimes)
	return at, ok && now.Sub(at) < custody.Lifetimes.Silent
}
