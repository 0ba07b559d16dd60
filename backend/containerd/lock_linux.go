package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// alone runs f on a sandbox while no other call, in this process or another, ends or deletes a sandbox of its session, or
// begins to make one: they share a workspace.
func (b *Backend) alone(ctx context.Context, id string, f func(*record) error) error {
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

// lock waits until no other process that shares the state directory has the lock on a session.
func (b *Backend) lock(ctx context.Context, session string) (unlock func(), err error) {
	path := filepath.Join(b.state.locks(), session)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, stateError("lock", err)
		}
		if err := waitLock(ctx, f); err != nil {
			return nil, joinClose(b.settle(ctx, "wait for other calls", stateError("lock", err)), f)
		}
		if isAt(f, path) {
			return func() {
				_ = os.Remove(path) // before the next one has it; one that is left there does no harm
				_ = f.Close()       // nothing was written
			}, nil
		}
		_ = f.Close() // whoever had the lock deleted the file
	}
}

func waitLock(ctx context.Context, f *os.File) error {
	for {
		err := tryLock(f)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if !pause(ctx, lockRetry) {
			return ctx.Err()
		}
	}
}

func tryLock(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	err = c.Control(func(fd uintptr) { locked = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) })
	return errors.Join(err, locked)
}

// isAt reports whether an open file is the one that has the name now.
func isAt(f *os.File, path string) bool {
	open, err1 := f.Stat()
	named, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(open, named)
}
