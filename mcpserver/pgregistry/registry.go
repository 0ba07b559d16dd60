// Package pgregistry keeps what several MCP servers share of their clients in a PostgreSQL database. All times that decide
// anything are the server's.
package pgregistry

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/mcpserver/replica"
)

// component is what this package has in the database.
func component() postgres.Component {
	return postgres.Component{Name: "mcp", Migrations: []string{`
CREATE TABLE workcell.mcp_entry (
	id     text PRIMARY KEY,
	parent text NOT NULL,
	owner  text NOT NULL,
	run    text NOT NULL,
	origin text NOT NULL,
	params text NOT NULL,
	used   timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX mcp_entry_parent ON workcell.mcp_entry (parent, owner);
CREATE INDEX mcp_entry_used ON workcell.mcp_entry (used);
`}}
}

// Registry is a [replica.Registry] in a database.
type Registry struct{ db *postgres.DB }

// Open connects to the database of a URL and makes or updates the table, which is in the schema "workcell".
func Open(ctx context.Context, url string) (*Registry, error) {
	db, err := postgres.Open(ctx, url, component())
	if err != nil {
		return nil, err
	}
	return &Registry{db}, nil
}

// Close lets go of the database.
func (r *Registry) Close() { r.db.Close() }

const columns = `id, parent, owner, run, origin, params`

// collect reads entries.
func collect(rows pgx.Rows, err error) ([]replica.Entry, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e replica.Entry, err error) {
		var params string
		err = row.Scan(&e.ID, &e.Parent, &e.Owner, &e.Run, &e.Origin, &params)
		e.Params = []byte(params)
		return e, err
	})
}

// Begin adds an entry. Who begins entries with the same parent takes turns, so that there are never too many.
func (r *Registry) Begin(ctx context.Context, e replica.Entry, l replica.Limits) error {
	return r.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('workcell/mcp/' || $1, 0))`, e.Parent); err != nil {
			return err
		}
		var there, all, owned int
		err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE id = $1 AND run = $4), count(*), count(*) FILTER (WHERE owner = $3)
FROM workcell.mcp_entry WHERE parent = $2`, e.ID, e.Parent, e.Owner, e.Run).Scan(&there, &all, &owned)
		switch {
		case err != nil:
			return err
		case again && there > 0:
			return nil
		case l.Owner > 0 && owned >= l.Owner:
			return replica.ErrOwnerFull
		case l.All > 0 && all >= l.All:
			return replica.ErrFull
		}
		tag, err := tx.Exec(ctx, `INSERT INTO workcell.mcp_entry (`+columns+`) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`,
			e.ID, e.Parent, e.Owner, e.Run, e.Origin, string(e.Params))
		if err == nil && tag.RowsAffected() == 0 {
			return replica.ErrExists
		}
		return err
	})
}

// Use returns an entry and notes its use, ten times in a second at most: each time is a write to the disk.
func (r *Registry) Use(ctx context.Context, id, owner string) (e replica.Entry, err error) {
	err = r.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		list, err := collect(q.Query(ctx, `WITH noted AS (UPDATE workcell.mcp_entry SET used = clock_timestamp()
WHERE id = $1 AND owner = $2 AND used < clock_timestamp() - interval '100 ms')
SELECT `+columns+` FROM workcell.mcp_entry WHERE id = $1`, id, owner))
		switch {
		case err != nil:
			return err
		case len(list) == 0:
			return fmt.Errorf("%w: no such session", backend.ErrNotFound)
		case list[0].Owner != owner:
			return replica.ErrOwner
		}
		e = list[0]
		return nil
	})
	return e, err
}

// Below returns the entries with a parent.
func (r *Registry) Below(ctx context.Context, parent string) (list []replica.Entry, err error) {
	err = r.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) (err error) {
		list, err = collect(q.Query(ctx, `SELECT `+columns+` FROM workcell.mcp_entry WHERE parent = $1 ORDER BY id`, parent))
		return err
	})
	return list, err
}

// End removes an entry and those below its run.
func (r *Registry) End(ctx context.Context, id string) ([]replica.Entry, error) {
	return r.end(ctx, `id = $1`, id)
}

// EndIdle removes the entries that were not used for that long, and those below their runs.
func (r *Registry) EndIdle(ctx context.Context, idle time.Duration) ([]replica.Entry, error) {
	return r.end(ctx, `used < clock_timestamp() - $1::interval`, idle)
}

// end removes the entries for which a condition holds. When an answer is lost, so is what was removed by the call: its sandboxes
// go when they were idle for their time.
func (r *Registry) end(ctx context.Context, condition string, arg any) (list []replica.Entry, err error) {
	err = r.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) (err error) {
		list, err = collect(q.Query(ctx, `WITH ended AS (DELETE FROM workcell.mcp_entry WHERE `+condition+` RETURNING `+columns+`),
below AS (DELETE FROM workcell.mcp_entry WHERE NOT (`+condition+`) AND parent IN (SELECT run FROM ended) RETURNING `+columns+`)
SELECT * FROM ended UNION ALL SELECT * FROM below`, arg))
		return err
	})
	return list, err
}

// channel is where messages go, maxMessage how long one may be there.
const (
	channel    = "workcell_mcp"
	maxMessage = 7999
)

// Tell passes a message on.
func (r *Registry) Tell(ctx context.Context, m replica.Message) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(raw) > maxMessage {
		return replica.ErrTooLong
	}
	return r.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		return postgres.Notify(ctx, tx, channel, string(raw))
	})
}

// Hear calls heard for each message.
func (r *Registry) Hear(ctx context.Context, heard func(replica.Message)) error {
	return r.db.Listen(ctx, channel, func(payload string) {
		var m replica.Message
		if payload != "" && json.Unmarshal([]byte(payload), &m) == nil {
			heard(m)
		}
	})
}

var _ replica.Registry = (*Registry)(nil)
