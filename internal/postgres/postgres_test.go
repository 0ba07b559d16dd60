//go:build !windows

package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
)

var must = checktest.Must

func counters() postgres.Component {
	return postgres.Component{Name: "counters", Migrations: []string{`CREATE TABLE workcell.counter (n bigint PRIMARY KEY)`}}
}

func open(t *testing.T, url string) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(t.Context(), url, counters())
	must(t, err)
	t.Cleanup(db.Close)
	return db
}

// add adds a number like the packages that use postgres: the effect of an earlier attempt counts as success.
func add(ctx context.Context, db *postgres.DB, n int64) error {
	return db.Do(ctx, func(ctx context.Context, q postgres.Queryer, again bool) error {
		_, err := q.Exec(ctx, `INSERT INTO workcell.counter VALUES ($1)`, n)
		if again && postgres.IsConflict(err) {
			return nil
		}
		return err
	})
}

func count(t *testing.T, db *postgres.DB) (n int64) {
	t.Helper()
	must(t, db.Do(t.Context(), func(ctx context.Context, q postgres.Queryer, _ bool) error {
		return q.QueryRow(ctx, `SELECT count(*) FROM workcell.counter`).Scan(&n)
	}))
	return n
}

// TestMigrations: concurrent openers of a new database create its tables once, and tables of a newer program are
// refused.
func TestMigrations(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			db, err := postgres.Open(t.Context(), url, counters())
			if err != nil {
				t.Error(err)
				return
			}
			db.Close()
		})
	}
	wg.Wait()
	newer := counters()
	newer.Migrations = append(newer.Migrations, `ALTER TABLE workcell.counter ADD COLUMN what text`)
	db, err := postgres.Open(t.Context(), url, newer)
	must(t, err)
	db.Close()
	_, err = postgres.Open(t.Context(), url, counters())
	if !errors.Is(err, postgres.ErrNewer) || !strings.Contains(err.Error(), "version 2 of its counters, this program supports 1") {
		t.Errorf("an older program: %v", err)
	}
}

// TestAddress: errors about a URL contain the problem and not the password.
func TestAddress(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]error{
		"postgres://u:sesame@host:port/db":                              postgres.ErrAddress,
		"postgres://u:sesame@127.0.0.1:1/db":                            postgres.ErrUnreachable,
		strings.Replace(pgtest.Database(t), "/workcell_test", "/no", 1): postgres.ErrRefused,
	} {
		_, err := postgres.Open(t.Context(), url)
		if !errors.Is(err, want) || strings.Contains(fmt.Sprint(err), "sesame") {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// TestConnectionLimit: the error contains the server's reason if no connection becomes free in time.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	address, role := pgtest.Database(t), "limited_"+strings.ToLower(rand.Text())
	pgtest.Exec(t, address, `CREATE ROLE `+role+` LOGIN CONNECTION LIMIT 1`)
	t.Cleanup(func() { pgtest.Exec(t, address, `DROP ROLE `+role) })
	u, err := url.Parse(address)
	must(t, err)
	u.User = url.User(role)
	held, err := pgx.Connect(t.Context(), u.String())
	must(t, err)
	defer held.Close(context.Background()) //nolint:errcheck // nothing was written
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = postgres.Open(ctx, u.String())
	if !errors.Is(err, postgres.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "too many connections") {
		t.Errorf("%v, want the server's reason", err)
	}
}

// TestCloseSilent: Close returns soon if the server accepts connections but does not respond.
func TestCloseSilent(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	var conns []net.Conn // keeps them open
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			_, _ = conn.Read(make([]byte, 1<<10))                                            // startup message
			_, _ = conn.Write([]byte("R\x00\x00\x00\x08\x00\x00\x00\x00Z\x00\x00\x00\x05I")) // authenticated, ready
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		_, err := postgres.Open(ctx, "postgres://u@"+l.Addr().String()+"/db?sslmode=disable") // closes it
		opened <- err
	}()
	select {
	case err := <-opened:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Open = %v, want the end of its context", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the server")
	}
}

// TestOwnerDies: an owner without renewal is dead after the lease, for itself and for all other processes.
func TestOwnerDies(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	db := open(t, url)
	silent, err := db.JoinFor(t.Context(), 50*time.Millisecond, time.Hour)
	must(t, err)
	defer silent.Leave() //nolint:errcheck // the database is deleted with the test
	renewed, err := db.JoinFor(t.Context(), time.Hour, 10*time.Millisecond)
	must(t, err)
	guard := func(o *postgres.Owner) error {
		return db.Tx(t.Context(), func(ctx context.Context, tx pgx.Tx, _ bool) error { return postgres.Guard(ctx, tx, []string{o.ID}) })
	}
	must(t, guard(renewed))
	// The lease also counts from the start of the server, so wait until the server reports the death.
	for {
		lives, err := db.Lives(t.Context(), silent.ID)
		must(t, err)
		if !lives {
			break
		}
	}
	if err := guard(silent); !errors.Is(err, postgres.ErrLeaseLost) {
		t.Errorf("a write of the dead: %v", err)
	}
	if !silent.Overdue() || renewed.Overdue() {
		t.Error("not the silent one is overdue")
	}
	pgtest.Exec(t, url, `DELETE FROM workcell.owner`)
	<-renewed.Lost() // the next renewal finds no row
	must(t, renewed.Leave())
}

