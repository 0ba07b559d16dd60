// Package e2e runs the built command with real engines, an OTLP collector, and a real Jaeger, like a user would.
package e2e

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
)

// mapping maps the official images in the examples to the images built for the tests.
var mapping = []string{
	"--map-image", "python:3.11-slim=workcell/python:3.11",
	"--map-image", "node:20-slim=workcell/node:22",
	"--map-image", "debian:bookworm-slim=workcell/debian:12",
}

// engines are the backends for every workflow.
var engines = []string{"docker", "containerd", "local"}

// spine is an example workflow and the expected properties of the runs on every engine.
type spine struct {
	workflow string
	agents   []string
	sandbox  int // number of sandboxes created by the run
}

// TestWorkflowIsOneTrace runs every example workflow on every engine, with a collector for the trace. Outputs and
// traces must be the same on all engines, except for the driver's name.
func TestWorkflowIsOneTrace(t *testing.T) {
	bin, collector := buildCLI(t), newCollector(t)
	for _, test := range []spine{
		{"debug-and-fix", []string{"code-analyzer", "code-fixer", "test-runner"}, 1},
		{"code-review-and-fix", []string{"code-analyzer", "code-fixer", "test-runner"}, 1},
		{"polyglot-checks", []string{"node-developer"}, 2},
	} {
		t.Run(test.workflow, func(t *testing.T) {
			t.Parallel()
			results := make([]result, len(engines))
			shapes := make([][]string, len(engines))
			t.Run("on", func(t *testing.T) { // ends when all of them have ended
				for i, engine := range engines {
					t.Run(engine, func(t *testing.T) {
						t.Parallel()
						var tree *jaegerapi.Trace
						results[i], tree = test.run(t, bin, engine, collector)
						shapes[i] = shape(tree, engine)
					})
				}
			})
			for i, engine := range engines[1:] {
				if diff := cmp.Diff(results[0], results[i+1]); diff != "" {
					t.Errorf("%s had another result than %s (-want +got)\n%s", engine, engines[0], diff)
				}
				if diff := cmp.Diff(shapes[0], shapes[i+1]); diff != "" {
					t.Errorf("%s had another trace than %s (-want +got)\n%s", engine, engines[0], diff)
				}
			}
		})
	}
}

// result is the output of a run, without the values specific to one run.
type result struct {
	Outcome string `json:"outcome"`
	Output  any    `json:"output"`
	Steps   int    `json:"steps"`
}

// run runs the workflow on an engine, checks the trace, and returns both.
func (s spine) run(t *testing.T, bin, engine string, c *collector) (result, *jaegerapi.Trace) {
	out := runCLI(t, bin, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.address, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"XDG_STATE_HOME=" + t.TempDir(),
	}, append([]string{
		"run", "examples/workflows/" + s.workflow + ".yaml", "-o", "json", "--backend", engine,
		"--model", "scripted/examples/workflows/scripts/" + s.workflow + ".yaml",
	}, mapping...)...)
	if out.Code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", out.Code, out.Stderr, out.Stdout)
	}
	var printed struct {
		RunID string `json:"run_id"`
		result
	}
	if err := json.Unmarshal([]byte(out.Stdout), &printed); err != nil {
		t.Fatalf("standard output is not one JSON value: %v\n%s", err, out.Stdout)
	}
	if printed.Outcome != "succeeded" {
		t.Errorf("outcome %q", printed.Outcome)
	}
	match := regexp.MustCompile(`trace: ([0-9a-f]{32})`).FindStringSubmatch(out.Stderr)
	if match == nil {
		t.Fatalf("no trace id on standard error:\n%s", out.Stderr)
	}
	tree := c.wait(t, match[1])
	checkTree(t, tree, printed.RunID, engine)
	checkSandboxes(t, tree, s.sandbox, engine)
	for _, agent := range s.agents {
		models := named(tree, "chat "+agent)
		if len(models) == 0 {
			t.Errorf("no model span of agent %s", agent)
		}
		for _, model := range models { // Genkit's generation spans are between the agent and the model
			if above := above(model); !slices.Contains(above, "agent:"+agent) || !slices.Contains(above, "invoke_agent "+agent) {
				t.Errorf("the model of %s is below %v", agent, above)
			}
		}
	}
	checkGenAI(t, tree)
	checkNoContents(t, tree)
	checkNothingLeft(t, printed.RunID)
	return printed.result, tree
}

