package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/workcell-dev/workcell/backend/internal/host"
)

// alone runs f on a sandbox under the session's lock. No other call, in this process or another, stops, deletes, or
// creates a sandbox of the session at the same time, because these sandboxes share a workspace.
func (b *driver) alone(ctx context.Context, id string, f func(*record) error) error {
	r, err := b.own(ctx, id) // before waiting for calls, because they may wait for an unavailable engine
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

// lockRetry is the pause between attempts to acquire a lock.
const lockRetry = 2 * time.Millisecond

// lock waits for the lock of a session. All processes with the same state directory share the lock.
func (b *driver) lock(ctx context.Context, session sessionName) (unlock func(), err error) {
	path := filepath.Join(b.state.locks(), string(session))
	for {
		l := host.LockFile(path)
		if _, err := l.TryLockContext(ctx, lockRetry); err != nil {
			return nil, errors.Join(b.calls.Settle(ctx, "wait for other calls", stateError("lock", err)), l.Close())
		}
		if host.Current(l) {
			return func() {
				_ = os.Remove(path) // while the lock is held; a leftover file does no harm
				_ = l.Unlock()      // no data was written
			}, nil
		}
		_ = l.Unlock() // the previous owner of the lock deleted the file
	}
}
