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

// steps is a workflow whose steps write their names to a file of the sandbox. The second one waits for ever, unless it
// did so before. The last one shows the file and whether the one that waited is gone.
const steps = `id: steps
sandbox: {runtime: bash}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "echo two >> log; if mkdir waited; then echo $$ > pid; sleep 10000; fi; ! kill -0 $(cat pid)"}
  - {id: three, type: exec, command: "echo three >> log"}
  - {id: four, type: exec, command: "cat log"}
`

// stepsRun is a run of steps as `runs show` prints it.
type stepsRun struct {
	ID      string `json:"id"`
	State   string `json:"state"`
	Entries []struct {
		Kind   string          `json:"kind"`
		Path   string          `json:"path"`
		Output json.RawMessage `json:"output"`
	} `json:"entries"`
}

// finished returns the steps that the journal has the end of.
func (r stepsRun) finished() []string {
	var done []string
	for _, e := range r.Entries {
		if e.Kind == "step_finished" {
			done = append(done, e.Path)
		}
	}
	return done
}

// workflow writes a workflow and returns its path.
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
	h.read(t, &runs, "runs", "ls")
	if len(runs) == 0 {
		return stepsRun{}
	}
	return h.show(t, runs[0].ID)
}

func (h *host) show(t *testing.T, id string) stepsRun {
	t.Helper()
	var r stepsRun
	h.read(t, &r, "runs", "show", id)
	return r
}

// TestKilledRunIsResumed: a run that is killed, at whichever step, is resumed by another process in the same sandbox.
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
				p := h.start(t, "run", workflow(t, steps))
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

// inSandbox waits until a command succeeds in the only sandbox there is.
func (h *host) inSandbox(t *testing.T, command string) {
	t.Helper()
	eventually(t, command, func() bool {
		var list []struct{ ID string }
		h.read(t, &list, "sandbox", "ls")
		return len(list) == 1 && h.run(t, "sandbox", "exec", "-n", list[0].ID, "--", "sh", "-c", command).Code == 0
	})
}

// resumes resumes the latest run, which was killed, until it has ended: the second step waits once. Nothing that had
// finished is done again, and nothing is left.
func (h *host) resumes(t *testing.T) {
	t.Helper()
	before := h.latest(t)
	if before.State != "interrupted" {
		t.Fatalf("the killed run is %s", before.State)
	}
	p := h.start(t, "runs", "resume", before.ID)
	done := before.finished()
	if !slices.Contains(done, "two") && !h.waited(t, p, before.ID) {
		p.Kill()
		before = h.latest(t)
		done = before.finished()
		p = h.start(t, "runs", "resume", before.ID)
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

// waited reports whether a resumed run has been through the second step's wait, once it is known.
func (h *host) waited(t *testing.T, p *rig.Process, id string) (been bool) {
	t.Helper()
	eventually(t, "the second step waits, or is over", func() bool {
		ended := p.Exited() // asked first: what it did until then is in the journal
		if been = slices.Contains(h.show(t, id).finished(), "two"); been {
			return true
		}
		if ended {
			t.Fatalf("it ended:\n%s", p.Text())
		}
		var list []struct{ ID string }
		h.read(t, &list, "sandbox", "ls")
		// pid is there when it waits now, and also when an earlier process was killed while it did: then it ends by itself.
		return len(list) == 1 && h.run(t, "sandbox", "exec", "-n", list[0].ID, "--", "sh", "-c",
			"kill -0 $(cat pid) && sleep 1 && kill -0 $(cat pid)").Code == 0 && strings.Contains(p.Text(), "two")
	})
	return been
}

// TestKilledAtRandom kills runs at moments that nobody chose. Whatever the moment, the run can be given up, and then
// nothing is left.
func TestKilledAtRandom(t *testing.T) {
	on(t, []string{"docker", "containerd", "local"}, func(t *testing.T, h *host) {
		f := faultOf("SIGKILL of a run, at random", h.engine)
		random := chance(t)
		for round := range laps(6) {
			p := h.start(t, "run", workflow(t, steps))
			time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) // the moment is what is tested
			p.Kill()
			f.inject(1)
			r := h.latest(t)
			if r.State == "interrupted" {
				h.ok(t, "runs", "cancel", r.ID)
				if r = h.show(t, r.ID); r.State != "cancelled" {
					f.lose(t, "round %d: the run that was given up is %s", round, r.State)
				}
			}
			if t.Failed() {
				return
			}
		}
		h.nothingLeft(t)
		f.leave(t, h.owners(t)) // the files of dead processes
	})
}

// owners returns the files by which processes are known to live; the next process removes those of dead ones.
func (h *host) owners(t *testing.T) []string {
	t.Helper()
	h.ok(t, "sandbox", "ls")
	entries, err := os.ReadDir(filepath.Join(h.state, "state.db-owners"))
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// ending is a workflow that is soon over.
const ending = `id: ending
sandbox: {runtime: bash}
steps:
  - {id: first, type: exec, command: "echo first > file"}
  - {id: last, type: exec, command: "cat file"}
`

// TestKilledAtItsEnd kills runs about when they end and remove their sandboxes. A run that is said to have ended has
// none any more; one that was interrupted has none once it was given up. Nothing waits for an idle time, a quarter of
// an hour.
func TestKilledAtItsEnd(t *testing.T) {
	on(t, engines(), func(t *testing.T, h *host) {
		f := faultOf("SIGKILL of a run, about its end", h.engine)
		random := chance(t)
		for range laps(4) {
			p := h.start(t, "run", workflow(t, ending))
			p.Await(t, "last", "exec")
			time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond) // the moment is what is tested
			p.Kill()
			f.inject(1)
			if r := h.latest(t); r.State == "interrupted" {
				h.ok(t, "runs", "cancel", r.ID)
			} else if r.State != "succeeded" {
				f.lose(t, "the run is %s", r.State)
			}
			if h.nothingLeft(t); t.Failed() {
				return
			}
		}
	})
}
