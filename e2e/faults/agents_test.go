//go:build linux

package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// agentRun is an agent run in the output of `runs show`, with the calls with a recorded result.
type agentRun struct {
	stepsRun
	Entries []struct {
		Kind         string
		Path         string
		Output       json.RawMessage
		Conversation struct{ Call struct{ Ref string } }
	} `json:"entries"`
}

// recorded returns the marks of the calls with a recorded result.
func (r agentRun) recorded() []string {
	var marks []string
	for _, e := range r.Entries {
		var invocation, turn, call int
		if n, _ := fmt.Sscanf(e.Conversation.Call.Ref, "scripted-%d-%d-%d", &invocation, &turn, &call); n == 3 {
			marks = append(marks, fmt.Sprintf("t%dc%d", turn, call))
		}
	}
	return marks
}

// output returns the output of a step.
func (r agentRun) output(path string) string {
	for _, e := range r.Entries {
		if e.Kind == "step_finished" && e.Path == path {
			return string(e.Output)
		}
	}
	return ""
}

// markingAgent writes a workflow whose agent leaves a mark with each call, and whose last step prints the marks. The
// agent starts with a background command, and ends with a check whether this command is still running.
func markingAgent(t *testing.T) (file, model string) {
	t.Helper()
	file = workflow(t, `id: marks
sandbox: {runtime: bash}
steps:
  - {id: work, type: agent, agent: worker}
  - {id: log, type: exec, command: "sort log"}
`)
	var script strings.Builder
	script.WriteString("agents:\n  worker:\n    - - {tool: sandbox_exec, input: {command: 'echo t0c0 >> log; echo $$ > pid; exec sleep 1000', yield_ms: 100}}\n")
	for turn := 1; turn < 9; turn++ {
		script.WriteString("      - calls:\n")
		for call := range 1 + turn%3 {
			fmt.Fprintf(&script, "          - {tool: sandbox_exec, input: {command: 'echo t%dc%d >> log; sleep 0.0%d; echo done %d %d'}}\n", turn, call, 1+call, turn, call)
		}
	}
	script.WriteString("      - {tool: sandbox_exec, input: {command: 'kill -0 $(cat pid) && echo t9c0 | tee -a log'}}\n" +
		"      - {json: {outputs: \"${ outputs.map(o, o.stdout) }\"}}\n")
	dir := filepath.Dir(file)
	must(t, os.WriteFile(filepath.Join(dir, "worker.prompt"), []byte("---\nmodel: scripted/worker\nsandbox: {mode: code}\n---\nWork.\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "script.yaml"), []byte(script.String()), 0o600))
	return file, "scripted/" + filepath.Join(dir, "script.yaml")
}

// TestKilledAgentContinues kills runs, and the resuming processes, at random times while their agent works. The agent
// continues the conversation. No call with a recorded result is repeated, the background command continues, and the
// answer equals the answer of an undisturbed run.
func TestKilledAgentContinues(t *testing.T) {
	on(t, []string{"local"}, func(t *testing.T, h *host) {
		file, model := markingAgent(t)
		f, random := faultOf("SIGKILL of an agent, at random", h.engine), chance(t)
		began := time.Now()
		h.OK(t, "run", file, "--model", model)
		whole := time.Since(began)
		var want agentRun
		h.Read(t, &want, "runs", "show", h.latest(t).ID)
		answer := want.output("work")
		if strings.Count(answer, "done") != 17 || !strings.Contains(answer, "t9c0") {
			t.Fatalf("the agent's answer is %s", answer)
		}
		var id string                  // current run
		recordedAt := map[string]int{} // number of kills before each mark was recorded
		kills, continued, resume := 0, 0, false
		for range laps(50) {
			args := []string{"run", file, "--model", model}
			if resume {
				args = []string{"runs", "resume", id}
			}
			p := h.Start(t, args...)
			time.Sleep(time.Duration(random.Int64N(int64(whole)))) // the test varies this moment randomly
			p.Kill()
			f.inject(1)
			if !resume {
				latest := h.latest(t).ID
				if latest == want.ID || latest == id {
					continue // the run had not started
				}
				id = latest
			}
			if strings.Contains(p.Text(), "continues after turn") {
				continued++
			}
			var r agentRun
			h.Read(t, &r, "runs", "show", id)
			if r.State == "interrupted" {
				kills++
				for _, mark := range r.recorded() {
					if _, known := recordedAt[mark]; !known {
						recordedAt[mark] = kills
					}
				}
				if resume = random.IntN(4) > 0; resume { // otherwise run it to the end
					continue
				}
				h.OK(t, "runs", "resume", id)
			}
			h.checkMarks(t, f, id, answer, recordedAt, kills)
			if clear(recordedAt); t.Failed() {
				return
			}
			kills, resume = 0, false
		}
		if resume {
			h.OK(t, "runs", "resume", id)
			h.checkMarks(t, f, id, answer, recordedAt, kills)
		}
		if continued == 0 {
			t.Error("no process continued a conversation")
		}
		h.nothingLeft(t)
	})
}

// checkMarks checks a finished run after several kills. A call whose result was recorded before a kill must not be
// repeated by a later process.
func (h *host) checkMarks(t *testing.T, f *fault, id, answer string, recordedAt map[string]int, kills int) {
	t.Helper()
	var r agentRun
	h.Read(t, &r, "runs", "show", id)
	if r.State != "succeeded" || r.output("work") != answer {
		f.lose(t, "run %s is %s, after %d kills, with the answer %s", id, r.State, kills, r.output("work"))
	}
	var log struct{ Stdout string }
	must(t, json.Unmarshal([]byte(r.output("log")), &log))
	marks := strings.Fields(log.Stdout)
	for _, mark := range slices.Compact(slices.Clone(marks)) {
		processes := kills + 1 // which may have made the call
		if at, ok := recordedAt[mark]; ok {
			processes = at
		}
		n := 0
		for _, m := range marks {
			if m == mark {
				n++
			}
		}
		if n > processes {
			f.lose(t, "run %s: call %s was made %d times, its result was recorded by process %d", id, mark, n, processes)
		}
	}
	if n := len(slices.Compact(marks)); n != 19 {
		f.lose(t, "run %s made %d of 19 calls: %v", id, n, marks)
	}
}

// TestKilledAgentsSandbox: a continued agent finds the sandbox, including an isolated sandbox. If the sandbox was
// replaced, or only the workspace was kept, the conversation contains a notice.
func TestKilledAgentsSandbox(t *testing.T) {
	const script = `agents:
  worker:
    - - {tool: sandbox_exec, input: {command: "echo kept > note"}}
      - {tool: sandbox_exec, input: {command: "touch first; until [ -e go1 ]; do sleep 0.05; done; cat note || echo nothing"}}
      - {tool: sandbox_exec, input: {command: "touch second; until [ -e go2 ]; do sleep 0.05; done"}}
      - {text: "${ outputs[1].stdout }"}
`
	for name, c := range map[string]struct {
		session      string
		remove       []string // if nil, the sandbox stays
		notice, note string
	}{
		"isolated":           {"isolated", nil, "", "kept"},
		"removed":            {"default", []string{"sandbox", "rm"}, "replaced by a new, empty one", "nothing"},
		"its workspace kept": {"default", []string{"sandbox", "rm", "--keep-workspace"}, "recreated with its workspace", "kept"},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, []string{"local"}, func(t *testing.T, h *host) {
				file := workflow(t, "id: one\nsandbox: {runtime: bash}\nsteps: [{id: work, type: agent, agent: worker}]\n")
				dir := filepath.Dir(file)
				must(t, os.WriteFile(filepath.Join(dir, "worker.prompt"), []byte("---\nsandbox: {mode: code, session: "+c.session+"}\n---\nWork.\n"), 0o600))
				must(t, os.WriteFile(filepath.Join(dir, "script.yaml"), []byte(script), 0o600))
				p := h.Start(t, "run", file, "--model", "scripted/"+filepath.Join(dir, "script.yaml"))
				p.Await(t, "work", "agent", "worker")
				h.inSandbox(t, "test -e first")
				p.Kill()
				id := h.latest(t).ID
				if c.remove != nil {
					var list []struct{ ID string }
					h.Read(t, &list, "sandbox", "ls")
					h.OK(t, append(c.remove, list[0].ID)...)
				}
				p = h.Start(t, "runs", "resume", id, "--fresh-sandbox")
				h.inSandbox(t, "test -e first && touch go1")
				h.inSandbox(t, "test -e second")
				journal := h.OK(t, "runs", "show", id, "-o", "json")
				if got := strings.Contains(journal, "The program that runs you was interrupted"); got != (c.notice != "") || !strings.Contains(journal, c.notice) {
					t.Errorf("the agent did not read %q:\n%s", c.notice, journal)
				}
				h.inSandbox(t, "touch go2")
				if code := p.Wait(); code != 0 {
					t.Fatalf("exit code %d\n%s", code, p.Text())
				}
				var r agentRun
				h.Read(t, &r, "runs", "show", id)
				if got := r.output("work"); !strings.Contains(got, c.note) {
					t.Errorf("the agent found %s", got)
				}
				h.nothingLeft(t)
			})
		})
	}
}
