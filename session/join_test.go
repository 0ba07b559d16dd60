//go:build linux

package session_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// joining returns options for processes that share their sandboxes.
func joining() *session.Options {
	opts := shared()
	opts.Join = true
	return opts
}

// replicaKey returns a key of a client that several servers serve.
func replicaKey(name string) session.Key {
	return session.Key{Namespace: record.NamespaceReplica, ID: "run_1", Name: name}
}

// TestJoin verifies that a key has one sandbox that all processes share, even if the process that created it has died.
// Any of them can close it.
func TestJoin(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]session.Key{"a run's": replicaKey("default"), "named": session.UserKey("lab")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			opts := joining()
			first, second, third := dying(t, e, opts), newManager(t, e, opts), newManager(t, e, opts)
			a := mustOpen(t, first, key)
			output(t, a, "echo kept > file")
			b := reopen(t, second, key, testImage(), a.ID())
			output(t, b, "echo more > more")
			if c, err := third.Lookup(t.Context(), key.Scope(), a.ID()); err != nil || output(t, c, "cat file more") != "kept\nmore\n" {
				t.Errorf("Lookup = %v, %v", c, err)
			}
			if _, err := third.Lookup(t.Context(), session.WorkflowKey("run_2", "x").Scope(), a.ID()); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("Lookup from another scope = %v", err)
			}
			differs(t, newManager(t, e, opts), key, session.Request{Image: "test:2"}, "image")
			background, err := a.Start(t.Context(), sandbox.ExecRequest{Command: "read x; echo $x", StdinOpen: true})
			must(t, err)
			must(t, b.Command(background.ID()).Write(t.Context(), []byte("word\n"), true))
			if res, err := b.Command(background.ID()).Wait(t.Context(), time.Minute); err != nil || string(res.Stdout.Bytes()) != "word\n" {
				t.Errorf("a command of another process: %+v, %v", res, err)
			}
			first.Die()
			second.Reap(t.Context())
			third.Reap(t.Context())
			if got := output(t, b, "cat file more"); got != "kept\nmore\n" {
				t.Errorf("after the death of its process: %q", got)
			}
			reopen(t, newManager(t, e, opts), key, testImage(), a.ID()) // adopts the sandbox
			must(t, b.Close(t.Context()))
			if e.count() != 0 || e.creates.Load() != 1 {
				t.Errorf("%d sandboxes are left, of %d", e.count(), e.creates.Load())
			}
			if rec, err := opts.Store.Get(t.Context(), a.ID()); err != nil || rec.State.Live() {
				t.Errorf("record %+v, %v", rec, err)
			}
			opensAnother(t, third, key, testImage(), a.ID())
		})
	}
}

