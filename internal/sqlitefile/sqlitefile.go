// Package sqlitefile stores state in one SQLite file for concurrent use by several processes. The state survives the
// end of any process, or of the host, at any moment.
//
// A file contains components: groups of tables of one package. Each component has a schema version. Opening a component
// updates the tables. If a newer program wrote the tables, Open returns an error.
package sqlitefile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // registers the driver "sqlite"

	"github.com/workcell-dev/workcell/internal/bound"
)

// applicationID identifies the files of this program ("WCel"), so that it refuses databases of other programs.
const applicationID = 0x5743656c

// busyTimeout is how long a statement waits for another process's transaction. Workcell's transactions take
// milliseconds.
const busyTimeout = 30 * time.Second

// busyPause is the pause before Open tries again.
const busyPause = 10 * time.Millisecond

// Errors. They wrap errors with the details for users.
var (
	// ErrCorrupt means that the file is damaged or not a database.
	ErrCorrupt = errors.New("the state file is damaged")
	// ErrForeign means that the file is the database of another program.
	ErrForeign = errors.New("the state file belongs to another program")
	// ErrNewer means that a newer version of the program wrote the file.
	ErrNewer = errors.New("the state file was written by a newer version")
	// ErrReadOnly means that the file or its directory cannot be written.
	ErrReadOnly = errors.New("cannot write the state file")
	// ErrFull means that the disk is full or failing.
	ErrFull = errors.New("the disk of the state file is full")
	// ErrBusy means that another process has kept the lock on the file for too long.
	ErrBusy = errors.New("the state file is locked by another process")
)

// Component is a group of tables.
type Component struct {
	Name string
	// Migrations contains one entry per version. The first entry creates the tables, and each other entry updates them
	// from the previous version. Never change a released entry.
	Migrations []string
}

// File is an open component. It is safe for concurrent use.
type File struct {
	db   *sql.DB
	path string
	// turn is held by the current writer. SQLite allows one writer and makes others sleep for increasing times, so writers
	// of this process wait here instead.
	turn chan struct{}
}

// Open opens the file at path and updates c. Open creates a missing file or directory. Only the user can access the
// file and the directory (0600, 0700).
func Open(ctx context.Context, path string, c Component) (*File, error) {
	path, err := filepath.Abs(path) // owners are next to it, even if the process changes the current directory
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := prepare(path); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &File{db: db, path: path, turn: make(chan struct{}, 1)}
	// SQLite does not wait if two processes select the write-ahead log of a new file at the same time.
	for until := time.Now().Add(busyTimeout); ; {
		err = f.migrate(ctx, c)
		if !errors.Is(err, ErrBusy) || time.Now().After(until) || !bound.Pause(ctx, busyPause) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return f, nil
}

// dsn selects a write-ahead log on disk before a commit returns. Transactions take the write lock at their beginning,
// because a transaction started as a reader could fail later.
func dsn(path string) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(" + strconv.FormatInt(busyTimeout.Milliseconds(), 10) + ")",
		"journal_mode(wal)", "synchronous(full)", "foreign_keys(on)", "trusted_schema(off)",
	}}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q.Encode()}).String()
}

// prepare creates the file with the right mode, because SQLite would use the umask.
func prepare(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fileError(path, err)
	}
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w: not a regular file", path, ErrForeign)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fileError(path, err)
	}
	return fileError(path, f.Close())
}

func fileError(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", ErrReadOnly, err) // err contains the path
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// migrate updates the component's tables. Concurrent processes take turns.
func (f *File) migrate(ctx context.Context, c Component) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	return f.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx,
			`CREATE TABLE IF NOT EXISTS component (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT`); err != nil {
			return err
		}
		var have int
		err := tx.QueryRowContext(ctx, `SELECT version FROM component WHERE name = ?`, c.Name).Scan(&have)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if have > len(c.Migrations) {
			return fmt.Errorf("%w: version %d of its %s, this program supports %d", ErrNewer, have, c.Name, len(c.Migrations))
		}
		if have == len(c.Migrations) {
			return nil
		}
		for _, step := range c.Migrations[have:] {
			if _, err := tx.ExecContext(ctx, step); err != nil {
				return fmt.Errorf("upgrading %s: %w", c.Name, err)
			}
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO component VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version`,
			c.Name, len(c.Migrations))
		return err
	})
}

// check refuses damaged files and files of other programs. It marks a new file.
func (f *File) check(ctx context.Context) error {
	var id, tables int
	query := `SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id` // one snapshot
	if err := f.db.QueryRowContext(ctx, query).Scan(&id, &tables); err != nil {
		return f.Error(err)
	}
	switch {
	case id == applicationID:
		return f.sound(ctx)
	case id == 0 && tables == 0:
		_, err := f.db.ExecContext(ctx, `PRAGMA application_id = `+strconv.Itoa(applicationID))
		return f.Error(err)
	}
	return fmt.Errorf("%s: %w", f.path, ErrForeign)
}

// sound detects damage, which SQLite would otherwise only find when it reads the damaged page. The file is small.
func (f *File) sound(ctx context.Context) error {
	var first string
	if err := f.db.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&first); err != nil {
		return f.Error(err)
	}
	if first != "ok" {
		return fmt.Errorf("%s: %w: %s", f.path, ErrCorrupt, first)
	}
	return nil
}

// DB returns the connection pool for reading. Use Tx or Exec for writing.
func (f *File) DB() *sql.DB { return f.db }

// Row is a row of a query.
type Row interface{ Scan(into ...any) error }

// Each calls fn for each row of a query until fn fails.
func (f *File) Each(ctx context.Context, fn func(Row) error, query string, args ...any) (err error) {
	rows, err := f.db.QueryContext(ctx, query, args...)
	if err != nil {
		return f.Error(err)
	}
	defer func() { err = errors.Join(err, f.Error(rows.Close())) }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return f.Error(err)
		}
	}
	return f.Error(rows.Err())
}

// Tx runs fn in a transaction. When Tx returns nil, the transaction is on disk. Errors of SQLite are converted to the
// errors of this package. Errors of fn are returned unchanged.
func (f *File) Tx(ctx context.Context, fn func(*sql.Tx) error) error {
	if err := bound.Enter(ctx, f.turn); err != nil {
		return err
	}
	defer func() { <-f.turn }()
	tx, err := f.db.BeginTx(ctx, nil)
	if err != nil {
		return f.Error(err)
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback() // fn's error is more important
		return f.Error(err)
	}
	return f.Error(tx.Commit())
}

// Exec runs a single statement as a separate transaction and returns the number of changed rows. It takes a third less
// time than Tx with one statement.
func (f *File) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := bound.Enter(ctx, f.turn); err != nil {
		return 0, err
	}
	defer func() { <-f.turn }()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	// If the context ends during the statement, the driver reports the context's error even if the statement had an
	// effect.
	res, err := f.db.ExecContext(context.WithoutCancel(ctx), query, args...)
	if err != nil {
		return 0, f.Error(err)
	}
	return res.RowsAffected()
}

// Close closes the file.
func (f *File) Close() error { return f.Error(f.db.Close()) }
