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

// An owner is a process or a part of one. Before other processes change the owner's part of the file, they must check
// whether the owner is alive. The owner locks a separate file next to the state file. The kernel releases the lock when
// the process exits in any way, and never earlier. A renewed lease would expire if the process is stopped, the host
// sleeps, or the clock jumps. A lock does not expire, and other processes notice a death at once.

// errLocked means that another process has the lock.
var errLocked = errors.New("locked by another process")

// Join creates an owner that lives until leave is called or this process exits. leave may be called twice.
func (f *File) Join() (id string, leave func() error, err error) {
	dir := ownerDir(f.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fileError(dir, err)
	}
	f.forgetDead()
	for {
		id := strings.ToLower(rand.Text())
		path := filepath.Join(dir, id)
		lock, err := lockNew(path)
		if errors.Is(err, errLocked) {
			continue // another process mistook it for a dead owner's file before it was locked
		}
		if err != nil {
			return "", nil, fileError(path, err)
		}
		return id, sync.OnceValue(func() error {
			return errors.Join(lock.Close(), removeDead(path))
		}), nil
	}
}

// lockNew creates and locks the file of an owner.
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

// removeDead removes the file of a dead owner. Another process may have removed it. Ids are never reused.
func removeDead(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Lives reports whether an owner is alive. If this is unknown, Lives returns an error.
func (f *File) Lives(id string) (bool, error) {
	if id == "" {
		return false, nil
	}
	if strings.ContainsFunc(id, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		return false, fmt.Errorf("%s: %w: it contains owner %q", f.path, ErrCorrupt, id)
	}
	return f.locked(id)
}

// locked reports whether an owner's file is locked. An unlocked file belongs to a dead owner, and locked removes it.
func (f *File) locked(name string) (bool, error) {
	path := filepath.Join(ownerDir(f.path), name)
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
	_ = removeDead(path) // if this fails, the next caller tries again
	return false, nil
}

// forgetDead removes the files of dead owners.
func (f *File) forgetDead() {
	entries, _ := os.ReadDir(ownerDir(f.path)) // files unreadable now are left for the next call
	for _, e := range entries {
		_, _ = f.locked(e.Name())
	}
}

// AwaitEnd waits until an owner of the file at path has ended. The file does not have to be open and may have been
// removed. AwaitEnd waits in the kernel. If ctx ends first, a goroutine keeps waiting as long as the owner lives.
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

// Claim creates an owner with a fixed name, for work that only one process should do. The name must consist of
// lower-case letters and digits. If another process is that owner, held is true. If several processes find the file of
// a dead owner at the same moment, two of them may succeed. The file at path does not have to be open, but its
// directory must exist.
func Claim(path, name string) (leave func() error, held bool, err error) {
	f := &File{path: path}
	if err := os.Mkdir(ownerDir(f.path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, fileError(path, err)
	}
	for {
		if held, err = f.Lives(name); held || err != nil {
			return nil, held, err
		}
		own := filepath.Join(ownerDir(f.path), name)
		lock, err := lockNew(own)
		switch {
		case err == nil:
			return sync.OnceValue(func() error { return errors.Join(removeDead(own), lock.Close()) }), false, nil
		case !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrExist): // otherwise another process came in between
			return nil, false, fileError(path, err)
		}
	}
}

func ownerDir(path string) string { return path + "-owners" }
