//go:build linux

package faults

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// attempts is a workflow with a checkpoint after each step and three attempts from the same state. The second attempt
// is kept.
const attempts = `id: attempts
checkpoints: true
sandbox: {runtime: bash}
steps:
  - {id: begin, type: exec, command: "i=0; while [ $i -lt 200 ]; do echo $i > f$i; i=$((i+1)); done; echo begin > log"}
  - id: try
    type: for_each
    items: [1, 2, 3]
    fork: true
    keep: "steps.check.output.ok"
    max_concurrency: 3
    steps:
      - {id: work, type: exec, command: "echo $I >> log", env: {I: "${ item }"}}
      - {id: check, type: exec, command: "grep -q 2 log"}
  - {id: look, type: exec, command: "cat log; ls | wc -l"}
`

// TestKilledAttempts kills runs, and the processes that resume them, at random times. At the end, the run has its
// initial files and the files of the kept attempt, whose steps may have run twice. Nothing else is left.
func TestKilledAttempts(t *testing.T) {
	on(t, []string{"docker", "containerd", "local"}, func(t *testing.T, h *host) {
		f := faultOf("SIGKILL of a run with attempts", h.engine)
		random := chance(t)
		for round := range laps(4) {
			args := []string{"run", workflow(t, attempts)}
			var r stepsRun
			for range 3 {
				p := h.start(t, args...)
				time.Sleep(time.Duration(random.IntN(2500)) * time.Millisecond) // the test varies this moment randomly
				p.Kill()
				f.inject(1)
				if r = h.latest(t); r.State != "interrupted" {
					break
				}
				args = []string{"runs", "resume", r.ID}
			}
			if r.State == "interrupted" {
				h.ok(t, args...)
				r = h.show(t, r.ID)
			}
			if r.ID == "" { // killed before the run started
				continue
			}
			if looked := r.looked(t); r.State != "succeeded" || strings.ReplaceAll(looked, "2\n2\n", "2\n") != "begin\n2\n201\n" {
				f.lose(t, "round %d: the run is %s and sees %q", round, r.State, looked)
				return
			}
		}
		h.nothingLeft(t)
	})
}

// looked returns the output of the last step of attempts.
func (r stepsRun) looked(t *testing.T) string {
	t.Helper()
	var out struct{ Stdout string }
	for _, e := range r.Entries {
		if e.Kind == "step_finished" && e.Path == "look" {
			must(t, json.Unmarshal(e.Output, &out))
		}
	}
	return out.Stdout
}
