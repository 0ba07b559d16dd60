package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/workflow"
)

// recordSpans returns a recorder for the spans of the test.
func recordSpans(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	provider, ok := otel.GetTracerProvider().(*sdktrace.TracerProvider)
	if !ok {
		t.Fatal("no provider of the SDK")
	}
	spans := &tracetest.SpanRecorder{}
	provider.RegisterSpanProcessor(spans)
	t.Cleanup(func() { provider.UnregisterSpanProcessor(spans) })
	return spans
}

// TestSpans verifies that the spans of a run form one tree: Workcell's spans, with ids, around Genkit's spans. They do
// not contain prompts or answers.
func TestSpans(t *testing.T) {
	spans := recordSpans(t)

	g := genkit.Init(t.Context(), genkit.WithPromptDir(t.TempDir()))
	genkit.DefineModelAction(g, "fake/model", nil, func(context.Context, *ai.ModelRequest, any, ai.ModelStreamCallback) (*ai.ModelResponse, error) {
		return &ai.ModelResponse{Message: ai.NewModelTextMessage("secret answer"), FinishReason: ai.FinishReasonStop}, nil
	})
	wf := parse(t, `
id: traced
steps:
  - {id: ask, type: agent, agent: asker, input: {q: secret question}}
  - {id: flaky, type: agent, agent: flaky, retry: {max_attempts: 2, backoff: 0s}}
  - {id: p, type: parallel, branches: [{id: one, steps: [{id: inner, type: agent, agent: asker}]}]}
  - {id: bad, type: fail, message: secret reason, if: input.fail}`)
	tries := 0
	engine := workflow.NewEngine(nil, agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		if tries++; name == "flaky" && tries == 2 {
			return workflow.AgentOutput{}, errors.New("secret trouble")
		}
		text, err := genkit.GenerateText(ctx, g, ai.WithModelName("fake/model"), ai.WithPrompt("hello"))
		return workflow.AgentOutput{Text: text}, err
	}), nil)
	res, err := engine.Run(t.Context(), wf, map[string]any{"fail": true})
	if err == nil {
		t.Fatal("the run succeeded")
	}

	stubs := tracetest.SpanStubsFromReadOnlySpans(spans.Ended())
	sort.SliceStable(stubs, func(i, j int) bool { return stubs[i].StartTime.Before(stubs[j].StartTime) })
	names := map[string]string{} // by span id: the path of names
	var tree []string
	for _, s := range stubs {
		if s.SpanContext.TraceID() != stubs[0].SpanContext.TraceID() {
			t.Errorf("%s is part of another trace", s.Name)
		}
		path := s.Name
		if parent := names[s.Parent.SpanID().String()]; parent != "" {
			path = parent + "/" + path
		} else if s.Parent.IsValid() {
			t.Errorf("%s has a missing parent", s.Name)
		}
		names[s.SpanContext.SpanID().String()] = path
		if !strings.HasPrefix(s.Name, "workflow.") && s.Name != "invoke_workflow traced" {
			tree = append(tree, path)
			continue
		}
		attrs := map[string]string{}
		for _, a := range s.Attributes {
			attrs[string(a.Key)] = a.Value.String()
		}
		if attrs["workcell.run.id"] != res.RunID || attrs["workcell.workflow.id"] != "traced" {
			t.Errorf("%s has %v", s.Name, attrs)
		}
		if all := fmt.Sprint(s.Attributes, s.Events, s.Status); strings.Contains(all, "secret") {
			t.Errorf("%s holds a secret: %s", s.Name, all)
		}
		tree = append(tree, strings.TrimSpace(fmt.Sprintf("%s %s#%s.%s %s", path, attrs["workcell.step.path"], attrs["workcell.step.visit"], attrs["workcell.step.attempt"], attrs["workcell.outcome"])))
	}
	const step = "invoke_workflow traced/traced/workflow.step"
	want := []string{
		"invoke_workflow traced #. failed",
		"invoke_workflow traced/traced",
		step + " ask#1.1 succeeded", step + "/ask", step + "/ask/generate", step + "/ask/generate/fake/model",
		step + " flaky#1.1 failed", step + "/flaky",
		step + " flaky#1.2 succeeded", step + "/flaky", step + "/flaky/generate", step + "/flaky/generate/fake/model",
		step + " p#1.1 succeeded", step + "/p",
		step + "/p/workflow.step p.one/inner#1.1 succeeded", step + "/p/workflow.step/inner",
		step + "/p/workflow.step/inner/generate", step + "/p/workflow.step/inner/generate/fake/model",
		step + " bad#1.1 failed", step + "/bad",
	}
	if diff := cmp.Diff(want, tree); diff != "" {
		t.Errorf("spans (-want +got)\n%s", diff)
	}
}

// TestResumedTraceLinks verifies that the trace of a resumed run links to the trace it continues.
func TestResumedTraceLinks(t *testing.T) {
	spans := recordSpans(t)

	wf := parse(t, "id: linked\nsteps: [{id: a, type: set, vars: {x: 1}}, {id: b, type: end}]")
	journal := &cutJournal{room: 2}
	engine := workflow.NewEngine(nil, nil, &workflow.Options{Journal: journal})
	for range 2 { // the process dies twice
		if entries := journal.entries(t); len(entries) == 0 {
			_, _ = engine.Run(t.Context(), wf, nil)
		} else {
			_, _ = engine.Resume(t.Context(), wf, entries)
		}
		journal.room = 1
	}
	journal.room = -1
	if res, err := engine.Resume(t.Context(), wf, journal.entries(t)); err != nil {
		t.Fatalf("%+v, %v", res, err)
	}
	var runs []sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if s.Name() == "invoke_workflow linked" {
			runs = append(runs, s)
		}
	}
	if len(runs) != 3 || len(runs[0].Links()) != 0 {
		t.Fatalf("%d spans of runs", len(runs))
	}
	for i, s := range runs[1:] {
		before := runs[i].SpanContext()
		if links := s.Links(); len(links) != 1 || links[0].SpanContext.TraceID() != before.TraceID() || links[0].SpanContext.SpanID() != before.SpanID() {
			t.Errorf("part %d links to %v, want %v", i+2, links, before)
		}
	}
}
