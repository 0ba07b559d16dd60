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

	"golang.org/x/sys/unix"
)

// linked is a device with a name, and the turn to have it.
type linked struct {
	turn *os.File
	dev  *Device
	name string
}

// Link attaches a loop device to file and makes link, in the same directory, a symbolic link to it, for another program to
// mount by that name. Close removes the link: what it leads to is the file's only while something holds the device. Others
// who ask for the same file wait until then, for ctx at most. A process that dies leaves a link that the next one replaces.
func Link(ctx context.Context, file, link string) (io.Closer, error) {
	turn, err := takeTurn(ctx, filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	dev, err := Attach(file)
	if err != nil {
		return nil, errors.Join(err, turn.Close())
	}
	l := &linked{turn: turn, dev: dev, name: link}
	if err = l.remove(); err == nil {
		err = os.Symlink(dev.Path, link)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// takeTurn locks a directory. The lock ends with the process.
func takeTurn(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking: %w", err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Close removes the link and lets go of the device.
func (l *linked) Close() error { return errors.Join(l.remove(), l.dev.Close(), l.turn.Close()) }

func (l *linked) remove() error {
	err := os.Remove(l.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
