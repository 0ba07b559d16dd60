//go:build linux

package session_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// forgeable is an engine on which other users can create containers that look like sandboxes.
type forgeable struct{ *engine }

func (f forgeable) Capabilities() backend.Capabilities {
	c := f.engine.Capabilities()
	c.Forgeable = true
	return c
}

// TestForged verifies that a sandbox without a record is not used if labels can be forged. Open does not adopt it, even
// after a sweep. Connect fails, and no record is created. The sandbox can be listed and removed. Sweeps remove old
// sandboxes without a name.
func TestForged(t *testing.T) {
	t.Parallel()
	ctx, e := t.Context(), newEngine(t)
	opts := shared()
	m := newManager(t, forgeable{e}, opts)
	day := time.Now().Add(-25 * time.Hour)
	named := plant(t, e, opts.Store, record.Record{Key: session.UserKey("bob"), Created: day})
	run := plant(t, e, opts.Store, record.Record{Key: session.WorkflowKey("run_1", "main")})
	old := plant(t, e, opts.Store, record.Record{Key: session.WorkflowKey("run_1", "old"), Created: day})
	must(t, admin.Sweep(ctx, m))
	recs, err := opts.Store.List(ctx)
	if must(t, err); len(recs) != 0 {
		t.Errorf("there are records: %+v", recs)
	}
	for _, forged := range []record.Record{named, run} {
		if s, err := m.Connect(ctx, forged.ID); !errors.Is(err, backend.ErrPermission) {
			t.Errorf("Connect to that of %s: %v, %v, want ErrPermission", forged.Key, s, err)
		}
		s, created, err := m.Open(ctx, forged.Key, session.Request{Image: "image"})
		if must(t, err); !created || s.ID() == forged.ID {
			t.Errorf("Open of %s adopted the forged sandbox: created %v", forged.Key, created)
		}
	}
	list, err := m.List(ctx)
	must(t, err)
	has := func(id string) bool {
		return slices.ContainsFunc(list, func(i session.Info) bool { return i.ID == id })
	}
	if !has(named.ID) || !has(run.ID) || has(old.ID) {
		t.Errorf("listed: named %v, run %v, old %v, want the first two", has(named.ID), has(run.ID), has(old.ID))
	}
	must(t, m.Remove(ctx, named.ID, true))
	if _, err := m.Connect(ctx, named.ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("after Remove: %v, want ErrNotFound", err)
	}
}
