package sqlitefile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/gofrs/flock"
)

// An owner is a process, or a part of one, which others must check to be alive before they touch its part of the file.
// It holds a lock on a file of its own beside the state file. The kernel releases the lock with the process, however
// that ends, and never before: unlike a time that has to be renewed, a lock survives a stopped process, a machine that
// slept and a clock that jumps, and a death is known at once.

// errLocked means that somebody else has the lock.
var errLocked = errors.New("locked by another process")

// Join makes a new owner, who lives until leave is called or this process ends. leave may be called twice.
func (f *File) Join() (id string, leave func() error, err error) {
	dir := f.ownerDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fileError(dir, err)
	}
	f.forgetDead()
	for {
		id := strings.ToLower(rand.Text())
		path := filepath.Join(dir, id)
		lock, err := lockNew(path)
		if errors.Is(err, errLocked) {
			continue // somebody took it for a dead owner's before it was locked
		}
		if err != nil {
			return "", nil, fileError(path, err)
		}
		return id, sync.OnceValue(func() error {
			return errors.Join(lock.Close(), removeDead(path))
		}), nil
	}
}

// lockNew makes and locks the file of an owner.
func lockNew(path string) (*flock.Flock, error) {
	lock := flock.New(path, flock.SetFlag(os.O_RDWR|os.O_CREATE|os.O_EXCL), flock.SetPermissions(0o600))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, err
	}
	if locked {
		made, err := lock.Stat()
		there, gone := os.Stat(path)
		if err == nil && gone == nil && os.SameFile(made, there) {
			return lock, nil
		}
	}
	return nil, errors.Join(errLocked, lock.Close())
}

// removeDead removes the file of a dead owner, which somebody else may have done. Ids do not come back.
func removeDead(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Lives reports whether an owner lives. An error means that this is not known.
func (f *File) Lives(id string) (bool, error) {
	if id == "" {
		return false, nil
	}
	if strings.ContainsFunc(id, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		return false, fmt.Errorf("%s: %w: it contains owner %q", f.path, ErrCorrupt, id)
	}
	return f.locked(id)
}

// locked reports whether a file of the owners is locked; one that is not belongs to a dead owner and is removed.
func (f *File) locked(name string) (bool, error) {
	path := filepath.Join(f.ownerDir(), name)
	lock := flock.New(path, flock.SetFlag(os.O_RDWR))
	free, err := lock.TryRLock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fileError(path, err)
	case !free:
		return true, nil
	}
	defer lock.Close()   // nothing was written to it
	_ = removeDead(path) // litter, which the next one finds too
	return false, nil
}

// forgetDead removes the files of owners that died.
func (f *File) forgetDead() {
	entries, _ := os.ReadDir(f.ownerDir()) // what cannot be read now stays for the next time
	for _, e := range entries {
		_, _ = f.locked(e.Name())
	}
}

// AwaitEnd waits until an owner of the file at path has ended. The file need not be open, nor be there any more. It
// waits in the kernel; when ctx ends first, a goroutine waits for as long as the owner lives.
func AwaitEnd(ctx context.Context, path, id string) error {
	lock := flock.New(filepath.Join(ownerDir(path), id), flock.SetFlag(os.O_RDWR))
	ended := make(chan error, 1)
	go func() {
		err := lock.RLock()
		for errors.Is(err, syscall.EINTR) {
			err = lock.RLock()
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		ended <- errors.Join(fileError(path, err), lock.Close())
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Claim makes an owner with a name, of small letters and digits, for what one process is enough for. held: somebody
// else is that owner. Should several come upon what a dead one left at the same moment, two may have it. The file at
// path need not be open, but its directory must be there.
func Claim(path, name string) (leave func() error, held bool, err error) {
	f := &File{path: path}
	if err := os.Mkdir(f.ownerDir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, fileError(path, err)
	}
	for {
		if held, err = f.Lives(name); held || err != nil {
			return nil, held, err
		}
		own := filepath.Join(f.ownerDir(), name)
		lock, err := lockNew(own)
		switch {
		case err == nil:
			return sync.OnceValue(func() error { return errors.Join(removeDead(own), lock.Close()) }), false, nil
		case !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrExist): // else somebody came between the two steps
			return nil, false, fileError(path, err)
		}
	}
}

func (f *File) ownerDir() string { return ownerDir(f.path) }

func ownerDir(path string) string { return path + "-owners" }
