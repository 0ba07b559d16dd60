package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// image is built by `make images`.
const image = "workcell/debian:12"

// newManager returns a manager on the Docker engine. At the end of the test, it removes retained sandboxes.
func newManager(t *testing.T) *session.Manager {
	t.Helper()
	engine, err := docker.New(t.Context(), nil)
	checktest.Must(t, err)
	m, err := session.NewManager(engine, nil)
	checktest.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		errs := []error{m.Close(ctx)}
		retained, err := engine.List(ctx, backend.Filter{Instance: m.Instance()})
		for _, info := range retained {
			err = errors.Join(err, engine.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}))
		}
		checktest.Must(t, errors.Join(append(errs, err, engine.Close())...))
	})
	return m
}

// onMemory returns a manager on the memory backend, which is closed at the end of the test.
func onMemory(t *testing.T) (*memory.Backend, *session.Manager) {
	t.Helper()
	b, err := memory.New(nil)
	checktest.Must(t, err)
	m, err := session.NewManager(b, nil)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, m.Close(context.Background())) })
	return b, m
}

// left returns the number of the run's sandboxes on the engine. If run is "", it counts the sandboxes of all runs.
func left(t *testing.T, m *session.Manager, run string) int {
	t.Helper()
	list, err := m.Backend().List(context.Background(), backend.Filter{Instance: m.Instance(), Run: run})
	checktest.Must(t, err)
	return len(list)
}

// entriesJournal keeps the entries of one run.
type entriesJournal []workflow.Entry

func (j *entriesJournal) Append(_ context.Context, e workflow.Entry) error {
	*j = append(*j, e)
	return nil
}

// TestIsolation verifies that a run whose file or agent requires more isolation than the backend has never begins, with
// the place in the file, and that results and the journal show the isolation of the sandboxes.
func TestIsolation(t *testing.T) {
	t.Parallel()
	engine, m := onMemory(t)
	agents := agentFiles(map[string]string{"strict": "{mode: code, isolation: vm}"})
	for _, test := range []struct{ yaml, place string }{
		{"id: w\nsandbox: {image: x, isolation: container}\nsteps:\n  - {id: c, type: exec, command: a}\n", "w.yaml:2:32: "},
		{"id: w\nsandbox: {image: x}\nsteps:\n  - {id: c, type: exec, command: a}\n  - {id: s, type: agent, agent: strict}\n", "strict.prompt:3:34: "},
	} {
		wf, err := workflow.Parse("w.yaml", []byte(test.yaml), &workflow.LoadOptions{Agents: agents})
		checktest.Must(t, err)
		res, err := workflow.NewEngine(m, nil, nil).Run(t.Context(), wf, nil)
		if res != nil || !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), test.place) || !strings.Contains(err.Error(), "workcell doctor") {
			t.Errorf("%v, want it at %s", err, test.place)
		}
	}
	for _, c := range engine.Calls() {
		if c.Op == memory.OpCreate {
			t.Errorf("a sandbox was created: %+v", c)
		}
	}
	engine.On("a", memory.Answer{})
	wf := parse(t, "sandbox: {image: x, isolation: process}\nsteps:\n  - {id: c, type: exec, command: a}\n  - {id: d, type: set, vars: {v: 1}}\n")
	j := &entriesJournal{}
	res, err := workflow.NewEngine(m, nil, &workflow.Options{Journal: j}).Run(t.Context(), wf, nil)
	if err != nil || len(res.Evidence) != 1 || res.Evidence[0].Isolation != "process" || res.Evidence[0].Backend != "memory" || len(res.Evidence[0].Policy) != 12 {
		t.Fatalf("%v, %+v", err, res)
	}
	for _, e := range *j {
		if want := e.Kind == workflow.EventStepFinished && e.Step == "c"; want != (len(e.Evidence) == 1 && e.Evidence[0] == res.Evidence[0]) {
			t.Errorf("%s of %q: %+v", e.Kind, e.Step, e.Evidence)
		}
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	wf := parse(t, `
sandbox: {image: "`+image+`", env: {FROM_SANDBOX: "1"}, retention: 0s}
steps:
  - id: write
    type: exec
    command: |
      printf '%s' "$A" > a.txt
      echo ${ input.evil }
      echo "${HOME} ${FROM_SANDBOX}"
      echo problems >&2
    env: {A: "${ input.evil }"}
  - {id: read, type: exec, cmd: [cat, a.txt, "-"], stdin: "in ${ input.n }"}
  - {id: args, type: exec, cmd: [printf, "%s|", "${ input.evil }", "$HOME", "a b"], cwd: /tmp}
  - {id: json, type: exec, command: "echo '{\"n\": 3, \"l\": [1.5]}'", json: true}
  - {id: allowed, type: exec, command: "exit 3", ok_codes: [0, 3]}
  - {id: forgiven, type: exec, command: "kill -9 $$", allow_failure: true}
  - {id: failed, type: exec, command: "echo out; exit 2", on_error: continue}
  - {id: nojson, type: exec, command: "echo 'not json'", json: true, on_error: continue}
  - {id: missing, type: exec, cmd: [no-such-program], on_error: continue}
  - {id: much, type: exec, command: "yes 1234567 | head -c 1000000"}
  - id: out
    type: end
    output:
      write: "${ [steps.write.output.stdout, steps.write.output.stderr] }"
      read: "${ steps.read.output.stdout }"
      args: "${ steps.args.output.stdout }"
      json: "${ steps.json.output.json.l[0] + double(steps.json.output.json.n) }"
      allowed: "${ [steps.allowed.output.ok, steps.allowed.output.exit_code == 3] }"
      forgiven: "${ [steps.forgiven.output.signal, steps.forgiven.output.exit_code] }"
      failed: "${ [steps.failed.status, steps.failed.error.code, steps.failed.error.message, steps.failed.output.stdout] }"
      nojson: "${ steps.nojson.error.code }"
      missing: "${ steps.missing.error.code }"
      much: "${ [steps.much.output.truncated, size(steps.much.output.stdout) < 300000, steps.much.output.stdout.contains('bytes omitted')] }"
`)
	const evil = `"; touch /workspace/hacked; $(touch hacked) '`
	res, err := workflow.NewEngine(m, nil, nil).Run(t.Context(), wf, map[string]any{"evil": evil, "n": 7})
	checktest.Must(t, err)
	want := map[string]any{
		// Unquoted in the command, the value is split and expanded as any variable is; it is never run.
		"write":    []any{`"; touch /workspace/hacked; $(touch hacked) '` + "\n/workspace/.workcell/home 1\n", "problems\n"},
		"read":     evil + "in 7",
		"args":     evil + "|$HOME|a b|",
		"json":     4.5,
		"allowed":  []any{true, true},
		"forgiven": []any{"SIGKILL", nil},
		"failed":   []any{"failed", "exit_code", "the command exited with code 2", "out\n"},
		"nojson":   "invalid_output",
		"missing":  "not_found",
		"much":     []any{true, true, true},
	}
	if diff := cmp.Diff(want, res.Output); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if n := left(t, m, res.RunID); n != 0 || res.Cleanup != nil {
		t.Errorf("%d sandboxes are left, %v", n, res.Cleanup)
	}
}

