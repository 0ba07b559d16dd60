package tools_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/status"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/middleware"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

func TestMiddleware(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	resp, seen, err := r.generate(context.Background(), codeMode(),
		func(*ai.ModelRequest) ([]*ai.Part, error) {
			if r.engine.created() != 0 {
				t.Error("a sandbox was made before a tool needed it")
			}
			return call("sandbox_open", obj{})(nil)
		},
		call("sandbox_fs_write", obj{"path": "a.sh", "contents": "echo hello"}),
		call("sandbox_exec", obj{"cmd": []string{"sh", "a.sh"}}, "sandbox_fs_read", obj{"path": "a.sh"}),
		func(req *ai.ModelRequest) ([]*ai.Part, error) {
			out := outputsOf(req)
			return []*ai.Part{ai.NewTextPart(fmt.Sprint(out[2]["stdout"], out[3]["contents"]))}, nil
		})
	checktest.Must(t, err)
	if resp.Text() != "hello\necho hello" {
		t.Errorf("answer %q", resp.Text())
	}
	if r.engine.created() != 1 || r.engine.open() != 0 {
		t.Errorf("%d sandboxes were made, %d are left", r.engine.created(), r.engine.open())
	}
	for i, req := range seen.list {
		var names []string
		for _, tool := range req.Tools {
			names = append(names, tool.Name)
		}
		if len(names) != 12 || !slices.IsSorted(names) || slices.Contains(names, "sandbox_unknown_tool") {
			t.Errorf("tools of turn %d: %v", i, names)
		}
	}
}

func TestComputeModeOffersOneTool(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, seen, err := r.generate(context.Background(), bash(),
		call("sandbox_run", obj{"code": "echo hi"}, "sandbox_exec", obj{"command": "x"}), say("done"))
	checktest.Must(t, err)
	if n := len(seen.list[0].Tools); n != 1 {
		t.Errorf("%d tools", n)
	}
	out := seen.outputs()
	if out[0]["stdout"] != "hi\n" || code(out[1]) != "not_found" || !strings.Contains(message(out[1]), `unknown tool "sandbox_exec"`) {
		t.Errorf("%v", out)
	}
}

// dangerous registers a tool no model is offered.
func (r *rig) dangerous() {
	genkit.DefineTool(r.g, "dangerous", "is never offered", func(*ai.ToolContext, struct{}) (string, error) {
		r.t.Error("a tool that was not offered ran")
		return "", nil
	})
}

// TestModelMistakes verifies that no mistake of a confused model ends the run.
func TestModelMistakes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.dangerous()
	bomb := ai.NewTool("bomb", "panics", func(*ai.ToolContext, struct {
		N int `json:"n"`
	}) (string, error) {
		panic("boom /var/lib/secret")
	})
	name, seen := r.model(
		call("sandbox_execute", obj{"command": "ls"}, "sandbox_run", obj{}, "dangerous", obj{}, "rm -rf /", nil, "", obj{"a": "b"}, "sandbox_unknown_tool", obj{"tool": "x"}),
		call("sandbox_exec", obj{"cmdd": []string{"ls"}}, "sandbox_exec", nil, "sandbox_exec", "text", "sandbox_exec", []any{1}, "sandbox_fs_read", obj{"path": obj{}}),
		call("bomb", obj{"n": 1}, "bomb", obj{"n": "one"}, "bomb", obj{"n": 1, "extra": 2}),
		call("sandbox_exec", obj{"command": "echo still alive"}),
		say("done"),
	)
	resp, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(name), ai.WithPrompt("go"), ai.WithMaxTurns(10),
		ai.WithTools(bomb), ai.WithUse(r.plugin.Use(codeMode())))
	if err != nil || resp.Text() != "done" {
		t.Fatalf("%v: %v", resp, err)
	}
	out := seen.outputs()
	for i, want := range []struct{ code, text string }{
		{"not_found", `unknown tool "sandbox_execute"; Did you mean sandbox_exec? Call one of: bomb, sandbox_close, sandbox_exec,`},
		{"not_found", `unknown tool "sandbox_run"; Did you mean sandbox_exec?`},
		{"not_found", `unknown tool "dangerous"`},
		{"not_found", `unknown tool "rm -rf /"`},
		{"not_found", `unknown tool ""`},
		{"not_found", `unknown tool "sandbox_unknown_tool"`},
		{"invalid_argument", `unknown argument "cmdd", did you mean "cmd"?`},
		{"invalid_argument", "cmd or command is required"},
		{"invalid_argument", "the arguments must be a JSON object"},
		{"invalid_argument", "the arguments must be a JSON object"},
		{"invalid_argument", "path must be text, not an object"},
		{"internal", "bomb failed unexpectedly"},
		{"invalid_argument", "the arguments of bomb do not fit its schema"},
		{"invalid_argument", "the arguments of bomb do not fit its schema"},
	} {
		if code(out[i]) != want.code || !strings.Contains(message(out[i]), want.text) || strings.Contains(message(out[i]), "/var/") {
			t.Errorf("output %d: %v, want %v", i, out[i], want)
		}
	}
	if out[14]["stdout"] != "still alive\n" {
		t.Errorf("%v", out[14])
	}
	if !strings.Contains(r.log.String(), "boom") {
		t.Error("operators are not told of the panic")
	}
}

