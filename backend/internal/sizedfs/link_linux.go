package sizedfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// linked is a device with a name, and the lock on having it, which is on the directory and ends with the process.
type linked struct {
	lock *flock.Flock
	dev  *Device
	name string
}

const lockRetry = 5 * time.Millisecond

// Link attaches a loop device to file and makes link, in the same directory, a symbolic link to it, for another program to
// mount by that name. Close removes the link: what it leads to is the file's only while something holds the device. Others
// who ask for the same file wait until then, for ctx at most. A process that dies leaves a link that the next one replaces.
func Link(ctx context.Context, file, link string) (io.Closer, error) {
	lock := flock.New(filepath.Dir(file), flock.SetFlag(os.O_RDONLY))
	if _, err := lock.TryLockContext(ctx, lockRetry); err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	dev, err := Attach(file)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	l := &linked{lock: lock, dev: dev, name: link}
	if err = l.remove(); err == nil {
		err = os.Symlink(dev.Path, link)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Close removes the link and lets go of the device.
func (l *linked) Close() error { return errors.Join(l.remove(), l.dev.Close(), l.lock.Close()) }

func (l *linked) remove() error {
	err := os.Remove(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
