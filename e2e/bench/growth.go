package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// How much of everything there is.
const (
	manySandboxes = 200
	manyAtOnce    = 100
	manyRecords   = 1000

	manyMoreRecords = 10_000
)

// measureGrowth measures what many sandboxes and records cost.
func (c *contest) measureGrowth(ctx context.Context) error {
	if err := c.growthRecords(ctx); err != nil {
		return err
	}
	for _, who := range c.all {
		w, ok := who.(*workcell)
		if !ok {
			continue
		}
		for _, measure := range []func(context.Context, *workcell) error{c.growthOpen, c.growthAtOnce} {
			if err := measure(ctx, w); err != nil {
				return fmt.Errorf("%s: growth: %w", who.name(), err)
			}
		}
	}
	return nil
}

// growthRecords times the list of many records on the disk.
func (c *contest) growthRecords(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "workcell-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := sqlitestore.Open(ctx, filepath.Join(dir, "state.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	s, err := listed(ctx, store, manyRecords)
	c.figures["growth_1000_records_ms.host"] = millis(s.quantile(.5))
	return err
}

// measureAtOnce opens many small sandboxes at once on a cluster, which says how many of them its nodes take.
func (c *contest) measureAtOnce(ctx context.Context) error {
	for _, who := range c.all {
		w, ok := who.(*workcell)
		if !ok {
			continue
		}
		m, err := session.NewManager(w.driver, &session.Options{IdleTimeout: -1})
		if err != nil {
			return err
		}
		small := *w
		small.request.Limits = backend.Limits{CPUMillis: 100, MemoryBytes: 128 << 20}
		var refused atomic.Int64
		began := time.Now()
		err = openAll(ctx, manyAtOnce, manyAtOnce, func() error {
			_, err := small.openOne(ctx, m)
			if errors.Is(err, backend.ErrCapacity) {
				refused.Add(1)
				err = nil
			}
			return err
		})
		c.figures["at_once_100_s."+w.name()] = time.Since(began).Seconds()
		c.figures["at_once_100_taken."+w.name()] = float64(manyAtOnce - refused.Load())
		if err = errors.Join(err, m.Close(context.WithoutCancel(ctx))); err != nil {
			return fmt.Errorf("%s: %d at once: %w", who.name(), manyAtOnce, err)
		}
	}
	return nil
}

// growthOpen opens many sandboxes and compares commands in the first with those in the last of them.
func (c *contest) growthOpen(ctx context.Context, w *workcell) (err error) {
	m, err := session.NewManager(w.driver, &session.Options{IdleTimeout: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	first, err := w.openOne(ctx, m)
	if err != nil {
		return err
	}
	before, err := rssMiB("self")
	if err != nil {
		return err
	}
	if err := openAll(ctx, manySandboxes-2, 8, func() error {
		_, err := w.openOne(ctx, m)
		return err
	}); err != nil {
		return err
	}
	last, err := w.openOne(ctx, m)
	if err != nil {
		return err
	}
	after, err := rssMiB("self")
	if err != nil {
		return err
	}
	in := func(s *session.Session) func() error {
		return func() error {
			_, err := output(ctx, s, "/bin/true")
			return err
		}
	}
	of1, of200, err := alternate(c.calls(w), in(first), in(last))
	if err != nil {
		return err
	}
	c.figures["growth_200_host_mib."+w.name()] = after - before
	c.figures["growth_200_first_exec_p50_ms."+w.name()] = millis(of1.quantile(.5))
	c.figures["growth_200_last_exec_p50_ms."+w.name()] = millis(of200.quantile(.5))
	return nil
}

// growthAtOnce opens many sandboxes at once, and counts those that fail.
func (c *contest) growthAtOnce(ctx context.Context, w *workcell) (err error) {
	m, err := session.NewManager(w.driver, &session.Options{IdleTimeout: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	began := time.Now()
	failed := openAll(ctx, manyAtOnce, manyAtOnce, func() error {
		_, err := w.openOne(ctx, m)
		return err
	})
	c.figures["growth_100_at_once_s."+w.name()] = time.Since(began).Seconds()
	if failed != nil {
		return fmt.Errorf("of %d opens at once: %w", manyAtOnce, failed)
	}
	return nil
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
