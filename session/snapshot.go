package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/session/record"
)

// forksTogether bounds how many sandboxes are forked at once: they read the same files.
const forksTogether = 4

// Snapshot keeps the files of the work directory as they are under a name, of 1 to 128 letters, digits, '_', '-' and
// '.'. While it copies, commands are frozen; if they cannot be frozen, it fails with backend.ErrUnsupported. Data that
// a command has not written yet is not in it. Snapshots go with the workspace. A name that is taken is
// backend.ErrExists, one more than backend.MaxSnapshots backend.ErrCapacity.
func (s *Session) Snapshot(ctx context.Context, name string) (snap backend.Snapshot, err error) {
	err = s.withSnapshots(ctx, telemetry.SpanSnapshot, "Snapshot", func(ctx context.Context) error {
		snap, err = s.m.b.Snapshot(ctx, s.engine.ID, name)
		return err
	})
	return snap, err
}

// Snapshots returns the snapshots of the sandbox, oldest first, and how the next one would be made.
func (s *Session) Snapshots(ctx context.Context) (list []backend.Snapshot, m backend.SnapshotMechanism, err error) {
	err = s.withSnapshots(ctx, "", "Snapshots", func(ctx context.Context) error {
		list, m, err = s.m.b.Snapshots(ctx, s.engine.ID)
		return err
	})
	return list, m, err
}

// RemoveSnapshot deletes a snapshot. One that is not there is no error.
func (s *Session) RemoveSnapshot(ctx context.Context, name string) error {
	return s.withSnapshots(ctx, "", "RemoveSnapshot", func(ctx context.Context) error {
		return s.m.b.RemoveSnapshot(ctx, s.engine.ID, name)
	})
}

// Rollback ends all commands and makes the files of the work directory what they were when the snapshot was made. It is brought to
// its end even if ctx ends, or this process: then by whoever reaches for the sandbox next. What lies elsewhere, as in /tmp, stays.
func (s *Session) Rollback(ctx context.Context, name string) error {
	return s.withSnapshots(ctx, telemetry.SpanRollback, "Rollback", func(ctx context.Context) error {
		err := s.m.b.Rollback(ctx, s.engine.ID, name)
		if err != nil && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrInvalid) {
			s.mu.Lock()
			conn := s.conn
			s.mu.Unlock()
			if conn != nil {
				conn.Close() // who connects again ends what was begun, or hears why not
			}
		}
		return err
	})
}

// Fork makes n new sandboxes that have the files of a snapshot, and for the rest are what this one was opened as. Each has a key of
// its own in the scope of this one's, or, for a named sandbox, a name of its own. When one cannot be made, all are removed.
func (s *Session) Fork(ctx context.Context, snapshot string, n int) (forks []*Session, err error) {
	ctx, span := s.start(ctx, telemetry.SpanFork)
	defer func() { s.end(span, "Fork", &err) }()
	if n < 1 || n > MaxForks {
		return nil, fmt.Errorf("%w: %d forks, must be 1 to %d", backend.ErrInvalid, n, MaxForks)
	}
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = forkKey(s.key)
	}
	forks = make([]*Session, n)
	errs := each(forksTogether, keys, func(key Key) error {
		fork, _, err := s.ForkAs(ctx, snapshot, key)
		for i := range keys {
			if keys[i] == key {
				forks[i] = fork
			}
		}
		return err
	})
	if err := errors.Join(errs...); err != nil {
		for _, fork := range forks {
			if fork != nil {
				err = errors.Join(err, fork.Close(context.WithoutCancel(ctx)))
			}
		}
		return nil, err
	}
	return forks, nil
}

