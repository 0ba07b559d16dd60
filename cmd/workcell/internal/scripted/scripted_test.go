package scripted_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/transcript"
)

const example = `
description: what a test runner answers
agents:
  test-runner:
    - - tool: add
        input: {a: 1, b: "${ input.b }"}
        text: adding
      - expect: last.sum == 3
        calls:
          - {tool: add, input: {a: "${ last.sum }", b: 10}}
          - {tool: add, input: {a: "${ last.sum }", b: 20}}
      - expect:
          - outputs.size() == 3
          - last.sum == 23
        json:
          passed: ${ last.sum == 23 }
          sums: "${ outputs.map(o, o.sum) }"
          note: "last was ${ last.sum }"
    - - text: second time for ${ prompt }
`

type sumIn struct {
	A int `json:"a"`
	B int `json:"b"`
}

type sumOut struct {
	Sum int `json:"sum"`
}

func parse(t *testing.T, src string) *scripted.Script {
	t.Helper()
	s, err := scripted.Parse("script.yaml", []byte(src))
	checktest.Must(t, err)
	return s
}

// start returns a function to run an agent with the script, with a real Genkit instance and a real tool.
func start(t *testing.T, src string) func(agent, prompt string, input map[string]any, opts ...ai.GenerateOption) (*ai.ModelResponse, error) {
	t.Helper()
	g := genkit.Init(t.Context(),
		genkit.WithPlugins(scripted.NewPlugin(parse(t, src))),
		genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	add := genkit.DefineTool(g, "add", "adds", func(_ *ai.ToolContext, in sumIn) (sumOut, error) {
		return sumOut{in.A + in.B}, nil
	})
	return func(agent, prompt string, input map[string]any, opts ...ai.GenerateOption) (*ai.ModelResponse, error) {
		opts = append(opts, ai.WithModelName(scripted.ModelName(agent)), ai.WithPrompt("%s", prompt), ai.WithTools(add))
		return genkit.Generate(scripted.WithRun(t.Context(), "run_1", input), g, opts...)
	}
}

func TestPlaysTurnsWithRealOutputs(t *testing.T) {
	t.Parallel()
	generate := start(t, example)

	resp, err := generate("test-runner", "go", map[string]any{"b": 2})
	checktest.Must(t, err)
	want := `{"note":"last was 23","passed":true,"sums":[3,13,23]}`
	if diff := cmp.Diff(want, resp.Text()); diff != "" {
		t.Errorf("first answer (-want +got):\n%s", diff)
	}

	resp, err = generate("test-runner", "you", nil)
	checktest.Must(t, err)
	if got, want := resp.Text(), "second time for you"; got != want {
		t.Errorf("second answer = %q, want %q", got, want)
	}

	_, err = generate("test-runner", "again", nil)
	wantError(t, err, `script.yaml: agent test-runner, invocation 3, turn 1: the script has only 2 invocation(s)`)
}

// TestEveryRunPlaysTheScript verifies that every run plays the script from the beginning, and a resumed run
// continues at the old position.
func TestEveryRunPlaysTheScript(t *testing.T) {
	t.Parallel()
	plugin := scripted.NewPlugin(parse(t, `agents: {a: [[{text: first}], [{text: second}]]}`))
	g := genkit.Init(t.Context(), genkit.WithPlugins(plugin), genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	plugin.Played("run_3", "a")
	for _, test := range []struct{ run, want string }{
		{"run_1", "first"}, {"run_2", "first"}, {"run_1", "second"}, {"run_3", "second"}, {"", "first"}, {"", "first"}, {"run_2", "second"},
	} {
		resp, err := genkit.Generate(scripted.WithRun(t.Context(), test.run, nil), g, ai.WithModelName(scripted.ModelName("a")), ai.WithPrompt("go"))
		if err != nil || resp.Text() != test.want {
			t.Errorf("run %q: %v, %v, want %q", test.run, resp, err, test.want)
		}
	}
}

func TestErrorsNameThePlace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ script, agent, want string }{
		{example, "test-runner", `script.yaml:8: agent test-runner, invocation 1, turn 2: expected last.sum == 3; the last tool output was {"sum":6}`},
		{`agents: {a: [[{text: "${ last.sum }"}]]}`, "a", `script.yaml:1: agent a, invocation 1, turn 1: `},
		{example, "stranger", `script.yaml has no turns for agent "stranger", only for test-runner`},
		{`agents: {a: [{when: "prompt == 'x'", turns: [{text: hi}]}]}`, "a", "agent a, invocation 1, turn 1: when is false for all 1 remaining invocations"},
	} {
		_, err := start(t, test.script)(test.agent, "go", map[string]any{"b": 5})
		wantError(t, err, test.want)
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	generate := start(t, `agents: {a: [[{text: "one two three"}]]}`)
	var chunks []string
	resp, err := generate("a", "go", nil, ai.WithStreaming(func(_ context.Context, c *ai.ModelResponseChunk) error {
		chunks = append(chunks, c.Text())
		return nil
	}))
	checktest.Must(t, err)
	if diff := cmp.Diff([]string{"one ", "two ", "three"}, chunks); diff != "" {
		t.Errorf("chunks (-want +got):\n%s", diff)
	}
	if resp.Text() != "one two three" {
		t.Errorf("text = %q", resp.Text())
	}
}

// TestParallelRunsTakeTheirOwnTurns verifies that concurrent runs of one agent do not mix. The conditions and the
// references of the tool calls separate them.
func TestParallelRunsTakeTheirOwnTurns(t *testing.T) {
	t.Parallel()
	var src strings.Builder
	src.WriteString("agents:\n  a:\n")
	names := []string{"p", "q", "r", "s", "t", "u"}
	for _, n := range names {
		src.WriteString("    - when: input.name == '" + n + "'\n      turns:\n")
		src.WriteString("        - {tool: add, input: {a: 1, b: 1}}\n        - {text: '" + n + " ${ last.sum }'}\n")
	}
	generate := start(t, src.String())
	got := make([]string, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() {
			resp, err := generate("a", n, map[string]any{"name": n})
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = resp.Text()
		})
	}
	wg.Wait()
	if diff := cmp.Diff([]string{"p 2", "q 2", "r 2", "s 2", "t 2", "u 2"}, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}

	_, err := generate("a", "x", map[string]any{"name": "x"})
	wantError(t, err, "the script has only 6 invocation(s)")
}

