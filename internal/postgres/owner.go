package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// An owner is a process, or a part of one, which others must check to be alive before they touch its part of the
// database. It has a row, and renews it. Who finds that a row was not renewed for as long as its lease, by the clock of
// the server, deletes it: from then on the owner is dead for all, for itself too. An owner whose lease is over but whom
// nobody asked about lives. Every write of an owner locks its row for the moment of the write, so that nothing which it
// writes comes after its death.

// Lease is how long an owner lives without a word of it; renewEvery is how often it says one.
const (
	Lease      = 30 * time.Second
	renewEvery = Lease / 6
)

func owners() Component {
	return Component{Name: "owners", Migrations: []string{`
CREATE TABLE workcell.owner (
	id      text PRIMARY KEY,
	renewed timestamptz NOT NULL DEFAULT clock_timestamp(),
	lease   interval NOT NULL
);
`}}
}

// Late is the SQL condition for rows of dead owners. No owner can renew its lease while the server is down, so every
// lease starts again with the server.
const Late = `greatest(renewed, pg_postmaster_start_time()) + lease < clock_timestamp()`

// Owner is an owner of this process.
type Owner struct {
	ID   string
	db   *DB
	own  *DB // a connection of its own, so that it is renewed also while calls have all others
	end  context.CancelFunc
	done chan struct{} // closed when it is no longer renewed
	once sync.Once
	err  error // of leave
	lost chan struct{}
	lose func() // closes lost

	trusted time.Duration             // how long after a renewal it takes itself to live; its lease is longer
	renewed atomic.Pointer[time.Time] // when the latest renewal that worked was asked for
	expiry  *time.Timer               // calls lost when that was too long ago
}

// Join makes a new owner, which is renewed until Leave is called.
func (db *DB) Join(ctx context.Context) (*Owner, error) { return db.join(ctx, Lease, renewEvery) }

func (db *DB) join(ctx context.Context, lease, every time.Duration) (*Owner, error) {
	o := &Owner{ID: strings.ToLower(rand.Text()), db: db, done: make(chan struct{}), lost: make(chan struct{}), trusted: lease - every}
	o.lose = sync.OnceFunc(func() { close(o.lost) })
	own, err := db.alone(ctx)
	if err != nil {
		return nil, err
	}
	o.own = own
	var asked time.Time
	if err := own.Do(ctx, func(ctx context.Context, q Queryer, _ bool) error {
		asked = time.Now()
		if _, err := q.Exec(ctx, `DELETE FROM workcell.owner WHERE `+Late); err != nil {
			return err
		}
		_, err := q.Exec(ctx, `INSERT INTO workcell.owner (id, lease) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET renewed = clock_timestamp()`, o.ID, lease)
		return err
	}); err != nil {
		own.Close()
		return nil, err
	}
	o.renewed.Store(&asked)
	o.expiry = time.AfterFunc(o.trusted-time.Since(asked), func() {
		if o.Overdue() {
			db.cutOff.Store(true)
			o.lose()
		}
	})
	renewing, end := context.WithCancel(context.WithoutCancel(ctx)) // it lives for longer than the call
	o.end = end
	go o.renew(renewing, every)
	return o, nil
}

// renew renews the owner until it is ended or dead. A renewal that fails is tried again with the next one.
func (o *Owner) renew(ctx context.Context, every time.Duration) {
	defer close(o.done)
	defer o.expiry.Stop()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		asked := time.Now()
		switch there, err := o.renewOnce(ctx, every); {
		case err == nil && there:
			o.renewed.Store(&asked)
			o.expiry.Reset(o.trusted - time.Since(asked))
			o.db.cutOff.Store(false)
		case err == nil:
			o.lose()
			return
		}
	}
}

// renewOnce renews the owner, within a time, and reports whether it is there.
func (o *Owner) renewOnce(ctx context.Context, within time.Duration) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	n, err := o.own.Exec(ctx, `UPDATE workcell.owner SET renewed = clock_timestamp() WHERE id = $1`, o.ID)
	return n > 0, err
}

// Overdue reports whether nothing was heard of the server for so long that this owner may be dead before what it begins
// now is done. It measures time that has passed; what this machine takes for the time of day does not matter.
func (o *Owner) Overdue() bool { return time.Since(*o.renewed.Load()) >= o.trusted }

// Lost is closed when the owner learns that it was taken for dead, and, a little before it may be, when it does not
// reach the server. What others then may go on with must end. It may turn out later that nobody asked, and that the
// owner lives.
func (o *Owner) Lost() <-chan struct{} { return o.lost }

// leaveTimeout bounds the farewell of an owner; without it the owner is dead when its lease is over.
const leaveTimeout = 5 * time.Second

// Leave ends the owner. It may be called twice.
func (o *Owner) Leave() error {
	o.once.Do(func() {
		o.end()
		<-o.done
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		defer o.own.Close()
		_, o.err = o.own.Exec(ctx, `DELETE FROM workcell.owner WHERE id = $1`, o.ID)
	})
	return o.err
}

// Lives reports whether an owner lives. One whose lease is over is dead from this moment on.
func (db *DB) Lives(ctx context.Context, id string) (lives bool, err error) {
	if err := ctx.Err(); err != nil || id == "" {
		return false, err
	}
	err = db.Do(ctx, func(ctx context.Context, q Queryer, _ bool) error {
		var over bool
		err := q.QueryRow(ctx, `SELECT `+Late+` FROM workcell.owner WHERE id = $1`, id).Scan(&over)
		lives = err == nil && !over
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil || !over {
			return err
		}
		// It may renew its lease at this very moment; whose statement comes first decides, for both.
		tag, err := q.Exec(ctx, `DELETE FROM workcell.owner WHERE id = $1 AND `+Late, id)
		if err == nil && tag.RowsAffected() == 0 {
			return q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.owner WHERE id = $1)`, id).Scan(&lives)
		}
		return err
	})
	return lives, err
}

// Guard fails with ErrLeaseLost unless all owners live, and keeps them alive until the transaction ends.
func Guard(ctx context.Context, tx pgx.Tx, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	tag, err := tx.Exec(ctx, `SELECT FROM workcell.owner WHERE id = ANY($1) FOR KEY SHARE`, ids)
	if err == nil && tag.RowsAffected() != int64(len(ids)) {
		return fmt.Errorf("owner %s: %w", strings.Join(ids, ", "), ErrLeaseLost)
	}
	return err
}

// awaitEvery is how often AwaitEnd asks.
const awaitEvery = 2 * time.Second

// AwaitEnd waits until an owner has ended.
func (db *DB) AwaitEnd(ctx context.Context, id string) error {
	for {
		if lives, err := db.Lives(ctx, id); err != nil || !lives {
			return err
		}
		select {
		case <-time.After(awaitEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Claim takes an advisory lock on the database, for what one process is enough for. held: somebody else has it. It ends
// with leave, or with the connection.
func (db *DB) Claim(ctx context.Context, name string) (leave func() error, held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, false, db.Error(err)
	}
	var ok bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended('workcell/' || $1, 0))`, name).Scan(&ok); err != nil || !ok {
		conn.Release()
		return nil, !ok && err == nil, db.Error(err)
	}
	return sync.OnceValue(func() error {
		// The lock goes with the connection, also where that is lost already.
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		raw := conn.Hijack()
		_ = raw.Close(ctx) // it is gone either way
		return nil
	}), false, nil
}