// TestFallback verifies that the model of a fallback gets the same request and the same checks as the agent's model,
// and that its usage counts.
func TestFallback(t *testing.T) {
	t.Parallel()
	r := newRig(t, &middleware.Middleware{})
	r.dangerous()
	down := func(*ai.ModelRequest) ([]*ai.Part, error) { return nil, status.Errorf(status.ErrUnavailable, "down") }
	first, _ := r.model(down, down, down, down)
	second, seen := r.model(call("dangerous", obj{}), say("done"), call("dangerous", obj{}), say("done"))
	use := "use: [{name: genkit-middleware/fallback, config: {models: [{name: " + second + "}]}}]\n"
	a := r.agent("spare", "---\nmodel: "+first+"\nsandbox: bash\n"+use+"---\nx")
	res, err := a.Run(context.Background(), nil, nil)
	if err != nil || res.Turns != 2 || res.InputTokens != 20 || code(seen.outputs()[0]) != "not_found" {
		t.Errorf("%+v, outputs %v: %v", res, seen.outputs(), err)
	}
	if offered := seen.list[0].Tools; len(offered) != 1 || offered[0].Name != "sandbox_run" {
		t.Errorf("%d tools are offered", len(offered))
	}
	// Here, the guard does not see the second model.
	_, err = genkit.Generate(context.Background(), r.g, ai.WithModelName(first), ai.WithPrompt("go"),
		ai.WithUse(&middleware.Fallback{Models: []ai.ModelRef{ai.NewModelRef(second, nil)}}, r.plugin.Use(bash())))
	if err != nil || code(seen.outputs()[0]) != "not_found" {
		t.Errorf("outputs %v: %v", seen.outputs(), err)
	}
}

// TestFallbackOfCodingAgent verifies that a run fails if the coding agent did not run and another model answered.
func TestFallbackOfCodingAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t, &middleware.Middleware{})
	asked := 0
	genkit.DefineModelAction(r.g, "test/second", &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, Media: true}},
		func(context.Context, *ai.ModelRequest, any, ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			asked++
			return &ai.ModelResponse{Message: ai.NewModelTextMessage("I fixed it"), FinishReason: ai.FinishReasonStop}, nil
		})
	a := r.agent("coder", "---\nuse: [{name: genkit-middleware/fallback, config: {models: [{name: test/second}]}}]\n"+
		"sandbox: {mode: executor, image: x, executor: {command: custom, argv: [echo]}}\n---\nx")
	image := ai.NewUserMessage(ai.NewMediaPart("image/png", "data:image/png;base64,"))
	res, err := a.Run(t.Context(), nil, &tools.RunOptions{Messages: []*ai.Message{image}})
	if !errors.Is(err, backend.ErrUnsupported) || asked != 1 {
		t.Errorf("%+v, %v, the second model was asked %d times", res, err, asked)
	}
}

