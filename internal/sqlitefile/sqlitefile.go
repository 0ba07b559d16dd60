// Package sqlitefile keeps state in one SQLite file that several processes use at once and that survives the end of any
// of them, and of the machine, at any moment.
//
// A file holds components: groups of tables that belong to one package, each with a schema version of its own. Opening
// a component brings its tables up to date; what a newer program wrote is refused, never guessed at.
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
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// applicationID marks the files of this program ("WCel"), so that another program's database is not taken for one.
const applicationID = 0x5743656c

// busyTimeout is how long a statement waits for another process's transaction. Transactions here take milliseconds.
const busyTimeout = 30 * time.Second

// Errors. What they wrap has the details, for people.
var (
	// ErrCorrupt means that the file is damaged or no database.
	ErrCorrupt = errors.New("the state file is damaged")
	// ErrForeign means that the file is the database of another program.
	ErrForeign = errors.New("the state file belongs to another program")
	// ErrNewer means that a newer version of the program wrote the file.
	ErrNewer = errors.New("the state file was written by a newer version")
	// ErrReadOnly means that the file or its directory cannot be written.
	ErrReadOnly = errors.New("cannot write the state file")
	// ErrFull means that the disk is full or failing.
	ErrFull = errors.New("the disk of the state file is full")
	// ErrBusy means that another process kept its lock on the file.
	ErrBusy = errors.New("the state file is locked by another process")
)

// Component is a group of tables.
type Component struct {
	Name string
	// Migrations bring the tables from each version to the next; the first makes them. An entry that was released is
	// never changed.
	Migrations []string
}

// File is an open component. It is safe for concurrent use.
type File struct {
	db   *sql.DB
	path string
	// turn is who writes. SQLite has one writer, and lets the others sleep for longer each time that they find it busy, so
	// within a process they wait here.
	turn chan struct{}
}

// Open opens the file at path, which is made with its directory when there is none, and brings c up to date. The file
// and its directory are the user's alone (0600, 0700).
func Open(ctx context.Context, path string, c Component) (*File, error) {
	path, err := filepath.Abs(path) // owners are looked for beside it, wherever the process goes
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
	if err := f.migrate(ctx, c); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return f, nil
}

// dsn asks for a write-ahead log that is on the disk before a commit returns. Transactions take the write lock when
// they begin: one that began as a reader could fail in its middle.
func dsn(path string) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		"busy_timeout(" + strconv.FormatInt(busyTimeout.Milliseconds(), 10) + ")",
		"journal_mode(wal)", "synchronous(full)", "foreign_keys(on)", "trusted_schema(off)",
	}}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q.Encode()}).String()
}

// prepare makes the file with the right mode before SQLite would make it with the umask's.
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
	case errors.Is(err, fs.ErrPermission), isReadOnly(err):
		return fmt.Errorf("%w: %w", ErrReadOnly, err) // err names the path
	case isFull(err):
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// migrate brings the component's tables up to date. Two processes that start at once take turns.
func (f *File) migrate(ctx context.Context, c Component) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	return f.Tx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS component (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT`); err != nil {
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

// check makes sure that the file is ours and sound, and marks a new one.
func (f *File) check(ctx context.Context) error {
	var id, pages int
	if err := f.db.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&id); err != nil {
		return f.Error(err)
	}
	if err := f.db.QueryRowContext(ctx, `PRAGMA page_count`).Scan(&pages); err != nil {
		return f.Error(err)
	}
	switch {
	case id == applicationID:
		return f.sound(ctx)
	case id == 0 && f.isEmpty(ctx):
		_, err := f.db.ExecContext(ctx, `PRAGMA application_id = `+strconv.Itoa(applicationID))
		return f.Error(err)
	}
	return fmt.Errorf("%s: %w", f.path, ErrForeign)
}

func (f *File) isEmpty(ctx context.Context) bool {
	var tables int
	err := f.db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema`).Scan(&tables)
	return err == nil && tables == 0
}

// sound looks for damage that SQLite would otherwise find only when it comes upon it. The file is small.
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

// DB returns the connection pool for reading; for writing use Tx or Exec.
func (f *File) DB() *sql.DB { return f.db }

// Row is a row of a query.
type Row interface{ Scan(into ...any) error }

// Each calls fn for every row of a query, until it fails.
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

// Tx runs fn in a transaction that is on the disk when Tx returns nil. Errors of SQLite come back as those of this
// package; fn's own errors as they are.
func (f *File) Tx(ctx context.Context, fn func(*sql.Tx) error) error {
	if err := f.await(ctx); err != nil {
		return err
	}
	defer func() { <-f.turn }()
	tx, err := f.db.BeginTx(ctx, nil)
	if err != nil {
		return f.Error(err)
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback() // fn's error says more
		return f.Error(err)
	}
	return f.Error(tx.Commit())
}

// Exec runs a single statement, which is a transaction of its own, and returns how many rows it changed. It takes a
// third of the time off a transaction with one statement.
func (f *File) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := f.await(ctx); err != nil {
		return 0, err
	}
	defer func() { <-f.turn }()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	// A context that ends during the statement makes the driver report its error, even if the statement has an effect.
	res, err := f.db.ExecContext(context.WithoutCancel(ctx), query, args...)
	if err != nil {
		return 0, f.Error(err)
	}
	return res.RowsAffected()
}

// await waits for its turn to write.
func (f *File) await(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close lets go of the file.
func (f *File) Close() error { return f.Error(f.db.Close()) }
