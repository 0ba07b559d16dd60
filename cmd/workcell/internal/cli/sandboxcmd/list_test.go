package sandboxcmd

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestEndsWithoutOwner verifies that ENDS shows what cleanup does with a sandbox whose process died.
func TestEndsWithoutOwner(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d + time.Second) }
	hour := at(time.Hour)
	const day, ready, removing, stop = 24 * time.Hour, record.Ready, record.Removing, record.IdleStop
	const running, stopped, kept, closed = session.StateReady, session.StateStopped, session.StateKept, session.StateClosed
	agent, named, run := record.AgentKey("run_1", "a"), session.UserKey("lab"), session.WorkflowKey("run_1", "a")
	for want, test := range map[string]struct {
		state session.State
		rec   record.Record
	}{
		"creating: at the next cleanup": {session.StateCreated, record.Record{Key: run, State: record.Creating, Created: now}},
		"agent's: in 2m":                {running, record.Record{Key: agent, State: ready, LastUsed: at(0), Expires: hour}},
		"unused agent's: when idle":     {running, record.Record{Key: agent, State: ready, LastUsed: at(-time.Hour)}},
		"run's: in 9m":                  {running, record.Record{Key: run, State: ready, Expires: at(9 * time.Minute)}},
		"named: when removed":           {running, record.Record{Key: named, State: ready}},
		"named, expires: in 1h":         {running, record.Record{Key: named, State: ready, Expires: hour}},
		"named, stops: stops in 1h":     {running, record.Record{Key: named, State: ready, IdlePolicy: stop, Expires: hour}},
		"suspended: when removed":       {stopped, record.Record{Key: named, State: ready, IdlePolicy: stop}},
		"workspace only: in 20d":        {stopped, record.Record{Key: run, State: ready, KeepWorkspace: true, Expires: at(20 * day)}},
		"retained: in 1h":               {kept, record.Record{Key: run, State: removing, Retention: time.Hour, Expires: hour}},
		"removing: at the next cleanup": {closed, record.Record{Key: run, State: removing, Expires: now}},
		"overdue: at the next cleanup":  {closed, record.Record{Key: run, State: removing, Expires: at(-2 * day)}},
		"another's: with its run":       {running, record.Record{ID: "sbx_other", Key: run}},
	} {
		info := session.Info{ID: "sbx_1", Key: test.rec.Key, State: test.state, IdlePolicy: test.rec.IdlePolicy}
		if test.rec.ID = cmp.Or(test.rec.ID, info.ID); test.state == running {
			test.rec.Owner = "dead"
		}
		if got := app.Ends(info, []record.Record{test.rec}); !strings.HasSuffix(want, ": "+got) {
			t.Errorf("%q, want %s", got, want)
		}
		if test.rec.ID != info.ID {
			continue
		}
		row := garbageOf(test.rec, "left").row(now) // gc shows the same time
		if _, when, _ := strings.Cut(want, ": "); row[4] != when {
			t.Errorf("gc: %s, want %s", row, want)
		}
	}
}
