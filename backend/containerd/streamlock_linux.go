package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockWait is how long the holder of a stream may take to let go of it. One that does not is stopped, or stuck, and
	// reads nothing meanwhile.
	lockWait  = 3 * time.Second
	lockRetry = 2 * time.Millisecond
	// lockPoll is how often a reader without the lock tries to get it.
	lockPoll = 20 * time.Millisecond
	// askAgain is after how many tries the holder is asked once more.
	askAgain = 25
)

// streamLock is one reader's lock on a sandbox's stream.
//
// The reader holds a lock on the file. Where a holder is stopped, the next reader uses the stream without the lock, says so
// in a second file, and gets the lock when the holder continues. A reader without the lock ends as soon as there is a newer
// one, and who gets the lock waits for that, because two would each read a part.
type streamLock struct {
	name                 string // of the reader
	file, newest, unheld string // files: the lock, and the names of the newest reader and of one without the lock
}

func newStreamLock(dir stateDir, id string) *streamLock {
	file := dir.file(id, fifoLock)
	return &streamLock{rand.Text(), file, file + ".newest", file + ".unheld"}
}

// acquire gets the lock, if need be from its holder; held is false when that does not let go in time.
func (l *streamLock) acquire(ctx context.Context) (file *os.File, held bool, _ error) {
	f, err := os.OpenFile(l.file, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, lostFIFO(err)
	}
	if err = os.WriteFile(l.newest, []byte(l.name), 0o600); err == nil {
		held, err = l.lock(ctx, f)
	}
	if err == nil && held {
		err = l.outwait(ctx)
	} else if err == nil {
		err = os.WriteFile(l.unheld, []byte(l.name), 0o600)
	}
	if err != nil && ctx.Err() == nil {
		err = stateError("take over the stream", err)
	}
	if err != nil {
		return nil, false, joinClose(err, f)
	}
	return f, held, nil
}

func (l *streamLock) lock(ctx context.Context, f *os.File) (bool, error) {
	deadline := time.Now().Add(lockWait)
	for i := 0; ; i++ {
		err := flock(f)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return false, err
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		if i%askAgain == 0 {
			if err := ask(f); err != nil {
				return false, err
			}
		}
		if !pause(ctx, lockRetry) {
			return false, ctx.Err()
		}
	}
}

// outwait waits until a reader without the lock has ended. One whose process died never does.
func (l *streamLock) outwait(ctx context.Context) error {
	for deadline := time.Now().Add(lockWait); exists(l.unheld) && time.Now().Before(deadline); {
		if !pause(ctx, lockRetry) {
			return ctx.Err()
		}
	}
	if err := os.Remove(l.unheld); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// await waits for the lock while the stream is in use without it. It reports whether it got the lock; if not, the stream has
// ended, also because of a newer reader.
func (l *streamLock) await(s *stream) bool {
	defer func() { // a newer reader's file stays
		if name, err := os.ReadFile(l.unheld); err == nil && string(name) == l.name {
			_ = os.Remove(l.unheld) // others wait for it for a while only
		}
	}()
	for i := 1; ; i++ {
		time.Sleep(lockPoll)
		if last, err := os.ReadFile(l.newest); err == nil && string(last) != l.name {
			s.taken.Store(true)
			_ = s.Close() // nobody is left for the error
			return false
		}
		switch err := flock(s.lock); {
		case err == nil:
			return true
		case !errors.Is(err, unix.EWOULDBLOCK):
			return false // closed
		case i%askAgain == 0:
			_ = ask(s.lock) // again later
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// ask makes the holder let go as soon as it reads.
func ask(lock *os.File) error {
	_, err := lock.Write([]byte{1})
	if errors.Is(err, unix.EAGAIN) {
		return nil // it was asked often enough
	}
	return err
}

func flock(f *os.File) error {
	if err := tryLock(f); err != nil {
		return err
	}
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return c.Control(func(fd uintptr) { // what was asked of earlier holders is not asked of this one
		var buf [4096]byte
		_, _ = unix.Read(int(fd), buf[:])
	})
}
