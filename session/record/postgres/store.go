// Package postgres stores session records in a PostgreSQL database, to share them between processes on several hosts.
//
// An owner lives as long as it renews a lease, according to the server's clock. If a process cannot reach the server
// for longer, other processes may treat it as dead. Then all writes to the process's store fail with
// record.ErrOwnerLost. A long-running program should then exit, or open another store and manager. See Store.Lost.
package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// component defines the package's tables. A record is stored as JSON, with additional columns for queries. A unique
// index prevents a second live record of a key, whichever process inserts it. The JSON has type text because jsonb does
// not accept every string.
func component() postgres.Component {
	return postgres.Component{Name: "sessions", Migrations: []string{`
CREATE TABLE workcell.session (
	id     text PRIMARY KEY,
	engine text NOT NULL,
	key    text NOT NULL,
	state  text NOT NULL,
	owner  text NOT NULL,
	record text NOT NULL,
	env    text NOT NULL DEFAULT '{}'
);
CREATE UNIQUE INDEX session_live ON workcell.session (engine, key) WHERE state IN ('creating', 'ready');
CREATE INDEX session_state ON workcell.session (state);
CREATE TABLE workcell.instance (one boolean PRIMARY KEY DEFAULT true CHECK (one), id text NOT NULL);
`}}
}

// Store is a [record.Store] in a database. It is safe for concurrent use, and several processes may use the database.
type Store struct {
	db *postgres.DB

	mu     sync.Mutex // guards owners
	owners map[string]*postgres.Owner
}

// Open connects to a database URL, for example postgres://user@host/database. It creates or updates the tables in the
// schema "workcell". The errors of Open and of all methods distinguish an unreachable server, a refusal, and tables of
// a newer version.
func Open(ctx context.Context, url string) (*Store, error) {
	db, err := postgres.Open(ctx, url, component())
	if err != nil {
		return nil, err
	}
	return &Store{db: db, owners: map[string]*postgres.Owner{}}, nil
}

// Close ends the remaining owners and closes the connections.
func (s *Store) Close() error {
	s.mu.Lock()
	left := slices.Collect(maps.Values(s.owners))
	s.mu.Unlock()
	var errs []error
	for _, o := range left {
		errs = append(errs, o.Leave())
	}
	s.db.Close()
	return errors.Join(errs...)
}

// Join creates an owner, which lives until leave is called or the lease expires. This process renews the lease.
func (s *Store) Join(ctx context.Context) (owner string, leave func() error, err error) {
	o, err := s.db.Join(ctx)
	if err != nil {
		return "", nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners[o.ID] = o
	return o.ID, func() error {
		s.mu.Lock()
		delete(s.owners, o.ID)
		s.mu.Unlock()
		return o.Leave()
	}, nil
}

// Lost returns a channel. It is closed shortly before other processes may treat an owner of this store as dead, because
// the server could not be reached. The owner must then stop all work that other processes may continue. If the owner
// does not belong to this store, Lost returns nil.
func (s *Store) Lost(owner string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.owners[owner]; ok {
		return o.Lost()
	}
	return nil
}

// Lives reports whether an owner is alive, in any process on any host.
func (s *Store) Lives(ctx context.Context, owner string) (bool, error) { return s.db.Lives(ctx, owner) }

// write runs a transaction in which all owners of this store must be alive. If again is true, an earlier attempt may
// have succeeded, possibly with other owners.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx, again bool) error) error {
	for retried := false; ; {
		owners := s.joined()
		err := s.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
			retried = retried || again
			if err := postgres.Guard(ctx, tx, owners); err != nil {
				return err
			}
			return fn(ctx, tx, retried)
		})
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, postgres.ErrLeaseLost):
			if late := s.overdue(); late != nil {
				return fmt.Errorf("%w: %w: %w", record.ErrOwnerLost, late, err)
			}
			return err
		case slices.Equal(owners, s.joined()):
			return fmt.Errorf("%w: %w", record.ErrOwnerLost, err)
		}
		// One of the owners has left since, but it is not dead.
	}
}

