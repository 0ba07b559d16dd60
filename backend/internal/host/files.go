// Package host implements operations of drivers on the host: atomic file writes, removal of deep trees, and threads
// with private namespaces.
package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/workcell-dev/workcell/backend"
)

// WriteJSON replaces a file atomically. Only the current user can read the file. If durable is false, the file may be
// empty after a crash of the host, unless the caller calls Sync.
func WriteJSON(path string, v any, durable bool) error {
	tmp := path + ".new"
	data, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(tmp, data, 0o600)
	}
	if err == nil && durable {
		err = Sync(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil && durable {
		err = Sync(filepath.Dir(path))
	}
	return Public(err)
}

// ReadJSON reads a file written by WriteJSON.
func ReadJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// LockFile returns an unlocked lock on a file. Acquiring the lock creates the file.
func LockFile(path string) *flock.Flock {
	return flock.New(path, flock.SetFlag(os.O_RDWR|os.O_CREATE), flock.SetPermissions(0o600))
}

// Current reports whether the path of the lock still names the locked file.
func Current(l *flock.Flock) bool {
	held, err1 := l.Stat()
	named, err2 := os.Lstat(l.Path())
	return err1 == nil && err2 == nil && os.SameFile(held, named)
}

// Exists reports whether a file exists. It does not follow links.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// IsAny reports whether err matches at least one of these errors.
func IsAny(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// Ignore returns nil if err matches one of these errors.
func Ignore(err error, kinds ...error) error {
	if IsAny(err, kinds...) {
		return nil
	}
	return err
}

// Sync flushes a file or a directory to the disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Public removes host paths from an error and keeps the error's class. An error about a full disk wraps
// backend.ErrNoRoom.
func Public(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		err = fmt.Errorf("%s: %w", e.Op, e.Err)
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		err = fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	if errors.Is(err, backend.ErrNoRoom) || !IsAny(err, syscall.ENOSPC, syscall.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w: %w", err, backend.ErrNoRoom)
}

// stream is a connection to a guest agent.
type stream struct {
	io.Reader
	io.Writer
	closing func() error
}

func (s *stream) Close() error { return s.closing() }

// NewStream joins a reader and a writer to a connection to a guest agent. Close calls closing once and returns the same
// result every time.
func NewStream(r io.Reader, w io.Writer, closing func() error) io.ReadWriteCloser {
	return &stream{r, w, sync.OnceValue(closing)}
}