// shape returns the positions of all spans in the tree, sorted, without the driver's name. It omits random properties:
// which of several concurrent tools or branches opens the sandbox, and how many of them wait until it is open.
func shape(tree *jaegerapi.Trace, engine string) []string {
	var places []string
	for _, s := range tree.Spans {
		path := append([]string{s.Name}, above(s)...)
		for i, name := range path {
			if rest, ok := strings.CutPrefix(name, engine+"."); ok {
				path[i] = "driver." + rest
			}
			if name == "session.Open" && strings.HasPrefix(path[i+1], "execute_tool sandbox_") {
				path[i+1] = "a tool"
			}
		}
		if opener := slices.Index(path, "session.Open"); opener > 0 {
			path = path[:opener+1]
		}
		slices.Reverse(path)
		place := strings.Join(path, " > ")
		if s.Name == "session.Open" && slices.Contains(places, place) {
			continue
		}
		places = append(places, place)
	}
	slices.Sort(places)
	return places
}

// complete reports whether the root span, which is the last span of a run, has arrived and all parents exist.
func complete(tree *jaegerapi.Trace) bool {
	return len(tree.Roots) == 1 && strings.HasPrefix(tree.Roots[0].Name, "invoke_workflow ")
}

// named returns the spans with a name, or with an operation on any object.
func named(tree *jaegerapi.Trace, name string) []*jaegerapi.Span {
	var found []*jaegerapi.Span
	for _, s := range tree.Spans {
		if s.Name == name || strings.HasPrefix(s.Name, name+" ") {
			found = append(found, s)
		}
	}
	return found
}

// above returns the names of a span's ancestors, nearest first.
func above(s *jaegerapi.Span) []string {
	var names []string
	for p := s.Parent; p != nil; p = p.Parent {
		names = append(names, p.Name)
	}
	return names
}

// checkTree verifies the parents of the spans, and the run's id in our own spans.
func checkTree(t *testing.T, tree *jaegerapi.Trace, runID, engine string) {
	t.Helper()
	if !complete(tree) {
		t.Errorf("%d roots, want one of the workflow", len(tree.Roots))
	}
	for _, link := range []struct{ below, above string }{
		{"workflow.step", "invoke_workflow"},
		{"invoke_agent", "workflow.step"},
		{"execute_tool", "invoke_agent"},
		{"session.Exec", "execute_tool"},
		{"session.Open", "workflow.step"},
		{engine + ".Create", "session.Open"},
		{engine + ".Dial", "session.Open"},
		{"session.Close", "invoke_workflow"},
		{engine + ".Remove", "session.Close"},
	} {
		found := named(tree, link.below)
		if len(found) == 0 {
			t.Errorf("no span %s", link.below)
		}
		for _, s := range found {
			isAbove := func(name string) bool { return name == link.above || strings.HasPrefix(name, link.above+" ") }
			if above := above(s); !slices.ContainsFunc(above, isAbove) &&
				!(link.below == "session.Exec" && slices.Contains(above, "workflow.step")) {
				t.Errorf("%s is not below %s but below %v", link.below, link.above, above)
			}
		}
	}
	for _, s := range tree.Spans {
		if !strings.HasPrefix(s.Name, "workflow.") && !strings.HasPrefix(s.Name, "session.") {
			continue
		}
		if got := s.Tags["workcell.run.id"]; got != runID {
			t.Errorf("%s has run id %q, want %q", s.Name, got, runID)
		}
		if strings.HasPrefix(s.Name, "session.") && s.Tags["workcell.sandbox.id"] == "" {
			t.Errorf("%s has no sandbox id", s.Name)
		}
	}
}