// overdue returns an error if other processes may treat an owner as dead by now, as judged by the local clock.
func (s *Store) overdue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, o := range s.owners {
		if o.Overdue() {
			return fmt.Errorf("owner %s: %w", id, postgres.ErrLeaseLost)
		}
	}
	return nil
}

// joined returns the current owners.
func (s *Store) joined() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.owners))
}

// row returns the column values of a record.
func row(rec record.Record) (args []any, err error) {
	raw, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	key, err := json.Marshal(rec.Key)
	return []any{rec.ID, rec.Engine, string(key), string(rec.State), rec.Owner, string(raw)}, err
}

// Insert adds a record.
func (s *Store) Insert(ctx context.Context, rec record.Record) error {
	args, err := row(rec)
	if err != nil {
		return err
	}
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		// A conflict is normal and must not fill the server's log with errors.
		tag, err := tx.Exec(ctx, `INSERT INTO workcell.session (id, engine, key, state, owner, record)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`, args...)
		if err != nil || tag.RowsAffected() > 0 {
			return err
		}
		there := false
		if again { // an earlier attempt may have inserted it
			const query = `SELECT EXISTS (SELECT FROM workcell.session WHERE id = $1 AND record = $2)`
			err = tx.QueryRow(ctx, query, rec.ID, args[len(args)-1]).Scan(&there)
		}
		if err == nil && !there {
			err = taken(rec)
		}
		return err
	})
}

// Update replaces a record. If an earlier attempt may have succeeded, Update does not replace a later record of
// another process.
func (s *Store) Update(ctx context.Context, rec record.Record) error {
	err := s.write(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		if again {
			stored, err := scan[record.Record](rec.ID, tx.QueryRow(ctx, recordOf+` FOR UPDATE`, rec.ID))
			if err != nil {
				return err
			}
			own := s.joined()
			switch same := stored.Owner == rec.Owner; {
			case slices.Contains(own, stored.Owner), stored.Owner == "" && slices.Contains(own, rec.Owner):
			case same && (stored.State == rec.State || rec.Owner == "" && rec.State.Live()):
				return nil // it succeeded, and another process may have used and given up the sandbox since
			case !same:
				return fmt.Errorf("%w: sandbox %s has another owner", backend.ErrExists, rec.ID)
			}
		}
		return update(ctx, tx, rec)
	})
	if postgres.IsConflict(err) {
		return taken(rec)
	}
	return err
}

func update(ctx context.Context, tx pgx.Tx, rec record.Record) error {
	args, err := row(rec)
	if err != nil {
		return err
	}
	for {
		tag, err := tx.Exec(ctx, `UPDATE workcell.session SET engine = $2, key = $3, state = $4, owner = $5, record = $6,
	env = CASE WHEN $4 = 'closed' THEN '{}' ELSE env END
	WHERE id = $1 AND ($4 NOT IN ('creating', 'ready') OR state <> 'closed')`, args...)
		if err != nil || tag.RowsAffected() > 0 {
			return err
		}
		stored, err := scan[record.Record](rec.ID, tx.QueryRow(ctx, recordOf+` FOR UPDATE`, rec.ID))
		if err == nil {
			err = stored.Update(rec)
		}
		if err != nil {
			return err
		}
		// The record was inserted between the two statements and is locked now.
	}
}

func taken(rec record.Record) error {
	return fmt.Errorf("%w: record of sandbox %s or live sandbox of session %s", backend.ErrExists, rec.ID, rec.Key)
}

// Take changes the owner of a record.
func (s *Store) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	return s.change(ctx, id, func(rec *record.Record, again bool) error {
		if again && rec.Owner == to {
			return nil
		}
		return rec.Take(from, to)
	})
}

