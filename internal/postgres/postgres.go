// Package postgres stores state in a PostgreSQL database for concurrent use by processes on several hosts. The state
// survives the end of any process.
//
// A database contains components: groups of tables of one package. Each component has a schema version. All tables are
// in the schema "workcell". Opening a component updates the tables. If a newer program wrote the tables, Open returns
// an error. All time comparisons use the server's clock, never a client's clock.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
)

// Limits for calls to the server.
const (
	maxConns = 8 // default size of a pool; the URL's pool_max_conns overrides it
	// connectTimeout is the timeout of one attempt to connect. callTimeout is the timeout of one transaction, because a
	// dead connection may not report an error.
	connectTimeout = 5 * time.Second
	callTimeout    = 20 * time.Second
	// Patience is how long a call waits for a restarting server or a broken network.
	Patience = time.Minute
	// openPatience is the same limit for Open, so that a command that cannot start fails soon.
	openPatience = 4 * time.Second
	// Limits of the wait between two attempts of a call.
	minWait = 20 * time.Millisecond
	maxWait = time.Second
)

// Errors. They wrap errors with the details for users.
var (
	// ErrAddress means that the URL is not a URL of a PostgreSQL database.
	ErrAddress = errors.New("not the URL of a PostgreSQL database")
	// ErrUnreachable means that the server did not answer, or accepted no changes, during the maximum wait of a call. It
	// wraps backend.ErrUnavailable.
	ErrUnreachable error = unreachable{}
	// ErrRefused means that the server does not grant this user the necessary permissions.
	ErrRefused = errors.New("the PostgreSQL server refused access")
	// ErrNewer means that a newer version of the program wrote the tables.
	ErrNewer = errors.New("the state database was written by a newer version")
	// ErrCorrupt means that the data in a table cannot be read.
	ErrCorrupt = errors.New("the state database is damaged")
	// ErrFull means that the server's disk is full.
	ErrFull = errors.New("the disk of the PostgreSQL server is full")
	// ErrLeaseLost means that an owner did not renew its lease in time and was treated as dead, or may be. Another process
	// may own the owner's resources.
	ErrLeaseLost = errors.New("this process lost its lease, because it could not reach the state database for too long")
)

type unreachable struct{}

func (unreachable) Error() string { return "the PostgreSQL server is unreachable or not ready" }
func (unreachable) Unwrap() error { return backend.ErrUnavailable }

// Component is a group of tables.
type Component struct {
	Name string
	// Migrations contains one entry per version. The first entry creates the tables, and each other entry updates them
	// from the previous version. Never change a released entry.
	Migrations []string
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	pool     *pgxpool.Pool
	where    string // host and database, for errors
	patience time.Duration
	timeout  time.Duration // timeout of one attempt of a call
	cutOff   atomic.Bool   // an owner was lost because the server is unreachable; calls do not wait
}

// Open connects to the database of a URL and updates the tables of the components and of the owners.
func Open(ctx context.Context, url string, components ...Component) (*DB, error) {
	conf, err := config(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrAddress, err)
	}
	c := conf.ConnConfig
	where := fmt.Sprintf("database %s on %s", c.Database, c.Host)
	db := &DB{pool: pool, where: where, patience: openPatience, timeout: callTimeout}
	for _, component := range append([]Component{owners()}, components...) {
		if err := db.migrate(ctx, component); err != nil {
			db.Close()
			return nil, err
		}
	}
	db.patience = Patience
	return db, nil
}

// alone returns a DB for the same database with a single connection.
func (db *DB) alone(ctx context.Context) (*DB, error) {
	conf := db.pool.Config() // a copy
	conf.MaxConns, conf.MinConns, conf.MinIdleConns = 1, 0, 0
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, err
	}
	return &DB{pool: pool, where: db.where, patience: db.patience, timeout: db.timeout}, nil
}

// config parses a URL. Errors do not contain the password.
func config(url string) (*pgxpool.Config, error) {
	conf, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrAddress, err)
	}
	if conf.ConnConfig.Database == "" {
		return nil, fmt.Errorf("%w: no database specified, for example postgres://user@host/database", ErrAddress)
	}
	if !asksFor(url, "pool_max_conns") {
		conf.MaxConns = maxConns
	}
	if !asksFor(url, "connect_timeout") {
		conf.ConnConfig.ConnectTimeout = connectTimeout
	}
	params := conf.ConnConfig.RuntimeParams
	for name, value := range map[string]string{
		"application_name": "workcell",
		// A transaction of a disconnected client must not keep locks.
		"idle_in_transaction_session_timeout": "30s", "lock_timeout": "15s", "statement_timeout": "60s",
		// An acknowledged write must be on the server's disk, whatever the server's default is.
		"synchronous_commit": "on",
	} {
		if _, ok := params[name]; !ok {
			params[name] = value
		}
	}
	return conf, nil
}

