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
	"sync"
	"testing"
	"time"

	shared "github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/commandtest"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// machine is a state directory with a workflow of one coding agent, and the command that runs it.
type machine struct {
	t     *testing.T
	dir   string
	model string // address
}

// programs is the directory for compiled programs.
var programs string

// build compiles the command and the server of the host tools, once. It returns the path of the command.
var build = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "build", "-o", programs+"/", "github.com/workcell-dev/workcell/examples/orders").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the server: %w\n%s", err, out)
	}
	return commandtest.Build(programs)
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "workcell-executor")
	if err != nil {
		panic(err)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir) // one of the host's temporary files
	os.Exit(code)
}

func newMachine(t *testing.T, play func(n int, r llmtest.Request) llmtest.Answer) (*machine, *llmtest.Server) {
	t.Helper()
	_, err := build()
	must(t, err)
	mock := llmtest.New(play)
	web := httptest.NewServer(mock)
	t.Cleanup(web.Close)
	m := &machine{t: t, dir: t.TempDir(), model: web.URL}
	for name, text := range map[string]string{
		"flow.yaml": "id: flow\nsteps:\n  - {id: look, type: agent, agent: desk}\n",
		"desk.prompt": "---\nmodel: anthropic/claude-sonnet-4-5\nsandbox:\n  mode: executor\n  limits: {memory_mb: 2048, pids: 512}\n  host_tools: {allow: [orders.lookup]}\n" +
			"  executor: {command: claude, budget: {usd: 2}}\n---\nLook the secret order 42 up.\n",
		"host-tools.yaml": fmt.Sprintf("servers:\n  orders:\n    command: [%q]\n", programs+"/orders"),
	} {
		must(t, os.WriteFile(m.path(name), []byte(text), 0o600))
	}
	t.Cleanup(func() { _, _ = m.run("sandbox", "rm", "--all") }) // cleanup after a failed test
	return m, mock
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) command(args ...string) *exec.Cmd {
	command, err := build()
	must(m.t, err)
	cmd := exec.Command(command, args...)
	engine := os.Getenv("WORKCELL_TEST_BACKEND")
	if engine == "" {
		engine = "docker"
	}
	cmd.Env = append(shared.Environ(),
		"HOME="+m.dir, "WORKCELL_STATE_DIR="+m.path("state"), "WORKCELL_BACKEND="+engine, "WORKCELL_REAPER=off",
		"WORKCELL_HOST_TOOLS="+m.path("host-tools.yaml"), "ANTHROPIC_BASE_URL="+m.model, "ANTHROPIC_API_KEY="+operatorsKey)
	return cmd
}

// run runs the command until it exits.
func (m *machine) run(args ...string) (string, error) { return shared.Output(m.command(args...)) }

func (m *machine) read(v any, args ...string) {
	m.t.Helper()
	out, err := m.run(append(args, "-o", "json")...)
	must(m.t, err)
	must(m.t, json.Unmarshal([]byte(out), v))
}

// span is a span of a trace in the output of `runs trace`.
type span struct {
	Name, SpanID, ParentSpanID string
	Attributes                 []struct {
		Key   string
		Value map[string]any
	}
}

// TestTrace verifies that a step's coding agent is one tree of spans, including each request to its model and each host
// tool call. No span contains contents or a key, and the run's cost is known.
func TestTrace(t *testing.T) {
	t.Parallel()
	m, mock := newMachine(t, lookUp)
	var res struct {
		RunID   string `json:"run_id"`
		Outcome string
		Output  any
	}
	m.read(&res, "run", m.path("flow.yaml"))
	if text := fmt.Sprint(res.Output); res.Outcome != "succeeded" || !strings.Contains(text, "The tool said") {
		t.Fatalf("%+v", res)
	}
	raw, err := m.run("runs", "trace", res.RunID, "-o", "json")
	must(t, err)
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
	if m.read(&shown, "runs", "show", res.RunID); shown.CostUSD <= 0 {
		t.Errorf("the run cost %v", shown.CostUSD)
	}
}

// paths counts the spans of a trace by the names of their ancestors and their own name. It skips the spans that Genkit
// adds in between.
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

// TestHostKilled verifies a host process that is killed at any point while a coding agent works. Another process
// resumes the run in the same conversation. No answer of the model is requested twice, except the answer that was in
// progress.
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
			cmd := m.command("run", m.path("flow.yaml"))
			must(t, cmd.Start())
			<-asked
			time.Sleep(pause) // the kill point, not a wait for an event
			must(t, cmd.Process.Kill())
			_ = cmd.Wait() // killed
			before := len(mock.Requests())
			var runs []struct{ ID, State string }
			m.read(&runs, "runs", "ls")
			if len(runs) != 1 || runs[0].State != "interrupted" && runs[0].State != "succeeded" {
				t.Fatalf("runs: %+v", runs)
			}
			if runs[0].State == "interrupted" {
				out, err := m.run("runs", "resume", runs[0].ID, "-o", "json")
				must(t, err)
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

// conversation returns the session id that Claude Code sends with a request.
func conversation(r llmtest.Request) string {
	metadata, _ := r.Body["metadata"].(llmtest.Object)
	id, _ := metadata["user_id"].(string)
	return id[strings.LastIndex(id, "session_")+1:]
}