// TestJoinAtOnce verifies that processes that open a key concurrently share one sandbox.
func TestJoinAtOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	opts := joining()
	ids := make([]string, 6)
	var wg sync.WaitGroup
	for i := range ids {
		m := newManager(t, e, opts)
		wg.Go(func() {
			s, _, err := m.Open(t.Context(), replicaKey("default"), testImage())
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	if len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 1 || e.creates.Load() != 1 {
		t.Errorf("%d sandboxes: %v", e.creates.Load(), ids)
	}
}

// TestJoinAfterRemoval verifies that the owner of a sandbox does not use it after another process removed it, even if
// the connection still exists.
func TestJoinAfterRemoval(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	opts := joining()
	m := newManager(t, e, opts)
	removed := mustOpen(t, m, replicaKey("default"))
	rec, err := opts.Store.Get(t.Context(), removed.ID())
	must(t, err)
	rec.State = record.Closed
	must(t, opts.Store.Update(t.Context(), rec))
	if s := mustOpen(t, m, replicaKey("default")); s.ID() == removed.ID() {
		t.Errorf("%s was opened again", s.ID())
	}
}

// TestJoinScope verifies that a scope contains the sandboxes of all processes, and that closing it in one process
// closes all of them. Closing a manager keeps the sandboxes of other processes.
func TestJoinScope(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	opts := joining()
	first, second := newManager(t, e, opts), newManager(t, e, opts)
	a, b := mustOpen(t, first, replicaKey("a")), mustOpen(t, second, replicaKey("b"))
	other := mustOpen(t, second, session.Key{Namespace: record.NamespaceReplica, ID: "run_2", Name: "default"})
	scope := a.Key().Scope()
	joins := func(want ...*session.Session) {
		for _, m := range []*session.Manager{first, second} {
			list, err := m.Join(t.Context(), scope)
			if err != nil || !slices.EqualFunc(list, want, func(s, want *session.Session) bool { return s.ID() == want.ID() }) {
				t.Errorf("Join = %v, %v", list, err)
			}
		}
	}
	joins(a, b)
	output(t, a, "echo kept > file")
	leaving := newManager(t, e, opts)
	reopen(t, leaving, a.Key(), testImage(), a.ID())
	must(t, leaving.Close(t.Context()))
	output(t, a, "true")
	unaware := make(chan struct{}) // until then, other managers must not notice the removal
	e.setHooks(nil, nil, func(context.Context, string) error { <-unaware; return nil })
	must(t, newManager(t, e, opts).CloseScope(t.Context(), scope)) // a manager that has joined no sandbox
	e.holds(t, 1)
	joins()
	close(unaware)
	output(t, other, "true")
	if _, err := a.Exec(t.Context(), sandbox.ExecRequest{Command: "true"}); !errors.Is(err, backend.ErrLost) {
		t.Errorf("Exec in a sandbox that another process ended = %v", err)
	}
}

// TestJoinIdle verifies that uses by any process count, and that a sandbox that no process uses is removed.
func TestJoinIdle(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	opts := joining()
	var passed atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	first, second := newManager(t, e, opts), newManager(t, e, opts)
	first.SetClock(clock)
	second.SetClock(clock)
	a := mustOpen(t, first, replicaKey("default"))
	output(t, a, "echo kept > file")
	b := reopen(t, second, replicaKey("default"), testImage(), a.ID())
	for range 3 {
		passed.Add(int64(6 * time.Minute)) // of the ten-minute idle timeout
		output(t, b, "true")
		first.Reap(t.Context())
	}
	e.holds(t, 1)
	passed.Add(int64(11 * time.Minute))
	second.Reap(t.Context())
	first.Reap(t.Context())
	e.holds(t, 0)
}

// doorman is a gateway that sends its name to each client.
type doorman struct{ name string }

func (d doorman) Open(string, sandbox.Egress) (sandbox.Service, func(), error) {
	return sandbox.Service{
		Name: "egress", Handle: func(_ context.Context, c *sandbox.ServiceConn) { _, _ = io.WriteString(c, d.name) },
		Env: func(addr string) map[string]string { return map[string]string{"PROXY": addr} },
	}, func() {}, nil
}

func (doorman) Refused(string, time.Time) []sandbox.EgressRefusal { return nil }

// TestJoinEgress verifies that commands of every process reach the sandbox's hosts through a living process.
func TestJoinEgress(t *testing.T) {
	t.Parallel()
	e, store := newEngine(t), record.NewMemoryStore()
	with := func(name string) *session.Options {
		opts := joining()
		opts.Store, opts.Egress = store, doorman{name}
		return opts
	}
	first, second := dying(t, e, with("first")), newManager(t, e, with("second"))
	req := session.Request{Image: "test:1", Egress: sandbox.Egress{Allow: []string{"a.example"}}}
	a := openAs(t, first, replicaKey("default"), req)
	b := openAs(t, second, replicaKey("default"), req)
	const ask = `bash -c 'exec 3<>/dev/tcp/${PROXY%:*}/${PROXY##*:}; cat <&3'`
	for i, s := range []*session.Session{a, b, a, b, b, a} {
		if got := output(t, s, ask); got != "first" && got != "second" {
			t.Errorf("command %d reached %q", i, got)
		}
	}
	first.Die()
	wantOutput(t, b, ask, "second")
}

// TestJoinedHosts verifies that a process serves the hosts of a joined sandbox only if its own request names them.
func TestJoinedHosts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ asked, opened []string }{
		"no hosts":    {},
		"other hosts": {asked: []string{"b.example"}},
		"same hosts":  {[]string{"a.example"}, []string{"open a.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, g, opts := newEngine(t), &gate{}, joining()
			opts.Egress = doorman{"first"}
			req := session.Request{Image: "test:1", Egress: sandbox.Egress{Allow: []string{"a.example"}}}
			first, _, err := newManager(t, e, opts).Open(t.Context(), replicaKey("default"), req)
			must(t, err)
			other := *opts
			other.Egress = g
			m, scope := newManager(t, e, &other), first.Key().Scope()
			_, err = m.Join(t.Context(), scope)
			must(t, err)
			ctx := session.WithBase(t.Context(), session.Request{Egress: sandbox.Egress{Allow: tt.asked}})
			s, err := m.Lookup(ctx, scope, first.ID())
			must(t, err)
			output(t, s, "true")
			if got := g.seen(); !slices.Equal(got, tt.opened) {
				t.Errorf("the gateway was asked to %q, want %q", got, tt.opened)
			}
			if err := m.Detach(t.Context()); err != nil || g.drops.Load() > 0 { // the owner continues
				t.Errorf("%v, additional hosts were dropped %d times", err, g.drops.Load())
			}
		})
	}
}

