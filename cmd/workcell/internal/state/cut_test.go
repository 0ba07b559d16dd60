package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// cutter is a proxy between clients and a server. It closes the connection at the message whose number it waits for.
type cutter struct {
	network, server string // address of the server
	left            atomic.Int64
}

// startCutter starts a cutter and returns the URL of the database through it.
func startCutter(t *testing.T, address string) (*cutter, string) {
	conf, err := pgconn.ParseConfig(address)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
	c := &cutter{}
	c.network, c.server = pgconn.NetworkAddress(conf.Host, conf.Port)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go c.serve(conn)
		}
	}()
	u := url.URL{Scheme: "postgres", User: url.User(conf.User), Host: listener.Addr().String(), Path: "/" + conf.Database, RawQuery: "sslmode=disable"}
	return c, u.String()
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close() //nolint:errcheck // cut
	server, err := net.Dial(c.network, c.server)
	if err != nil {
		return
	}
	defer server.Close() //nolint:errcheck // cut
	ended := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader, header int) {
		c.pass(to, from, header)
		ended <- struct{}{}
	}
	go pass(server, client, 4) // the first message of a client has no type
	go pass(client, server, 5)
	<-ended
}

// pass forwards messages until one is cut. A message has a type, except for the first message of a client, and the
// length of the rest.
func (c *cutter) pass(to io.Writer, from io.Reader, header int) {
	for {
		head := make([]byte, header)
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[header-4:])-4)
		if _, err := io.ReadFull(from, body); err != nil || c.left.Add(-1) == 0 {
			return
		}
		if _, err := to.Write(append(head, body...)); err != nil {
			return
		}
		header = 5
	}
}

// TestConnectionCutAtEachMessage verifies that each call works and takes effect exactly once, whichever message between
// store and server is cut.
func TestConnectionCutAtEachMessage(t *testing.T) {
	t.Parallel()
	address := pgtest.Database(t)
	const workers = 4
	var cuts atomic.Int64
	var wg sync.WaitGroup
	for worker := range workers {
		c, through := startCutter(t, address)
		place := Place{URL: through}
		records, err := place.OpenRecords(t.Context())
		must(t, err)
		t.Cleanup(func() { must(t, records.Close()) })
		journal, err := place.OpenJournal(t.Context(), true)
		must(t, err)
		t.Cleanup(func() { must(t, journal.Close()) })
		wg.Go(func() {
			for n := int64(worker + 1); ; n += workers {
				c.left.Store(n)
				if err := useAll(t, records, journal, fmt.Sprint(n)); err != nil {
					t.Errorf("cut at message %d: %v", n, err)
				}
				if c.left.Load() > 0 || t.Failed() { // the message was not reached
					return
				}
				cuts.Add(1)
			}
		})
	}
	wg.Wait()
	t.Logf("cut at %d messages", cuts.Load())
	if cuts.Load() < 200 {
		t.Error("these are not all")
	}
}

// useAll runs all writing operations on records and runs, and checks the results.
func useAll(t *testing.T, records Records, journal runstore.Store, name string) error {
	ctx := t.Context()
	owner, leave, err := records.Join(ctx)
	if err != nil {
		return err
	}
	rec := record.Record{ID: "sbx_" + name, Key: session.UserKey(name), State: record.Creating, Owner: owner}
	ready := rec
	ready.State = record.Ready
	run := "run_" + name
	mine := journal.For(owner, "")
	question := runstore.Approval{ID: "apr_" + name, Run: run, Tool: "refund", Owner: owner}
	answered := question
	answered.Reply = runstore.Reply{Answer: runstore.Allowed, By: "ana"}
	add := func(seq int64, kind workflow.EventKind, part string) func() error {
		return func() error {
			return mine.Append(ctx, workflow.Entry{RunID: run, Seq: seq, Time: time.Now(), Kind: kind, Path: "a", Conversation: json.RawMessage(part)})
		}
	}
	for i, do := range []func() error{
		func() error { return records.Insert(ctx, rec) },
		func() error { return records.Update(ctx, ready) },
		func() error { return records.AddEnv(ctx, rec.ID, map[string]string{"A": "1"}) },
		func() error { return records.Touch(ctx, rec.ID, time.Now(), time.Now()) },
		func() error { _, err := records.Take(ctx, rec.ID, owner, "other"); return err },
		func() error {
			got, err := records.Get(ctx, rec.ID)
			env, err2 := records.Env(ctx, rec.ID)
			return want(got.State == record.Ready && got.Owner == "other" && env["A"] == "1", err, err2)
		},
		func() error { return records.Delete(ctx, rec.ID) },
		func() error {
			_, err := records.Get(ctx, rec.ID)
			return want(errors.Is(err, backend.ErrNotFound))
		},
		add(1, workflow.EventRunStarted, ""), add(2, workflow.EventStepStarted, ""),
		add(3, workflow.EventStepProgress, `{}`), add(4, workflow.EventStepFinished, ""),
		func() error { return journal.Ask(ctx, question) },
		func() error { return journal.Answer(ctx, answered) },
		func() error {
			list, err := journal.Approvals(ctx, question.ID)
			return want(len(list) == 1 && list[0].Reply == answered.Reply, err)
		},
		func() error { return journal.AskCancel(ctx, run) },
		func() error { r, err := journal.Run(ctx, run); return want(r.Cancel && r.Owner == owner, err) },
		func() error { return journal.Take(ctx, run, owner, "other") },
		func() error { return want(errors.Is(add(5, workflow.EventStepStarted, "")(), backend.ErrExists)) },
		func() error { return journal.Finish(ctx, run, workflow.Cancelled, nil) },
		func() error {
			list, err := journal.Entries(ctx, run)
			for i, e := range list {
				err = errors.Join(err, want(e.Seq == int64(i)+1))
			}
			return want(len(list) == 5, err)
		},
		func() error { lives, err := records.Lives(ctx, owner); return want(lives, err) },
		leave,
		func() error { lives, err := journal.Lives(ctx, owner); return want(!lives, err) },
	} {
		if err := do(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// want returns an error if ok is false or one of errs is not nil.
func want(ok bool, errs ...error) error {
	if err := errors.Join(errs...); err != nil || ok {
		return err
	}
	return errors.New("what was found is not what was done")
}