// TestOwnerLostInTime: an owner without renewal is lost at the deadline, even if no renewal has failed yet.
func TestOwnerLostInTime(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t))
	owner, err := db.JoinFor(t.Context(), time.Hour+50*time.Millisecond, time.Hour)
	must(t, err)
	select {
	case <-owner.Lost():
	case <-time.After(time.Minute):
		t.Error("it still takes itself to live")
	}
	must(t, owner.Leave())
}

// TestClaim: only one process has a claim at a time, and a lost connection releases it.
func TestClaim(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	leave, held, err := a.Claim(t.Context(), "reaper")
	if held || err != nil {
		t.Fatal(held, err)
	}
	if _, held, err := b.Claim(t.Context(), "reaper"); !held || err != nil {
		t.Errorf("the second: held %v, %v", held, err)
	}
	must(t, leave())
	for { // the server may notice the end of a connection later
		leave, held, err := b.Claim(t.Context(), "reaper")
		must(t, err)
		if !held {
			must(t, leave())
			return
		}
	}
}

// writers starts six writers. more waits for 50 further acknowledged writes. finish stops the writers, and verifies that
// the database has each acknowledged write exactly once.
func writers(t *testing.T, db *postgres.DB) (more, finish func()) {
	var next, done atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := add(t.Context(), db, next.Add(1)); err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	more = func() {
		for from := done.Load(); done.Load() < from+50 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
	}
	return more, func() {
		stop()
		wg.Wait()
		if n := count(t, db); n != done.Load() {
			t.Errorf("%d rows, %d were acknowledged", n, done.Load())
		}
	}
}

// TestServerKilled: writers wait while the server is killed and restarted, and acknowledged writes are neither lost nor
// repeated. Owners stay alive, because the server's downtime does not count.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t)
	db := open(t, pgtest.DatabaseOn(t, s.URL))
	owner, err := db.JoinFor(t.Context(), 10*time.Minute, 100*time.Millisecond)
	must(t, err)
	more, finish := writers(t, db)
	for range 3 {
		more()
		s.Kill()
		s.Start()
	}
	more()
	finish()
	if lives, err := db.Lives(t.Context(), owner.ID); !lives || err != nil {
		t.Errorf("the owner lives: %v, %v", lives, err)
	}
	must(t, owner.Leave())
}

// TestFailover: writers continue at the standby after the primary was killed, and the standby has each acknowledged
// write exactly once.
func TestFailover(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t)
	standby := s.NewStandby()
	db := open(t, s.WithStandby(standby))
	owner, err := db.Join(t.Context())
	must(t, err)
	more, finish := writers(t, db)
	more()
	s.Kill()
	standby.Promote()
	more()
	finish()
	if lives, err := db.Lives(t.Context(), owner.ID); !lives || err != nil {
		t.Errorf("the owner lives: %v, %v", lives, err)
	}
	must(t, owner.Leave())
}

