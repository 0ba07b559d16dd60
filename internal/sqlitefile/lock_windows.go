package sqlitefile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks a whole file for as long as it is open, alone or with others, or fails with errLocked at once.
func tryLock(f *os.File, alone bool) error {
	how := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if alone {
		how |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errLocked
	}
	return err
}

// waitLock waits until nobody has locked a file alone, and locks it with others.
func waitLock(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), 0, 0, 1, 0, new(windows.Overlapped))
}
