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

	"github.com/workcell-dev/workcell/internal/bound"
)

// An owner is a process or a part of one. Before other processes change the owner's part of the database, they must
// check whether the owner is alive. The owner has a row and renews it. If a process finds a row without renewal for the
// duration of the lease, according to the server's clock, it deletes the row. From then on, the owner is dead for all
// processes, including the owner's own. An owner whose lease has expired stays alive until another process checks it.
// Every write of an owner locks the row during the write, to prevent writes after the owner's death.

// Lease is how long an owner stays alive without a renewal. renewEvery is the interval between renewals.
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

// Late is the SQL condition for rows of dead owners. Owners cannot renew their leases while the server is down, so
// every lease is counted from the start of the server at the earliest.
const Late = `greatest(renewed, pg_postmaster_start_time()) + lease < clock_timestamp()`

// Owner is an owner of this process.
type Owner struct {
	ID   string
	db   *DB
	own  *DB // separate connection, for renewals while calls use all others
	end  context.CancelFunc
	done chan struct{} // closed when renewals have stopped
	once sync.Once
	err  error // error of Leave
	lost chan struct{}
	lose func() // closes lost

	trusted time.Duration             // time after a renewal in which the owner trusts its lease; shorter than the lease
	renewed atomic.Pointer[time.Time] // when the latest successful renewal was requested
	expiry  *time.Timer               // calls lose when that is too long ago
}

// Join creates an owner. The owner is renewed until Leave is called.
func (db *DB) Join(ctx context.Context) (*Owner, error) { return db.join(ctx, Lease, renewEvery) }

func (db *DB) join(ctx context.Context, lease, every time.Duration) (*Owner, error) {
	o := &Owner{
		ID: strings.ToLower(rand.Text()), db: db,
		done: make(chan struct{}), lost: make(chan struct{}), trusted: lease - every,
	}
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
	renewing, end := context.WithCancel(context.WithoutCancel(ctx)) // outlives the call
	o.end = end
	go o.renew(renewing, every)
	return o, nil
}

// renew renews the owner until it is ended or dead. After a failure, the next renewal tries again.
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

// renewOnce renews the owner with a timeout. It reports whether the owner's row exists.
func (o *Owner) renewOnce(ctx context.Context, within time.Duration) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	n, err := o.own.Exec(ctx, `UPDATE workcell.owner SET renewed = clock_timestamp() WHERE id = $1`, o.ID)
	return n > 0, err
}

// Overdue reports whether the server was unreachable for so long that this owner may be dead before an operation
// started now is done. It measures elapsed time, so changes of the local clock do not matter.
func (o *Owner) Overdue() bool { return time.Since(*o.renewed.Load()) >= o.trusted }

// Lost returns a channel that is closed when the owner learns that it was treated as dead. If the server is
// unreachable, the channel is closed shortly before other processes may treat the owner as dead. All work that other
// processes may then continue must end. The owner may still turn out to be alive later, if no process checked it.
func (o *Owner) Lost() <-chan struct{} { return o.lost }

// leaveTimeout is the timeout for deleting an owner's row. After a failure, the owner is dead when the lease expires.
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

// Lives reports whether an owner is alive. If the owner's lease has expired, Lives makes the owner dead.
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
		// The owner may renew the lease at this moment. The order of the two statements decides for both sides.
		tag, err := q.Exec(ctx, `DELETE FROM workcell.owner WHERE id = $1 AND `+Late, id)
		if err == nil && tag.RowsAffected() == 0 {
			return q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.owner WHERE id = $1)`, id).Scan(&lives)
		}
		return err
	})
	return lives, err
}

// Guard returns ErrLeaseLost unless all owners are alive. It keeps them alive until the transaction ends.
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

// awaitEvery is the polling interval of AwaitEnd.
const awaitEvery = 2 * time.Second

// AwaitEnd waits until an owner has ended.
func (db *DB) AwaitEnd(ctx context.Context, id string) error {
	for {
		if lives, err := db.Lives(ctx, id); err != nil || !lives {
			return err
		}
		if !bound.Pause(ctx, awaitEvery) {
			return ctx.Err()
		}
	}
}

// Claim takes an advisory lock in the database for work that only one process should do. If another process has the
// lock, held is true. The lock is released by leave, or when the connection is lost.
func (db *DB) Claim(ctx context.Context, name string) (leave func() error, held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, false, db.Error(err)
	}
	var ok bool
	const lock = `SELECT pg_try_advisory_lock(hashtextextended('workcell/' || $1, 0))`
	if err := conn.QueryRow(ctx, lock, name).Scan(&ok); err != nil || !ok {
		conn.Release()
		return nil, !ok && err == nil, db.Error(err)
	}
	return sync.OnceValue(func() error {
		// Closing the connection releases the lock, even if the connection is already lost.
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		raw := conn.Hijack()
		_ = raw.Close(ctx) // the connection ends in any case
		return nil
	}), false, nil
}
