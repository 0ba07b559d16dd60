package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// Sizes of pools.
const (
	poolSize  = 5
	poolBurst = 20
)

// measurePool measures sandboxes that were made in advance, with records on the disk as the command has them, next to those that
// are made when they are asked for.
func (c *contest) measurePool(ctx context.Context) error {
	for _, who := range c.all {
		w, ok := who.(*workcell)
		if !ok {
			continue
		}
		for _, measure := range []func(context.Context, *workcell) error{c.poolOpens, c.poolBurst, c.poolIdle, c.poolRefill, c.poolRuns} {
			if err := measure(ctx, w); err != nil {
				return fmt.Errorf("%s: pool: %w", who.name(), err)
			}
		}
	}
	return nil
}

// poolOf calls fn with a manager that keeps n sandboxes ready.
func (w *workcell) poolOf(n int, fn func(*session.Manager) error) (err error) {
	dir, err := os.MkdirTemp("", "workcell-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := sqlitestore.Open(context.Background(), filepath.Join(dir, "state.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m, err := session.NewManager(w.driver, &session.Options{
		Instance: "bench-" + session.NewID(), Store: store, IdleTimeout: -1, Pool: []session.PoolSpec{{Request: w.request, Size: n}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background())) }()
	return fn(m)
}

// poolFull waits until n sandboxes are ready.
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
			time.Sleep(100 * time.Millisecond) // what made the last one comes to rest
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// openOne opens a sandbox, and returns it when its first command has answered.
func (w *workcell) openOne(ctx context.Context, m *session.Manager) (*session.Session, error) {
	s, _, err := m.Open(ctx, session.AgentKey(session.NewRunID(), session.DefaultName), w.request)
	if err != nil {
		return nil, err
	}
	_, err = output(ctx, s, "/bin/true")
	return s, err
}

// poolOpens times from nothing to the answer of a first command with a pool and, in turn, without one.
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

// poolBurst times as many opens at once as are ready, up to the last one's first answer.
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

// openMany opens n sandboxes at once and returns how long that took, up to the last one's first answer.
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

// idleTime is how long a sandbox is watched that nobody uses.
const idleTime = 15 * time.Second

// poolIdle measures what a sandbox costs that is ready and does nothing.
func (c *contest) poolIdle(ctx context.Context, w *workcell) error {
	return w.poolOf(1, func(m *session.Manager) error {
		if err := poolFull(ctx, m, 1); err != nil {
			return err
		}
		s, err := w.openOne(ctx, m)
		if err != nil {
			return err
		}
		defer s.Close(ctx) //nolint:errcheck // the manager closes what is left
		pid, err := guestOf(ctx, s)
		if err != nil {
			return err
		}
		before, err := cpuOf(pid)
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(int(idleTime) * c.opts.scale / 100))
		after, err := cpuOf(pid)
		if err != nil {
			return err
		}
		c.figures["pool_idle_cpu_percent."+w.name()] = 100 * (after - before).Seconds() / (idleTime.Seconds() * float64(c.opts.scale) / 100)
		c.figures["pool_idle_rss_mib."+w.name()], err = rssMiB(pid)
		return err
	})
}

// cpuOf returns the time that a process's threads have run.
func cpuOf(pid string) (time.Duration, error) {
	threads, err := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// poolRefill measures commands in an open sandbox beside a pool that is full, and beside one that is being filled.
func (c *contest) poolRefill(ctx context.Context, w *workcell) error {
	s, err := w.openOne(ctx, w.manager)
	if err != nil {
		return err
	}
	defer s.Close(ctx) //nolint:errcheck // the manager closes what is left
	run := func() error {
		_, err := output(ctx, s, "/bin/true")
		return err
	}
	var beside, alone sample
	for range c.opts.rounds {
		// In turn, so that both see the same machine.
		one, err := series(c.calls(w), run)
		if err != nil {
			return err
		}
		alone = append(alone, one...)
		err = w.poolOf(poolBurst, func(*session.Manager) error {
			one, err := series(c.calls(w), run)
			beside = append(beside, one...)
			return err
		})
		if err != nil {
			return err
		}
	}
	c.figures["pool_alone_exec_p99_ms."+w.name()] = millis(alone.quantile(.99))
	c.figures["pool_refill_exec_p99_ms."+w.name()] = millis(beside.quantile(.99))
	return nil
}

// poolRuns times sandbox_run, in a sandbox of its own, through `workcell mcp --pool`, and in turn its program alone in a sandbox
// that is open.
func (c *contest) poolRuns(ctx context.Context, w *workcell) (err error) {
	program, dir, remove, err := command(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	const image = "python:3.11-slim"
	flags := []string{"--state-dir", dir, "--backend", w.engine, "--map-image=" + image + "=" + c.opts.image}
	server := exec.CommandContext(ctx, program, append([]string{"mcp", fmt.Sprintf("--pool=%s=%d", image, poolSize)}, flags...)...)
	front, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: server}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, front.Close()) }()
	alone := func() error {
		return callTool(ctx, front, toolspec.ToolExec, map[string]any{"cmd": []string{"python3", "-c", "print(1)"}})
	}
	if err := alone(); err != nil { // opens the sandbox
		return err
	}
	var runs, programs sample
	for range c.opts.rounds * max(5*c.opts.scale/100, 1) {
		if err := commandPoolFull(ctx, program, flags[:4]); err != nil {
			return err
		}
		one, err := series(1, func() error { return callTool(ctx, front, toolspec.ToolRun, map[string]any{"code": "print(1)"}) })
		if err != nil {
			return err
		}
		two, err := series(1, alone)
		if err != nil {
			return err
		}
		runs, programs = append(runs, one...), append(programs, two...)
	}
	run, only := millis(runs.quantile(.5)), millis(programs.quantile(.5))
	c.figures["run_pool_p50_ms."+w.name()], c.figures["run_pool_program_p50_ms."+w.name()], c.figures["run_pool_added_ms."+w.name()] = run, only, run-only
	return nil
}

// commandPoolFull waits until the server's pool is full, as another command sees it.
func commandPoolFull(ctx context.Context, program string, flags []string) error {
	for {
		out, err := exec.CommandContext(ctx, program, append([]string{"sessions", "ls", "-o", "json"}, flags...)...).Output()
		if err != nil {
			return fmt.Errorf("sessions ls: %w", err)
		}
		var list []struct{ State session.State }
		if err := json.Unmarshal(out, &list); err != nil {
			return err
		}
		ready := 0
		for _, s := range list {
			if s.State == session.StatePooled {
				ready++
			}
		}
		time.Sleep(300 * time.Millisecond)
		if ready >= poolSize {
			return nil
		}
	}
}
