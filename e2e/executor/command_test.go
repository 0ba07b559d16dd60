//go:build linux

package executor

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	shared "github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// machine is a state directory with a workflow of one coding agent, and the command for running it.
type machine struct {
	shared.Host
	t *testing.T
}

// binary is the path of the command, built once before the first test.
var binary string

func TestMain(m *testing.M) { os.Exit(shared.Tests{M: m, Binary: &binary}.Run()) }

func newMachine(t *testing.T, play func(n int, r llmtest.Request) llmtest.Answer) (*machine, *llmtest.Server) {
	t.Helper()
	mock := llmtest.New(play)
	web := httptest.NewServer(mock)
	t.Cleanup(web.Close)
	m := &machine{shared.Host{Binary: binary, State: filepath.Join(t.TempDir(), "state")}, t}
	m.Env = []string{
		"WORKCELL_BACKEND=" + enginetest.Names()[0], "WORKCELL_REAPER=off", "WORKCELL_HOST_TOOLS=" + m.Path("host-tools.yaml"),
		"ANTHROPIC_BASE_URL=" + web.URL, "ANTHROPIC_API_KEY=" + operatorsKey,
	}
	_, err := shared.Output(exec.Command("go", "build", "-o", m.Path("orders"), "github.com/workcell-dev/workcell/examples/orders"))
	must(t, err)
	for name, text := range map[string]string{
		"flow.yaml": "id: flow\nsteps:\n  - {id: look, type: agent, agent: desk}\n",
		"desk.prompt": "---\nmodel: anthropic/claude-sonnet-4-5\nsandbox:\n  mode: executor\n  limits: {memory_mb: 2048, pids: 512}\n  host_tools: {allow: [orders.lookup]}\n" +
			"  executor: {command: claude, budget: {usd: 2}}\n---\nLook the secret order 42 up.\n",
		"host-tools.yaml": fmt.Sprintf("servers:\n  orders:\n    command: [%q]\n", m.Path("orders")),
	} {
		must(t, os.WriteFile(m.Path(name), []byte(text), 0o600))
	}
	t.Cleanup(func() { m.Run(t, "sandbox", "rm", "--all") }) // cleanup after a failed test
	return m, mock
}

// span is a span of a trace in the output of `runs trace`.
type span struct {
	Name, SpanID, ParentSpanID string
	Attributes                 []struct {
		Key   string
		Value map[string]any
	}
}

// TestTrace: a step's coding agent is one tree of spans, including each request to the model and each host tool call.
// No span contains contents or a key, and the run's cost is known.
func TestTrace(t *testing.T) {
	t.Parallel()
	m, mock := newMachine(t, lookUp)
	var res struct {
		RunID   string `json:"run_id"`
		Outcome string
		Output  any
	}
	m.Read(t, &res, "run", m.Path("flow.yaml"))
	if text := fmt.Sprint(res.Output); res.Outcome != "succeeded" || !strings.Contains(text, "The tool said") {
		t.Fatalf("%+v", res)
	}
	raw := m.OK(t, "runs", "trace", res.RunID, "-o", "json")
	below := paths(t, raw)
	root := []string{"invoke_workflow flow", "workflow.step", "invoke_agent desk", "executor.Run"}
	want := map[string]int{
		strings.Join(append(root, "session.Stream"), " > "):                               1,
		strings.Join(append(root, "chat claude-sonnet-4-5"), " > "):                       len(mock.Requests()),
		strings.Join(append(root, "session.Stream", "execute_tool orders_lookup"), " > "): 1,
	}
	for path, n := range want {
		if below[path] != n || n == 0 {
			t.Errorf("%d x %s, want %d", below[path], path, n)
		}
	}
	for _, secret := range []string{operatorsKey, "secret order", "The tool said", "wc-"} {
		if strings.Contains(raw, secret) {
			t.Errorf("the trace has %q", secret)
		}
	}
	if t.Failed() {
		for path, n := range below {
			t.Logf("%d x %s", n, path)
		}
	}
	var shown struct {
		CostUSD float64 `json:"cost_usd"`
	}
	if m.Read(t, &shown, "runs", "show", res.RunID); shown.CostUSD <= 0 {
		t.Errorf("the run cost %v", shown.CostUSD)
	}
}

// paths counts the spans of a trace by the names of their ancestors and their own name. It skips Genkit's spans in
// between.
func paths(t *testing.T, raw string) map[string]int {
	t.Helper()
	var doc struct {
		ResourceSpans []struct {
			ScopeSpans []struct{ Spans []span }
		}
	}
	must(t, json.Unmarshal([]byte(raw), &doc))
	all := map[string]span{}
	for _, r := range doc.ResourceSpans {
		for _, s := range r.ScopeSpans {
			for _, one := range s.Spans {
				all[one.SpanID] = one
			}
		}
	}
	count := map[string]int{}
	for _, s := range all {
		names := []string{}
		for at, ok := s, true; ok; at, ok = all[at.ParentSpanID] {
			if strings.ContainsAny(at.Name, " .") {
				names = append(names, at.Name)
			}
		}
		slices.Reverse(names)
		count[strings.Join(names, " > ")]++
	}
	return count
}

// points is the number of kills.
var points = flag.Int("points", 6, "how often the host is killed while a coding agent works")

// TestHostKilled kills a host process at any point while a coding agent works. Another process resumes the run in the
// same conversation. No answer of the model is requested twice, except the answer in progress.
func TestHostKilled(t *testing.T) {
	t.Parallel()
	const calls = 3
	for i := range *points {
		n, pause := i%(calls+1), time.Duration(rand.Int64N(int64(500*time.Millisecond)))
		t.Run(fmt.Sprintf("request %d, %v later", n, pause), func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{})
			m, mock := newMachine(t, func(at int, r llmtest.Request) llmtest.Answer {
				if at == n {
					close(asked)
				}
				if done := len(r.Results()); done < calls {
					return llmtest.Answer{Calls: []llmtest.Call{{Name: "Bash", Input: llmtest.Object{"command": fmt.Sprintf("sleep 0.2; echo %d >> log", done)}}}}
				}
				return llmtest.Answer{Text: "That is all."}
			})
			p := m.Start(t, "run", m.Path("flow.yaml"))
			<-asked
			time.Sleep(pause) // the kill point, not a wait for an event
			p.Kill()
			before := len(mock.Requests())
			var runs []struct{ ID, State string }
			m.Read(t, &runs, "runs", "ls")
			if len(runs) != 1 || runs[0].State != "interrupted" && runs[0].State != "succeeded" {
				t.Fatalf("runs: %+v", runs)
			}
			if runs[0].State == "interrupted" {
				out := m.OK(t, "runs", "resume", runs[0].ID, "-o", "json")
				if !strings.Contains(out, `"succeeded"`) || !strings.Contains(out, "That is all.") {
					t.Errorf("resumed: %s", out)
				}
			}
			all := mock.Requests()
			if len(all) > calls+1+1 {
				t.Errorf("%d requests, %d of them before the end of the host", len(all), before)
			}
			for i, r := range all {
				unanswered := i == 0 && before == 1 // whether the CLI knows the conversation is random in this case
				if got, want := conversation(r), conversation(all[len(all)-1]); got != want && !unanswered || got == "" {
					t.Errorf("conversation %q of request %d, and %q of the last", got, i, want)
				}
			}
		})
	}
}

// conversation returns the session id in a request of Claude Code.
func conversation(r llmtest.Request) string {
	metadata, _ := r.Body["metadata"].(llmtest.Object)
	id, _ := metadata["user_id"].(string)
	return id[strings.LastIndex(id, "session_")+1:]
}
