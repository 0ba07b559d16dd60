package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/leaktest"
	"github.com/workcell-dev/workcell/workflow"
)

func TestMain(m *testing.M) {
	// At the first span, Genkit sets a global provider if none is set.
	otel.SetTracerProvider(sdktrace.NewTracerProvider())
	leaktest.Main(m)
}

// agents implements AgentRunner with a function.
type agents func(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error)

func (f agents) RunAgent(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
	return f(ctx, name, input)
}

// echo answers with the name of the agent.
func echo(_ context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
	return workflow.AgentOutput{Text: name}, nil
}

// script returns each agent's answers in order. The last answer is repeated.
func script(answers map[string][]any) agents {
	var mu sync.Mutex
	calls := map[string]int{}
	return func(_ context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		mu.Lock()
		defer mu.Unlock()
		list := answers[name]
		if len(list) == 0 {
			return workflow.AgentOutput{}, fmt.Errorf("no answer for %s", name)
		}
		answer := list[min(calls[name], len(list)-1)]
		calls[name]++
		switch a := answer.(type) {
		case error:
			return workflow.AgentOutput{}, a
		case string:
			return workflow.AgentOutput{Text: a}, nil
		default:
			return workflow.AgentOutput{Output: a}, nil
		}
	}
}

// parse loads a workflow. The source may omit everything before the steps. sandbox is the `sandbox:` of agent x.
func parse(t testing.TB, src string, sandbox ...string) *workflow.Workflow {
	t.Helper()
	src = strings.TrimLeft(src, "\n")
	if strings.HasPrefix(src, "  - ") {
		src = "steps:\n" + src
	}
	if !strings.HasPrefix(src, "id: ") {
		src = "id: w\n" + src
	}
	opts := &workflow.LoadOptions{}
	if len(sandbox) > 0 {
		opts.Agents = agentFiles(map[string]string{"x": sandbox[0]})
	}
	wf, err := workflow.Parse("test.yaml", []byte(src), opts)
	checktest.Must(t, err)
	return wf
}

// stops runs a workflow without input, which must end with the error, or without one if want is nil.
func stops(t testing.TB, e *workflow.Engine, wf *workflow.Workflow, want error) {
	t.Helper()
	if _, err := e.Run(t.Context(), wf, nil); !errors.Is(err, want) {
		t.Fatal(err)
	}
}

// recorder stores the events of an engine.
type recorder struct {
	mu     sync.Mutex
	events []workflow.Event
}

func (r *recorder) add(ev workflow.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, ev)
}

// trail returns the finished and skipped steps as "path:status".
func (r *recorder) trail() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, ev := range r.events {
		switch ev.Kind {
		case workflow.EventStepFinished, workflow.EventStepSkipped:
			out = append(out, fmt.Sprintf("%s:%s", ev.Path, ev.Status))
		}
	}
	return out
}
