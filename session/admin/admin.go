// Package admin is for operators. It lists the sandboxes of all processes of an installation and removes unused ones.
// To use sandboxes, package session is enough.
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

// Sweep runs one round of the manager's sweep, which also runs when the manager starts and every Options.ReapEvery. It
// removes expired sandboxes of exited processes. It does not affect sandboxes of running processes. Of other instances,
// it removes only exited sandboxes whose managers had no Instance (Forsaken). Without an Instance and a shared Store,
// it removes only these sandboxes, unused pooled sandboxes of the instance, and this manager's sandboxes whose removal
// failed.
//
// The sandboxes of a killed process remain until another process sweeps. If no other process of the program is running,
// open a manager with the same Instance, Store, and Engine periodically, for example from a timer. The workcell command
// starts a process for this purpose. With the command's state directory, `workcell sandbox gc --yes` also sweeps.
// ReclaimAt returns the time of the next removal.
//
// If the engine's sandboxes or the store's records cannot be listed, Sweep returns an error. Failed removals are
// logged, and the next sweep retries them.
func Sweep(ctx context.Context, m *session.Manager) error { return custody.Of(m).Sweep(ctx) }

// RemoveScope removes the sandboxes of a scope whose processes have exited, and their workspaces. It returns their ids.
// If a running process has a sandbox, RemoveScope keeps the sandbox and returns an error wrapping backend.ErrExists.
// Unlike CloseScope, RemoveScope does not need a session.
func RemoveScope(ctx context.Context, m *session.Manager, scope record.Scope) (removed []string, err error) {
	return custody.Of(m).RemoveScope(ctx, scope)
}

// Abandoned returns the records of the sandboxes on this engine without a running owner. These are sandboxes of
// interrupted runs and killed processes, retained sandboxes, and sandboxes after Detach. The sweep removes each of them
// when it expires.
func Abandoned(ctx context.Context, m *session.Manager) ([]record.Record, error) {
	return custody.Of(m).Abandoned(ctx)
}

// Forsaken returns records of exited sandboxes whose managers had no Instance. Their programs may have been killed. Any
// manager's sweep removes each of these sandboxes when it expires.
func Forsaken(ctx context.Context, m *session.Manager) (recs []record.Record, err error) {
	found, err := m.Backend().List(ctx, backend.Filter{})
	for _, engine := range found {
		key, invalid := record.ParseKey(engine.Key)
		if invalid == nil && engine.Instance != m.Instance() && custody.Ended(engine) {
			recs = append(recs, record.Record{
				ID: engine.SessionID, Key: key, EngineID: engine.ID, State: record.Removing, LastUsed: engine.Created,
				Expires: engine.Created.Add(custody.Lifetimes.Ended),
			})
		}
	}
	return recs, sanitize.EngineError(err)
}

// RemoveAbandoned removes a sandbox from Abandoned, and the workspace. If another process has adopted the sandbox since
// then or is connected to it, RemoveAbandoned keeps it and returns an error wrapping backend.ErrExists.
func RemoveAbandoned(ctx context.Context, m *session.Manager, rec record.Record) error {
	return custody.Of(m).RemoveAbandoned(ctx, rec)
}

// CountSnapshots returns the number of snapshots of a record's sandbox. If the engine does not have the sandbox, it
// returns 0.
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

// ReclaimAt returns the time when a sweep stops or removes a record's sandbox, if no process owns or uses the sandbox
// until then. If the sandbox never expires, or if sweeps have failed for a day, ok is false.
func ReclaimAt(rec record.Record, now time.Time) (at time.Time, ok bool) {
	if rec.State == record.Closed { // the engine may still be creating the sandbox of a dead process
		at = rec.Created.Add(custody.Lifetimes.CreationGrace)
		return at, rec.EngineID == "" && at.After(now)
	}
	at, ok = owner.Next(custody.Facts(rec, ""))
	return at, ok && now.Sub(at) < custody.Lifetimes.Silent
}

// Environment is an environment stored on the engine.
type Environment struct {
	backend.Environment
	LastUsed time.Time // when a sandbox was last created with it; if unknown, when it was installed
	// Superseded reports a newer environment of the same recipe, because the image's reference now means another image.
	Superseded bool
}

// Environments returns the environments of the manager's instance, oldest first.
func Environments(ctx context.Context, m *session.Manager) ([]Environment, error) {
	ops := custody.Of(m)
	list, err := m.Backend().Environments(ctx, m.Instance())
	if err != nil {
		return nil, ops.Error("Environments", err)
	}
	out := make([]Environment, len(list))
	newest := map[[2]string]int{}
	for i, e := range list {
		out[i] = Environment{Environment: e, LastUsed: e.Created}
		if used := ops.EnvironmentUsed(e.Recipe); used.After(e.Created) {
			out[i].LastUsed = used
		}
		kind := [2]string{e.Recipe, e.Image}
		if older, ok := newest[kind]; ok {
			out[older].Superseded, out[older].LastUsed = true, e.Created
		}
		newest[kind] = i
	}
	return out, nil
}

// RemoveEnvironment removes an environment by name. If a sandbox uses the environment, RemoveEnvironment keeps it and
// returns an error wrapping backend.ErrExists.
func RemoveEnvironment(ctx context.Context, m *session.Manager, name string) error {
	return custody.Of(m).Error("RemoveEnvironment", m.Backend().RemoveEnvironment(ctx, m.Instance(), name))
}
