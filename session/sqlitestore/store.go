// Package sqlitestore keeps session records in a SQLite file, so that they outlive the process and several processes
// share them.
package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session"
)

// component is what this package has in the file. Times are microseconds since 1970, durations microseconds; 0 is none.
// The index makes the file itself refuse a second live record of a key, whichever process asks.
func component() sqlitefile.Component {
	return sqlitefile.Component{Name: "sessions", Migrations: []string{`
CREATE TABLE session (
	id        TEXT PRIMARY KEY,
	namespace TEXT NOT NULL,
	run       TEXT NOT NULL,
	name      TEXT NOT NULL,
	engine    TEXT NOT NULL,
	engine_id TEXT NOT NULL,
	owner     TEXT NOT NULL,
	request   TEXT NOT NULL,
	state     TEXT NOT NULL,
	created   INTEGER NOT NULL,
	last_used INTEGER NOT NULL,
	expires   INTEGER NOT NULL,
	idle      INTEGER NOT NULL,
	retention INTEGER NOT NULL,
	keep      INTEGER NOT NULL,
	idle_policy     TEXT NOT NULL,
	user            TEXT NOT NULL,
	workspace_bytes INTEGER NOT NULL,
	workspace       TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX session_live ON session (engine, namespace, run, name) WHERE state IN ('creating', 'ready');
CREATE INDEX session_state ON session (state, created, id);
CREATE TABLE instance (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL) STRICT;
`, `
ALTER TABLE session ADD COLUMN env TEXT NOT NULL DEFAULT '{}';
CREATE TRIGGER session_env AFTER UPDATE OF state ON session WHEN NEW.state IN ('closed', 'lost') BEGIN
	UPDATE session SET env = '{}' WHERE id = NEW.id;
END;
`, `
ALTER TABLE session ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;
`}}
}

// Store is a [session.Store] in a file. It is safe for concurrent use, also by several processes.
type Store struct{ f *sqlitefile.File }

// Open opens the file at path, which is made when there is none. Its errors, and those of all calls, wrap the errors
// that package documentation names: a damaged file, one of a newer version, one that cannot be written, a full disk.
func Open(ctx context.Context, path string) (*Store, error) {
	f, err := sqlitefile.Open(ctx, path, component())
	if err != nil {
		return nil, err
	}
	return &Store{f}, nil
}

// Instance returns the instance whose sandboxes the records are about, empty when it is not set.
func (s *Store) Instance(ctx context.Context) (id string, err error) {
	err = s.f.DB().QueryRowContext(ctx, `SELECT id FROM instance`).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return id, s.f.Error(err)
}

// SetInstance sets the instance whose sandboxes the records are about, unless it is set.
func (s *Store) SetInstance(ctx context.Context, id string) error {
	return s.f.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO instance (one, id) VALUES (1, ?) ON CONFLICT DO NOTHING`, id)
		return err
	})
}

// AddEnv adds to the variables that are kept for the commands in a sandbox, for as long as its record is a live one. No
// Record holds them.
func (s *Store) AddEnv(ctx context.Context, id string, env map[string]string) error {
	return s.f.Tx(ctx, func(tx *sql.Tx) error {
		kept, err := scanEnv(tx.QueryRowContext(ctx, envOf, id))
		if err != nil {
			return err
		}
		maps.Copy(kept, env)
		if err := session.ValidateEnv(kept); err != nil {
			return err
		}
		raw, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, `UPDATE session SET env = ? WHERE id = ?`, string(raw), id)
		return changed(res, err, id)
	})
}

// Env returns what AddEnv was given; empty for a sandbox without a record.
func (s *Store) Env(ctx context.Context, id string) (map[string]string, error) {
	env, err := scanEnv(s.f.DB().QueryRowContext(ctx, envOf, id))
	return env, s.f.Error(err)
}

const envOf = `SELECT env FROM session WHERE id = ?`

func scanEnv(row *sql.Row) (map[string]string, error) {
	env := map[string]string{}
	var raw []byte
	err := row.Scan(&raw)
	if errors.Is(err, sql.ErrNoRows) {
		return env, nil
	}
	if err != nil {
		return nil, err
	}
	return env, json.Unmarshal(raw, &env)
}

// Close lets go of the file.
func (s *Store) Close() error { return s.f.Close() }

const columns = `id, namespace, run, name, engine, engine_id, owner, request, state, created, last_used, expires, idle, retention, keep, idle_policy, user, workspace_bytes, workspace, ended`

// places has a place for each of the columns.
const places = `?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?`

func values(r session.Record) []any {
	return []any{
		r.ID, r.Key.Namespace, r.Key.ID, r.Key.Name, r.Engine, r.EngineID, r.Owner, r.Request, string(r.State),
		micros(r.Created), micros(r.LastUsed), micros(r.Expires), duration(r.Idle), duration(r.Retention), r.KeepWorkspace, string(r.IdlePolicy),
		r.User, r.WorkspaceBytes, string(r.Workspace), r.Ended,
	}
}

func scan(row interface{ Scan(...any) error }) (session.Record, error) {
	var r session.Record
	var state, policy, enforcement string
	var created, lastUsed, expires, idle, retention int64
	err := row.Scan(&r.ID, &r.Key.Namespace, &r.Key.ID, &r.Key.Name, &r.Engine, &r.EngineID, &r.Owner, &r.Request, &state,
		&created, &lastUsed, &expires, &idle, &retention, &r.KeepWorkspace, &policy, &r.User, &r.WorkspaceBytes, &enforcement, &r.Ended)
	r.State, r.IdlePolicy, r.Workspace = session.RecordState(state), session.IdlePolicy(policy), backend.Enforcement(enforcement)
	r.Idle, r.Retention = time.Duration(idle)*time.Microsecond, time.Duration(retention)*time.Microsecond
	r.Created, r.LastUsed, r.Expires = instant(created), instant(lastUsed), instant(expires)
	return r, err
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// duration keeps a duration's sign: negative ones mean something.
func duration(d time.Duration) int64 {
	if d < 0 {
		return min(-1, d.Microseconds())
	}
	return d.Microseconds()
}

func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// Join makes an owner: a file next to the store that is locked for as long as the owner lives.
func (s *Store) Join(ctx context.Context) (owner string, leave func() error, err error) {
	if err := ctx.Err(); err != nil {
		return "", nil, err
	}
	return s.f.Join()
}

// Lives reports whether an owner lives, in whichever process of this machine.
func (s *Store) Lives(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return s.f.Lives(owner)
}

// Insert adds a record.
func (s *Store) Insert(ctx context.Context, rec session.Record) error {
	return s.write(ctx, rec, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO session (`+columns+`) VALUES (`+places+`)`, values(rec)...)
		return err
	})
}

