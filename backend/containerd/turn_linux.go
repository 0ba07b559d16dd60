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
	// turnWait is how long the holder of a stream may take to let go of it. One that does not is stopped, or stuck,
	// and reads nothing meanwhile.
	turnWait  = 3 * time.Second
	turnRetry = 2 * time.Millisecond
	// turnLate is how often somebody without the lock looks for it.
	turnLate = 20 * time.Millisecond
	// askAgain is after how many looks the holder is asked once more.
	askAgain = 25
)

// claim is somebody's wish for a sandbox's stream.
//
// Whoever has the stream holds the lock on the turn. Where the holder is stopped the claimant takes the stream without
// the lock, notes itself as late, and gets the lock when the holder goes on. A late one goes as soon as there is a newer
// claim, and whoever gets the lock waits for that, because two would each read a part.
type claim struct {
	name             string
	turn, last, late string // files: the lock, the name of the newest claim, that of a late one
}

func newClaim(dir stateDir, id string) *claim {
	turn := dir.file(id, fifoTurn)
	return &claim{rand.Text(), turn, turn + ".last", turn + ".late"}
}

// takeTurn gets the lock, if need be from its holder; held is false when that does not let go in time.
func (c *claim) takeTurn(ctx context.Context) (turn *os.File, held bool, _ error) {
	f, err := os.OpenFile(c.turn, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, lostFIFO(err)
	}
	if err = os.WriteFile(c.last, []byte(c.name), 0o600); err == nil {
		held, err = c.lock(ctx, f)
	}
	if err == nil && held {
		err = c.outwaitLate(ctx)
	} else if err == nil {
		err = os.WriteFile(c.late, []byte(c.name), 0o600)
	}
	if err != nil && ctx.Err() == nil {
		err = stateError("take over the stream", err)
	}
	if err != nil {
		return nil, false, joinClose(err, f)
	}
	return f, held, nil
}

func (c *claim) lock(ctx context.Context, f *os.File) (bool, error) {
	deadline := time.Now().Add(turnWait)
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
		if !pause(ctx, turnRetry) {
			return false, ctx.Err()
		}
	}
}

// outwaitLate waits until a late one has gone. One that is dead never does.
func (c *claim) outwaitLate(ctx context.Context) error {
	for deadline := time.Now().Add(turnWait); exists(c.late) && time.Now().Before(deadline); {
		if !pause(ctx, turnRetry) {
			return ctx.Err()
		}
	}
	if err := os.Remove(c.late); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// await waits for the lock while the stream is in use without it. It tells whether the lock is there; if not, the stream
// has ended, also because of a newer claim.
func (c *claim) await(s *stream) bool {
	defer func() { // a newer late one's note stays
		if name, err := os.ReadFile(c.late); err == nil && string(name) == c.name {
			_ = os.Remove(c.late) // whoever waits for it does so for a while only
		}
	}()
	for i := 1; ; i++ {
		time.Sleep(turnLate)
		if last, err := os.ReadFile(c.last); err == nil && string(last) != c.name {
			s.taken.Store(true)
			_ = s.Close() // whoever asked has no use for the error
			return false
		}
		switch err := flock(s.turn); {
		case err == nil:
			return true
		case !errors.Is(err, unix.EWOULDBLOCK):
			return false // closed
		case i%askAgain == 0:
			_ = ask(s.turn) // again later
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// ask makes the holder let go as soon as it reads.
func ask(turn *os.File) error {
	_, err := turn.Write([]byte{1})
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