// TestUnopenedSandbox verifies that Generate returns an error if the sandbox could not be opened, although the model
// answered. Without a user, it does not ask the model.
func TestUnopenedSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.onCreate(func(context.Context) error { return backend.ErrImage })
	name, _ := r.model(call("sandbox_exec", obj{"command": "true"}), say("done"))
	generate := func(cfg tools.Sandbox) error {
		_, err := genkit.Generate(t.Context(), r.g, ai.WithModelName(name), ai.WithPrompt("go"),
			ai.WithUse(r.plugin.Use(cfg)))
		return err
	}
	users := codeMode()
	users.Session = frontmatter.SessionUser
	if err := generate(users); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("without a user: %v", err)
	}
	err := generate(codeMode())
	if !errors.Is(err, backend.ErrImage) || !strings.Contains(err.Error(), "cannot open the sandbox") {
		t.Errorf("without an image: %v", err)
	}
}

// TestOtherToolsKeepTheirErrors verifies that the errors of tools outside of Workcell are unchanged.
func TestOtherToolsKeepTheirErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := ai.NewTool("bad", "fails", func(*ai.ToolContext, struct{}) (string, error) { return "", errors.New("boom") })
	name, _ := r.model(call("bad", obj{}), say("done"))
	_, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(name), ai.WithPrompt("go"), ai.WithTools(bad), ai.WithUse(r.plugin.Use(codeMode())))
	if !errors.Is(err, ai.ErrToolFailed) {
		t.Errorf("error %v", err)
	}
}

func TestInterrupts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("approved", session.Request{})
	name, _ := r.model(call("sandbox_exec", obj{"command": "echo approved"}), say("unused"))
	use := ai.WithUse(&middleware.ToolApproval{}, r.plugin.Use(codeMode()))
	resp, err := genkit.Generate(ctx, r.g, ai.WithModelName(name), ai.WithPrompt("go"), use)
	if err != nil || resp.FinishReason != ai.FinishReasonInterrupted || len(resp.Interrupts()) != 1 {
		t.Fatalf("%+v: %v", resp, err)
	}
	if r.engine.created() != 0 {
		t.Error("it ran without approval")
	}
	part := ai.NewToolRequestPart(resp.Interrupts()[0].ToolRequest)
	part.Metadata = map[string]any{"resumed": map[string]any{"toolApproved": true}}
	name, seen := r.model(say("done"))
	if _, err = genkit.Generate(ctx, r.g, ai.WithModelName(name), ai.WithMessages(resp.History()...), ai.WithToolRestarts(part), use); err != nil {
		t.Fatal(err)
	}
	out := seen.outputs()
	if len(out) != 1 || out[0]["stdout"] != "approved\n" {
		t.Errorf("%v", out)
	}
}

func TestCancelledGenerate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	_, _, err := r.generate(ctx, codeMode(),
		call("sandbox_open", nil),
		func(*ai.ModelRequest) ([]*ai.Part, error) {
			time.AfterFunc(200*time.Millisecond, cancel)
			return call("sandbox_exec", obj{"command": "sleep 60"})(nil)
		},
		say("never"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	eventually(t, "the sandbox goes", func() bool { return r.engine.open() == 0 })
}

// TestRunsKeepTheirSandboxes verifies that a run's sandbox stays open for the next step until the run's creator closes
// it.
func TestRunsKeepTheirSandboxes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := session.Run{Namespace: record.NamespaceWorkflow, ID: session.NewRunID()}
	ctx := session.WithRun(context.Background(), run)
	if _, _, err := r.generate(ctx, codeMode(), call("sandbox_fs_write", obj{"path": "f", "contents": "x"}), say("")); err != nil {
		t.Fatal(err)
	}
	isolated := codeMode()
	isolated.Session = frontmatter.SessionIsolated
	_, seen, err := r.generate(ctx, isolated, call("sandbox_fs_read", obj{"path": "f"}), say(""))
	if err != nil || code(seen.outputs()[0]) != "not_found" {
		t.Errorf("the isolated step: %v, %v", seen.outputs(), err)
	}
	if r.engine.created() != 2 || r.engine.open() != 1 {
		t.Errorf("%d made, %d open", r.engine.created(), r.engine.open())
	}
	_, seen, err = r.generate(ctx, codeMode(), call("sandbox_fs_read", obj{"path": "f"}, "sandbox_open", nil), say(""))
	if err != nil || seen.outputs()[0]["contents"] != "x" || seen.outputs()[1]["created"] != false {
		t.Errorf("the next step: %v, %v", seen.outputs(), err)
	}
	if err := r.manager.CloseScope(ctx, run.Scope()); err != nil || r.engine.open() != 0 {
		t.Errorf("%d open: %v", r.engine.open(), err)
	}
}

