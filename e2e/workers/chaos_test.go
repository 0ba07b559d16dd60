//go:build linux

package workers

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
)

// steps is a workflow short enough for hundreds of runs, and long enough to be killed. Each step writes to a log in the
// sandbox, which is collected at the end.
const steps = `id: short
sandbox: {runtime: bash}
outputs: [log]
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "echo two >> log; sleep 3"}
  - {id: three, type: exec, command: "echo three >> log; cat log"}
`

// soakVariable sets the duration of the long form, in which a worker is killed every ten seconds and a hundred runs are
// started each minute. Without it, the test is short.
const soakVariable = "WORKERS_SOAK"

type plan struct {
	runs  int
	every time.Duration // interval of kills
	kills int
}

func planned(t *testing.T) plan {
	t.Helper()
	text := os.Getenv(soakVariable)
	if text == "" {
		return plan{runs: 50, every: 5 * time.Second, kills: 6}
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return plan{runs: int(d.Minutes() * 100), every: 10 * time.Second, kills: int(d / (10 * time.Second))}
}

// TestKilledWorkers kills workers at any time, on hosts with only a database and an engine in common. Each run must end
// exactly once, no finished step may be repeated, and nothing may be left.
func TestKilledWorkers(t *testing.T) {
	p, n, continued := planned(t), newNetwork(t, 3), 0
	workers := make([]*rig.Process, len(n.machines))
	for i, m := range n.machines {
		workers[i] = m.worker(t, "--max-runs", "6")
	}
	var submitting sync.WaitGroup
	path := file(t, "short.yaml", steps)
	ids := make([]string, p.runs)
	pause := p.every * time.Duration(p.kills*len(n.machines)) / time.Duration(p.runs) // between two runs of a host
	for first, m := range n.machines {
		submitting.Go(func() {
			for i := first; i < len(ids); i += len(n.machines) {
				res := m.Run(t, "run", "--detach", path)
				if res.Code != 0 {
					t.Errorf("run --detach on %s: exit code %d\n%s", m.name, res.Code, res.Stderr)
				}
				ids[i] = strings.TrimSpace(res.Stdout)
				time.Sleep(max(pause-500*time.Millisecond, 0)) // minus the approximate duration of the command
			}
		})
	}
	for k := range p.kills {
		time.Sleep(p.every)
		i := rand.IntN(len(workers))
		workers[i].Kill()
		workers[i] = n.machines[i].worker(t, "--max-runs", "6")
		t.Logf("killed the worker of %s, %d of %d", n.machines[i].name, k+1, p.kills)
	}
	submitting.Wait()
	began := time.Now()
	n.awaitEnd(t)
	t.Logf("%d runs had ended %v after the last kill", p.runs, time.Since(began).Round(time.Second))
	j, err := pgjournal.Open(t.Context(), n.server.URL)
	must(t, err)
	defer j.Close() //nolint:errcheck // only read from
	for _, id := range ids {
		entries, err := j.Entries(t.Context(), id)
		must(t, err)
		if checkEntries(t, id, entries) {
			continued++
		}
	}
	t.Logf("%d of %d runs continued in another worker", continued, p.runs)
	if continued == 0 {
		t.Error("no run was interrupted")
	}
	for i, w := range workers {
		must(t, w.Cmd.Process.Signal(syscall.SIGTERM))
		if code := w.Wait(); code != 0 {
			t.Errorf("the worker of %s ends with %d\n%s", n.machines[i].name, code, w.Text())
		}
	}
	n.nothingLeft(t)
}

// awaitEnd waits until all runs have ended.
func (n *network) awaitEnd(t *testing.T) {
	t.Helper()
	last := ""
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		left := query(t, n.server.URL, `SELECT count(*)::text FROM workcell.run WHERE finished IS NULL`)
		if left == "0" {
			return
		}
		if left != last { // extend the deadline while there is progress
			last, deadline = left, time.Now().Add(patience)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s runs do not end", left)
		}
	}
}

// query runs a statement in a new connection and returns the result, a single text.
func query(t *testing.T, address, statement string) (text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	must(t, err)
	defer conn.Close(t.Context()) //nolint:errcheck // only read from
	must(t, conn.QueryRow(t.Context(), statement).Scan(&text))
	return text
}

// checkRun checks the entries of a finished run.
func checkRun(t *testing.T, m *machine, id string) (continued bool) {
	t.Helper()
	return checkEntries(t, id, m.show(t, id).Entries)
}

// checkEntries verifies that a run ended successfully, exactly once, and that each step ran once, except steps that
// were running when their worker was killed. It reports whether another worker continued the run.
func checkEntries(t *testing.T, id string, entries []workflow.Entry) (continued bool) {
	t.Helper()
	began, ended, takes, ends, log := map[string]int{}, map[string]int{}, 0, 0, ""
	for _, e := range entries {
		switch e.Kind {
		case workflow.EventRunResumed:
			takes++
		case workflow.EventStepStarted:
			if began[e.Path]++; ended[e.Path] > 0 {
				t.Errorf("run %s: step %s begins again after it has ended", id, e.Path)
			}
		case workflow.EventStepFinished:
			ended[e.Path]++
			if out, ok := e.Output.(map[string]any); ok {
				log, _ = out["stdout"].(string) // the output of the last step is used
			}
		case workflow.EventRunFinished:
			if ends++; e.Outcome != workflow.Succeeded {
				t.Errorf("run %s: %s, %v", id, e.Outcome, e.Error)
			}
		}
	}
	if ends != 1 || ended["one"] != 1 || ended["two"] != 1 || ended["three"] != 1 {
		t.Errorf("run %s: %d ends, of its steps %v", id, ends, ended)
	}
	for step, times := range began {
		if did := strings.Count(log, step+"\n"); did == 0 || did > times {
			t.Errorf("run %s: step %s began %d times, and was done %d times", id, step, times, did)
		}
	}
	return takes > 1
}

// nothingLeft waits until the database and the engine have no objects of the runs.
func (n *network) nothingLeft(t *testing.T) {
	t.Helper()
	instance := query(t, n.server.URL, `SELECT id FROM workcell.instance`)
	left := ""
	eventually(t, "nothing is left", func() bool {
		n.machines[0].ok(t, "sandbox", "ls") // runs the cleanup sweep
		left = query(t, n.server.URL, `SELECT concat_ws(', ',
(SELECT 'queued: ' || count(*) FROM workcell.queued HAVING count(*) > 0),
(SELECT 'sandboxes: ' || count(*) FROM workcell.session WHERE state NOT IN ('closed', 'lost') HAVING count(*) > 0),
(SELECT 'parcels: ' || count(*) FROM workcell.run_file WHERE name = 'needed' HAVING count(*) > 0))`)
		// grep fails if it finds nothing.
		out, _ := exec.Command("grep", "--recursive", "--files-with-matches", "--no-messages", "--exclude-dir=workspace", instance, "/var/lib/workcell/local").Output()
		left += string(out)
		return left == ""
	})
}