// Touch records the use of a live record.
func (s *Store) Touch(ctx context.Context, id string, lastUsed, expires time.Time) error {
	_, err := s.change(ctx, id, func(rec *record.Record, _ bool) error { return rec.Touch(lastUsed, expires) })
	return err
}

// change calls fn with a copy of a record, stores the result, and returns it.
func (s *Store) change(ctx context.Context, id string, fn func(rec *record.Record, again bool) error) (
	rec record.Record, err error) {
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx, again bool) (err error) {
		if rec, err = scan[record.Record](id, tx.QueryRow(ctx, recordOf+` FOR UPDATE`, id)); err != nil {
			return err
		}
		if err := fn(&rec, again); err != nil {
			return err
		}
		return update(ctx, tx, rec)
	})
	if err != nil {
		return record.Record{}, err
	}
	return rec, nil
}

const recordOf = `SELECT record FROM workcell.session WHERE id = $1`

// scan decodes the JSON in a row. Without a row, it returns an error wrapping backend.ErrNotFound.
func scan[T any](id string, r pgx.Row) (value T, _ error) {
	var raw []byte
	err := r.Scan(&raw)
	if errors.Is(err, pgx.ErrNoRows) {
		return value, record.NotFound(id)
	}
	if err != nil {
		return value, err
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, fmt.Errorf("%w: record of a sandbox: %v", postgres.ErrCorrupt, err)
	}
	return value, nil
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, id string) (rec record.Record, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) (err error) {
		rec, err = scan[record.Record](id, q.QueryRow(ctx, recordOf, id))
		return err
	})
	return rec, err
}

// List returns the records in the specified states.
func (s *Store) List(ctx context.Context, states ...record.State) (recs []record.Record, err error) {
	query, args := `SELECT record FROM workcell.session`, []any(nil)
	if len(states) > 0 {
		names := make([]string, len(states))
		for i, state := range states {
			names[i] = string(state)
		}
		query, args = query+` WHERE state = ANY($1)`, []any{names}
	}
	err = s.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		rows, err := q.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		recs, err = pgx.AppendRows([]record.Record(nil), rows, func(row pgx.CollectableRow) (record.Record, error) {
			return scan[record.Record]("", row)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(recs, record.Record.Compare)
	return recs, nil
}

// Delete deletes a record.
func (s *Store) Delete(ctx context.Context, id string) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		_, err := tx.Exec(ctx, `DELETE FROM workcell.session WHERE id = $1`, id)
		return err
	})
}

// Instance returns the instance of the records. If it is not set, Instance returns "".
func (s *Store) Instance(ctx context.Context) (id string, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		err := q.QueryRow(ctx, `SELECT id FROM workcell.instance`).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return id, err
}

// SetInstance sets the instance of the records. If it is already set, SetInstance has no effect.
func (s *Store) SetInstance(ctx context.Context, id string) error {
	_, err := s.db.Exec(ctx, `INSERT INTO workcell.instance (id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
	return err
}

// AddEnv adds environment variables for commands in a sandbox. They are kept as long as the sandbox's record is live.
// They are not part of Record.
func (s *Store) AddEnv(ctx context.Context, id string, env map[string]string) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		kept, err := scan[map[string]string](id, tx.QueryRow(ctx, envOf+` FOR UPDATE`, id))
		if err != nil {
			return err
		}
		maps.Copy(kept, env)
		if err := sandbox.ValidateEnv(kept); err != nil {
			return err
		}
		raw, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE workcell.session SET env = $2 WHERE id = $1`, id, string(raw))
		return err
	})
}

// Env returns the variables from AddEnv. For a sandbox without a record, it returns an empty map.
func (s *Store) Env(ctx context.Context, id string) (env map[string]string, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) (err error) {
		env, err = scan[map[string]string](id, q.QueryRow(ctx, envOf, id))
		return err
	})
	if errors.Is(err, backend.ErrNotFound) {
		return map[string]string{}, nil
	}
	return env, err
}

const envOf = `SELECT env FROM workcell.session WHERE id = $1`
