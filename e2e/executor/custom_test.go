//go:build linux

package executor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/tools"
)

// program is a coding agent of a few lines. It sends one request to the model, prints the answer, and shows the input.
const program = `
import json, os, sys, urllib.request
events, prompt = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else sys.stdin.read()
def tell(**e):
    if events == "json": print(json.dumps(e), flush=True)
session = os.environ["WORKCELL_RESUME"] or "s1"
tell(kind="session", session=session)
log = os.path.expanduser("~/.sessions/" + session)
os.makedirs(os.path.dirname(log), exist_ok=True)
earlier = open(log).read() if os.path.exists(log) else ""
open(log, "a").write(prompt + "\n")
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", headers={"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"},
    data=json.dumps({"model": os.environ["WORKCELL_MODEL"], "max_tokens": 100, "messages": [{"role": "user", "content": earlier + prompt}]}).encode())
answer = json.load(urllib.request.urlopen(request))
text = "".join(b.get("text", "") for b in answer["content"])
tell(kind="tool_start", tool={"id": "1", "name": "think", "input": {"a": 1}})
tell(kind="tool_end", tool={"id": "1", "output": "done"})
tell(kind="usage", usage={"input": 5, "output": 2})
if events == "json":
    tell(kind="text", text=text)
    tell(kind="end", end={"outcome": "completed"})
else:
    print(text); print(); print("the end")
`

// customDesk returns a sandbox with the program.
func customDesk(t *testing.T, engine string, d drivers.Custom) *desk {
	t.Helper()
	a := agent{d, "workcell/python:3.11", "claude-sonnet-4-5"}
	desk := newDesk(t, managerOn(t, engine), a, backend.Limits{})
	_, err := desk.s.WriteFile(t.Context(), "agent.py", strings.NewReader(program), sandbox.WriteFileOptions{Size: int64(len(program)), Mode: 0o644})
	must(t, err)
	return desk
}

// TestCustom: a user's program can do an agent's work on every engine. It gets the model's answers with the lease. The
// prompt is one argument or the standard input, whatever the contents. The output is the answer or events.
func TestCustom(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"docker", "containerd", "local"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			hostile := "$(touch pwned); `touch pwned` 'x' \"y\" \n{model} | touch pwned"
			for name, d := range map[string]drivers.Custom{
				"text by argument": {Argv: []string{"python3", "agent.py", "text", "{prompt}"}},
				"text by input":    {Argv: []string{"python3", "agent.py", "text"}},
				"events":           {Argv: []string{"python3", "agent.py", "json", "{prompt}"}, JSON: true},
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					desk := customDesk(t, engine, d)
					ask := func(o func(*executor.Options)) executor.Result {
						t.Helper()
						res, used, err := desk.try(t.Context(), trial{o: o, prompt: hostile})
						if err != nil || res.Outcome != executor.Completed || used.Requests != 1 {
							t.Errorf("%s %q, %+v, %v\n%s", res.Outcome, res.Detail, used, err, desk.output.Bytes())
						}
						return res
					}
					res := ask(nil)
					want := "There is no tool."
					if !d.JSON {
						want += "\n\nthe end"
					} else if res.Told.Input != 5 || res.ToolCalls != 1 {
						t.Errorf("%+v", res)
					}
					if res.Text != want {
						t.Errorf("it answers %q, want %q", res.Text, want)
					}
					asked := desk.mock.Requests()
					if text := content(asked[len(asked)-1].Body); text != hostile {
						t.Errorf("the model was asked %q", text)
					}
					if _, err := desk.s.StatFile(t.Context(), "pwned"); err == nil {
						t.Error("a shell read the prompt")
					}
					if d.JSON {
						resume := func(o *executor.Options) { o.Resume = executor.ResumeSession }
						first, second := ask(resume), ask(resume)
						asked := desk.mock.Requests()
						if !second.Resumed || second.SessionID != first.SessionID || strings.Count(content(asked[len(asked)-1].Body), "touch") < 6 {
							t.Errorf("%+v, then %+v: %q", first, second, content(asked[len(asked)-1].Body))
						}
					}
				})
			}
		})
	}
}

// content returns the content of a request in Anthropic's dialect.
func content(body map[string]any) string {
	list, _ := body["messages"].([]any)
	if len(list) == 0 {
		return ""
	}
	m, _ := list[len(list)-1].(map[string]any)
	text, _ := m["content"].(string)
	return text
}

// TestCustomAgent verifies an agent's file with a program that needs no model. The answer conforms to the schema.
func TestCustomAgent(t *testing.T) {
	t.Parallel()
	r := newAgentRig(t, lookUp)
	file := "---\noutput: {schema: {lines: integer}}\nsandbox: {mode: executor, image: \"workcell/debian:12\", executor: {command: custom, argv: [sh, -c, 'printf \"{\\\"lines\\\": %s}\" $(printf %s \"$1\" | wc -l)', sh, \"{prompt}\"]}}\n---\na\nb\n"
	agents, err := tools.LoadAgentsFS(r.g, fstest.MapFS{"count.prompt": {Data: []byte(file)}})
	must(t, err)
	res, err := agents["count"].Run(context.Background(), nil, nil)
	must(t, err)
	if out, ok := res.Output.(map[string]any); !ok || out["lines"] == nil {
		t.Errorf("%+v", res)
	}
	if len(r.model.Requests()) != 0 {
		t.Error("a model was asked")
	}
}

// TestHostToolRunsItsCaller verifies that a host tool that runs the coding agent which called it gets an error, because
// the coding agent would wait for itself.
func TestHostToolRunsItsCaller(t *testing.T) {
	t.Parallel()
	var coder *tools.Agent
	registry, err := hosttools.New(nil, hosttools.Static("app", hosttools.Tool{
		Definition: hosttools.Definition{Name: "again", Description: "Runs the agent."},
		Handle: func(ctx context.Context, _ hosttools.Call) (hosttools.Result, error) {
			_, err := coder.Run(ctx, nil, nil)
			return hosttools.Result{Failed: true, Text: fmt.Sprint(err)}, nil
		},
	}))
	must(t, err)
	g := genkit.Init(t.Context(), genkit.WithPlugins(&tools.Plugin{Manager: manager(t), HostTools: registry}),
		genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	file := "---\nsandbox: {mode: executor, image: \"workcell/debian:12\", host_tools: {allow: [app.again]}, " +
		"executor: {command: custom, argv: [sh, -c, 'tools call app.again 2>&1 || true']}}\n---\nx"
	agents, err := tools.LoadAgentsFS(g, fstest.MapFS{"coder.prompt": {Data: []byte(file)}})
	must(t, err)
	coder = agents["coder"]
	res, err := coder.Run(t.Context(), nil, nil)
	if err != nil || !strings.Contains(res.Text, "cannot run the coding agent") {
		t.Errorf("%+v, %v", res, err)
	}
}
