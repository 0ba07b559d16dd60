package postgres

import (
	"context"
	"time"
)

// JoinFor is like Join with another lease.
func (db *DB) JoinFor(ctx context.Context, lease, every time.Duration) (*Owner, error) {
	return db.join(ctx, lease, every)
}

// Renewed returns when the latest successful renewal was requested.
func (o *Owner) Renewed() time.Time { return *o.renewed.Load() }

// SetPatience sets how long calls wait for the server.
func (db *DB) SetPatience(d time.Duration) { db.patience = d }

// SetTimeout sets the timeout of one attempt of a call.
func (db *DB) SetTimeout(d time.Duration) { db.timeout = d }
