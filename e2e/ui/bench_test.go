//go:build linux

package ui

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
)

// BenchmarkPage measures the page with 10,000 runs, a run with 500 rows, and an unfinished run.
func BenchmarkPage(b *testing.B) {
	s := newStage(b, "")
	s.serve()
	s.seedRuns(10_000)
	long, live := "run_"+strings.Repeat("l", 26), "run_"+strings.Repeat("w", 26)
	j := s.journal().For("bench", `{"backend":"local"}`)
	seq := map[string]int64{}
	add := func(id string, e workflow.Entry) {
		seq[id]++
		e.RunID, e.Seq, e.Time = id, seq[id], time.Now()
		checktest.Must(b, j.Append(b.Context(), e))
	}
	step := func(id string, n int) {
		e := workflow.Entry{Kind: workflow.EventStepStarted, Path: fmt.Sprintf("step-%d", n), Type: workflow.TypeExec}
		e.Step, e.Visit, e.Attempt = e.Path, 1, 1
		add(id, e)
		if id == live {
			return // without an end
		}
		e.Kind, e.Status = workflow.EventStepFinished, workflow.StatusSucceeded
		add(id, e)
	}
	for _, id := range []string{long, live} {
		add(id, workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "bench"})
	}
	for n := range 500 {
		step(long, n)
	}
	add(long, workflow.Entry{Kind: workflow.EventRunFinished, Outcome: workflow.Succeeded})
	n, id := 0, ""
	s.browse("bench.mjs", map[string]any{"long": long, "live": live}, answers{
		"append": func() any {
			n++
			step(live, n)
			return float64(time.Now().UnixMicro()) / 1000
		},
		"begin": func() any {
			id = fmt.Sprintf("run_%026d", time.Now().UnixNano())
			add(id, workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "bench"})
			return id
		},
		"rate": func() any { // of entries
			start := time.Now()
			for i := range 300 {
				step(id, i)
			}
			return 600 / time.Since(start).Seconds()
		},
		"cpu": func() any { return cpu(b, s.server.Cmd.Process.Pid).Seconds() },
	})
}

// cpu returns the CPU time of a process.
func cpu(b *testing.B, pid int) (used time.Duration) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	checktest.Must(b, err)
	fields := strings.Fields(string(raw[strings.LastIndex(string(raw), ")")+1:]))
	for _, f := range fields[11:13] {
		ticks, err := strconv.Atoi(f)
		checktest.Must(b, err)
		used += time.Duration(ticks) * 10 * time.Millisecond
	}
	return used
}
