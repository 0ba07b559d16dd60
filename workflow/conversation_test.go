package workflow_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/workflow"
)

// talkers are agents whose answers depend on the results of their tools, in two rounds of two calls. They count the
// calls by agent, round, and call, over all processes.
type talkers struct {
	mu    sync.Mutex
	calls map[string]int
	fails map[string]int // how often an agent fails at the end of its conversation
	large int            // additional bytes of each tool result
	is    string         // digest of the agents' definition
}

func (a *talkers) RunAgent(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
	text, err := converse(ctx, transcript.Claim(ctx, name), a.is, fmt.Sprint(name, input["it"]),
		func(_ context.Context, past []*ai.Message, i int) (any, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			call := fmt.Sprint(past[0].Text(), " ", len(past), " ", i)
			a.calls[call]++
			return call + strings.Repeat("x", a.large), nil
		})
	if err != nil {
		return workflow.AgentOutput{}, err
	}
	return workflow.AgentOutput{Text: text}, a.failure(name)
}

// converse continues a recorded conversation with the model twoRounds, or begins it with a question. It returns the
// answer. call returns the result of a tool call: the past messages, and the index of the call in its round.
func converse(ctx context.Context, rec *transcript.Recorder, digest, question string,
	call func(ctx context.Context, past []*ai.Message, i int) (any, error)) (string, error) {
	if rec == nil {
		return "", errors.New("no recorder")
	}
	if err := rec.Define(ctx, digest); err != nil {
		return "", err
	}
	past, err := rec.Progress()
	if err != nil {
		return "", err
	}
	hooks, messages := rec.Hooks(), past.Messages
	if messages == nil {
		messages = []*ai.Message{ai.NewUserTextMessage(question)}
	}
	for {
		req := &ai.ModelRequest{Messages: messages, Tools: []*ai.ToolDefinition{{Name: "x"}, {Name: "y"}}}
		resp, err := hooks.WrapModel(ctx, &ai.ModelParams{Request: req}, twoRounds)
		if err != nil {
			return "", err
		}
		if len(resp.ToolRequests()) == 0 {
			return resp.Text(), nil
		}
		answers := &ai.Message{Role: ai.RoleTool}
		for i, p := range resp.ToolRequests() {
			made := func(ctx context.Context, _ *ai.ToolParams) (*ai.MultipartToolResponse, error) {
				out, err := call(ctx, messages, i)
				return &ai.MultipartToolResponse{Output: out}, err
			}
			out, err := hooks.WrapTool(ctx, &ai.ToolParams{Request: p.ToolRequest}, made)
			if err != nil {
				return "", err
			}
			answer := &ai.ToolResponse{Name: p.ToolRequest.Name, Ref: p.ToolRequest.Ref, Output: out.Output}
			answers.Content = append(answers.Content, ai.NewToolResponsePart(answer))
		}
		messages = append(messages[:len(messages):len(messages)], resp.Message, answers)
	}
}

func (a *talkers) failure(name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fails[name]--; a.fails[name] >= 0 {
		return errors.New("not yet")
	}
	return nil
}

// twoRounds is a model calling two tools twice and then answers with all their results.
func twoRounds(_ context.Context, p *ai.ModelParams) (*ai.ModelResponse, error) {
	var text []string
	for _, m := range p.Request.Messages {
		for _, part := range m.Content {
			if part.IsToolResponse() {
				text = append(text, fmt.Sprint(part.ToolResponse.Output))
			}
		}
	}
	m := ai.NewModelTextMessage(strings.Join(text, ", "))
	if len(text) < 4 {
		m = ai.NewModelMessage(ai.NewToolRequestPart(&ai.ToolRequest{Name: "x"}), ai.NewToolRequestPart(&ai.ToolRequest{Name: "y"}))
	}
	return &ai.ModelResponse{Request: p.Request, Message: m}, nil
}

// talks contains agents with conversations in all kinds of steps: single, retried, and concurrent for several items.
const talks = `
  - {id: flaky, type: agent, agent: flaky, retry: {max_attempts: 2, backoff: 0s}}
  - id: each
    type: for_each
    items: "${ [1, 2] }"
    as: it
    max_concurrency: 2
    steps:
      - {id: talk, type: agent, agent: talk, input: {it: "${ it }"}}
    output: "${ steps.talk.output }"
  - {id: done, type: end, output: {flaky: "${ steps.flaky.output }", each: "${ steps.each.output }"}}
`