// TestConnectionsCut: calls have an effect exactly once if the server closes their connections.
func TestConnectionsCut(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	db := open(t, url)
	const each = 200
	var wg sync.WaitGroup
	var next atomic.Int64
	for range 4 {
		wg.Go(func() {
			for range each {
				if err := add(t.Context(), db, next.Add(1)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	for cutting := true; cutting; {
		select {
		case <-ended:
			cutting = false
		default:
			pgtest.Exec(t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}
	}
	if n := count(t, db); n != 4*each {
		t.Errorf("%d rows, want %d", n, 4*each)
	}
}

// TestNoRoomForConnections: calls wait while the server's connections or the pool's connections are all in use.
func TestNoRoomForConnections(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t, "max_connections = 5", "superuser_reserved_connections = 0")
	url := s.URL + "&pool_max_conns=3"
	db := open(t, url)
	var held []*pgx.Conn
	for len(held) < 10 {
		conn, err := pgx.Connect(t.Context(), s.URL)
		if err != nil {
			break
		}
		held = append(held, conn)
	}
	go func() {
		for _, conn := range held {
			_ = conn.Close(context.Background()) // frees connections for the others
		}
	}()
	var wg sync.WaitGroup
	for i := range int64(40) {
		wg.Go(func() {
			if err := add(t.Context(), db, i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := count(t, db); n != 40 {
		t.Errorf("%d rows, want 40", n)
	}
}

// TestListen: a listener is first notified that it listens, receives notifications, and notices the loss of its
// connection.
func TestListen(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	heard, ended := make(chan string), make(chan error, 1)
	go func() { ended <- a.Listen(t.Context(), "news", func(payload string) { heard <- payload }) }()
	if got := <-heard; got != "" {
		t.Errorf("at first: %q", got)
	}
	must(t, b.Tx(t.Context(), func(ctx context.Context, tx pgx.Tx, _ bool) error {
		return errors.Join(postgres.Notify(ctx, tx, "others", "not for it"), postgres.Notify(ctx, tx, "news", "one"))
	}))
	if got := <-heard; got != "one" {
		t.Errorf("then: %q", got)
	}
	pgtest.Exec(t, url, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`)
	if err := <-ended; !errors.Is(err, postgres.ErrUnreachable) {
		t.Errorf("when the connection is cut: %v", err)
	}
}

// TestConnectionFallsSilent: an unresponsive connection in a transaction is closed, and the call is repeated on a new
// connection.
func TestConnectionFallsSilent(t *testing.T) {
	t.Parallel()
	p := newProxy(t, pgtest.Database(t))
	db := open(t, p.url)
	db.SetTimeout(100 * time.Millisecond)
	calls := 0
	must(t, db.Tx(t.Context(), func(ctx context.Context, tx pgx.Tx, _ bool) error {
		if calls++; calls == 1 {
			p.silent.Add(1)
		}
		_, err := tx.Exec(ctx, `INSERT INTO workcell.counter VALUES (1) ON CONFLICT DO NOTHING`)
		return err
	}))
	if n := count(t, db); n != 1 || calls < 2 {
		t.Errorf("%d rows after %d attempts", n, calls)
	}
}

// proxy forwards connections between clients and a server.
type proxy struct {
	url    string                 // URL of the database through the proxy
	server atomic.Pointer[string] // URL of the server for new connections
	silent atomic.Int64           // incrementing it stops forwarding in all existing connections
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	conf, err := pgconn.ParseConfig(server)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
	p := &proxy{url: fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", conf.User, listener.Addr(), conf.Database)}
	p.server.Store(&server)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if err := p.serve(client); err != nil {
				_ = client.Close() // as if there were no server
			}
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn) error {
	conf, err := pgconn.ParseConfig(*p.server.Load())
	if err != nil {
		return err
	}
	network, where := pgconn.NetworkAddress(conf.Host, conf.Port)
	server, err := net.Dial(network, where)
	if err != nil {
		return err
	}
	began := p.silent.Load()
	pass := func(to, from net.Conn) {
		defer to.Close() //nolint:errcheck // the other end is closed
		_, _ = io.Copy(writer(func(b []byte) (int, error) {
			if p.silent.Load() != began {
				return len(b), nil
			}
			return to.Write(b)
		}), from)
	}
	go pass(server, client)
	go pass(client, server)
	return nil
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// TestReadOnlyServer: calls on connections to a read-only server are repeated on the server to which the address leads
// now.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t)
	standby := s.NewStandby()
	open(t, s.URL+"&synchronous_commit=remote_apply") // the standby also has the tables
	p := newProxy(t, standby.URL)
	db := open(t, p.url)
	p.server.Store(&s.URL)
	must(t, add(t.Context(), db, 1))
	if n := count(t, db); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// TestLockedTable: calls wait for a lock even if it is held for longer than the server's lock timeout.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	db := open(t, url+"&lock_timeout=20ms")
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer conn.Close(context.Background()) //nolint:errcheck // the database is deleted with the test
	tx, err := conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE workcell.counter`)
	must(t, err)
	calls := 0
	must(t, db.Do(t.Context(), func(ctx context.Context, q postgres.Queryer, _ bool) error {
		if calls++; calls == 3 {
			must(t, tx.Rollback(t.Context()))
		}
		_, err := q.Exec(ctx, `INSERT INTO workcell.counter VALUES (1)`)
		return err
	}))
	if n := count(t, db); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// TestOwnerCutOff: an owner without access to the server is lost before other processes may treat it as dead. The
// owner's process then stops waiting for the server. If the server becomes reachable and no process checked the owner,
// the owner is renewed.
func TestOwnerCutOff(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	p := newProxy(t, url)
	db := open(t, p.url)
	owner, err := db.JoinFor(t.Context(), 500*time.Millisecond, 50*time.Millisecond)
	must(t, err)
	nowhere := "postgres://u@127.0.0.1:1/db"
	p.server.Store(&nowhere)
	p.silent.Add(1)
	<-owner.Lost()
	db.SetPatience(time.Hour)
	if err := add(t.Context(), db, 1); !errors.Is(err, postgres.ErrUnreachable) {
		t.Errorf("a call = %v", err)
	}
	p.server.Store(&url)
	for owner.Overdue() {
		time.Sleep(time.Millisecond)
	}
	must(t, owner.Leave())
}

// TestRenewalNeedsNoRoom: an owner is renewed even if all connections of the pool are in use.
func TestRenewalNeedsNoRoom(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t)+"&pool_max_conns=1")
	owner, err := db.JoinFor(t.Context(), time.Hour, 20*time.Millisecond)
	must(t, err)
	leave, _, err := db.Claim(t.Context(), "all")
	must(t, err)
	for began := time.Now(); owner.Renewed().Before(began); {
		time.Sleep(time.Millisecond)
	}
	must(t, errors.Join(leave(), owner.Leave()))
}
