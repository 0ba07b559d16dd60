// Package postgres keeps session records in a PostgreSQL database, so that processes of several machines share them.
//
// An owner lives as long as it renews its lease, by the clock of the server. A process that did not reach the server
// for longer may have been taken for dead; then all that its store is asked to write fails with record.ErrOwnerLost. A
// program that serves ends then, or opens another store and manager: see Store.Lost.
package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// component is what this package has in the database: records as JSON, beside what is searched for. The index makes the
// database itself refuse a second live record of a key, whichever process asks. JSON is text: jsonb would not take
// every string.
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

// Store is a [record.Store] in a database. It is safe for concurrent use, also by several processes.
type Store struct {
	db *postgres.DB

	mu     sync.Mutex // guards owners
	owners map[string]*postgres.Owner
	closed bool
}

// Open connects to the database of a URL, as in postgres://user@host/database, and makes or updates the tables, which
// are in the schema "workcell". Its errors, and those of all calls, say whether the server cannot be reached, refuses,
// or has tables of a newer version.
func Open(ctx context.Context, url string) (*Store, error) {
	db, err := postgres.Open(ctx, url, component())
	if err != nil {
		return nil, err
	}
	return &Store{db: db, owners: map[string]*postgres.Owner{}}, nil
}

// Close ends the owners that have not left, and lets go of the database.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	left := slices.Collect(maps.Values(s.owners))
	s.mu.Unlock()
	var errs []error
	for _, o := range left {
		errs = append(errs, o.Leave())
	}
	s.db.Close()
	return errors.Join(errs...)
}

// Join makes an owner, which lives until it leaves or its lease is over. This process renews that lease.
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

// Lost is closed when an owner of this store was taken for dead, because the server was not reached for too long, and a
// little before that can be: who has it ends what others may go on with. It is nil for an owner that is not of this
// store.
func (s *Store) Lost(owner string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.owners[owner]; ok {
		return o.Lost()
	}
	return nil
}

// Lives reports whether an owner lives, in whichever process of whichever machine.
func (s *Store) Lives(ctx context.Context, owner string) (bool, error) { return s.db.Lives(ctx, owner) }

// write runs a transaction of this store's owners, all of whom must live until it is done. again: an earlier call may
// have been done, also with other owners.
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
		// One of them left meanwhile, which is no death.
	}
}

// overdue returns an error when an owner may be taken for dead by now, as far as can be known here.
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

// joined returns the owners that have not left.
func (s *Store) joined() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.owners))
}

// row is what a record is in the table.
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
	retried := false
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		retried = again
		// A conflict is normal, and must not fill the server's log with errors.
		tag, err := tx.Exec(ctx, `INSERT INTO workcell.session (id, engine, key, state, owner, record)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`, args...)
		if err == nil && tag.RowsAffected() == 0 {
			err = taken(rec)
		}
		return err
	})
	if retried && errors.Is(err, backend.ErrExists) { // perhaps an earlier attempt inserted it
		there, err := s.has(ctx, rec.ID, args[len(args)-1])
		if there || err != nil {
			return err
		}
	}
	return err
}