// Close closes all connections. It waits at most a second for the server, which may not respond.
func (db *DB) Close() {
	ctx, closed := context.WithTimeout(context.Background(), time.Second)
	go func() { db.pool.Close(); closed() }()
	<-ctx.Done()
}

// migrate updates a component's tables. Concurrent processes take turns.
func (db *DB) migrate(ctx context.Context, c Component) error {
	have, err := db.version(ctx, c.Name)
	if err != nil || have == len(c.Migrations) {
		return err
	}
	if have > len(c.Migrations) {
		return fmt.Errorf("%s: %w: version %d of its %s, this program supports %d",
			db.where, ErrNewer, have, c.Name, len(c.Migrations))
	}
	return db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('workcell/migrate', 0))`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS workcell;
CREATE TABLE IF NOT EXISTS workcell.component (name text PRIMARY KEY, version int NOT NULL)`); err != nil {
			return err
		}
		var have int // another process may have migrated
		err := tx.QueryRow(ctx, `SELECT version FROM workcell.component WHERE name = $1`, c.Name).Scan(&have)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if have >= len(c.Migrations) {
			return nil
		}
		for _, step := range c.Migrations[have:] {
			if _, err := tx.Exec(ctx, step); err != nil {
				return fmt.Errorf("upgrading %s: %w", c.Name, err)
			}
		}
		_, err = tx.Exec(ctx, `INSERT INTO workcell.component VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET version = excluded.version`,
			c.Name, len(c.Migrations))
		return err
	})
}

// version returns the version of a component's tables, or 0. A user who may not create tables can read it.
func (db *DB) version(ctx context.Context, name string) (have int, err error) {
	return have, db.Do(ctx, func(ctx context.Context, q Queryer, _ bool) error {
		err := q.QueryRow(ctx, `SELECT version FROM workcell.component WHERE name = $1`, name).Scan(&have)
		if code := codeOf(err); code == undefinedTable || code == undefinedSchema || errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
}

// Queryer is a connection or a transaction.
type Queryer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Do calls fn with a connection. fn must run a single statement, which is a separate transaction. If the connection is
// lost or unavailable, Do calls fn again. If again is true, an earlier call may have succeeded although the answer was
// lost. fn must then accept existing changes as the call's own. Errors of the server are converted to the errors of
// this package.
func (db *DB) Do(ctx context.Context, fn func(ctx context.Context, q Queryer, again bool) error) error {
	return db.repeat(ctx, func(ctx context.Context, again bool) error { return fn(ctx, db.pool, again) })
}

// Exec is like Do for a statement that may be repeated. It returns the number of changed rows.
func (db *DB) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = db.Do(ctx, func(ctx context.Context, q Queryer, _ bool) error {
		tag, err := q.Exec(ctx, query, args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// Tx is like Do for a transaction with several statements. All statements must use the context passed to fn.
func (db *DB) Tx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx, again bool) error) error {
	return db.repeat(ctx, func(ctx context.Context, again bool) error {
		return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return fn(ctx, tx, again) })
	})
}

// repeat calls fn until it succeeds or fails for another reason than the connection, at most for db.patience.
func (db *DB) repeat(ctx context.Context, fn func(ctx context.Context, again bool) error) error {
	began, wait, again := time.Now(), minWait, false
	var last error // error of the latest attempt not ended by ctx
	over := func() error {
		if last != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("%w: %w", db.Error(last), ctx.Err())
		}
		return ctx.Err()
	}
	for {
		if ctx.Err() != nil {
			return over()
		}
		err := db.once(ctx, again, fn)
		if ctx.Err() != nil && err != nil && isLost(err) {
			return over()
		}
		if err == nil || !isLost(err) {
			return db.Error(err)
		}
		last = err
		if time.Since(began) > db.patience || db.cutOff.Load() {
			return db.Error(err)
		}
		if codeOf(err) == readOnly { // the address may now lead to another server, but these connections do not
			db.pool.Reset()
		}
		// After other failures, the result is unknown. For example, a commit whose answer is lost fails with "conn closed".
		again = again || !errors.As(err, new(*pgconn.ConnectError))
		if !bound.Pause(ctx, wait) {
			return over()
		}
		wait = min(2*wait, maxWait)
	}
}

// once makes one attempt with a timeout, because a dead connection may block forever.
func (db *DB) once(ctx context.Context, again bool, fn func(ctx context.Context, again bool) error) error {
	ctx, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	return fn(ctx, again)
}
