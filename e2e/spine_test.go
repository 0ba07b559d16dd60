// Package e2e runs the built command against a real engine and a real Jaeger, as a user would.
package e2e

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
	"github.com/workcell-dev/workcell/e2e/jaegertest"
)

// mapping makes the examples, which name official images, run on the images that the tests build.
var mapping = []string{
	"--map-image", "python:3.11-slim=workcell/python:3.11",
	"--map-image", "node:20-slim=workcell/node:22",
	"--map-image", "debian:bookworm-slim=workcell/debian:12",
}

// TestWorkflowIsOneTrace runs every example workflow and reads its trace back from Jaeger.
func TestWorkflowIsOneTrace(t *testing.T) {
	bin, jaeger := buildCLI(t), jaegertest.Start(t, root(t))
	for _, test := range []struct {
		workflow string
		agents   []string
		sandbox  int // containers that the run makes
	}{
		{"debug-and-fix", []string{"code-analyzer", "code-fixer", "test-runner"}, 1},
		{"code-review-and-fix", []string{"code-analyzer", "code-fixer", "test-runner"}, 1},
		{"polyglot-checks", []string{"node-developer"}, 2},
	} {
		t.Run(test.workflow, func(t *testing.T) {
			t.Parallel()
			// Secrets that must not show in the trace travel in the run's environment of the host.
			out := runCLI(t, bin, []string{
				"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + jaeger.OTLPGRPC, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
				"XDG_STATE_HOME=" + t.TempDir(),
			}, append([]string{
				"run", "examples/workflows/" + test.workflow + ".yaml", "-o", "json",
				"--model", "scripted/examples/workflows/scripts/" + test.workflow + ".yaml",
			}, mapping...)...)
			if out.code != 0 {
				t.Fatalf("exit code %d\n%s\n%s", out.code, out.stderr, out.stdout)
			}
			var result struct {
				RunID   string `json:"run_id"`
				Outcome string `json:"outcome"`
			}
			if err := json.Unmarshal([]byte(out.stdout), &result); err != nil {
				t.Fatalf("standard output is not one JSON value: %v\n%s", err, out.stdout)
			}
			if result.Outcome != "succeeded" {
				t.Errorf("outcome %q", result.Outcome)
			}
			match := regexp.MustCompile(`trace: ([0-9a-f]{32})`).FindStringSubmatch(out.stderr)
			if match == nil {
				t.Fatalf("no trace id on standard error:\n%s", out.stderr)
			}
			tree := jaeger.WaitTrace(t.Context(), t, match[1], complete)
			checkTree(t, tree, result.RunID)
			checkSandboxes(t, tree, test.sandbox)
			for _, agent := range test.agents {
				models := named(tree, "scripted/"+agent)
				if len(models) == 0 {
					t.Errorf("no model span of agent %s", agent)
				}
				for _, model := range models { // Genkit's generation stands between the agent and its model
					if above := above(model); !slices.Contains(above, "agent:"+agent) || !slices.Contains(above, "agent.Run") {
						t.Errorf("the model of %s is below %v", agent, above)
					}
				}
			}
			checkNoContents(t, tree)
			checkNothingLeft(t, result.RunID)
		})
	}
}

// complete tells whether the last span of a run, its root, has arrived and no span's parent is missing.
func complete(tree *jaegerapi.Trace) bool {
	return len(tree.Roots) == 1 && tree.Roots[0].Name == "workflow.run"
}

// named gives the spans of a name.
func named(tree *jaegerapi.Trace, name string) []*jaegerapi.Span {
	var found []*jaegerapi.Span
	for _, s := range tree.Spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// above gives the names of a span's ancestors, the nearest first.
func above(s *jaegerapi.Span) []string {
	var names []string
	for p := s.Parent; p != nil; p = p.Parent {
		names = append(names, p.Name)
	}
	return names
}

// checkTree asserts who stands above whom, and the run's id on our own spans.
func checkTree(t *testing.T, tree *jaegerapi.Trace, runID string) {
	t.Helper()
	if len(tree.Roots) != 1 || tree.Roots[0].Name != "workflow.run" {
		t.Errorf("%d roots, want one workflow.run", len(tree.Roots))
	}
	for _, link := range []struct{ below, above string }{
		{"workflow.step", "workflow.run"},
		{"agent.Run", "workflow.step"},
		{"sandbox_exec", "agent.Run"},
		{"session.Exec", "sandbox_exec"},
		{"session.Open", "workflow.step"},
		{"docker.Create", "session.Open"},
		{"docker.Dial", "session.Open"},
		{"session.Close", "workflow.run"},
		{"docker.Remove", "session.Close"},
	} {
		found := named(tree, link.below)
		if len(found) == 0 {
			t.Errorf("no span %s", link.below)
		}
		for _, s := range found {
			if above := above(s); !slices.Contains(above, link.above) &&
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

// checkSandboxes asserts how many containers the run made, and that every command ran in one of them.
func checkSandboxes(t *testing.T, tree *jaegerapi.Trace, want int) {
	t.Helper()
	ids := map[string]bool{}
	for _, s := range named(tree, "session.Exec") {
		ids[s.Tags["workcell.sandbox.id"]] = true
	}
	if made := len(named(tree, "docker.Create")); made != want || len(ids) != want {
		t.Errorf("%d containers made, commands in %d, want %d", made, len(ids), want)
	}
}

// checkNoContents asserts that our own attributes are on the list of what they may be, and hold no text of the run.
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

// checkNothingLeft asserts that neither a container nor a volume of the run is on the engine.
func checkNothingLeft(t *testing.T, runID string) {
	t.Helper()
	for _, list := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}} {
		out, err := exec.Command("docker", append(list, "--filter", "label=dev.workcell.run="+runID)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		if len(out) > 0 {
			t.Errorf("docker %s: left over: %s", strings.Join(list, " "), out)
		}
	}
}