// has reports whether a record is there just like that.
func (s *Store) has(ctx context.Context, id string, record any) (there bool, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		return q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.session WHERE id = $1 AND record = $2)`, id, record).Scan(&there)
	})
	return there, err
}

// Update replaces a record.
func (s *Store) Update(ctx context.Context, rec record.Record) error {
	return conflict(rec, s.write(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		return update(ctx, tx, rec)
	}))
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
		there, err := scan(rec.ID, tx.QueryRow(ctx, recordOf+` FOR UPDATE`, rec.ID))
		switch {
		case err != nil:
			return err
		case rec.State.Live() && there.State == record.Closed:
			return fmt.Errorf("%w: sandbox %s has ended", backend.ErrExists, rec.ID)
		}
		// It was inserted between the two statements and is locked now.
	}
}

// conflict is backend.ErrExists for a record that the database refuses.
func conflict(rec record.Record, err error) error {
	if postgres.IsConflict(err) {
		return taken(rec)
	}
	return err
}

func taken(rec record.Record) error {
	return fmt.Errorf("%w: record of sandbox %s or live sandbox of session %s", backend.ErrExists, rec.ID, rec.Key)
}

// Take passes a record to another owner.
func (s *Store) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	return s.change(ctx, id, func(rec *record.Record, again bool) error {
		if rec.Owner != from && (!again || rec.Owner != to) {
			return fmt.Errorf("%w: sandbox %s has another owner", backend.ErrExists, id)
		}
		rec.Owner = to
		return nil
	})
}

// Touch notes the use of a live record.
func (s *Store) Touch(ctx context.Context, id string, lastUsed, expires time.Time) error {
	_, err := s.change(ctx, id, func(rec *record.Record, _ bool) error {
		if !rec.State.Live() {
			return noRecord(id)
		}
		rec.LastUsed, rec.Expires = lastUsed, expires
		return nil
	})
	return err
}

// change replaces a record by what fn makes of it, and returns that.
func (s *Store) change(ctx context.Context, id string, fn func(rec *record.Record, again bool) error) (rec record.Record, err error) {
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx, again bool) (err error) {
		if rec, err = scan(id, tx.QueryRow(ctx, recordOf+` FOR UPDATE`, id)); err != nil {
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

// scan returns the record of a row; backend.ErrNotFound when there is none.
func scan(id string, r pgx.Row) (rec record.Record, _ error) {
	var raw []byte
	err := r.Scan(&raw)
	if errors.Is(err, pgx.ErrNoRows) {
		return rec, noRecord(id)
	}
	if err != nil {
		return rec, err
	}
	return rec, unmarshal(raw, &rec)
}

func unmarshal(raw []byte, rec *record.Record) error {
	if err := json.Unmarshal(raw, rec); err != nil {
		return fmt.Errorf("%w: record of a sandbox: %v", postgres.ErrCorrupt, err)
	}
	return nil
}

func noRecord(id string) error {
	return fmt.Errorf("%w: record of sandbox %s", backend.ErrNotFound, id)
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, id string) (rec record.Record, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) (err error) {
		rec, err = scan(id, q.QueryRow(ctx, recordOf, id))
		return err
	})
	return rec, err
}

// List returns the records in the given states.
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
		raw, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		if err != nil {
			return err
		}
		recs, err = decode(raw)
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(recs, record.Record.Compare)
	return recs, nil
}

// decode reads records, many of them on all processors: it takes longer than to fetch them.
func decode(raw [][]byte) ([]record.Record, error) {
	const chunk = 500
	if len(raw) == 0 {
		return nil, nil
	}
	recs := make([]record.Record, len(raw))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for from := 0; from < len(raw); from += chunk {
		group.Go(func() error {
			for i := from; i < min(from+chunk, len(raw)); i++ {
				if err := unmarshal(raw[i], &recs[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return recs, group.Wait()
}

// Delete forgets a record.
func (s *Store) Delete(ctx context.Context, id string) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		_, err := tx.Exec(ctx, `DELETE FROM workcell.session WHERE id = $1`, id)
		return err
	})
}

// Instance returns the instance whose sandboxes the records are about, empty when it is not set.
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

// SetInstance sets the instance whose sandboxes the records are about, unless it is set.
func (s *Store) SetInstance(ctx context.Context, id string) error {
	_, err := s.db.Exec(ctx, `INSERT INTO workcell.instance (id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
	return err
}

// AddEnv adds to the variables that are kept for the commands in a sandbox, for as long as its record is a live one. No
// Record holds them.
func (s *Store) AddEnv(ctx context.Context, id string, env map[string]string) error {
	return s.write(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		kept, err := scanEnv(id, tx.QueryRow(ctx, envOf+` FOR UPDATE`, id))
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

// Env returns what AddEnv was given; empty for a sandbox without a record.
func (s *Store) Env(ctx context.Context, id string) (env map[string]string, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) (err error) {
		env, err = scanEnv(id, q.QueryRow(ctx, envOf, id))
		return err
	})
	if errors.Is(err, backend.ErrNotFound) {
		return map[string]string{}, nil
	}
	return env, err
}

const envOf = `SELECT env FROM workcell.session WHERE id = $1`

func scanEnv(id string, r pgx.Row) (map[string]string, error) {
	env := map[string]string{}
	var raw string
	err := r.Scan(&raw)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, noRecord(id)
	}
	if err != nil {
		return nil, err
	}
	return env, json.Unmarshal([]byte(raw), &env)
}
