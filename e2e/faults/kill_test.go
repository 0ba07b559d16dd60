//go:build linux

package faults

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/rig"
)

// steps is a workflow whose steps write their names to a file in the sandbox. The second step waits forever, unless it
// has waited before. The last step prints the file, and whether the waiting process is gone.
const steps = `id: steps
sandbox: {runtime: bash}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "echo two >> log; if mkdir waited; then echo $$ > pid; sleep 10000; fi; ! kill -0 $(cat pid)"}
  - {id: three, type: exec, command: "echo three >> log"}
  - {id: four, type: exec, command: "cat log"}
`

// stepsRun is a run of steps in the output of `runs show`.
type stepsRun struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Entries []struct {
		Kind   string          `json:"kind"`
		Path   string          `json:"path"`
		Output json.RawMessage `json:"output"`
	} `json:"entries"`
}

// finished returns the steps with a recorded end.
func (r stepsRun) finished() []string {
	var done []string
	for _, e := range r.Entries {
		if e.Kind == "step_finished" {
			done = append(done, e.Path)
		}
	}
	return done
}

// workflow writes a workflow and returns the path.
func workflow(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "workflow.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// latest returns the latest run.
func (h *host) latest(t *testing.T) stepsRun {
	t.Helper()
	var runs []stepsRun
	h.Read(t, &runs, "runs", "ls")
	if len(runs) == 0 {
		return stepsRun{}
	}
	return h.show(t, runs[0].ID)
}

func (h *host) show(t *testing.T, id string) stepsRun {
	t.Helper()
	var r stepsRun
	h.Read(t, &r, "runs", "show", id)
	return r
}

// TestKilledRunIsResumed: a run killed at any step is resumed by another process in the same sandbox.
func TestKilledRunIsResumed(t *testing.T) {
	for name, moment := range map[string][]string{
		"before the sandbox is made":      {"run"},
		"while the sandbox is made":       {"one", "exec"},
		"between two steps":               {"one", "ok"},
		"while a command runs":            {"two", "exec"},
		"while a command has run a while": nil,
	} {
		t.Run(name, func(t *testing.T) {
			on(t, []string{"docker", "containerd", "local"}, func(t *testing.T, h *host) {
				p := h.Start(t, "run", workflow(t, steps))
				if moment == nil {
					p.Await(t, "two", "exec")
					h.inSandbox(t, "test -e pid")
				} else {
					p.Await(t, moment...)
				}
				p.Kill()
				faultOf("SIGKILL of a run, "+name, h.engine).inject(1)
				h.resumes(t)
			})
		})
	}
}

// inSandbox waits until a command succeeds in the only sandbox.
func (h *host) inSandbox(t *testing.T, command string) {
	t.Helper()
	eventually(t, command, func() bool {
		var list []struct{ ID string }
		h.Read(t, &list, "sandbox", "ls")
		return len(list) == 1 && h.Run(t, "sandbox", "exec", "-n", list[0].ID, "--", "sh", "-c", command).Code == 0
	})
}

// resumes resumes the latest run, which was killed, until it ends. The second step waits once. No finished step may be
// repeated, and nothing may be left.
func (h *host) resumes(t *testing.T) {
	t.Helper()
	before := h.latest(t)
	if before.State != "interrupted" {
		t.Fatalf("the killed run is %s", before.State)
	}
	p := h.Start(t, "runs", "resume", before.ID)
	done := before.finished()
	if !slices.Contains(done, "two") && !h.waited(t, p, before.ID) {
		p.Kill()
		before = h.latest(t)
		done = before.finished()
		p = h.Start(t, "runs", "resume", before.ID)
	}
	if code := p.Wait(); code != 0 {
		t.Fatalf("resume: exit code %d\n%s", code, p.Text())
	}
	after := h.show(t, before.ID)
	if after.State != "succeeded" {
		t.Errorf("the resumed run is %s", after.State)
	}
	var log struct{ Stdout string }
	for _, e := range after.Entries {
		if e.Kind == "step_finished" && e.Path == "four" && json.Unmarshal(e.Output, &log) != nil {
			t.Errorf("output of the last step: %s", e.Output)
		}
	}
	counts := map[string]int{}
	for line := range strings.Lines(log.Stdout) {
		counts[strings.TrimSpace(line)]++
	}
	for _, step := range []string{"one", "two", "three"} {
		if n := counts[step]; n == 0 || n > 1 && slices.Contains(done, step) {
			t.Errorf("step %s was run %d times, and had finished: %v", step, n, done)
		}
	}
	if finished := after.finished(); !slices.Equal(finished, []string{"one", "two", "three", "four"}) {
		t.Errorf("steps finished: %v", finished)
	}
	h.nothingLeft(t)
}

// waited waits until the second step of a resumed run waits or has ended. It reports whether the step has ended.
func (h *host) waited(t *testing.T, p *rig.Process, id string) (been bool) {
	t.Helper()
	eventually(t, "the second step waits, or is over", func() bool {
		ended := p.Exited() // checked first, to ensure that the journal has all entries of the process
		if been = slices.Contains(h.show(t, id).finished(), "two"); been {
			return true
		}
		if ended {
			t.Fatalf("it ended:\n%s", p.Text())
		}
		var list []struct{ ID string }
		h.Read(t, &list, "sandbox", "ls")
		// pid also exists if an earlier process was killed during the wait; then the command ends without further action
		return len(list) == 1 && h.Run(t, "sandbox", "exec", "-n", list[0].ID, "--", "sh", "-c",
			"kill -0 $(cat pid) && sleep 1 && kill -0 $(cat pid)").Code == 0 && strings.Contains(p.Text(), "two")
	})
	return been
}

// TestKilledAtRandom kills runs at random times. The run can always be canceled, and then nothing is left.
func TestKilledAtRandom(t *testing.T) {
	on(t, []string{"docker", "containerd", "local"}, func(t *testing.T, h *host) {
		f := faultOf("SIGKILL of a run, at random", h.engine)
		random := chance(t)
		for round := range laps(6) {
			p := h.Start(t, "run", workflow(t, steps))
			time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) // the test varies this moment randomly
			p.Kill()
			f.inject(1)
			r := h.latest(t)
			if r.State == "interrupted" {
				h.OK(t, "runs", "cancel", r.ID)
				if r = h.show(t, r.ID); r.State != "cancelled" {
					f.lose(t, "round %d: the run that was given up is %s", round, r.State)
				}
			}
			if t.Failed() {
				return
			}
		}
		h.nothingLeft(t)
		f.leave(t, h.owners(t)) // lock files of dead processes
	})
}

