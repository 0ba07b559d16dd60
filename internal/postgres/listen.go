package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Listen calls heard once it listens on a channel, and for each notification there, until ctx ends or the connection,
// which is not one of the pool's, is lost. A notification says that rows may have changed; what they are is in the
// rows. Who calls Listen again must look at them, because heard is not called for what happened meanwhile.
func (db *DB) Listen(ctx context.Context, channel string, heard func(payload string)) error {
	conn, err := pgx.ConnectConfig(ctx, db.pool.Config().ConnConfig)
	if err != nil {
		return db.Error(err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is under way in it
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

// Notify tells those who listen on a channel, once the transaction is committed.
func Notify(ctx context.Context, tx pgx.Tx, channel, payload string) error {
	_, err := tx.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, payload)
	return err
}