// TestConversationsContinue interrupts a run after each of its journal entries. It verifies that the resumed agents
// make each call once in each attempt, except for a call whose result was not recorded, and give the same answers.
func TestConversationsContinue(t *testing.T) {
	t.Parallel()
	wf := parse(t, talks)
	whole, full := &talkers{calls: map[string]int{}, fails: map[string]int{"flaky": 1}}, &cutJournal{room: -1}
	want, err := workflow.NewEngine(nil, whole, &workflow.Options{Journal: full}).Run(t.Context(), wf, nil)
	if err != nil || len(whole.calls) != 12 || whole.calls["flaky<nil> 1 0"] != 2 {
		t.Fatalf("%v, %v", err, whole.calls)
	}
	continued := 0
	for cut := 1; cut < len(full.lines); cut++ {
		a, journal := &talkers{calls: map[string]int{}, fails: map[string]int{"flaky": 1}}, &cutJournal{room: cut}
		var turns int
		engine := workflow.NewEngine(nil, a, &workflow.Options{Journal: journal, OnEvent: func(ev workflow.Event) { turns += ev.Turns }})
		if _, err := engine.Run(t.Context(), wf, nil); !errors.Is(err, workflow.ErrJournal) {
			t.Fatalf("cut %d: the first process: %v", cut, err)
		}
		before := journal.entries(t)
		unrecorded := maps.Clone(a.calls)
		for _, line := range journal.lines {
			for call := range unrecorded {
				unrecorded[call] -= bytes.Count(line, []byte(`{"output":"`+call+`"}`))
			}
		}
		a.fails["flaky"] = 1 // the recorded failure does not repeat, but the agent fails again
		if slices.ContainsFunc(before, func(e workflow.Entry) bool { return e.Retry }) {
			a.fails["flaky"] = 0
		}
		journal.room = -1
		got, err := engine.Resume(t.Context(), wf, before)
		if err != nil || fmt.Sprint(got.Output) != fmt.Sprint(want.Output) {
			t.Fatalf("cut %d: %v, %v", cut, got, err)
		}
		continued += turns
		for call, n := range a.calls {
			if n > whole.calls[call]+unrecorded[call] {
				t.Errorf("cut %d: %s was made %d times, %d of them not recorded, want %d", cut, call, n, unrecorded[call], whole.calls[call])
			}
		}
	}
	if continued == 0 {
		t.Error("no conversation was continued")
	}
}

// TestContinueWithoutJournal verifies that a run that is resumed without a journal continues the conversations.
func TestContinueWithoutJournal(t *testing.T) {
	t.Parallel()
	wf := parse(t, "  - {id: a, type: agent, agent: talk}\n")
	a, journal := &talkers{calls: map[string]int{}, fails: map[string]int{}}, &cutJournal{room: 4} // with the first result
	stops(t, workflow.NewEngine(nil, a, &workflow.Options{Journal: journal}), wf, workflow.ErrJournal)
	_, err := workflow.NewEngine(nil, a, nil).Resume(t.Context(), wf, journal.entries(t))
	checktest.Must(t, err)
	if a.calls["talk<nil> 1 0"] != 1 || a.calls["talk<nil> 1 1"] != 2 || a.calls["talk<nil> 3 0"] != 1 {
		t.Errorf("calls: %v", a.calls)
	}
}

// TestLargeConversation verifies that an agent whose conversation is too large to store starts from the beginning, and
// that the event contains the reason.
func TestLargeConversation(t *testing.T) {
	t.Parallel()
	wf := parse(t, "  - {id: a, type: agent, agent: talk}\n")
	a, journal := &talkers{calls: map[string]int{}, fails: map[string]int{}, large: 3 * transcript.MaxBytes / 4}, &cutJournal{room: 5}
	var lost string
	turns := 0
	engine := workflow.NewEngine(nil, a, &workflow.Options{Journal: journal, OnEvent: func(ev workflow.Event) {
		lost, turns = lost+ev.Lost, turns+ev.Turns
	}})
	stops(t, engine, wf, workflow.ErrJournal)
	before := journal.entries(t)
	if last := string(before[len(before)-1].Conversation); !strings.Contains(last, `"lost":`) {
		t.Fatalf("the record ends with %.100s", last)
	}
	journal.room, a.large = -1, 0
	got, err := engine.Resume(t.Context(), wf, before)
	if err != nil || !strings.Contains(lost, "16 MiB") || turns != 0 {
		t.Errorf("%v, %v, lost: %q, behind turn %d", got, err, lost, turns)
	}
	if a.calls["talk<nil> 1 0"] != 2 {
		t.Errorf("calls: %v", a.calls)
	}
}