// owners returns the lock files of processes. The next command removes the files of dead processes.
func (h *host) owners(t *testing.T) []string {
	t.Helper()
	h.OK(t, "sandbox", "ls")
	entries, err := os.ReadDir(filepath.Join(h.State, "state.db-owners"))
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// ending is a short workflow.
const ending = `id: ending
sandbox: {runtime: bash}
steps:
  - {id: first, type: exec, command: "echo first > file"}
  - {id: last, type: exec, command: "cat file"}
`

// TestKilledAtItsEnd kills runs around the time at which they end and remove their sandboxes. A run reported as ended
// has no sandboxes. An interrupted run has none after it was canceled. No removal may wait for the idle timeout of a
// quarter of an hour.
func TestKilledAtItsEnd(t *testing.T) {
	on(t, engines(), func(t *testing.T, h *host) {
		f := faultOf("SIGKILL of a run, about its end", h.engine)
		random := chance(t)
		for range laps(4) {
			p := h.Start(t, "run", workflow(t, ending))
			p.Await(t, "last", "exec")
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) // the test varies this moment randomly
			p.Kill()
			f.inject(1)
			if r := h.latest(t); r.State == "interrupted" {
				h.OK(t, "runs", "cancel", r.ID)
			} else if r.State != "succeeded" {
				f.lose(t, "the run is %s", r.State)
			}
			if h.nothingLeft(t); t.Failed() {
				return
			}
		}
	})
}
