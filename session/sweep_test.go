//go:build linux

package session_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// shared returns options for processes of one instance with one store.
func shared() *session.Options {
	return &session.Options{Instance: "shared", Store: record.NewMemoryStore(), ReapEvery: -1, IdleTimeout: 10 * time.Minute}
}

// dying returns a manager. The test stops it with Die.
func dying(t *testing.T, b backend.SandboxBackend, opts *session.Options) *session.Manager {
	t.Helper()
	m, err := session.NewManager(b, opts)
	must(t, err)
	return m
}

// TestRecordOfAnother verifies that a record cannot give a key another key's sandbox, with and without a live owner.
func TestRecordOfAnother(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*session.Options{"adopted": shared(), "joined": joining()} {
		e, lab, run := newEngine(t), session.UserKey("lab"), session.WorkflowKey("run_1", "default")
		first, second := newManager(t, e, opts), newManager(t, e, opts)
		s := openAs(t, first, lab, testImage())
		if !opts.Join {
			must(t, first.Detach(t.Context()))
		}
		move := func(key session.Key) {
			rec := recordOf(t, opts.Store, s.ID())
			rec.Key = key
			must(t, errors.Join(opts.Store.Delete(t.Context(), rec.ID), opts.Store.Insert(t.Context(), rec)))
		}
		move(run)
		if _, _, err := second.Open(t.Context(), run, testImage()); !errors.Is(err, backend.ErrInvalid) {
			t.Fatalf("%s: %v", name, err)
		}
		move(lab)
		again, created, err := second.Open(t.Context(), lab, testImage())
		if err != nil || created || again.ID() != s.ID() {
			t.Errorf("%s, with its own key: %v, %v", name, created, err)
		}
	}
}

// TestAdopt verifies that a run's sandbox is adopted with its files if its process died, but not if its process is
// alive.
func TestAdopt(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	key := session.WorkflowKey("run_1", "default")
	first := dying(t, e, opts)
	s := openKept(t, first, key, testImage())
	second := newManager(t, e, opts)
	if _, _, err := second.Open(t.Context(), key, testImage()); !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("Open of a living process's session = %v, want ErrExists", err)
	}
	second.Reap(t.Context())
	output(t, s, "cat file")
	first.Die()
	reopen(t, second, key, testImage(), s.ID())
	rec, err := opts.Store.Get(t.Context(), s.ID())
	if err != nil || rec.Owner != second.Owner() || rec.State != record.Ready {
		t.Errorf("record %+v, %v", rec, err)
	}
	must(t, second.CloseScope(t.Context(), key.Scope()))
	e.holds(t, 0)
}

// TestHandover verifies that Open waits for a named sandbox that another process has only for a moment.
func TestHandover(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	const processes = 6
	ids := make([]string, processes)
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			m, err := session.NewManager(e, opts)
			if err != nil {
				t.Error(err)
				return
			}
			s, _, err := m.Open(t.Context(), session.UserKey("lab"), testImage())
			if err != nil {
				t.Error(err)
			} else {
				ids[i] = s.ID()
			}
			if err := m.Detach(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("one name, several sandboxes: %v", ids)
		}
	}
	must(t, newManager(t, e, opts).Remove(t.Context(), ids[0], true))
	if rec, err := opts.Store.Get(t.Context(), ids[0]); err != nil || rec.State != record.Closed {
		t.Errorf("record of a removed sandbox: %+v, %v", rec, err)
	}
}

// TestAdoptAsIs verifies that a command and an agent can both adopt a sandbox as a dead process's agent created it.
func TestAdoptAsIs(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	key := session.WorkflowKey("run_1", "default")
	wish := session.Request{Image: "test:2", Env: map[string]string{"TOKEN": "secret"}}
	first := dying(t, e, opts)
	s := openAs(t, first, key, wish)
	first.Die()
	second := newManager(t, e, opts)
	differs(t, second, key, testImage(), "env", "image")
	adoptions := 0
	adopted, created, err := second.Open(t.Context(), key, session.Request{Image: "test:1", Mode: session.OpenAsIs,
		OnAdopt: func(ctx context.Context, s *session.Session) error { adoptions++; return nil }})
	if err != nil || created || adopted.ID() != s.ID() || adoptions != 1 || adopted.Info().Image != "test:2" {
		t.Fatalf("Open as is = %v, %v, %v, adopted %d times", adopted, created, err, adoptions)
	}
	wantOutput(t, adopted, "echo $TOKEN-", "-\n")
	differs(t, second, key, testImage(), "env", "image")
	again, created, err := second.Open(t.Context(), key, wish)
	if err != nil || created || again != adopted {
		t.Fatalf("the agent's own request = %v, %v, %v", again, created, err)
	}
	_, _, err = again.Serve(t.Context(), sandbox.Service{
		Name: "tools", Handle: func(context.Context, *sandbox.ServiceConn) {},
		Env: func(string) map[string]string { return map[string]string{"TOKEN": "the service's"} },
	})
	must(t, err)
	wantOutput(t, adopted, "echo $TOKEN", "secret\n")
}

