package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/session/record"
)

// forksTogether bounds how many sandboxes are forked at once: they read the same files.
const forksTogether = 4

// Fork makes n new sandboxes that have the files of a snapshot, and for the rest are what this one was opened as.
// Each has a key of its own in the scope of this one's, or, for a named sandbox, a name of its own. When one cannot
// be made, all are removed.
func (s *Session) Fork(ctx context.Context, snapshot string, n int) (forks []*Session, err error) {
	ctx, span := s.start(ctx, telemetry.SpanFork)
	defer func() {
		err = s.wrapError("Fork", err)
		telemetry.End(span, err)
	}()
	if n < 1 || n > MaxForks {
		return nil, fmt.Errorf("%w: %d forks, must be 1 to %d", backend.ErrInvalid, n, MaxForks)
	}
	forks = make([]*Session, n)
	places := make([]**Session, n)
	for i := range forks {
		places[i] = &forks[i]
	}
	errs := bound.Each(forksTogether, places, func(fork **Session) (err error) {
		*fork, _, err = s.ForkAs(ctx, snapshot, forkKey(s.key))
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

// ForkAs is Fork of one sandbox, with a key that the caller chooses. When that is open already it is returned as Open
// does it, whatever its files are; created reports whether the sandbox is new.
func (s *Session) ForkAs(ctx context.Context, snapshot string, key Key) (fork *Session, created bool, err error) {
	err = s.control.Do(func() error {
		if err := backend.CheckSnapshotName(snapshot); err != nil {
			return err
		}
		req, err := s.again(ctx)
		if err != nil {
			return err
		}
		req.fork = &backend.ForkOf{SessionID: s.ID(), Snapshot: snapshot}
		if req.Pull == backend.PullAlways { // it is to be what this one is
			req.Pull = backend.PullMissing
		}
		fork, created, err = s.m.Open(ctx, key, req)
		return err
	})
	return fork, created, s.wrapError("Fork", err)
}

// AdoptFiles makes the files of the work directory those of another session of the same scope, as Rollback to a
// snapshot of it would, which both have then under that name. The other session stays as it is. Once this one has the
// snapshot, a Rollback does the rest.
func (s *Session) AdoptFiles(ctx context.Context, from *Session, name string) error {
	if from.m != s.m || from.key.Scope() != s.key.Scope() {
		return s.wrapError("AdoptFiles", fmt.Errorf("%w: the sandbox belongs to another scope", backend.ErrInvalid))
	}
	if _, err := from.Snapshot(ctx, name); err != nil {
		return err
	}
	err := s.control.Do(func() error {
		return engineError(s.m.b.CopySnapshot(ctx, s.engine.ID, backend.ForkOf{SessionID: from.ID(), Snapshot: name}))
	})
	if err != nil {
		return s.wrapError("AdoptFiles", err)
	}
	return s.Rollback(ctx, name)
}

// again returns the request for another sandbox like this one.
func (s *Session) again(ctx context.Context) (Request, error) {
	req := s.req
	req.Egress = s.control.Use().Hosts
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