// TestJoinOtherEngine verifies that a sandbox on an engine that is unavailable to a process is neither treated as
// removed nor created a second time.
func TestJoinOtherEngine(t *testing.T) {
	t.Parallel()
	here, there := *joining(), *joining()
	there.Store, here.Engine, there.Engine = here.Store, "here", "there"
	s := mustOpen(t, newManager(t, newEngine(t), &here), replicaKey("default"))
	other := newManager(t, newEngine(t), &there)
	if _, err := other.Lookup(t.Context(), s.Key().Scope(), s.ID()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Lookup = %v", err)
	}
	if _, err := other.Join(t.Context(), s.Key().Scope()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Join = %v", err)
	}
}

// TestJoinDead verifies that a dead sandbox which cannot be started is in its scope, does not hide others, and can be
// opened or removed with its files by any process.
func TestJoinDead(t *testing.T) {
	t.Parallel()
	for name, ruin := range map[string]func(*engine, string){"killed": ruins["killed"], "removed": ruins["removed"]} {
		for known, removed := range map[string]bool{
			"joined before, opened": false, "joined before, removed": true, "opened": false, "removed": true,
		} {
			t.Run(name+", "+known, func(t *testing.T) {
				t.Parallel()
				e := newEngine(t)
				opts := joining()
				first, second := newManager(t, e, opts), newManager(t, e, opts)
				a, b := mustOpen(t, first, replicaKey("a")), mustOpen(t, second, replicaKey("b"))
				output(t, a, "echo kept > file")
				if strings.HasPrefix(known, "joined") {
					reopen(t, second, a.Key(), testImage(), a.ID())
				}
				ruin(e, a.Info().EngineID)
				eventually(t, "its record has no owner", func() bool { return recordOf(t, opts.Store, a.ID()).Owner == "" })
				e.setHooks(func(context.Context, backend.Spec) error { return backend.ErrImage }, nil, nil)
				for _, m := range []*session.Manager{first, second} {
					list, err := m.Join(t.Context(), a.Key().Scope())
					if err != nil || len(list) != 2 || list[0].ID() != a.ID() || list[1].ID() != b.ID() {
						t.Fatalf("Join = %v, %v", list, err)
					}
				}
				list, err := second.Join(t.Context(), a.Key().Scope())
				must(t, err)
				_, err = list[0].StatFile(t.Context(), "file")
				if state := list[0].Info().State; !errors.Is(err, backend.ErrLost) || state != session.StateLost {
					t.Errorf("a call in it: %v, its state %s", err, state)
				}
				e.setHooks(nil, nil, nil)
				if removed {
					must(t, second.Remove(t.Context(), a.ID(), true))
				} else {
					reopen(t, second, a.Key(), testImage(), a.ID())
				}
				if e.hasFiles(t, a.ID()) == removed {
					t.Errorf("its files are left: %v", removed)
				}
			})
		}
	}
}

// TestJoinKeepInUse verifies that the owner keeps a sandbox that another process keeps in use.
func TestJoinKeepInUse(t *testing.T) {
	t.Parallel()
	e, opts, key := newEngine(t), joining(), replicaKey("default")
	opts.IdleTimeout, opts.ReapEvery = 10*time.Minute, -1
	first, clock := newTimed(t, e, opts)
	second, later := newTimed(t, e, opts)
	s := openKept(t, first, key, testImage())
	reopen(t, second, key, testImage(), s.ID())
	defer second.KeepInUse(key.Scope())()
	for range 3 {
		clock.add(9 * time.Minute)
		later.add(9 * time.Minute)
		second.Reap(t.Context())
		first.Reap(t.Context())
		e.holds(t, 1)
	}
}