// Update replaces a record.
func (s *Store) Update(ctx context.Context, rec session.Record) error {
	return s.write(ctx, rec, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE session SET (`+columns+`) = (`+places+`) WHERE id = ?`, append(values(rec), rec.ID)...)
		return changed(res, err, rec.ID)
	})
}

func (s *Store) write(ctx context.Context, rec session.Record, fn func(*sql.Tx) error) error {
	err := s.f.Tx(ctx, fn)
	if sqlitefile.IsConflict(err) {
		return fmt.Errorf("%w: record of sandbox %s or live sandbox of session %s", backend.ErrExists, rec.ID, rec.Key)
	}
	return err
}

// changed is backend.ErrNotFound when a statement found no record.
func changed(res sql.Result, err error, id string) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	return noRecord(id)
}

func noRecord(id string) error {
	return fmt.Errorf("%w: record of sandbox %s", backend.ErrNotFound, id)
}

// Take returns a record to another owner.
func (s *Store) Take(ctx context.Context, id, from, to string) (rec session.Record, err error) {
	err = s.f.Tx(ctx, func(tx *sql.Tx) error {
		rec, err = scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM session WHERE id = ?`, id))
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return noRecord(id)
		case err != nil:
			return err
		case rec.Owner != from:
			return fmt.Errorf("%w: sandbox %s has another owner", backend.ErrExists, id)
		}
		rec.Owner = to
		_, err = tx.ExecContext(ctx, `UPDATE session SET owner = ? WHERE id = ?`, to, id)
		return err
	})
	if err != nil {
		return session.Record{}, err
	}
	return rec, nil
}

// Touch notes the use of a live record.
func (s *Store) Touch(ctx context.Context, id string, lastUsed, expires time.Time) error {
	return s.f.Tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `UPDATE session SET last_used = ?, expires = ? WHERE id = ? AND state IN ('creating', 'ready')`,
			micros(lastUsed), micros(expires), id)
		return changed(res, err, id)
	})
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, id string) (session.Record, error) {
	rec, err := scan(s.f.DB().QueryRowContext(ctx, `SELECT `+columns+` FROM session WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return session.Record{}, noRecord(id)
	}
	if err != nil {
		return session.Record{}, s.f.Error(err)
	}
	return rec, nil
}

// List returns the records in the given states.
func (s *Store) List(ctx context.Context, states ...session.RecordState) (_ []session.Record, err error) {
	query, args := `SELECT `+columns+` FROM session`, []any(nil)
	if len(states) > 0 {
		query += ` WHERE state IN (` + strings.TrimSuffix(strings.Repeat("?,", len(states)), ",") + `)`
		for _, state := range states {
			args = append(args, string(state))
		}
	}
	rows, err := s.f.DB().QueryContext(ctx, query+` ORDER BY created, id`, args...)
	if err != nil {
		return nil, s.f.Error(err)
	}
	defer func() { err = errors.Join(err, s.f.Error(rows.Close())) }()
	var recs []session.Record
	for rows.Next() {
		rec, err := scan(rows)
		if err != nil {
			return nil, s.f.Error(err)
		}
		recs = append(recs, rec)
	}
	return recs, s.f.Error(rows.Err())
}

// Delete forgets a record.
func (s *Store) Delete(ctx context.Context, id string) error {
	return s.f.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM session WHERE id = ?`, id)
		return err
	})
}