// plant creates a sandbox and its record on the engine as another process would.
func plant(t *testing.T, e *engine, store record.Store, rec record.Record) record.Record {
	t.Helper()
	if rec.ID == "" {
		rec.ID = "sbx_" + record.NewID()
	}
	if rec.Created.IsZero() {
		rec.Created = time.Now().Add(-time.Hour)
	}
	rec.Engine = e.Name()
	info, err := e.Create(t.Context(), backend.Spec{ID: rec.ID, Instance: "shared", Key: rec.Key.String(), Run: rec.Key.Run(), Created: rec.Created})
	must(t, err)
	rec.EngineID = info.ID
	if rec.State != "" {
		must(t, store.Insert(t.Context(), rec))
	}
	return rec
}

// TestSweep verifies the fate of every kind of sandbox that another process left.
func TestSweep(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	alive := newManager(t, e, opts)
	m := newManager(t, e, opts)
	now := time.Now()
	past, future := now.Add(-time.Minute), now.Add(time.Minute)
	type want struct {
		there bool
		state record.State // empty means no record
	}
	wants, got := map[string]want{}, map[string]want{}
	names := map[string]string{}
	for name, c := range map[string]struct {
		rec  record.Record
		want want
	}{
		"half made":                   {record.Record{State: record.Creating, Owner: "dead", Expires: future}, want{false, record.Closed}},
		"half made by a living one":   {record.Record{State: record.Creating, Owner: alive.Owner(), Expires: past}, want{true, record.Creating}},
		"of a dead run":               {record.Record{State: record.Ready, Owner: "dead", LastUsed: now, Expires: future}, want{true, record.Ready}},
		"of a dead run, for a while":  {record.Record{State: record.Ready, Owner: "dead", LastUsed: now.Add(-4 * time.Minute), Expires: future}, want{true, record.Ready}},
		"of a dead run, expired":      {record.Record{State: record.Ready, Owner: "dead", Expires: past}, want{false, record.Closed}},
		"left behind, expired":        {record.Record{State: record.Ready, Expires: past}, want{false, record.Closed}},
		"left behind, no timeout":     {record.Record{State: record.Ready, Idle: -1}, want{true, record.Ready}},
		"of a living run, expired":    {record.Record{State: record.Ready, Owner: alive.Owner(), Expires: past}, want{true, record.Ready}},
		"half removed":                {record.Record{State: record.Removing, Owner: "dead", Expires: past}, want{false, record.Closed}},
		"half removed by a living":    {record.Record{State: record.Removing, Owner: alive.Owner(), Expires: past}, want{true, record.Removing}},
		"retained":                    {record.Record{State: record.Removing, Owner: "dead", Expires: future}, want{true, record.Removing}},
		"made after all":              {record.Record{State: record.Closed, Owner: "dead", Expires: future}, want{false, record.Closed}},
		"without a record":            {record.Record{}, want{true, record.Ready}},
		"without a record, just made": {record.Record{Created: now}, want{true, ""}},
	} {
		c.rec.Key = session.WorkflowKey("run_"+strings.NewReplacer(" ", "_", ",", "").Replace(name), "default")
		names[plant(t, e, opts.Store, c.rec).ID] = name
		wants[name] = c.want
	}
	gone := record.Record{ID: "sbx_" + record.NewID(), Key: session.WorkflowKey("run_gone", "default"), Engine: "processes",
		State: record.Ready, Owner: "dead", Expires: future}
	elsewhere := gone
	elsewhere.ID, elsewhere.Engine = "sbx_"+record.NewID(), "another engine"
	must(t, opts.Store.Insert(t.Context(), gone))
	must(t, opts.Store.Insert(t.Context(), elsewhere))
	names[gone.ID], wants["not on the engine"] = "not on the engine", want{false, record.Ready}
	names[elsewhere.ID], wants["on another engine"] = "on another engine", want{false, record.Ready}
	strangers := e.count()
	for _, spec := range []backend.Spec{
		{ID: "sbx_" + record.NewID(), Instance: "stranger", Key: "workflow:run_1:default"},
		{ID: "sbx_" + record.NewID(), Instance: "shared", Key: "no key"},
		{ID: "somebody's", Instance: "shared", Key: "workflow:run_1:default"},
	} {
		_, err := e.Create(t.Context(), spec)
		must(t, err)
	}
	strangers = e.count() - strangers
	for range 2 { // the second round has no effect
		m.Reap(t.Context())
	}
	sandboxes := map[string]bool{}
	for _, b := range e.all() {
		if sandboxes[b.info.SessionID] = true; names[b.info.SessionID] == "" {
			strangers--
		}
	}
	if strangers != 0 {
		t.Errorf("%d sandboxes that are not ours are gone", strangers)
	}
	for id, name := range names {
		rec, err := opts.Store.Get(t.Context(), id)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
		got[name] = want{sandboxes[id], rec.State}
		if live, _ := opts.Store.Lives(t.Context(), rec.Owner); rec.Owner == m.Owner() || live && rec.Owner != alive.Owner() {
			t.Errorf("%s belongs to %q", name, rec.Owner)
		}
	}
	if diff := cmp.Diff(wants, got, cmp.AllowUnexported(want{})); diff != "" {
		t.Errorf("after the sweep (-want +got):\n%s", diff)
	}
}

