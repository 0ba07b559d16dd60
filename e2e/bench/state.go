package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/pgstore"
	"github.com/workcell-dev/workcell/session/sqlitestore"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// manyRecords is how many records a store lists.
const manyRecords = 10_000

// place is one where state is kept: records of sandboxes, and journals of runs.
type place struct {
	name    string
	store   session.Store
	journal runstore.Store
}

// measureState measures both places: a file, and a database on the server of Options.postgres.
func (c *contest) measureState(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "workcell-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := c.onSQLite(ctx, filepath.Join(dir, "state.db")); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	if c.opts.postgres == "" {
		return errors.New("-postgres is not set: the URL of a server on which the benchmark may make a database")
	}
	if err := c.onPostgres(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return nil
}

func (c *contest) onSQLite(ctx context.Context, file string) error {
	store, err := sqlitestore.Open(ctx, file)
	if err != nil {
		return err
	}
	journal, err := sqlitejournal.Open(ctx, file)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(c.statePlace(ctx, place{"sqlite", store, journal}), journal.Close(), store.Close())
}

func (c *contest) onPostgres(ctx context.Context) (err error) {
	server, err := pgx.Connect(ctx, c.opts.postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	database := "workcell_bench_" + strings.ToLower(rand.Text())
	if _, err := server.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return err
	}
	defer func() {
		_, dropped := server.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+database+" WITH (FORCE)")
		err = errors.Join(err, dropped)
	}()
	u, err := url.Parse(c.opts.postgres)
	if err != nil {
		return err
	}
	u.Path = "/" + database
	store, err := pgstore.Open(ctx, u.String())
	if err != nil {
		return err
	}
	journal, err := pgjournal.Open(ctx, u.String())
	if err != nil {
		return errors.Join(err, store.Close())
	}
	return errors.Join(c.statePlace(ctx, place{"postgres", store, journal}), journal.Close(), store.Close())
}

func (c *contest) statePlace(ctx context.Context, p place) error {
	list, err := listed(ctx, p.store, manyRecords)
	if err != nil {
		return err
	}
	c.figures["state_10000_records_ms."+p.name] = millis(list.quantile(.5))
	appended, err := journaled(ctx, p, max(1000*c.opts.scale/100, callers))
	c.figures["state_journal_p50_ms."+p.name] = millis(appended.quantile(.5))
	return err
}

// listed times the list of so many records.
func listed(ctx context.Context, store session.Store, n int) (sample, error) {
	if err := openAll(ctx, n, callers, func() error { return store.Insert(ctx, record()) }); err != nil {
		return nil, err
	}
	return series(20, func() error {
		recs, err := store.List(ctx)
		if err == nil && len(recs) != n {
			err = fmt.Errorf("%d records, want %d", len(recs), n)
		}
		return err
	})
}

// record is that of a sandbox of a run of its own.
func record() session.Record {
	now := time.Now()
	return session.Record{
		ID: "sbx_" + session.NewID(), Key: session.AgentKey(session.NewRunID(), session.DefaultName), Engine: "bench",
		State: session.RecordReady, Created: now, LastUsed: now, Request: `{"image":"python:3.11-slim","user":"1000:1000","network":"none"}`,
	}
}

// journaled times the entries of one long run, one after the other: each is on the disk when the next one begins.
func journaled(ctx context.Context, p place, n int) (s sample, err error) {
	owner, leave, err := p.store.Join(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	journal, run, seq := p.journal.For(owner, "bench"), session.NewRunID(), int64(0)
	return series(n, func() error {
		seq++
		e := workflow.Entry{
			RunID: run, Seq: seq, Time: time.Now(), Kind: workflow.EventStepFinished, Path: "build", Step: "build", Type: "exec",
			Visit: int(seq), Attempt: 1, Status: workflow.StatusSucceeded, Has: true, Output: map[string]any{"exit_code": 0, "stdout": strings.Repeat("a line of output\n", 20)},
		}
		if seq == 1 {
			e = workflow.Entry{RunID: run, Seq: 1, Time: time.Now(), Kind: workflow.EventRunStarted, Workflow: "bench", Hash: "bench"}
		}
		return journal.Append(ctx, e)
	})
}

// openAll calls open n times, so many at once, and returns the first failure.
func openAll(ctx context.Context, n, atOnce int, open func() error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for range n {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return open()
		})
	}
	return group.Wait()
}
