package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	database "github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/postgres"
	"github.com/workcell-dev/workcell/session/record/storetest"
)

var must = checktest.Must

func open(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) record.Store {
		t.Helper()
		return open(t, pgtest.Database(t))
	})
}

// TestEnv verifies that a sandbox's variables are deleted with the sandbox and not by other changes of its record.
func TestEnv(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := open(t, pgtest.Database(t))
	rec := record.Record{ID: "sbx_a", Key: record.UserKey("a"), State: record.Creating}
	if err := s.AddEnv(ctx, rec.ID, map[string]string{"A": "1"}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("without a record: %v", err)
	}
	err := errors.Join(s.Insert(ctx, rec), s.AddEnv(ctx, rec.ID, map[string]string{"A": "1", "B": "2"}), s.AddEnv(ctx, rec.ID, map[string]string{"B": "3"}))
	must(t, err)
	if err := s.AddEnv(ctx, rec.ID, map[string]string{"C": strings.Repeat("c", 1<<20)}); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("too much: %v", err)
	}
	want := map[string]string{"A": "1", "B": "3"}
	for _, state := range []record.State{record.Ready, record.Removing, record.Ready, record.Closed} {
		rec.State = state
		must(t, s.Update(ctx, rec))
		if state == record.Closed {
			want = map[string]string{}
		}
		if got, err := s.Env(ctx, rec.ID); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v", state, got, err)
		}
	}
}

// TestInstance verifies that the first SetInstance applies to all stores of the database.
func TestInstance(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	if id, err := a.Instance(t.Context()); id != "" || err != nil {
		t.Errorf("before: %q, %v", id, err)
	}
	must(t, errors.Join(a.SetInstance(t.Context(), "one"), b.SetInstance(t.Context(), "two")))
	for _, s := range []*postgres.Store{a, b} {
		if id, err := s.Instance(t.Context()); id != "one" || err != nil {
			t.Errorf("after: %q, %v", id, err)
		}
	}
}

// cutAnswer returns a URL of a database through a proxy. After arm, the proxy drops the answer to the next commit,
// calls then, and closes the connection.
func cutAnswer(t *testing.T, database string, then func()) (url string, arm func()) {
	t.Helper()
	conf, err := pgconn.ParseConfig(database)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
	network, address := pgconn.NetworkAddress(conf.Host, conf.Port)
	var armed atomic.Bool
	serve := func(client net.Conn) {
		defer client.Close() //nolint:errcheck // the test needs no error
		server, err := net.Dial(network, address)
		if err != nil {
			return
		}
		defer server.Close() //nolint:errcheck // the test needs no error
		var cut atomic.Bool
		go func() {
			buf := make([]byte, 64<<10)
			for n, err := client.Read(buf); err == nil; n, err = client.Read(buf) {
				if bytes.Contains(buf[:n], []byte("commit\x00")) && armed.Swap(false) {
					cut.Store(true)
				}
				if _, err := server.Write(buf[:n]); err != nil {
					return
				}
			}
			_ = server.Close() // ends the other direction
		}()
		buf := make([]byte, 64<<10)
		for n, err := server.Read(buf); err == nil; n, err = server.Read(buf) {
			if cut.Load() {
				then()
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for client, err := listener.Accept(); err == nil; client, err = listener.Accept() {
			go serve(client)
		}
	}()
	url = fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", conf.User, listener.Addr(), conf.Database)
	return url, func() { armed.Store(true) }
}

// TestRepeatedUpdate verifies that an update that is repeated after a lost answer does not replace the record of the
// next owner, even if the next owner has given up the sandbox.
func TestRepeatedUpdate(t *testing.T) {
	t.Parallel()
	for name, givesUp := range map[string]bool{"taken": false, "given up": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, database := t.Context(), pgtest.Database(t)
			next := open(t, database)
			rec := record.Record{ID: "sbx_a", Key: record.UserKey("a"), State: record.Ready, Owner: "first"}
			want, result := "second", backend.ErrExists
			if givesUp {
				want, result = "", nil
			}
			url, arm := cutAnswer(t, database, func() {
				used, err := next.Take(ctx, rec.ID, "", "second")
				used.Owner, used.EngineID = want, "used"
				if err := errors.Join(err, next.Update(ctx, used)); err != nil {
					t.Error(err)
				}
			})
			s := open(t, url)
			must(t, s.Insert(ctx, rec))
			rec.Owner = ""
			arm()
			if err := s.Update(ctx, rec); !errors.Is(err, result) {
				t.Errorf("Update = %v", err)
			}
			if got, err := next.Get(ctx, rec.ID); err != nil || got.Owner != want || got.EngineID != "used" {
				t.Errorf("Get = %+v, %v", got, err)
			}
		})
	}
}

// TestTakenForDead verifies that a manager with a dead owner opens no sandbox and immediately returns the reason.
func TestTakenForDead(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	b, err := memory.New(nil)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	m, err := session.NewManager(b, &session.Options{Store: open(t, url), Instance: "shared"})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	pgtest.Exec(t, url, `DELETE FROM workcell.owner`)
	_, _, err = m.Open(t.Context(), record.UserKey("lab"), session.Request{Image: "test"})
	if !errors.Is(err, record.ErrOwnerLost) || !errors.Is(err, database.ErrLeaseLost) {
		t.Errorf("Open = %v", err)
	}
}