// TestOrphans verifies that the sandbox of an agent or MCP client is removed after the death of its process. The idle
// timeout and running processes do not delay the removal, but a connected process does.
func TestOrphans(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{record.NamespaceAgent, record.NamespaceMCP} {
		t.Run(namespace, func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			first := dying(t, e, opts)
			s := mustOpen(t, first, session.Key{Namespace: namespace, ID: "run_1", Name: record.DefaultName})
			run(t, s, sandbox.ExecRequest{Command: "sleep 1000", Background: true})
			second, clock := newTimed(t, e, opts)
			clock.add(9 * time.Minute)
			second.Reap(t.Context())
			e.holds(t, 1)
			first.Die()
			secondary := mustConnect(t, second, s.ID())
			clock.add(time.Minute)
			second.Reap(t.Context())
			e.holds(t, 1)
			must(t, secondary.Close(t.Context()))
			clock.add(3 * time.Minute)
			second.Reap(t.Context())
			e.holds(t, 0)
			if rec, err := opts.Store.Get(t.Context(), s.ID()); err != nil || rec.State != record.Closed {
				t.Errorf("record %+v, %v", rec, err)
			}
		})
	}
}

// TestSweepNeedsACommonStore verifies that a manager without a shared store removes no sandbox of another process.
func TestSweepNeedsACommonStore(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	opts.Store = nil
	first := newManager(t, e, opts)
	mustOpen(t, first, session.WorkflowKey("run_1", "default"))
	second := newManager(t, e, opts)
	newClock(second).add(1000 * time.Hour)
	second.Reap(t.Context())
	e.holds(t, 1)
}

// TestDeathWhileOpening simulates the death of a process at every step of an open. It verifies that the next process
// can open the key and that nothing else is left.
func TestDeathWhileOpening(t *testing.T) {
	t.Parallel()
	for _, state := range []record.State{record.Creating, record.Ready, record.Removing} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			e, opts := newEngine(t), shared()
			key := session.WorkflowKey("run_1", "default")
			rec := plant(t, e, opts.Store, record.Record{Key: key, State: state, Owner: "dead", Expires: time.Now()})
			m := newManager(t, e, opts)
			s, created, err := m.Open(t.Context(), key, session.Request{Image: "test:1", Mode: session.OpenAsIs})
			if err != nil || created != (state != record.Ready) || created == (s.ID() == rec.ID) {
				t.Fatalf("Open = %v, %v, %v", s, created, err)
			}
			m.Reap(t.Context())
			e.holds(t, 1)
		})
	}
}

