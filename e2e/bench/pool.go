package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

// measurePool measures pooled sandboxes, with records on disk like the workcell command, in turns with new sandboxes.
func (c *contest) measurePool(ctx context.Context) error {
	for _, who := range c.all {
		w, ok := who.(*workcell)
		if !ok {
			continue
		}
		for _, measure := range []func(context.Context, *workcell) error{c.poolOpens, c.poolBurst} {
			if err := measure(ctx, w); err != nil {
				return fmt.Errorf("%s: pool: %w", who.name(), err)
			}
		}
	}
	return nil
}

// poolOf calls fn with a manager that has n pooled sandboxes.
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

// openOne opens a sandbox and returns it after its first command has answered.
func (w *workcell) openOne(ctx context.Context, m *session.Manager) (*session.Session, error) {
	s, _, err := m.Open(ctx, record.AgentKey(session.NewRunID(), record.DefaultName), w.request)
	if err != nil {
		return nil, err
	}
	_, err = output(ctx, s, "/bin/true")
	return s, err
}

// poolOpens measures the time until the first command's answer with a pool and, in turns, without a pool.
func (c *contest) poolOpens(ctx context.Context, w *workcell) error {
	return w.poolOf(poolSize, func(m *session.Manager) error {
		var pooled, cold sample
		for range c.opts.rounds * max(5*c.opts.scale/100, 1) {
			if err := poolFull(ctx, m, poolSize); err != nil {
				return err
			}
			for _, from := range []struct {
				m  *session.Manager
				to *sample
			}{{m, &pooled}, {w.manager, &cold}} {
				var s *session.Session
				one, err := series(1, func() (err error) {
					s, err = w.openOne(ctx, from.m)
					return err
				})
				if err != nil {
					return err
				}
				*from.to = append(*from.to, one...)
				if err := s.Close(ctx); err != nil {
					return err
				}
			}
		}
		c.figures["open_pool_p50_ms."+w.name()] = millis(pooled.quantile(.5))
		c.figures["open_pool_cold_p50_ms."+w.name()] = millis(cold.quantile(.5))
		return nil
	})
}

// poolBurst opens all pooled sandboxes at once, and measures the time until the last first answer.
func (c *contest) poolBurst(ctx context.Context, w *workcell) error {
	return w.poolOf(poolBurst, func(m *session.Manager) error {
		var all []float64
		for range c.opts.rounds {
			if err := poolFull(ctx, m, poolBurst); err != nil {
				return err
			}
			sessions, took, err := w.openMany(ctx, m, poolBurst)
			for _, s := range sessions {
				if s != nil {
					err = errors.Join(err, s.Close(ctx))
				}
			}
			if err != nil {
				return err
			}
			all = append(all, millis(took))
		}
		c.figures["open_pool_20_ms."+w.name()] = median(all)
		return nil
	})
}

// openMany opens n sandboxes at once and returns the time until the last first answer.
func (w *workcell) openMany(ctx context.Context, m *session.Manager, n int) ([]*session.Session, time.Duration, error) {
	sessions, errs := make([]*session.Session, n), make([]error, n)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { sessions[i], errs[i] = w.openOne(ctx, m) })
	}
	wg.Wait()
	return sessions, time.Since(began), errors.Join(errs...)
}
