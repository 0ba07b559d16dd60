package pgregistry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/mcpserver/pgregistry"
	"github.com/workcell-dev/workcell/mcpserver/replica"
)

// open returns registries of several servers over one database.
func open(t *testing.T, n int) []*pgregistry.Registry {
	t.Helper()
	url := pgtest.Database(t)
	var all []*pgregistry.Registry
	for range n {
		r, err := pgregistry.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		all = append(all, r)
	}
	return all
}

// TestEntries: what one server begins the others find, an owner's entries are the owner's, and what is ended is ended once.
func TestEntries(t *testing.T) {
	t.Parallel()
	ctx, all := t.Context(), open(t, 2)
	e := replica.Entry{ID: "one", Owner: "alice", Run: "run_1", Origin: "a", Params: []byte(`{"x":"\u0000é"}`)}
	if err := all[0].Begin(ctx, e, replica.Limits{}); err != nil {
		t.Fatal(err)
	}
	if err := all[1].Begin(ctx, e, replica.Limits{}); !errors.Is(err, replica.ErrExists) {
		t.Errorf("begun twice: %v", err)
	}
	below := replica.Entry{ID: "run_1/task", Parent: "run_1", Owner: "alice", Run: "run_2"}
	if err := all[1].Begin(ctx, below, replica.Limits{}); err != nil {
		t.Fatal(err)
	}
	if got, err := all[1].Use(ctx, "one", "alice"); err != nil || fmt.Sprint(got) != fmt.Sprint(e) {
		t.Errorf("found %+v, %v", got, err)
	}
	if _, err := all[1].Use(ctx, "one", "bob"); !errors.Is(err, replica.ErrOwner) {
		t.Errorf("another's: %v", err)
	}
	if _, err := all[1].Use(ctx, "other", "alice"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	if list, err := all[0].Below(ctx, "run_1"); err != nil || len(list) != 1 || list[0].Run != "run_2" {
		t.Errorf("below: %+v, %v", list, err)
	}
	var mu sync.Mutex
	var ended []string
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			list, err := all[i%2].End(ctx, "one")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, replica.Runs(list)...)
		})
	}
	group.Wait()
	if len(ended) != 2 {
		t.Errorf("ended %v", ended)
	}
	if _, err := all[0].Use(ctx, "one", "alice"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
}

// TestLimits: however many servers begin entries at once, there are never more than there may be.
func TestLimits(t *testing.T) {
	t.Parallel()
	ctx, all := t.Context(), open(t, 3)
	begin := func(i int, owner string) error {
		return all[i%3].Begin(ctx, replica.Entry{ID: fmt.Sprint(owner, i), Owner: owner, Run: fmt.Sprint(owner, i)}, replica.Limits{Owner: 5, All: 7})
	}
	var mu sync.Mutex
	count := map[string]int{}
	var group sync.WaitGroup
	for i := range 12 {
		group.Go(func() {
			err := begin(i, "alice")
			mu.Lock()
			defer mu.Unlock()
			count[fmt.Sprint(err)]++
		})
	}
	group.Wait()
	if count["<nil>"] != 5 || count[replica.ErrOwnerFull.Error()] != 7 {
		t.Errorf("%v", count)
	}
	for i := range 3 {
		if err := begin(i, "bob"); i < 2 && err != nil || i == 2 && !errors.Is(err, replica.ErrFull) {
			t.Errorf("bob's %d: %v", i, err)
		}
	}
}

// TestIdle: what nobody used ends, with what is below it, and what was used stays.
func TestIdle(t *testing.T) {
	t.Parallel()
	ctx, all := t.Context(), open(t, 1)
	r := all[0]
	for _, e := range []replica.Entry{
		{ID: "old", Owner: "a", Run: "run_old"}, {ID: "below", Parent: "run_old", Owner: "a", Run: "run_below"}, {ID: "used", Owner: "a", Run: "run_used"},
	} {
		if err := r.Begin(ctx, e, replica.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	began := time.Now()
	for _, id := range []string{"below", "used"} {
		if _, err := r.Use(ctx, id, "a"); err != nil {
			t.Fatal(err)
		}
	}
	list, err := r.EndIdle(ctx, 500*time.Millisecond+time.Since(began))
	if err != nil || fmt.Sprint(replica.Runs(list)) != "[run_old run_below]" {
		t.Errorf("ended %v, %v", replica.Runs(list), err)
	}
	if _, err := r.Use(ctx, "used", "a"); err != nil {
		t.Errorf("what was used: %v", err)
	}
}

// TestTell: all servers hear what one tells.
func TestTell(t *testing.T) {
	t.Parallel()
	ctx, all := t.Context(), open(t, 2)
	heard := make(chan replica.Message)
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, r := range all {
		go func() { _ = r.Hear(listening, func(m replica.Message) { heard <- m }) }()
	}
	m := replica.Message{From: "a", Session: "s", Body: `{"text":"\u0000é"}`}
	got := map[string]bool{}
	for i := 0; len(got) == 0 || i < 2; i++ { // until both listen, what is told is heard by nobody
		m.Session = fmt.Sprint("s", i)
		if err := all[0].Tell(ctx, m); err != nil {
			t.Fatal(err)
		}
		select {
		case h := <-heard:
			if h.Body != m.Body || h.From != "a" {
				t.Errorf("heard %+v", h)
			}
			got[h.Session] = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	m.Body = strings.Repeat("x", 8000)
	if err := all[0].Tell(ctx, m); !errors.Is(err, replica.ErrTooLong) {
		t.Errorf("a long message: %v", err)
	}
}