// TestChangedAgent verifies that an agent that has changed since the interruption starts from the beginning, and that
// an event contains the reason. The new conversation is recorded, so a second interruption continues it.
func TestChangedAgent(t *testing.T) {
	t.Parallel()
	wf := parse(t, "  - {id: a, type: agent, agent: talk}\n")
	a, journal := &talkers{calls: map[string]int{}, fails: map[string]int{}}, &cutJournal{room: 5} // with two results
	var said []string
	engine := workflow.NewEngine(nil, a, &workflow.Options{Journal: journal, OnEvent: func(ev workflow.Event) {
		if ev.Kind == workflow.EventStepProgress {
			said = append(said, fmt.Sprint(ev.Path, " ", ev.Repeats, " ", ev.Lost))
		}
	}})
	stops(t, engine, wf, workflow.ErrJournal)
	a.is, journal.room = "another", 6 // two entries of the resumed run, one for the new start, and the first round
	if _, err := engine.Resume(t.Context(), wf, journal.entries(t)); !errors.Is(err, workflow.ErrJournal) {
		t.Fatal(err)
	}
	if a.calls["talk<nil> 1 0"] != 2 || a.calls["talk<nil> 1 1"] != 2 {
		t.Errorf("calls: %v", a.calls)
	}
	journal.room = -1
	_, err := engine.Resume(t.Context(), wf, journal.entries(t))
	checktest.Must(t, err)
	if a.calls["talk<nil> 1 0"] != 2 || a.calls["talk<nil> 3 1"] != 1 {
		t.Errorf("calls: %v", a.calls)
	}
	if got := strings.Join(said, "|"); got != "a true the agent has changed since its conversation began" {
		t.Errorf("events: %s", got)
	}
}

// TestSpoiledConversations verifies that a journal with modified conversations is refused.
func TestSpoiledConversations(t *testing.T) {
	t.Parallel()
	wf := parse(t, "  - {id: a, type: agent, agent: talk}\n")
	journal := &cutJournal{room: 6} // both rounds without the last result
	engine := workflow.NewEngine(nil, &talkers{calls: map[string]int{}}, &workflow.Options{Journal: journal})
	stops(t, engine, wf, workflow.ErrJournal)
	if _, err := engine.Resume(t.Context(), wf, journal.entries(t)); !errors.Is(err, workflow.ErrJournal) {
		t.Fatalf("as it is: %v", err) // because the journal is full
	}
	for name, spoil := range map[string]func([]workflow.Entry) []workflow.Entry{
		"a part is missing":       func(e []workflow.Entry) []workflow.Entry { return append(e[:2:2], renumber(e[3:])...) },
		"a part is empty":         func(e []workflow.Entry) []workflow.Entry { e[3].Conversation = nil; return e },
		"a part is another":       func(e []workflow.Entry) []workflow.Entry { e[3].Conversation = e[2].Conversation; return e },
		"a part is cut":           func(e []workflow.Entry) []workflow.Entry { e[3].Conversation = e[3].Conversation[:9]; return e },
		"of a step that is over":  func(e []workflow.Entry) []workflow.Entry { e[3].Path = "b"; return e },
		"of another attempt":      func(e []workflow.Entry) []workflow.Entry { e[3].Attempt = 2; return e },
		"of a step without agent": func(e []workflow.Entry) []workflow.Entry { e[3].Type = workflow.TypeExec; return e },
		"continues another": func(e []workflow.Entry) []workflow.Entry {
			again := e[1]
			again.Seq, again.Repeats, again.Turns = int64(len(e)+1), true, 7
			return append(e, again)
		},
	} {
		_, err := engine.Resume(t.Context(), wf, spoil(journal.entries(t)))
		if !errors.Is(err, workflow.ErrBadJournal) || !strings.Contains(err.Error(), "step ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func renumber(entries []workflow.Entry) []workflow.Entry {
	for i := range entries {
		entries[i].Seq--
	}
	return entries
}
