package postgres

import (
	"context"
	"time"
)

// JoinFor is Join with another lease.
func (db *DB) JoinFor(ctx context.Context, lease, every time.Duration) (*Owner, error) {
	return db.join(ctx, lease, every)
}

// Renewed returns when the latest renewal that worked was asked for.
func (o *Owner) Renewed() time.Time { return *o.renewed.Load() }

// SetPatience makes calls wait for another time.
func (db *DB) SetPatience(d time.Duration) { db.patience = d }

// SetTimeout bounds attempts of calls by another time.
func (db *DB) SetTimeout(d time.Duration) { db.timeout = d }
