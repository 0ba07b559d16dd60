package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Listen calls heard when it starts to listen on a channel and for each notification, until ctx ends or the connection
// is lost. It uses a separate connection outside the pool. After a notification, the receiver must read the rows, which
// may have changed. After another call of Listen, the caller must also read the rows, because heard is not called for
// changes in between.
func (db *DB) Listen(ctx context.Context, channel string, heard func(payload string)) error {
	conn, err := pgx.ConnectConfig(ctx, db.pool.Config().ConnConfig)
	if err != nil {
		return db.Error(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is idle
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return db.Error(err)
	}
	heard("")
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return db.Error(err)
		}
		heard(n.Payload)
	}
}

// Notify notifies the listeners of a channel when the transaction commits.
func Notify(ctx context.Context, tx pgx.Tx, channel, payload string) error {
	_, err := tx.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, payload)
	return err
}