// TestDeliberateEndIsNoLoss verifies that Gone omits a sandbox that its owner closed and reports an expired one,
// even if the creation of a replacement failed and the replacement could not be removed at once.
func TestDeliberateEndIsNoLoss(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	m, clock := newTimed(t, e, opts)
	closed, idle := mustOpen(t, m, session.WorkflowKey("run_1", "closed")), mustOpen(t, m, session.WorkflowKey("run_1", "idle"))
	must(t, m.CloseSession(t.Context(), closed.Key(), session.CloseOptions{}))
	if gone, _, err := m.Gone(t.Context(), closed.Key().Scope()); len(gone) != 0 || err != nil {
		t.Errorf("Gone = %v, %v", gone, err)
	}
	clock.add(365 * 24 * time.Hour)
	m.Reap(t.Context())
	req := testImage()
	req.Prepare = func(context.Context, *session.Session) error { return errDisk }
	for _, removal := range []error{nil, backend.ErrUnavailable} {
		e.setHooks(nil, func(string) error { return removal }, nil)
		if _, _, err := m.Open(t.Context(), idle.Key(), req); !errors.Is(err, errDisk) {
			t.Error(err)
		}
		for range 2 {
			gone, _, err := m.Gone(t.Context(), closed.Key().Scope())
			if !slices.Equal(gone, []session.Key{idle.Key()}) || err != nil {
				t.Errorf("after an idle year and a removal with error %v, Gone = %v, %v", removal, gone, err)
			}
			e.setHooks(nil, nil, nil)
			m.Reap(t.Context())
		}
	}
	if e.count() != 0 {
		t.Errorf("%d sandboxes are left", e.count())
	}
}

// TestRemoveInUse verifies that Gone reports a removed sandbox of a dead process, with or without a container, unless
// the run that uses the scope removed the sandbox.
func TestRemoveInUse(t *testing.T) {
	t.Parallel()
	for _, vanished := range []bool{false, true} {
		for _, used := range []bool{false, true} {
			e, opts := newEngine(t), shared()
			dead, m := dying(t, e, opts), newManager(t, e, opts)
			s := openKept(t, dead, runKey, testImage())
			if vanished {
				e.remove(s.Info().EngineID)
				eventually(t, "its record has no owner", func() bool { return recordOf(t, opts.Store, s.ID()).Owner == "" })
			}
			dead.Die()
			if used {
				defer m.KeepInUse(runKey.Scope())()
			}
			must(t, m.Remove(t.Context(), s.ID(), true))
			gone, _, err := m.Gone(t.Context(), runKey.Scope())
			if err != nil || slices.Contains(gone, runKey) == used || e.hasFiles(t, s.ID()) {
				t.Errorf("vanished %v, used %v: Gone = %v, %v", vanished, used, gone, err)
			}
		}
	}
}

// TestRemoveScope verifies that RemoveScope removes a dead process's sandboxes of a run, and that Gone reports the
// missing sandboxes of another run.
func TestRemoveScope(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	dead, alive := dying(t, e, opts), newManager(t, e, opts)
	a, b := mustOpen(t, dead, session.WorkflowKey("run_1", "default")), mustOpen(t, dead, session.WorkflowKey("run_1", "other"))
	mine := mustOpen(t, alive, session.WorkflowKey("run_2", "default"))
	m := newManager(t, e, opts)
	if removed, err := admin.RemoveScope(t.Context(), m, mine.Key().Scope()); !errors.Is(err, backend.ErrExists) || len(removed) != 0 {
		t.Errorf("RemoveScope of a living run = %v, %v", removed, err)
	}
	dead.Die()
	e.remove(b.Info().EngineID)
	must(t, opts.Store.Insert(t.Context(), record.Record{ID: "sbx_" + record.NewID(), Key: session.WorkflowKey("run_1", "never"),
		Engine: e.Name(), State: record.Closed})) // the process died before the sandbox existed
	gone, there, err := m.Gone(t.Context(), a.Key().Scope())
	if diff := cmp.Diff([][]session.Key{{b.Key()}, {a.Key()}}, [][]session.Key{gone, there}); diff != "" || err != nil {
		t.Errorf("Gone (-want +got):\n%s%v", diff, err)
	}
	unrecorded := plant(t, e, opts.Store, record.Record{Key: session.WorkflowKey("run_1", "third")})
	removed, err := admin.RemoveScope(t.Context(), m, a.Key().Scope())
	if err != nil || len(removed) != 3 || e.count() != 1 {
		t.Errorf("RemoveScope = %v, %v, want %s, %s and %s; %d sandboxes remain", removed, err, a.ID(), b.ID(), unrecorded.ID, e.count())
	}
	output(t, mine, "true")
	if gone, _, err := m.Gone(t.Context(), a.Key().Scope()); len(gone) != 3 || err != nil {
		t.Errorf("Gone = %v, %v", gone, err)
	}
}

