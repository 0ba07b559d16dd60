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

// forksTogether is the maximum number of concurrent forks. Forks read the same files.
const forksTogether = 4

// Fork creates n new sandboxes with the files of a snapshot. Apart from that, they have this sandbox's request. Each
// fork gets a new key in this sandbox's scope, or a new name if this sandbox is named. If one fork cannot be created,
// Fork removes all of them.
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
	errs := bound.Each(forksTogether, n, func(i int) (err error) {
		forks[i], _, err = s.ForkAs(ctx, snapshot, forkKey(s.key))
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

// ForkAs creates one fork with the specified key. If the key is already open, ForkAs returns the open session, as Open
// does, regardless of the sandbox's files. created reports whether the sandbox is new.
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
		if req.Pull == backend.PullAlways { // a fork must have this sandbox's image
			req.Pull = backend.PullMissing
		}
		fork, created, err = s.m.Open(ctx, key, req)
		return err
	})
	return fork, created, s.wrapError("Fork", err)
}

// AdoptFiles replaces the files of the workspace with the files of another session in the same scope. It creates a
// snapshot of the other session, copies it to this session, and rolls back to it. Both sandboxes then have a snapshot
// with this name. The other session's files do not change. If AdoptFiles fails after the copy, a Rollback completes it.
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
	rec, err := s.m.store.Get(ctx, s.id) // the record has fields unknown to the engine
	if errors.Is(err, backend.ErrNotFound) {
		return req, nil
	}
	req.Mode, req.OCIRuntime = OpenAsIs, cmp.Or(req.OCIRuntime, s.m.opts.Defaults.OCIRuntime)
	if had, known := decodeShape(rec.Request); known && within(had.Mounts, s.m.opts.Defaults.Mounts) {
		req.Mounts = had.Mounts
	}
	req.Match = []string{"mounts", "network"} // otherwise the record alone would decide about mounts and hosts
	req, beyond := asWas(rec, req)
	if beyond != nil {
		return req, &ConflictError{Key: s.key, Fields: beyond}
	}
	req.Mode, req.IdleTimeout, req.IdlePolicy, req.Retention = OpenShared, rec.Idle, rec.IdlePolicy, rec.Retention
	return req, engineError(err)
}

// forkKey returns an unused key for a fork.
func forkKey(k Key) Key {
	part := &k.Name
	if k.Namespace == record.NamespaceUser && k.Name == record.DefaultName {
		part = &k.ID
	}
	suffix := "-" + record.NewID()[:8]
	*part = (*part)[:min(len(*part), record.MaxPart-len(suffix))] + suffix
	return k
}
