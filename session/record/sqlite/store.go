// Package sqlite stores session records in a SQLite file, to keep them after the process exits and to share them
// between processes.
package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// component defines the package's tables. A record is stored as JSON. A unique index prevents a second live record of a
// key, whichever process inserts it.
func component() sqlitefile.Component {
	return sqlitefile.Component{Name: "sessions", Migrations: []string{`
CREATE TABLE session (
	id     TEXT PRIMARY KEY,
	record TEXT NOT NULL,
	env    TEXT NOT NULL DEFAULT '{}'
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX session_live ON session (record ->> 'Engine', record ->> 'Key') WHERE record ->> 'State' IN ('creating', 'ready');
CREATE INDEX session_state ON session (record ->> 'State');
CREATE TRIGGER session_env AFTER UPDATE OF record ON session WHEN NEW.record ->> 'State' IN ('closed', 'lost') BEGIN
	UPDATE session SET env = '{}' WHERE id = NEW.id;
END;
CREATE TABLE instance (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL) STRICT;
`}}
}

// Store is a [record.Store] in a file. It is safe for concurrent use, and several processes may use the file.
type Store struct{ f *sqlitefile.File }

// Open opens the file at path and creates it if it does not exist. The errors of Open and of all methods distinguish a
// damaged file, a file of a newer version, a read-only file, and a full disk.
func Open(ctx context.Context, path string) (*Store, error) {
	f, err := sqlitefile.Open(ctx, path, component())
	if err != nil {
		return nil, err
	}
	return &Store{f}, nil
}

// Instance returns the instance of the records. If it is not set, Instance returns "".
func (s *Store) Instance(ctx context.Context) (id string, err error) {
	err = s.f.DB().QueryRowContext(ctx, `SELECT id FROM instance`).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return id, s.f.Error(err)
}

// SetInstance sets the instance of the records. If it is already set, SetInstance has no effect.
func (s *Store) SetInstance(ctx context.Context, id string) error {
	_, err := s.f.Exec(ctx, `INSERT INTO instance (one, id) VALUES (1, ?) ON CONFLICT DO NOTHING`, id)
	return err
}

// AddEnv adds environment variables for commands in a sandbox. They are kept as long as the sandbox's record is live.
// They are not part of Record.
func (s *Store) AddEnv(ctx context.Context, id string, env map[string]string) error {
	return s.f.Tx(ctx, func(tx *sql.Tx) error {
		kept, err := scan[map[string]string](id, tx.QueryRowContext(ctx, envOf, id))
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
		_, err = tx.ExecContext(ctx, `UPDATE session SET env = ? WHERE id = ?`, string(raw), id)
		return err
	})
}

// Env returns the variables from AddEnv. For a sandbox without a record, it returns an empty map.
func (s *Store) Env(ctx context.Context, id string) (map[string]string, error) {
	env, err := scan[map[string]string](id, s.f.DB().QueryRowContext(ctx, envOf, id))
	if errors.Is(err, backend.ErrNotFound) {
		return map[string]string{}, nil
	}
	return env, s.f.Error(err)
}

const envOf = `SELECT env FROM session WHERE id = ?`

// Close closes the file.
func (s *Store) Close() error { return s.f.Close() }

// Join creates an owner: a file next to the store, locked as long as the owner lives.
func (s *Store) Join(ctx context.Context) (owner string, leave func() error, err error) {
	if err := ctx.Err(); err != nil {
		return "", nil, err
	}
	return s.f.Join()
}

// Lives reports whether an owner is alive, in any process on this host.
func (s *Store) Lives(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return s.f.Lives(owner)
}

// Insert adds a record.
func (s *Store) Insert(ctx context.Context, rec record.Record) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	_, err = s.f.Exec(ctx, `INSERT INTO session (id, record) VALUES (?, ?)`, rec.ID, string(raw))
	return conflict(rec, err)
}

// Update replaces a record.
func (s *Store) Update(ctx context.Context, rec record.Record) error {
	_, err := s.change(ctx, rec.ID, func(stored *record.Record) error { return stored.Update(rec) })
	return conflict(rec, err)
}

// conflict returns an error wrapping backend.ErrExists if err is a conflict.
func conflict(rec record.Record, err error) error {
	if sqlitefile.IsConflict(err) {
		return fmt.Errorf("%w: record of sandbox %s or live sandbox of session %s", backend.ErrExists, rec.ID, rec.Key)
	}
	return err
}

// Take changes the owner of a record.
func (s *Store) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	return s.change(ctx, id, func(stored *record.Record) error { return stored.Take(from, to) })
}

// Touch records the use of a live record.
func (s *Store) Touch(ctx context.Context, id string, lastUsed, expires time.Time) error {
	_, err := s.change(ctx, id, func(stored *record.Record) error { return stored.Touch(lastUsed, expires) })
	return err
}

// change calls fn with a copy of a record, stores the result, and returns it.
func (s *Store) change(ctx context.Context, id string, fn func(*record.Record) error) (record.Record, error) {
	var rec record.Record
	err := s.f.Tx(ctx, func(tx *sql.Tx) (err error) {
		if rec, err = scan[record.Record](id, tx.QueryRowContext(ctx, recordOf, id)); err != nil {
			return err
		}
		if err := fn(&rec); err != nil {
			return err
		}
		raw, err := json.Marshal(rec)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE session SET record = ? WHERE id = ?`, string(raw), id)
		return err
	})
	if err != nil {
		return record.Record{}, err
	}
	return rec, nil
}

const recordOf = `SELECT record FROM session WHERE id = ?`

// scan decodes the JSON in a row. Without a row, it returns an error wrapping backend.ErrNotFound.
func scan[T any](id string, row sqlitefile.Row) (value T, _ error) {
	var raw []byte
	err := row.Scan(&raw)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return value, record.NotFound(id)
	case err != nil:
		return value, err
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, fmt.Errorf("%w: record of sandbox %s: %v", sqlitefile.ErrCorrupt, id, err)
	}
	return value, nil
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, id string) (record.Record, error) {
	rec, err := scan[record.Record](id, s.f.DB().QueryRowContext(ctx, recordOf, id))
	return rec, s.f.Error(err)
}

// List returns the records in the specified states.
func (s *Store) List(ctx context.Context, states ...record.State) (recs []record.Record, err error) {
	query, args := `SELECT record FROM session`, []any(nil)
	if len(states) > 0 {
		query += ` WHERE record ->> 'State' IN (` + strings.TrimSuffix(strings.Repeat("?,", len(states)), ",") + `)`
		for _, state := range states {
			args = append(args, string(state))
		}
	}
	err = s.f.Each(ctx, func(row sqlitefile.Row) error {
		rec, err := scan[record.Record]("", row)
		recs = append(recs, rec)
		return err
	}, query, args...)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(recs, record.Record.Compare)
	return recs, nil
}

// Delete deletes a record.
func (s *Store) Delete(ctx context.Context, id string) error {
	_, err := s.f.Exec(ctx, `DELETE FROM session WHERE id = ?`, id)
	return err
}