// ForkAs is Fork of one sandbox, with a key that the caller chooses. When that is open already it is returned as Open does it, whatever its
// files are; created reports whether the sandbox is new.
func (s *Session) ForkAs(ctx context.Context, snapshot string, key Key) (fork *Session, created bool, err error) {
	if err := s.enter(); err != nil {
		return nil, false, wrapError("Fork", s.m.driver, s.id, err)
	}
	defer s.leave()
	if err := backend.CheckSnapshotName(snapshot); err != nil {
		return nil, false, wrapError("Fork", s.m.driver, s.id, err)
	}
	req, err := s.again(ctx)
	if err != nil {
		return nil, false, wrapError("Fork", s.m.driver, s.id, err)
	}
	req.fork = &backend.ForkOf{SessionID: s.id, Snapshot: snapshot}
	if req.Pull == backend.PullAlways { // it is to be what this one is
		req.Pull = backend.PullMissing
	}
	return s.m.Open(ctx, key, req)
}

// AdoptFiles makes the files of the work directory those of another session of the same scope, as Rollback to a snapshot of it would,
// which both have then under that name. The other session stays as it is. Once this one has the snapshot, a Rollback does the rest.
func (s *Session) AdoptFiles(ctx context.Context, from *Session, name string) error {
	if from.m != s.m || from.key.Scope() != s.key.Scope() {
		return wrapError("AdoptFiles", s.m.driver, s.id, fmt.Errorf("%w: the sandbox belongs to another scope", backend.ErrInvalid))
	}
	if _, err := from.Snapshot(ctx, name); err != nil {
		return err
	}
	err := s.withSnapshots(ctx, "", "AdoptFiles", func(ctx context.Context) error {
		return s.m.b.CopySnapshot(ctx, s.engine.ID, backend.ForkOf{SessionID: from.id, Snapshot: name})
	})
	if err != nil {
		return err
	}
	return s.Rollback(ctx, name)
}

// again returns the request for another sandbox like this one.
func (s *Session) again(ctx context.Context) (Request, error) {
	req := s.req
	s.mu.Lock()
	req.Egress = s.hosts
	s.mu.Unlock()
	if s.owned && !s.asIs {
		return req, nil
	}
	rec, err := s.m.store.Get(ctx, s.id) // which knows more of it than its engine
	if errors.Is(err, backend.ErrNotFound) {
		return req, nil
	}
	req.Mode, req.OCIRuntime = OpenAsIs, cmp.Or(req.OCIRuntime, s.m.opts.Defaults.OCIRuntime)
	if had, known := decodeShape(rec.Request); known && within(had.Mounts, s.m.opts.Defaults.Mounts) {
		req.Mounts = had.Mounts
	}
	req.Match = []string{"mounts", "network"} // else the engine's, and hosts that the record alone names
	req, beyond := asWas(rec, req)
	if beyond != nil {
		return req, &ConflictError{Key: s.key, Fields: beyond}
	}
	req.Mode, req.IdleTimeout, req.IdlePolicy, req.Retention = OpenShared, rec.Idle, rec.IdlePolicy, rec.Retention
	return req, engineError(err)
}

// CountSnapshots is admin.CountSnapshots.
func (m operations) CountSnapshots(ctx context.Context, rec record.Record) (int, error) {
	if rec.EngineID == "" {
		return 0, nil
	}
	list, _, err := m.b.Snapshots(ctx, rec.EngineID)
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrUnsupported) {
		return 0, nil
	}
	return len(list), engineError(err)
}

// forkKey returns a key for a fork, which nobody has.
func forkKey(k Key) Key {
	part := &k.Name
	if k.Namespace == record.NamespaceUser && k.Name == record.DefaultName {
		part = &k.ID
	}
	suffix := "-" + record.NewID()[:8]
	*part = (*part)[:min(len(*part), record.MaxPart-len(suffix))] + suffix
	return k
}

// withSnapshots runs a call of the driver as one of the session. A name begins a span.
func (s *Session) withSnapshots(ctx context.Context, span, op string, f func(context.Context) error) (err error) {
	defer func() { err = wrapError(op, s.m.driver, s.id, err) }()
	if span != "" {
		c, sp := s.start(ctx, span)
		ctx = c
		defer func() { telemetry.End(sp, err) }()
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return engineError(f(ctx))
}