// checkGenAI classifies the trace like Jaeger's UI (jaegertracing/jaeger-ui, the GenAI view). A trace with any gen_ai.
// attribute is a trace of generative AI. gen_ai.operation.name determines whether a span is an agent, a model, or a
// tool. The tokens in the header are the sum over the models.
func checkGenAI(t *testing.T, tree *jaegerapi.Trace) {
	t.Helper()
	kinds := map[string]string{
		"chat": "LLM", "execute_tool": "TOOL", "invoke_agent": "AGENT", "create_agent": "AGENT", "invoke_workflow": "AGENT",
	}
	count := map[string]int{}
	sums := map[string]int{} // tokens by kind
	for _, s := range tree.Spans {
		kind := kinds[s.Tags["gen_ai.operation.name"]]
		count[kind]++
		for _, key := range []string{"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"} {
			if text, ok := s.Tags[key]; ok {
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Errorf("%s of %s is %q", key, s.Name, text)
				}
				sums[kind] += n
			}
		}
		want, _, _ := strings.Cut(s.Name, " ")
		if kinds[want] != kind {
			t.Errorf("%s is classed %q", s.Name, kind)
		}
		if strings.HasPrefix(s.Name, "sandbox_") || strings.HasPrefix(s.Tags["genkit:metadata:subtype"], "tool") && kind != "TOOL" {
			t.Errorf("%s is a tool and classed %q", s.Name, kind)
		}
		if kind == "TOOL" && s.Tags["gen_ai.tool.name"] == "" || kind == "LLM" && (s.Tags["gen_ai.request.model"] == "" || s.Tags["gen_ai.provider.name"] == "") {
			t.Errorf("%s lacks what the conventions require: %v", s.Name, s.Tags)
		}
	}
	if count["AGENT"] < 2 || count["LLM"] == 0 || count["TOOL"] == 0 {
		t.Errorf("classes %v", count)
	}
	if sums["LLM"] == 0 || sums["LLM"] != sums["AGENT"] { // the agents' tokens are the counts of the run
		t.Errorf("the models' tokens are %d, the run counted %d", sums["LLM"], sums["AGENT"])
	}
	if n := len(named(tree, "invoke_workflow")); n != 1 {
		t.Errorf("%d spans of the workflow, want 1", n)
	}
}

// checkSandboxes verifies the number of sandboxes created by the run. Every command must have run in one of them.
func checkSandboxes(t *testing.T, tree *jaegerapi.Trace, want int, engine string) {
	t.Helper()
	ids := map[string]bool{}
	for _, s := range named(tree, "session.Exec") {
		ids[s.Tags["workcell.sandbox.id"]] = true
	}
	if made := len(named(tree, engine+".Create")); made != want || len(ids) != want {
		t.Errorf("%d sandboxes made, commands in %d, want %d", made, len(ids), want)
	}
}

// checkNoContents verifies our own attributes. They must be in the list of allowed attributes, and contain no text of
// the run.
func checkNoContents(t *testing.T, tree *jaegerapi.Trace) {
	t.Helper()
	for _, s := range tree.Spans {
		for key, text := range s.Tags {
			switch key {
			case "genkit:input", "genkit:output", "genkit:init":
				t.Errorf("%s carries %s", s.Name, key)
			}
			if strings.HasPrefix(key, "workcell.") && strings.ContainsAny(text, "\n ") {
				t.Errorf("%s: %s = %q looks like contents", s.Name, key, text)
			}
		}
	}
}

// checkNothingLeft verifies that the run left nothing on any engine, including files and processes of the local
// backend.
func checkNothingLeft(t *testing.T, runID string) {
	t.Helper()
	label := "dev.workcell.run=" + runID
	for _, list := range [][]string{
		{"docker", "ps", "-aq", "--filter", "label=" + label},
		{"docker", "volume", "ls", "-q", "--filter", "label=" + label},
		{"ctr", "--namespace", "workcell", "containers", "ls", "-q", `labels."dev.workcell.run"==` + runID},
		{"grep", "--recursive", "--files-with-matches", "--no-messages", "--exclude-dir=workspace", runID,
			"/var/lib/workcell/containerd", "/var/lib/workcell/local"},
	} {
		out, err := exec.Command(list[0], list[1:]...).Output()
		if err != nil && list[0] != "grep" { // grep fails if it finds nothing
			t.Fatal(err)
		}
		if len(out) > 0 {
			t.Errorf("%s: left over: %s", strings.Join(list, " "), out)
		}
	}
}
