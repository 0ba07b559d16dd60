// Package postgres keeps state in a PostgreSQL database that processes of several machines use at once, and that
// survives the end of any of them.
//
// A database holds components: groups of tables that belong to one package, each with a schema version of its own, all
// in the schema "workcell". Opening a component brings its tables up to date; what a newer program wrote is refused,
// never guessed at. All times that decide anything are the server's: clocks of clients are not asked.
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
)

// Bounds of the conversation with the server.
const (
	maxConns = 8 // of a pool; the URL's pool_max_conns counts before it
	// connectTimeout bounds one attempt to connect, callTimeout one transaction: a connection may be dead without saying
	// so.
	connectTimeout = 5 * time.Second
	callTimeout    = 20 * time.Second
	// Patience is how long a call waits for a server that restarts, or a network that is cut.
	Patience = time.Minute
	// openPatience is that of Open: a command that cannot begin says so soon.
	openPatience = 4 * time.Second
	// Waits between two attempts of a call.
	minWait = 20 * time.Millisecond
	maxWait = time.Second
)

// Errors. What they wrap has the details, for people.
var (
	// ErrAddress means that the URL is not one of a PostgreSQL database.
	ErrAddress = errors.New("not the URL of a PostgreSQL database")
	// ErrUnreachable means that the server did not answer, or took no changes, for as long as a call waits. It wraps
	// backend.ErrUnavailable.
	ErrUnreachable error = unreachable{}
	// ErrRefused means that the server does not let this user do what is needed.
	ErrRefused = errors.New("the PostgreSQL server refused access")
	// ErrNewer means that a newer version of the program wrote the tables.
	ErrNewer = errors.New("the state database was written by a newer version")
	// ErrCorrupt means that what a table holds cannot be read.
	ErrCorrupt = errors.New("the state database is damaged")
	// ErrFull means that the server's disk takes no more.
	ErrFull = errors.New("the disk of the PostgreSQL server is full")
	// ErrLeaseLost means that an owner did not renew its lease in time and was taken for dead, or may be: what it had may
	// be another's.
	ErrLeaseLost = errors.New("this process lost its lease, because it could not reach the state database for too long")
)

type unreachable struct{}

func (unreachable) Error() string { return "the PostgreSQL server is unreachable or not ready" }
func (unreachable) Unwrap() error { return backend.ErrUnavailable }

// Component is a group of tables.
type Component struct {
	Name string
	// Migrations bring the tables from each version to the next; the first makes them. An entry that was released is
	// never changed.
	Migrations []string
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	pool     *pgxpool.Pool
	where    string // host and database, for errors
	patience time.Duration
	timeout  time.Duration // of one attempt of a call
	cutOff   atomic.Bool   // an owner is lost because it does not reach the server: its process waits for nothing any more
}

// Open connects to the database of a URL and brings the components, and the table of owners, up to date.
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
	db := &DB{pool: pool, where: fmt.Sprintf("database %s on %s", c.Database, c.Host), patience: openPatience, timeout: callTimeout}
	for _, component := range append([]Component{owners()}, components...) {
		if err := db.migrate(ctx, component); err != nil {
			db.Close()
			return nil, err
		}
	}
	db.patience = Patience
	return db, nil
}

// alone returns the same database with a single connection.
func (db *DB) alone(ctx context.Context) (*DB, error) {
	conf := db.pool.Config() // a copy
	conf.MaxConns, conf.MinConns, conf.MinIdleConns = 1, 0, 0
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, err
	}
	return &DB{pool: pool, where: db.where, patience: db.patience, timeout: db.timeout}, nil
}

// config reads a URL. Its errors do not show the password.
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
		// A transaction whose client is gone must not keep its locks.
		"idle_in_transaction_session_timeout": "30s", "lock_timeout": "15s", "statement_timeout": "60s",
		// What was acknowledged is on the server's disk, whatever its default is.
		"synchronous_commit": "on",
	} {
		if _, ok := params[name]; !ok {
			params[name] = value
		}
	}
	return conf, nil
}

// Close closes all connections. It waits a moment for the server, which may be silent.
func (db *DB) Close() {
	ctx, closed := context.WithTimeout(context.Background(), time.Second)
	go func() { db.pool.Close(); closed() }()
	<-ctx.Done()
}

// migrate brings a component's tables up to date. Processes that start at once take turns.
func (db *DB) migrate(ctx context.Context, c Component) error {
	have, err := db.version(ctx, c.Name)
	if err != nil || have == len(c.Migrations) {
		return err
	}
	if have > len(c.Migrations) {
		return fmt.Errorf("%s: %w: version %d of its %s, this program supports %d", db.where, ErrNewer, have, c.Name, len(c.Migrations))
	}
	return db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('workcell/migrate', 0))`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS workcell;
CREATE TABLE IF NOT EXISTS workcell.component (name text PRIMARY KEY, version int NOT NULL)`); err != nil {
			return err
		}
		var have int // by now
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

// version returns the version of a component's tables; 0 for none. A user without the right to make any can read it.
func (db *DB) version(ctx context.Context, name string) (have int, err error) {
	return have, db.Do(ctx, func(ctx context.Context, q Queryer, _ bool) error {
		err := q.QueryRow(ctx, `SELECT version FROM workcell.component WHERE name = $1`, name).Scan(&have)
		var pg *pgconn.PgError
		if errors.Is(err, pgx.ErrNoRows) || errors.As(err, &pg) && (pg.Code == undefinedTable || pg.Code == undefinedSchema) {
			return nil
		}
		return err
	})
}

// Queryer is a connection, or a transaction.
type Queryer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Do calls fn, whose single statement is a transaction of its own, and calls it again after the connection was lost, or
// while there is none. again: an earlier call may have been done although its answer did not arrive, so that fn must
// take what it finds done for its own work. Errors of the server come back as those of this package.
func (db *DB) Do(ctx context.Context, fn func(ctx context.Context, q Queryer, again bool) error) error {
	return db.repeat(ctx, func(ctx context.Context, again bool) error { return fn(ctx, db.pool, again) })
}

// Exec is Do for a statement that may be done twice, and returns how many rows it changed.
func (db *DB) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = db.Do(ctx, func(ctx context.Context, q Queryer, _ bool) error {
		tag, err := q.Exec(ctx, query, args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// Tx is Do for a transaction of several statements, all of which must end with the context that fn is called with.
func (db *DB) Tx(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx, again bool) error) error {
	return db.repeat(ctx, func(ctx context.Context, again bool) error {
		return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return fn(ctx, tx, again) })
	})
}

// repeat calls fn until it did not fail for want of a connection, at most for as long as calls are patient.
func (db *DB) repeat(ctx context.Context, fn func(ctx context.Context, again bool) error) error {
	began, wait, again := time.Now(), minWait, false
	var last error // why the latest attempt failed that ctx did not end
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
		if codeOf(err) == readOnly { // the address may lead to another server by now, these connections never will
			db.pool.Reset()
		}
		// Of any other failure it is not known what was done: that of a commit whose answer is lost says "conn closed", too.
		var connect *pgconn.ConnectError
		again = again || !errors.As(err, &connect)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return over()
		}
		wait = min(2*wait, maxWait)
	}
}

// once is one attempt, which does not wait for ever on a connection that is dead.
func (db *DB) once(ctx context.Context, again bool, fn func(ctx context.Context, again bool) error) error {
	ctx, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	return fn(ctx, again)
}
