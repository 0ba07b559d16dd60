package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
)

// Sizes of pools.
const (
	poolSize  = 5
	poolBurst = 20
)

// measurePool measures pooled sandboxes, with records on disk like the workcell command: the time until the first
// command's answer, and the time until the last first answer of a whole pool opened at once.
func (c *contest) measurePool(ctx context.Context) error {
	for _, who := range c.all {
		w, ok := who.(*workcell)
		if !ok {
			continue
		}
		one, err := w.poolOpens(ctx, poolSize, 1, c.opts.rounds*max(5*c.opts.scale/100, 1))
		if err != nil {
			return fmt.Errorf("%s: pool: %w", who.name(), err)
		}
		burst, err := w.poolOpens(ctx, poolBurst, poolBurst, c.opts.rounds)
		if err != nil {
			return fmt.Errorf("%s: pool: %w", who.name(), err)
		}
		c.figures["open_pool_p50_ms."+w.name()] = millis(one.quantile(.5))
		c.figures["open_pool_20_ms."+w.name()] = millis(burst.quantile(.5))
	}
	return nil
}

// poolOf calls fn with a manager of n pooled sandboxes.
func (w *workcell) poolOf(n int, fn func(*session.Manager) error) (err error) {
	dir, err := os.MkdirTemp("", "workcell-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := sqlite.Open(context.Background(), filepath.Join(dir, "state.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m, err := session.NewManager(w.driver, &session.Options{
		Instance: "bench-" + record.NewID(), Store: store, IdleTimeout: -1, Pool: []session.PoolSpec{{Request: w.request, Size: n}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	return fn(m)
}

// poolFull waits until n pooled sandboxes are ready.
func poolFull(ctx context.Context, m *session.Manager, n int) error {
	for {
		list, err := m.List(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for _, info := range list {
			if info.State == session.StatePooled {
				ready++
			}
		}
		if ready >= n {
			time.Sleep(100 * time.Millisecond) // wait for the end of background work of the last creation
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// openOne opens a sandbox and returns it after the first command has answered.
func (w *workcell) openOne(ctx context.Context, m *session.Manager) (*session.Session, error) {
	s, _, err := m.Open(ctx, record.AgentKey(session.NewRunID(), record.DefaultName), w.request)
	if err != nil {
		return nil, err
	}
	_, err = output(ctx, s, "/bin/true")
	return s, err
}

// poolOpens opens n sandboxes at once from a full pool, several times.
func (w *workcell) poolOpens(ctx context.Context, size, n, times int) (all sample, err error) {
	err = w.poolOf(size, func(m *session.Manager) error {
		for range times {
			if err := poolFull(ctx, m, size); err != nil {
				return err
			}
			sessions := make([]*session.Session, n)
			began := time.Now()
			err := atOnce(n, func(i int) (err error) {
				sessions[i], err = w.openOne(ctx, m)
				return err
			})
			took := time.Since(began)
			for _, s := range sessions {
				if s != nil {
					err = errors.Join(err, s.Close(ctx))
				}
			}
			if err != nil {
				return err
			}
			all = append(all, took)
		}
		return nil
	})
	return all, err
}
