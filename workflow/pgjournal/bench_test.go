package pgjournal_test

import (
	"slices"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session/pgstore"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
)

// BenchmarkAppend adds entries to the journal of a run that has an owner, and reports the median.
func BenchmarkAppend(b *testing.B) {
	url := pgtest.Database(b)
	s, err := pgstore.Open(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // the database goes with the benchmark
	owner, _, err := s.Join(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	all, err := pgjournal.Open(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	defer all.Close() //nolint:errcheck // so does this
	j := all.For(owner, "")
	e := workflow.Entry{RunID: "run_1", Kind: workflow.EventRunStarted}
	var took []time.Duration
	for b.Loop() {
		e.Seq, e.Time = e.Seq+1, time.Now()
		if err := j.Append(b.Context(), e); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(e.Time))
		e.Kind, e.Path, e.Output = workflow.EventStepFinished, "step", map[string]any{"stdout": "some output of a command"}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
}
