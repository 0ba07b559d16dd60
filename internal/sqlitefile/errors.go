package sqlitefile

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Error adds the class to an SQLite error. It returns other errors unchanged, including context errors.
func (f *File) Error(err error) error {
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	if strings.Contains(e.Error(), "malformed JSON") { // SQLite has no code for it
		return fmt.Errorf("%s: %w: %w", f.path, ErrCorrupt, err)
	}
	if kind := classify(e.Code()); kind != nil {
		return fmt.Errorf("%s: %w: %w", f.path, kind, err)
	}
	return fmt.Errorf("%s: %w", f.path, err)
}

// classify returns the class of a result code. The lowest byte is the primary code (https://sqlite.org/rescode.html).
func classify(code int) error {
	switch code & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return ErrCorrupt
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return ErrReadOnly
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR:
		return ErrFull
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return ErrBusy
	case sqlite3.SQLITE_INTERRUPT:
		return context.Canceled
	}
	return nil
}

// IsConflict reports whether err means that a row already exists.
func IsConflict(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && e.Code()&0xff == sqlite3.SQLITE_CONSTRAINT
}
