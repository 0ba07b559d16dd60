package session_test

import (
	"testing"
	"time"

	"github.com/workcell-dev/workcell/session"
)

// TestReclaimAt: what time takes away, and when.
func TestReclaimAt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := func(d time.Duration) time.Time { return now.Add(d) }
	agent, run := session.AgentKey("run_1", "default"), session.WorkflowKey("run_1", "default")
	const ready = session.RecordReady
	for name, test := range map[string]struct {
		rec  session.Record
		want time.Time // zero: never
	}{
		"being made":                      {session.Record{State: session.RecordCreating, Created: in(-1), Expires: in(time.Hour)}, in(-1)},
		"a run's":                         {session.Record{State: ready, Key: run, Owner: "x", Idle: time.Hour, Expires: in(time.Hour)}, in(3 * time.Minute)},
		"a run's that is retained":        {session.Record{State: ready, Key: run, Owner: "x", Idle: time.Hour, Expires: in(time.Hour), Retention: 4 * time.Minute}, in(4 * time.Minute)},
		"a run's that expires soon":       {session.Record{State: ready, Key: run, Owner: "x", LastUsed: now, Expires: in(time.Minute)}, in(time.Minute)},
		"a run's whose workspace is kept": {session.Record{State: ready, Key: run, KeepWorkspace: true, Idle: time.Hour, Expires: in(time.Hour)}, in(time.Hour)},
		"a named one":                     {session.Record{State: ready, Key: session.UserKey("lab"), Owner: "x"}, time.Time{}},
		"an agent's":                      {session.Record{State: ready, Key: agent, Owner: "x", Idle: time.Hour, Expires: in(time.Hour)}, in(2 * time.Minute)},
		"an agent's that never expires":   {session.Record{State: ready, Key: agent, Owner: "x", Idle: -1, LastUsed: in(-time.Minute)}, in(time.Minute)},
		"an agent's that expires soon":    {session.Record{State: ready, Key: agent, Owner: "x", LastUsed: now, Expires: in(time.Second)}, in(time.Second)},
		"an agent's that was given up":    {session.Record{State: ready, Key: agent, Expires: in(time.Hour)}, in(time.Hour)},
		"kept":                            {session.Record{State: session.RecordRemoving, Expires: in(time.Hour)}, in(time.Hour)},
		"overdue":                         {session.Record{State: session.RecordRemoving, Expires: in(-time.Hour)}, in(-time.Hour)},
		"overdue for too long":            {session.Record{State: session.RecordRemoving, Expires: in(-25 * time.Hour)}, time.Time{}},
		"closed":                          {session.Record{State: session.RecordClosed, EngineID: "x", Created: now, Expires: in(time.Hour)}, time.Time{}},
		"closed before it was made":       {session.Record{State: session.RecordClosed, Created: in(-time.Minute)}, in(time.Minute)},
		"closed long after it was begun":  {session.Record{State: session.RecordClosed, Created: in(-3 * time.Minute)}, time.Time{}},
		"lost":                            {session.Record{State: session.RecordLost, Owner: "x", LastUsed: in(-time.Minute), Expires: in(time.Hour)}, in(-time.Minute)},
		"lost and given up":               {session.Record{State: session.RecordLost, LastUsed: now, Expires: in(time.Hour)}, time.Time{}},
	} {
		at, ok := test.rec.ReclaimAt(now)
		if ok == test.want.IsZero() || ok && !at.Equal(test.want) {
			t.Errorf("%s: in %v, %v, want %v", name, at.Sub(now), ok, test.want.Sub(now))
		}
	}
}