// TestSandboxesOfSteps verifies that steps share the run's sandbox, unless they have a named or isolated one.
func TestSandboxesOfSteps(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	wf := parse(t, `
sandbox: {image: "`+image+`"}
steps:
  - {id: a, type: exec, command: "echo shared > f"}
  - {id: b, type: exec, command: "cat f"}
  - {id: c, type: exec, command: "ls | wc -l", sandbox: isolated}
  - {id: d, type: exec, command: "echo other > g", sandbox: other}
  - id: p
    type: parallel
    branches:
      - {id: same, steps: [{id: e, type: exec, command: "cat f"}]}
      - {id: own, sandbox: isolated, steps: [{id: f, type: exec, command: "echo own > f"}, {id: g, type: exec, command: "cat f"}]}
      - {id: named, sandbox: other, steps: [{id: h, type: exec, command: "cat g"}]}
  - {id: each, type: for_each, items: [1, 2], sandbox: isolated, max_concurrency: 2, output: "${ steps.j.output.stdout }",
     steps: [{id: i, type: exec, command: "echo $N >> f", env: {N: "${ item }"}}, {id: j, type: exec, command: "cat f"}]}
  - {id: count, type: agent, agent: counter}
  - id: out
    type: end
    output: ["${ steps.b.output.stdout }", "${ steps.c.output.stdout }", "${ steps.p.output.same.stdout }", "${ steps.p.output.own.stdout }", "${ steps.p.output.named.stdout }", "${ steps.each.output }", "${ steps.count.output }"]
`)
	res, err := workflow.NewEngine(m, agents(func(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
		run, _ := session.RunFromContext(ctx)
		return workflow.AgentOutput{Output: left(t, m, run.ID)}, nil
	}), nil).Run(t.Context(), wf, nil)
	checktest.Must(t, err)
	// Isolated sandboxes are removed when their step ends, so only default and other exist.
	want := []any{"shared\n", "0\n", "shared\n", "own\n", "other\n", []any{"1\n", "2\n"}, int64(2)}
	if diff := cmp.Diff(want, res.Output); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if n := left(t, m, ""); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestExecTimeout(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
sandbox: {image: "`+image+`"}
steps:
  - {id: open, type: exec, command: "true"}
  - {id: a, type: exec, command: "echo begun; sleep 1000", timeout: 2s, on_error: continue}
  - {id: b, type: exec, command: "sleep 1000", timeout: 300ms, on_error: continue}
  - {id: c, type: exec, command: "pgrep -c sleep || true"}
  - {id: out, type: end, output: ["${ steps.a.error.code }", "${ steps.a.output.stdout }", "${ steps.b.error.code }", "${ steps.c.output.stdout }"]}`)
	res, err := workflow.NewEngine(newManager(t), nil, nil).Run(t.Context(), wf, nil)
	checktest.Must(t, err)
	if diff := cmp.Diff([]any{"timeout", "begun\n", "timeout", "0\n"}, res.Output); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestRunClosesItsSandboxes verifies that every end of a run closes the sandboxes and no others.
func TestRunClosesItsSandboxes(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	other, _, err := m.Open(t.Context(), session.WorkflowKey(session.NewRunID(), "default"), session.Request{Image: image})
	checktest.Must(t, err)
	for name, tt := range map[string]struct {
		head, last string
		want       workflow.Outcome
	}{
		"success":   {"", `{id: z, type: end}`, workflow.Succeeded},
		"failure":   {"", `{id: z, type: fail, message: no}`, workflow.Failed},
		"panic":     {"", `{id: z, type: agent, agent: panics}`, workflow.Failed},
		"cancel":    {"", `{id: y, type: agent, agent: later}, {id: z, type: exec, command: "sleep 100"}`, workflow.Cancelled},
		"timeout":   {"timeout: 5s\n", `{id: z, type: exec, command: "sleep 100"}`, workflow.TimedOut},
		"max_steps": {"max_steps: 2\n", `{id: z, type: set, vars: {x: 1}}`, workflow.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wf := parse(t, tt.head+`
sandbox: {image: "`+image+`"}
steps: [{id: a, type: exec, command: "true"}, {id: b, type: exec, command: "(sleep 1000 &)", sandbox: second}, `+tt.last+`]`)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res, err := workflow.NewEngine(m, agents(func(_ context.Context, agent string, _ map[string]any) (workflow.AgentOutput, error) {
				if agent == "panics" {
					panic("oh no")
				}
				time.AfterFunc(time.Second, cancel)
				return workflow.AgentOutput{}, nil
			}), nil).Run(ctx, wf, nil)
			if res.Outcome != tt.want || res.Cleanup != nil {
				t.Errorf("Run = %+v, %v", res, err)
			}
			if n := left(t, m, res.RunID); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
			if _, err := other.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}}); err != nil {
				t.Errorf("the other run's sandbox: %v", err)
			}
		})
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	wf := parse(t, `
sandbox: {image: "`+image+`", retention: 10m}
steps: [{id: a, type: exec, command: "true"}, {id: b, type: exec, command: "true", sandbox: isolated}]`)
	res, err := workflow.NewEngine(m, nil, nil).Run(t.Context(), wf, nil)
	checktest.Must(t, err)
	if n := left(t, m, res.RunID); n != 2 {
		t.Errorf("%d sandboxes are retained, want 2", n)
	}
}

// TestCommandBeforeAgent verifies that a first command creates the sandbox its first agent will request.
func TestCommandBeforeAgent(t *testing.T) {
	t.Parallel()
	b, m := onMemory(t)
	b.On("true", memory.Answer{})
	wf, err := workflow.Parse("w.yaml", []byte(`
id: w
sandbox: {env: {FROM: workflow}}
steps:
  - {id: a, type: exec, cmd: ["true"]}
  - {id: b, type: agent, agent: plain}
  - id: p
    type: parallel
    branches: [{id: n, sandbox: node, steps: [{id: c, type: exec, cmd: ["true"]}, {id: d, type: agent, agent: node}]}]
`), &workflow.LoadOptions{Agents: agentFiles(map[string]string{
		"plain": "{mode: code, image: plain, env: {AGENT: x}}", "node": "{mode: code, image: node, env: {AGENT: x}}",
	})})
	checktest.Must(t, err)
	_, err = workflow.NewEngine(m, agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		run, _ := session.RunFromContext(ctx)
		base, _ := session.BaseFromContext(ctx)
		req := session.Request{Image: name, Env: map[string]string{"AGENT": "x"}}
		_, created, err := m.Open(ctx, run.Key(session.SessionNameFromContext(ctx)), req.WithDefaults(base))
		if created {
			err = errors.New("the agent got another sandbox")
		}
		return workflow.AgentOutput{}, err
	}), nil).Run(t.Context(), wf, nil)
	checktest.Must(t, err)
}

// gateway allows no host and records the requested hosts.
type gateway struct{ opened []string }

func (g *gateway) Open(_ string, list sandbox.Egress) (sandbox.Service, func(), error) {
	g.opened = append(g.opened, list.Allow...)
	return sandbox.Service{}, nil, backend.ErrInvalid
}

func (g *gateway) Refused(string, time.Time) []sandbox.EgressRefusal { return nil }

// TestResumedNetwork verifies that the commands of a resumed run reach the hosts both the sandbox's record and an
// agent's file specify.
func TestResumedNetwork(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]int{"a.example": 1, "b.example": 0} {
		wf := parse(t, `
sandbox: {image: a}
steps:
  - {id: b, type: agent, agent: x}
  - {id: a, type: exec, cmd: ["true"], allow_failure: true}`, "{mode: code, network: {allow: ["+host+"]}}")
		b, err := memory.New(nil)
		checktest.Must(t, err)
		b.On("true", memory.Answer{})
		e, err := wf.Begin(nil)
		checktest.Must(t, err)
		gate, store, key := &gateway{}, record.NewMemoryStore(), session.Key{Namespace: record.NamespaceWorkflow, ID: e.RunID, Name: record.DefaultName}
		opts := &session.Options{Instance: "test", Store: store, Egress: gate}
		first, err := session.NewManager(b, opts)
		checktest.Must(t, err)
		s, _, err := first.Open(t.Context(), key, session.Request{Image: "a"})
		checktest.Must(t, err)
		rec, err := store.Get(t.Context(), s.ID())
		rec.Request = strings.Replace(rec.Request, "{", `{"egress":{"allow":["a.example"]},`, 1)
		checktest.Must(t, errors.Join(err, first.Detach(t.Context()), store.Update(t.Context(), rec)))
		second, err := session.NewManager(b, opts)
		checktest.Must(t, err)
		res, err := workflow.NewEngine(second, agents(echo), nil).Resume(t.Context(), wf, []workflow.Entry{e})
		if len(gate.opened) != want || (err == nil) != (want == 0) {
			t.Errorf("%s: opened %v, %+v, %v", host, gate.opened, res, err)
		}
		checktest.Must(t, second.Close(t.Context()))
	}
}

func TestNoSandboxes(t *testing.T) {
	t.Parallel()
	wf := parse(t, "steps: [{id: a, type: exec, command: \"true\"}]")
	_, err := workflow.NewEngine(nil, nil, nil).Run(t.Context(), wf, nil)
	if !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("without a manager: %v", err)
	}
	wf = parse(t, "sandbox: {image: \"workcell/no-such-image:1\"}\nsteps: [{id: a, type: exec, command: \"true\"}]")
	m := newManager(t)
	res, err := workflow.NewEngine(m, nil, nil).Run(t.Context(), wf, nil)
	if !errors.Is(err, backend.ErrImage) || !strings.HasPrefix(err.Error(), "step a: ") || res.Error.Code != "image" {
		t.Errorf("with an unknown image: %v (%s)", err, res.Error.Code)
	}
	if n := left(t, m, ""); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// TestLiteralText verifies that a command gets plain numbers and booleans as they are written.
func TestLiteralText(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
sandbox: {image: a}
steps: [{id: a, type: exec, cmd: [chmod, 0644, &n 1e3, True, *n, "${ 010 }"], env: {V: 3.10}, stdin: 0x1F}]`)
	b, m := onMemory(t)
	b.Script(func(c memory.Command) (memory.Answer, bool) {
		got := fmt.Sprintf("%s %s %t", c.Line(), c.Stdin, slices.Contains(c.Env, "V=3.10"))
		return memory.Answer{Stdout: got}, c.Argv[0] == "chmod"
	})
	res, err := workflow.NewEngine(m, nil, nil).Run(t.Context(), wf, nil)
	if want := "chmod 0644 1e3 True 1e3 10 0x1F true"; err != nil || res.Output.(map[string]any)["stdout"] != want {
		t.Errorf("got %+v, %v; want %s", res.Output, err, want)
	}
}

// TestInvalidUTF8 verifies that the output of a command shows whether bytes were replaced.
func TestInvalidUTF8(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
sandbox: {image: a}
steps:
  - {id: bad, type: exec, cmd: ["bad"]}
  - {id: good, type: exec, cmd: ["good"]}
  - id: e
    type: end
    output: "${ [steps.bad.output.stdout, steps.bad.output.invalid_utf8, has(steps.good.output.invalid_utf8)] }"`)
	b, m := onMemory(t)
	b.On("bad", memory.Answer{Stdout: "a\x00\xffb"})
	b.On("good", memory.Answer{Stdout: "a\x00b"})
	res, err := workflow.NewEngine(m, agents(echo), nil).Run(t.Context(), wf, nil)
	if err != nil || fmt.Sprint(res.Output) != "[a\x00\uFFFDb true false]" {
		t.Errorf("%+v, %v", res, err)
	}
}