// TestOrphanTimeout verifies that a guest outlives its managers by more than its idle timeout.
func TestOrphanTimeout(t *testing.T) {
	for idle, least := range map[time.Duration]time.Duration{0: session.DefaultIdleTimeout, time.Second: 3 * time.Minute, time.Hour: time.Hour, -1: -1} {
		e := newEngine(t)
		var spec backend.Spec
		e.setHooks(func(_ context.Context, s backend.Spec) error { spec = s; return nil }, nil, nil)
		m := newManager(t, e, nil)
		openAs(t, m, record.AgentKey("run", "default"), session.Request{Image: "debian", IdleTimeout: idle})
		if got := spec.OrphanTimeout; idle < 0 && got != 0 || idle >= 0 && (got <= least || got > least+5*time.Minute) || !spec.Ephemeral {
			t.Errorf("idle %v: orphan timeout %v, ephemeral %v", idle, got, spec.Ephemeral)
		}
	}
}

// TestEndedRemoved verifies that any process removes exited sandboxes that belonged to one dead process only, and no
// other sandboxes.
func TestEndedRemoved(t *testing.T) {
	e := newEngine(t)
	old := time.Now().Add(-2 * time.Hour)
	keep := map[string]bool{}
	for _, c := range []struct {
		ephemeral, stopped, keep bool
		created                  time.Time
	}{{true, true, false, old}, {true, false, true, old}, {false, true, true, old}, {true, true, true, time.Now()}} {
		info, err := e.Create(t.Context(), backend.Spec{
			ID: "sbx_" + record.NewID(), Instance: record.NewID(), Key: record.AgentKey("run", "default").String(),
			Ephemeral: c.ephemeral, Created: c.created,
		})
		must(t, err)
		if c.stopped {
			must(t, e.Stop(t.Context(), info.ID))
		}
		if c.keep {
			keep[info.ID] = true
		}
	}
	m := newManager(t, e, &session.Options{ReapEvery: -1})
	recs, err := admin.Forsaken(t.Context(), m)
	must(t, err)
	if len(recs) != 2 || recs[0].Key != record.AgentKey("run", "default") || !recs[0].Expires.Equal(old.Add(time.Hour)) {
		t.Errorf("forsaken: %+v", recs)
	}
	must(t, admin.Sweep(t.Context(), m))
	left, err := e.List(t.Context(), backend.Filter{})
	must(t, err)
	for _, info := range left {
		if !keep[info.ID] {
			t.Errorf("left: %+v", info)
		}
		delete(keep, info.ID)
	}
	if len(keep) > 0 {
		t.Errorf("removed: %v", keep)
	}
}

// lapsing is a store that fails after a record was taken: its owner is treated as dead, or the store cannot be read.
type lapsing struct {
	record.Store
	dead, blind, lapsed bool
}

func (s *lapsing) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	rec, err := s.Store.Take(ctx, id, from, to)
	s.lapsed = true
	return rec, err
}

func (s *lapsing) Update(ctx context.Context, rec record.Record) error {
	if s.lapsed && s.dead {
		return record.ErrOwnerLost
	}
	return s.Store.Update(ctx, rec)
}

func (s *lapsing) Get(ctx context.Context, id string) (record.Record, error) {
	if s.lapsed && s.blind {
		return record.Record{}, errDisk
	}
	return s.Store.Get(ctx, id)
}

// TestSweepOvertaken verifies that a sweep neither removes nor stops a sandbox if its manager may have been treated as
// dead since it took the record. Another process may own the sandbox by then.
func TestSweepOvertaken(t *testing.T) {
	t.Parallel()
	for name, lapse := range map[string]*lapsing{"dead": {dead: true}, "blind": {blind: true}} {
		for _, policy := range []record.IdlePolicy{record.IdleRemove, record.IdleStop} {
			t.Run(name+"/"+string(policy), func(t *testing.T) {
				t.Parallel()
				e, opts := newEngine(t), shared()
				first := dying(t, e, opts)
				req := testImage()
				req.IdlePolicy = policy
				s := openAs(t, first, session.UserKey("lab"), req)
				first.Die()
				swept := *opts
				store := &lapsing{Store: opts.Store, dead: lapse.dead, blind: lapse.blind}
				swept.Store = store
				second := newManager(t, e, &swept)
				second.SetClock(func() time.Time { return time.Now().Add(time.Hour) })
				second.Reap(t.Context())
				if info, err := e.Get(t.Context(), s.Info().EngineID); err != nil || info.State != backend.StateRunning || !store.lapsed {
					t.Errorf("%+v, %v, taken: %v", info, err, store.lapsed)
				}
			})
		}
	}
}
