package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

// TestMCPLeavesBadFilesOut verifies that an invalid file does not prevent the server from loading the other files.
func TestMCPLeavesBadFilesOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good.prompt": "---\nmodel: x/y\n---\nWork.", "bad.prompt": "---\nmodel: x/y\nsandbox: {mode: cod}\n---\nWork.",
		"fine.yaml": "id: fine\nsteps: [{id: a, type: end}]\n", "wrong.yaml": "id: wrong\nsteps:\n  - {id: a, type: endd}\n  - {id: b}\n",
	} {
		checktest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var stderr strings.Builder
	r, err := New(Options{Stderr: &stderr}).TaskRunner(t.Context(), nil, nil, dir, dir, CodingTasks{})
	checktest.Must(t, err)
	tasks := r.List()
	if len(tasks) != 2 || tasks[0].Name != "fine" || tasks[1].Name != "good" {
		t.Errorf("tasks %v", tasks)
	}
	for _, want := range []string{"bad.prompt:3:17: ", "wrong.yaml:3:19: ", "wrong.yaml:4:5: "} {
		if !strings.Contains(stderr.String(), "workcell: warning: skipped: "+filepath.Join(dir, want)) {
			t.Errorf("%s is missing in:\n%s", want, stderr.String())
		}
	}
}