func TestMiddlewareByName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	generate := func(config any) (*requests, error) {
		name, seen := r.model(call("sandbox_exec", obj{"command": "echo $A"}), say("done"))
		_, err := genkit.GenerateWithRequest(context.Background(), r.g, &ai.GenerateActionOptions{
			Model: name, Messages: []*ai.Message{ai.NewUserTextMessage("go")},
			Use: []*ai.MiddlewareRef{{Name: "workcell/sandbox", Config: config}},
		}, nil, nil)
		return seen, err
	}
	seen, err := generate(obj{"mode": "code", "runtime": "bash", "env": obj{"A": "b"}})
	if err != nil || seen.outputs()[0]["stdout"] != "b\n" {
		t.Errorf("%v: %v", seen.outputs(), err)
	}
	// The configuration of one call must not affect the next call.
	seen, err = generate(obj{"mode": "code", "runtime": "bash"})
	if err != nil || seen.outputs()[0]["stdout"] != "\n" {
		t.Errorf("%v: %v", seen.outputs(), err)
	}
	for config, want := range map[string]string{"imgae": `unknown key "imgae" in sandbox; did you mean "image"?`, "limits": "sandbox.limits must be a mapping"} {
		if _, err := generate(obj{"mode": "code", config: "x"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
	desc := genkit.LookupMiddleware(r.g, "workcell/sandbox")
	if desc == nil || sub(desc.ConfigSchema["properties"])["limits"] == nil {
		t.Errorf("the Dev UI sees %+v", desc)
	}
}

func TestInvalidSandboxInGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := codeMode()
	s.Limits.PIDs, s.Runtime = -1, "ruby"
	_, _, err := r.generate(context.Background(), s, say("never"))
	if err == nil || !strings.Contains(err.Error(), "limits.pids must be 16 to 4194304, not -1") || !strings.Contains(err.Error(), `unknown runtime "ruby"`) {
		t.Errorf("error %v", err)
	}
	if _, err := r.plugin.Tools(context.Background(), s); err == nil {
		t.Error("Tools took it")
	}
}

// TestPluginSetUpWrongly verifies that an invalid plugin panics. genkit.Init returns no error, so Genkit's plugins
// panic.
func TestPluginSetUpWrongly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for want, init := range map[string]func(){
		"already initialized":   func() { initGenkit(t, fstest.MapFS{}, r.plugin) },
		"Plugin.Manager is nil": func() { initGenkit(t, fstest.MapFS{}, &tools.Plugin{}) },
	} {
		func() {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), want) {
					t.Errorf("panic %v, want %q", p, want)
				}
			}()
			init()
		}()
	}
}

// TestConcurrentGenerates verifies that many concurrent conversations can use one middleware value and shared tools.
func TestConcurrentGenerates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	shared, err := r.plugin.Tools(context.Background(), codeMode())
	checktest.Must(t, err)
	var refs []ai.ToolRef
	for _, tool := range shared {
		refs = append(refs, tool)
	}
	ways := []ai.GenerateOption{ai.WithUse(r.plugin.Use(codeMode())), ai.WithTools(refs...)}
	var wg sync.WaitGroup
	for i := range 8 {
		name, seen := r.model(call("sandbox_exec", obj{"command": fmt.Sprintf("echo %d", i)}), say("done"))
		wg.Go(func() {
			_, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(name), ai.WithPrompt("go"), ways[i%2])
			if out := seen.outputs(); err != nil || out[0]["stdout"] != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d: %v, %v", i, out, err)
			}
		})
	}
	wg.Wait()
	if genkit.LookupTool(r.g, "sandbox_exec") != nil {
		t.Error("a sandbox tool is registered globally")
	}
}
