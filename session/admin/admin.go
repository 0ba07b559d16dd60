// Package admin has what operators do with the sandboxes of all processes of an installation: watch them, and remove what nobody
// needs. Programs that only use sandboxes need package session alone.
package admin

import (
	"context"
	"time"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// Sweep does at once what the manager's goroutine does at its start and every Options.ReapEvery: it removes what processes
// that are gone left behind and whose time has come. What a living process has, it leaves alone, and so it does what is not
// of this instance, but for what has ended and the guest programs of other versions. Without an Instance and a Store that
// processes share it looks only for what this manager itself could not remove.
//
// What a process left that died goes only when another one sweeps. A program whose sandboxes must go soon also when no
// other process of it runs has somebody else open a manager with the same Instance, Store and Engine now and then: its own
// next start, or a timer. The workcell command has a process of its own for it; with the command's own state directory
// `workcell sessions gc --yes` does it, too, and more. ReclaimAt returns when there will be something to do.
//
// The error is that of the look at engine and store. What cannot be removed now is logged, and is the next sweep's.
func Sweep(ctx context.Context, m *session.Manager) error { return custody.Of(m).Sweep(ctx) }

// RemoveScope removes the sandboxes of a scope that dead processes left behind, with their workspaces, and returns their ids.
// One that a living process has is backend.ErrExists, and stays. Unlike CloseScope it needs no session.
func RemoveScope(ctx context.Context, m *session.Manager, scope record.Scope) (removed []string, err error) {
	return custody.Of(m).RemoveScope(ctx, scope)
}

// Abandoned returns the records of the sandboxes on this engine that no living process has: those of interrupted runs and dead
// processes, retained ones, and those that Detach left. The sweep removes each of them when its time is over.
func Abandoned(ctx context.Context, m *session.Manager) ([]record.Record, error) {
	return custody.Of(m).Abandoned(ctx)
}

// RemoveAbandoned removes a sandbox that Abandoned returned, with its workspace. One that another process adopted since, or to
// which a process is connected, is backend.ErrExists, and stays.
func RemoveAbandoned(ctx context.Context, m *session.Manager, rec record.Record) error {
	return custody.Of(m).RemoveAbandoned(ctx, rec)
}

// CountSnapshots returns how many snapshots go with the sandbox of a record. Of one that the engine does not have nothing is known.
func CountSnapshots(ctx context.Context, m *session.Manager, rec record.Record) (int, error) {
	return custody.Of(m).CountSnapshots(ctx, rec)
}

// ReclaimAt returns when the next sweep will have something to do for a record, if no living process has it then: to remove
// its sandbox, or to stop it, unless somebody uses that until then. ok is false when time alone changes nothing, as for what
// never expires, or when sweeps have failed at it for a day.
func ReclaimAt(rec record.Record, now time.Time) (at time.Time, ok bool) {
	if rec.State == record.Closed { // when its process died the engine may have been about to make it, and be late
		at = rec.Created.Add(custody.Lifetimes.CreationGrace)
		return at, rec.EngineID == "" && at.After(now)
	}
	at, ok = owner.Next(custody.Facts(rec, ""), custody.Lifetimes)
	return at, ok && now.Sub(at) < custody.Lifetimes.Silent
}