// TestTasksOfSeveralDirectories verifies that a workflow can use the agents of --agents, or the agents in its own
// directory, as with `workcell run`. A duplicate name leaves no temporary files.
func TestTasksOfSeveralDirectories(t *testing.T) {
	temp, agents, flows := t.TempDir(), filepath.Join(t.TempDir(), "proj[1]"), t.TempDir()
	checktest.Must(t, os.Mkdir(agents, 0o700))
	t.Setenv("TMPDIR", temp)
	const prompt = "---\nmodel: x/y\n---\nWork."
	for path, text := range map[string]string{
		filepath.Join(agents, "claude.prompt"): prompt,
		filepath.Join(agents, "one.prompt"):    prompt,
		filepath.Join(flows, "two.prompt"):     prompt,
		filepath.Join(flows, "first.yaml"):     "id: first\nsteps: [{id: a, type: agent, agent: one}]\n",
		filepath.Join(flows, "second.yaml"):    "id: second\nsteps: [{id: a, type: agent, agent: two}]\n",
		filepath.Join(flows, "other.yaml"):     "id: other\nsteps: [{id: a, type: agent, agent: three}]\n",
	} {
		checktest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	var stderr strings.Builder
	a := New(Options{Env: os.LookupEnv, Stderr: &stderr})
	r, err := a.TaskRunner(t.Context(), nil, nil, agents, flows, CodingTasks{})
	checktest.Must(t, err)
	var names []string
	for _, task := range r.List() {
		names = append(names, task.Name)
	}
	skipped := strings.Count(stderr.String(), "skipped")
	if got := strings.Join(names, " "); got != "claude first one second" || skipped != 1 {
		t.Errorf("tasks %s\n%s", got, stderr.String())
	}
	if own := r.tasks["second"].Files["two"]; own != filepath.Join(flows, "two.prompt") {
		t.Errorf("its agent is %q", own)
	}
	if _, err := a.TaskRunner(t.Context(), nil, nil, agents, flows, CodingTasks{Agents: []string{"claude"}}); err == nil {
		t.Error("two tasks have one name")
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestUnusedInput verifies that unused input is an error, and text goes to the only name in a
// template.
func TestUnusedInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"none.yaml":    "id: none\nsteps: [{id: a, type: end}]\n",
		"reads.yaml":   "id: reads\nsteps: [{id: a, type: end, output: \"${ input.goal }\"}]\n",
		"whole.yaml":   "id: whole\nsteps: [{id: a, type: end, output: \"${ input }\"}]\n",
		"plain.prompt": "---\nmodel: x/y\n---\nWork.", "topic.prompt": "---\nmodel: x/y\n---\n{{role \"user\"}}{{#if topic}}{{{topic}}}{{/if}}",
		"short.prompt":  "---\nmodel: x/y\ninput: {schema: {task: \"string, what\", \"path?\": string}}\n---\nx",
		"helper.prompt": "---\nmodel: x/y\n---\n{{topic}}{{#ifEquals kind \"bug\"}}b{{/ifEquals}}",
		"each.prompt":   "---\nmodel: x/y\n---\n{{!-- {{old}} --}}{{#each items}}{{this.name}}{{else}}-{{/each}}",
		"outer.prompt":  "---\nmodel: x/y\n---\n{{#each items}}{{prefix}}{{this}}{{/each}}",
		"part.prompt":   "---\nmodel: x/y\n---\n{{>other}}", "_other.prompt": "{{task}}",
	} {
		checktest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	r, err := New(Options{Stderr: io.Discard}).TaskRunner(t.Context(), nil, nil, dir, dir, CodingTasks{})
	checktest.Must(t, err)
	for name, tc := range map[string]struct{ text, field string }{
		"none":   {"no inputs are available", "unknown input goal; no inputs are available"},
		"reads":  {"map[input:x]", "map[goal:x]"},
		"whole":  {"map[input:x]", "map[goal:x]"},
		"plain":  {"no inputs are available", "unknown input goal; no inputs are available"},
		"topic":  {"map[topic:x]", "unknown input goal; available inputs are topic"},
		"each":   {"map[items:x]", "unknown input goal; available inputs are items"},
		"outer":  {"map[input:x]", "map[goal:x]"},
		"part":   {"map[input:x]", "map[goal:x]"},
		"helper": {"map[input:x]", "map[goal:x]"},
	} {
		for want, req := range map[string]mcpserver.TaskRequest{
			tc.text: {Text: "x"}, tc.field + " ": {Fields: map[string]string{"goal": "x"}},
		} {
			input, err := r.tasks[name].input(req)
			got := fmt.Sprint(input)
			if err != nil {
				got = err.Error()
			}
			if got != strings.TrimSpace(want) {
				t.Errorf("%s, %+v: %s, want %s", name, req, got, want)
			}
		}
	}
	if got := fmt.Sprint(r.tasks["short"].Fields, r.tasks["topic"].Fields); got != "[path task] [topic]" {
		t.Errorf("fields %s", got)
	}
}

// TestParseInput verifies that values have the types of the schema, and a workflow's values without a type may be
// JSON.
func TestParseInput(t *testing.T) {
	t.Parallel()
	const properties = "{s: {type: string}, n: {type: integer}, b: {type: boolean}, l: {type: array}}"
	wf, err := workflow.Parse("w.yaml", []byte("id: w\ninput: {type: object, properties: "+properties+"}\nsteps: [{id: b, type: end}]\n"), nil)
	checktest.Must(t, err)
	fields := InputFields(wf.InputSchema())
	got, err := ParseInput(wf, fields, map[string]string{"s": "12", "n": "12", "b": "true", "l": `["a", 1]`, "free": "text", "json": "3"}, "")
	want := map[string]any{"s": "12", "n": int64(12), "b": true, "l": []any{"a", int64(1)}, "free": "text", "json": int64(3)}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if _, err := ParseInput(wf, fields, map[string]string{"n": "many"}, ""); err == nil {
		t.Error("text for a number was accepted")
	}
}

// TestTaskError verifies that clients see the class of a failure and no path of the server.
func TestTaskError(t *testing.T) {
	t.Parallel()
	secret := errors.New("open /srv/secret/plan.yaml: no such file")
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"unknown":   {secret, "internal: the task failed"},
		"timeout":   {fmt.Errorf("%w: %w", context.DeadlineExceeded, secret), "timeout: the task failed"},
		"class":     {fmt.Errorf("%w: %w", backend.ErrNoRoom, secret), "quota_exceeded: the task failed"},
		"step":      {&workflow.Error{Step: "fix", Where: "/srv/secret/a.yaml:1:2", Code: "expression", Message: secret.Error()}, "internal: step fix failed: expression"},
		"fail step": {&workflow.Error{Step: "stop", Code: "failed", Message: "nothing to do"}, "internal: nothing to do"},
		"budget":    {fmt.Errorf("%w: %w", executor.ErrBudget, secret), "quota_exceeded: the task's budget is used up"},
	} {
		if got := taskError(tc.err); got.Error() != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
}

// TestExecutorModel verifies that the model of --executors overrides --model, and a coding agent gets a model that
// it can use.
func TestExecutorModel(t *testing.T) {
	t.Parallel()
	m := memoryManager(t)
	env := environ.Of(map[string]string{"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"})
	a := New(Options{Stderr: io.Discard, Env: env, runFlags: runFlags{Model: "anthropic/claude-sonnet-4-5"}})
	coding := CodingTasks{Agents: []string{"codex=openai/gpt-5-codex", "claude"}}
	checktest.Must(t, coding.Check("anthropic/claude-sonnet-4-5"))
	r, err := a.TaskRunner(t.Context(), m, nil, "", "", coding)
	checktest.Must(t, err)
	t.Cleanup(r.Close)
	for name, want := range map[string]string{"codex": "openai/gpt-5-codex", "claude": "anthropic/claude-sonnet-4-5"} {
		h, err := r.host(t.Context(), r.tasks[name])
		if err != nil || h.modelOf(name) != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// slowServer is a server of host tools with a list only after the release.
type slowServer struct {
	hosttools.Source
	asked, release chan struct{}
}

func (s slowServer) Tools(ctx context.Context) ([]hosttools.Tool, error) {
	close(s.asked)
	<-s.release
	return s.Source.Tools(ctx)
}

// TestSlowServer verifies that a task whose host tools take long to start blocks no other task.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	slow := slowServer{hosttools.Static("slow", hosttools.Tool{
		Definition: hosttools.Definition{Name: "x"}, Handle: func(context.Context, hosttools.Call) (hosttools.Result, error) { return hosttools.Result{}, nil },
	}), make(chan struct{}), make(chan struct{})}
	hosts, err := hosttools.New(nil, slow)
	checktest.Must(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"waits.prompt": "---\nmodel: ollama/x\nsandbox: {mode: script, host_tools: {allow: [slow.x]}}\n---\nWork.", "other.prompt": "---\nmodel: ollama/x\n---\nWork.",
		"user.prompt": "---\nmodel: ollama/x\nsandbox: {mode: code, session: user}\n---\nWork.",
	} {
		checktest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var stderr strings.Builder
	r, err := New(Options{Stderr: &stderr, Env: environ.Of(nil), StateDir: t.TempDir()}).TaskRunner(t.Context(), memoryManager(t), hosts, dir, "", CodingTasks{})
	checktest.Must(t, err)
	defer r.Close()
	if _, ok := r.tasks["user"]; ok || !strings.Contains(stderr.String(), "session: user requires a user") {
		t.Errorf("a task that requires a user is listed: %s", &stderr)
	}
	made := make(chan error, 1)
	go func() {
		_, err := r.host(t.Context(), r.tasks["waits"])
		made <- err
	}()
	<-slow.asked
	if _, err := r.host(t.Context(), r.tasks["other"]); err != nil {
		t.Error(err)
	}
	close(slow.release)
	if err := <-made; err != nil {
		t.Error(err)
	}
}

func memoryManager(t *testing.T) *Manager {
	t.Helper()
	engine, err := memory.New(nil)
	checktest.Must(t, err)
	m, err := session.NewManager(engine, nil)
	checktest.Must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(m.Close(context.Background()), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return &Manager{Manager: m, place: state.Place{Dir: state.Dir(t.TempDir())}}
}
