//go:build !windows

package sqlitefile

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks a whole file for as long as it is open, alone or with others, or fails with errLocked at once.
func tryLock(f *os.File, alone bool) error {
	how := unix.LOCK_SH
	if alone {
		how = unix.LOCK_EX
	}
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); {
		case errors.Is(err, unix.EWOULDBLOCK):
			return errLocked
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// waitLock waits until nobody has locked a file alone, and locks it with others.
func waitLock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
