package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/workcell-dev/workcell/backend/internal/host"
)

// alone runs f on a sandbox while no other call, in this process or another, ends or deletes a sandbox of its session,
// or begins to make one: they share a workspace.
func (b *driver) alone(ctx context.Context, id string, f func(*record) error) error {
	r, err := b.own(ctx, id) // before waiting for calls that may wait for an engine that is away
	if err != nil {
		return err
	}
	unlock, err := b.lock(ctx, r.session)
	if err != nil {
		return err
	}
	defer unlock()
	if r, err = b.own(ctx, id); err != nil {
		return err
	}
	return f(r)
}

// lockRetry is the pause between tries to get a lock.
const lockRetry = 2 * time.Millisecond

// lock waits until no other process that shares the state directory has the lock on a session.
func (b *driver) lock(ctx context.Context, session string) (unlock func(), err error) {
	path := filepath.Join(b.state.locks(), session)
	for {
		l := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))
		if _, err := l.TryLockContext(ctx, lockRetry); err != nil {
			return nil, errors.Join(b.settle(ctx, "wait for other calls", stateError("lock", err)), l.Close())
		}
		if host.Current(l) {
			return func() {
				_ = os.Remove(path) // before the next one has it; one that is left there does no harm
				_ = l.Unlock()      // nothing was written
			}, nil
		}
		_ = l.Unlock() // the one that had the lock deleted the file
	}
}
