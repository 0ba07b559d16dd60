package owner_test

import (
	"testing"
	"time"

	"github.com/workcell-dev/workcell/session/internal/owner"
)

// TestTimes: what the times must be to each other, whatever they are.
func TestTimes(t *testing.T) {
	t.Parallel()
	times := owner.Lifetimes()
	const sweep = time.Minute // session.DefaultReapEvery
	for what, ok := range map[string]bool{
		"a use that is recorded once a minute is seen before the sandbox is an orphan":         times.Orphaned > sweep,
		"who waits for a removal waits as long as that may take":                               times.Transition >= times.Removal,
		"a run's loss is remembered for as long as its workspace could have been kept":         times.Missed >= times.Workspace,
		"a silent sandbox outlives what is made of one without a record":                       times.Silent >= times.Unrecorded,
		"a sandbox that is made while its process dies is looked for until the engine is done": times.CreationGrace > times.Removal,
		"nobody waits long for a process that lives":                                           times.Handover < times.Removal && times.SweepGrace < times.Handover,
	} {
		if !ok {
			t.Errorf("not so: %s: %+v", what, times)
		}
	}
}