func TestModelsAreLabelled(t *testing.T) {
	t.Parallel()
	plugin := scripted.NewPlugin(parse(t, example))
	actions := plugin.ListActions(t.Context())
	if len(actions) != 1 || actions[0].Name != "scripted/test-runner" {
		t.Fatalf("actions = %+v", actions)
	}
	model, _ := actions[0].Metadata["model"].(map[string]any)
	if label, _ := model["label"].(string); !strings.Contains(label, "scripted") {
		t.Errorf("label = %q does not say scripted", label)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatal("no test data", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			src, err := os.ReadFile(path)
			checktest.Must(t, err)
			want, err := os.ReadFile(strings.TrimSuffix(path, ".yaml") + ".golden")
			checktest.Must(t, err)
			_, err = scripted.Parse("s.yaml", src)
			var problems hint.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("error = %v, want problems", err)
			}
			if diff := cmp.Diff(string(want), problems.Error()+"\n"); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	checktest.Must(t, os.WriteFile(path, []byte(example), 0o600))
	s, err := scripted.Load(path)
	checktest.Must(t, err)
	if !slices.Contains(s.Agents(), "test-runner") {
		t.Errorf("agents %v", s.Agents())
	}
	if _, err := scripted.Load(path + ".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

// FuzzParse verifies that the parser never panics, an accepted script has agents, and every problem contains
// the file's name.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("agents: {a: [[{text: x}]]}"))
	f.Add([]byte("a: &x [*x]\nagents: *x"))
	f.Add([]byte("agents:\n  ? [k]\n  : v\n<<: {a: b}"))
	f.Add([]byte("agents: {a: [{when: '1 +', turns: [{tool: t, input: {x: !!binary aGk=}}]}]}"))
	f.Fuzz(func(t *testing.T, src []byte) {
		s, err := scripted.Parse("f.yaml", src)
		if err == nil {
			if len(s.Agents()) == 0 {
				t.Fatal("a script without agents")
			}
			return
		}
		var problems hint.Problems
		if !errors.As(err, &problems) || len(problems) == 0 {
			t.Fatalf("error = %#v, want problems", err)
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Error(), "f.yaml:") || p.Message == "" {
				t.Fatalf("problem = %q", p.Error())
			}
		}
	})
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v, want %q in it", err, text)
	}
}

// TestContinues verifies that an invocation with a continued conversation counts as played, and Workcell's notices
// to the model do not begin another invocation.
func TestContinues(t *testing.T) {
	t.Parallel()
	p := scripted.NewPlugin(parse(t, example))
	if p.Continues("run_1", "test-runner", []string{"of-another-model", "scripted-9-0-0"}) || p.Continues("run_1", "nobody", []string{"scripted-0-0-0"}) {
		t.Error("it continues what is not of the script")
	}
	if !p.Continues("run_1", "test-runner", []string{"scripted-0-0-0"}) {
		t.Error("it does not continue its own conversation")
	}
	g := genkit.Init(t.Context(), genkit.WithPlugins(p), genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."))
	answer := func(messages ...*ai.Message) string {
		t.Helper()
		resp, err := genkit.Generate(scripted.WithRun(t.Context(), "run_1", nil), g,
			ai.WithModelName(scripted.ModelName("test-runner")), ai.WithMessages(messages...), ai.WithReturnToolRequests(true))
		checktest.Must(t, err)
		return resp.Text()
	}
	if got := answer(ai.NewUserTextMessage("me")); got != "second time for me" {
		t.Errorf("a new conversation: %q", got)
	}
	result := ai.NewToolResponsePart(&ai.ToolResponse{Name: "add", Ref: "scripted-0-1-1", Output: map[string]any{"sum": 23}})
	other := ai.NewToolResponsePart(&ai.ToolResponse{Name: "add", Ref: "scripted-0-1-0", Output: map[string]any{"sum": 3}})
	first := ai.NewToolResponsePart(&ai.ToolResponse{Name: "add", Ref: "scripted-0-0-0", Output: map[string]any{"sum": 3}})
	noticed := transcript.WithNotice(&ai.GenerateParams{Request: &ai.ModelRequest{}}, "the sandbox is new")
	got := answer(ai.NewUserTextMessage("go"), ai.NewMessage(ai.RoleTool, nil, first),
		ai.NewMessage(ai.RoleTool, nil, other, result), noticed.Request.Messages[0])
	if !strings.Contains(got, `"passed":true`) {
		t.Errorf("behind a notice: %q", got)
	}
}
