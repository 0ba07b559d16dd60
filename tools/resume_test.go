package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// errDied simulates the death of a process.
var errDied = errors.New("the process died")

// tape records the parts of a conversation. When it is full, it fails, as if the process had died.
type tape struct {
	parts []json.RawMessage
	room  int
}

func (r *tape) write(_ context.Context, part json.RawMessage) error {
	if r.room == 0 {
		return errDied
	}
	r.room--
	r.parts = append(r.parts, part)
	return nil
}

// past returns the recorded conversation.
func (r *tape) past(t *testing.T) *transcript.Conversation {
	t.Helper()
	c := &transcript.Conversation{}
	for _, part := range r.parts {
		checktest.Must(t, c.Add(part, time.Now()))
	}
	return c
}

// byTurn registers a model and returns the name and the requests to it. The model is stateless: it selects the answer
// by the number of turns in the conversation. Its tool calls have no references.
func (r *rig) byTurn(turns ...turn) (string, *requests) {
	name, seen := fmt.Sprintf("test/script-%d", r.models.Add(1)), &requests{}
	genkit.DefineModelAction(r.g, name, &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, SystemRole: true, Tools: true}},
		func(_ context.Context, req *ai.ModelRequest, _ obj, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			seen.add(req)
			n := 0
			for _, m := range req.Messages {
				if m.Role == ai.RoleTool {
					n++
				}
			}
			parts, err := turns[n](req)
			return &ai.ModelResponse{
				Request: req, Message: &ai.Message{Role: ai.RoleModel, Content: parts}, FinishReason: ai.FinishReasonStop,
				Usage: &ai.GenerationUsage{InputTokens: 10, OutputTokens: 3},
			}, err
		})
	return name, seen
}

// marks returns a conversation with three turns and four calls. Each call leaves a mark, and the answer contains the
// outputs of all calls.
func marks() []turn {
	mark := func(name string) obj { return obj{"command": "echo " + name + " >> marks; echo " + name} }
	return []turn{
		call("sandbox_exec", mark("a"), "sandbox_exec", mark("b")),
		call("sandbox_exec", mark("c")),
		call("no_such_tool", obj{}, "sandbox_exec", mark("d")),
		func(req *ai.ModelRequest) ([]*ai.Part, error) {
			var text string
			for _, out := range outputsOf(req) {
				text += str(out["stdout"]) + code(out)
			}
			return say(text)(req)
		},
	}
}

const marking = "---\nmodel: %s\nmaxTurns: 3\nsandbox: {mode: code, runtime: bash%s}\n---\nLeave marks."

// TestContinueAnywhere verifies that an agent can be interrupted after any part of its conversation and continued.
// Answer and number of turns equal an undisturbed run. Recorded answers are not requested again, and calls with a
// recorded result are not repeated.
func TestContinueAnywhere(t *testing.T) {
	t.Parallel()
	for _, session := range []string{"", ", session: isolated"} {
		for cut := 0; ; cut++ {
			if done := t.Run(fmt.Sprintf("cut %d%s", cut, session), func(t *testing.T) { continueAt(t, session, cut) }); !done || cut == 8 {
				break
			}
		}
	}
}

func continueAt(t *testing.T, isolation string, cut int) {
	r := newRig(t)
	model, seen := r.byTurn(marks()...)
	a := r.agent("marker", fmt.Sprintf(marking, model, isolation))
	ctx := r.within(session.NewRunID(), session.Request{})
	kept := &tape{room: cut}
	rec := transcript.New("marker", "isolated.mine", nil, kept.write)
	_, err := a.Run(transcript.With(ctx, rec), nil, nil)
	if cut < 8 && (!errors.Is(err, errDied) || !errors.Is(rec.Close(), errDied)) || cut == 8 && err != nil {
		t.Fatalf("the first process: %v", err)
	}
	past := kept.past(t)
	asked, turns := len(seen.list), past.Turns()
	var marksNow func() string
	if isolation == "" {
		look := r.tools(codeMode())
		marksNow = func() string {
			return str(look.call(ctx, "sandbox_exec", obj{"command": "cat marks 2>/dev/null"})["stdout"])
		}
	}
	kept.room = -1
	rec = transcript.New("marker", "isolated.mine", past, kept.write)
	res, err := a.Run(transcript.With(ctx, rec), nil, nil)
	if err != nil || rec.Close() != nil {
		t.Fatalf("the second process: %v", err)
	}
	if res.Text != "a\nb\nc\nnot_foundd\n" || res.Turns != 4 || res.ToolCalls != 5 || res.InputTokens != 40 || res.OutputTokens != 12 {
		t.Errorf("cut %d: %+v", cut, res)
	}
	if again := len(seen.list) - asked; again != 4-turns {
		t.Errorf("cut %d: the model was asked %d times, %d turns were recorded", cut, again, turns)
	}
	if len(kept.parts) != 8 {
		t.Errorf("cut %d: %d parts are recorded", cut, len(kept.parts))
	}
	if kept.past(t).Turns() != 3 {
		t.Errorf("cut %d: the record differs", cut)
	}
	if marksNow == nil {
		return
	}
	// The second process must not repeat calls the first process recorded as done. Only the calls after the end of the
	// record can run twice: the call at the end of the record and the other calls of its turn.
	for _, mark := range []string{"a", "b", "c", "d"} {
		n := strings.Count(marksNow(), mark)
		if n == 0 || n > 1 && recordedMark(kept.parts[:cut], mark) {
			t.Errorf("cut %d: mark %s was left %d times", cut, mark, n)
		}
	}
}

// TestCallOnDeadSandbox verifies that a call on a dead sandbox interrupts the run so it can be resumed. The resumed run
// repeats the call.
func TestCallOnDeadSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	turns := marks()
	model, _ := r.byTurn(turns...)
	a := r.agent("marker", fmt.Sprintf(marking, model, ""))
	ctx := r.within(session.NewRunID(), session.Request{})
	run, _ := session.RunFromContext(ctx)
	second := turns[1]
	turns[1] = func(req *ai.ModelRequest) ([]*ai.Part, error) {
		turns[1] = second
		s, err := r.manager.Get(run.Key("default"))
		if err != nil {
			return nil, err
		}
		if err := r.engine.die(s.Info().EngineID); err != nil {
			return nil, err
		}
		return second(req)
	}
	kept := &tape{room: -1}
	for _, want := range []error{backend.ErrLost, nil} {
		rec := transcript.New("marker", "", kept.past(t), kept.write)
		rec.Interrupts = func(_ context.Context, err error) bool { return errors.Is(err, backend.ErrLost) }
		res, err := a.Run(transcript.With(ctx, rec), nil, nil)
		if closed := rec.Close(); !errors.Is(closed, want) || (err == nil) != (want == nil) {
			t.Fatalf("%+v, %v, %v; want %v", res, err, closed, want)
		}
		if want == nil && res.Text != "a\nb\nc\nnot_foundd\n" {
			t.Errorf("the resumed agent answered %q", res.Text)
		}
	}
	look := r.tools(codeMode())
	if got := str(look.call(ctx, "sandbox_exec", obj{"command": "cat marks"})["stdout"]); got != "c\nd\n" {
		// The other marks were lost with the first sandbox.
		t.Errorf("the calls left %q", got)
	}
}

// recordedMark reports whether parts contain the result of the call leaving mark.
func recordedMark(parts []json.RawMessage, mark string) bool {
	for _, part := range parts {
		if strings.Contains(string(part), `"stdout":"`+mark) {
			return true
		}
	}
	return false
}

// TestContinueElsewhere verifies that a continued agent gets exactly one notice if the sandbox was replaced, and none
// if it is the same sandbox.
func TestContinueElsewhere(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]bool{"the same sandbox": false, "another sandbox": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			model, seen := r.byTurn(marks()...)
			a := r.agent("marker", fmt.Sprintf(marking, model, ""))
			ctx := r.within(session.NewRunID(), session.Request{})
			kept := &tape{room: 4}
			if _, err := a.Run(transcript.With(ctx, transcript.New("marker", "", nil, kept.write)), nil, nil); !errors.Is(err, errDied) {
				t.Fatal(err)
			}
			run, _ := session.RunFromContext(ctx)
			if lose {
				checktest.Must(t, r.manager.CloseSession(ctx, run.Key("default"), session.CloseOptions{}))
			}
			kept.room = -1
			if _, err := a.Run(transcript.With(ctx, transcript.New("marker", "", kept.past(t), kept.write)), nil, nil); err != nil {
				t.Fatal(err)
			}
			notices := 0
			for _, m := range seen.list[len(seen.list)-1].Messages {
				if transcript.IsNotice(m) && strings.Contains(m.Text(), "your files are lost") {
					notices++
				}
			}
			if lose != (notices == 1) || notices > 1 {
				t.Errorf("%d notices", notices)
			}
			if past := kept.past(t); past.Turns() != 3 { // the record includes the notice
				t.Errorf("%d turns", past.Turns())
			}
		})
	}
}

// TestContinueInNamedSandbox verifies that an agent that used another sandbox of the run continues in that sandbox.
func TestContinueInNamedSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	model, _ := r.byTurn(
		call("sandbox_open", obj{"session_key": "other"}),
		call("sandbox_exec", obj{"command": "echo here > note"}),
		call("sandbox_exec", obj{"command": "cat note"}),
		func(req *ai.ModelRequest) ([]*ai.Part, error) { return tell(req) })
	a := r.agent("marker", "---\nmodel: "+model+"\nsandbox: {mode: code, runtime: bash}\n---\nLook.")
	ctx := r.within(session.NewRunID(), session.Request{})
	kept := &tape{room: 4}
	if _, err := a.Run(transcript.With(ctx, transcript.New("marker", "", nil, kept.write)), nil, nil); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	kept.room = -1
	res, err := a.Run(transcript.With(ctx, transcript.New("marker", "", kept.past(t), kept.write)), nil, nil)
	if err != nil || res.Text != "here\n" || r.engine.open() != 1 {
		t.Errorf("%q, %v, %d sandboxes", res.Text, err, r.engine.open())
	}
}

// TestContinueWithNames verifies notices for an agent that opened two sandboxes by name: its own sandbox and a second
// sandbox, which it closed. It gets a notice about the lost sandbox, and the closed sandbox is not reopened.
func TestContinueWithNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := func(req *ai.ModelRequest) string { return str(outputsOf(req)[1]["sandbox_id"]) }
	model, seen := r.byTurn(
		call("sandbox_exec", obj{"command": "true"}),
		call("sandbox_open", obj{"session_key": "other"}),
		func(req *ai.ModelRequest) ([]*ai.Part, error) {
			return call("sandbox_close", obj{"sandbox_id": ids(req), "delete_workspace": true})(req)
		},
		call("sandbox_open", obj{"session_key": "default"}),
		call("sandbox_exec", obj{"command": "echo new"}), tell)
	a := r.agent("marker", "---\nmodel: "+model+"\nsandbox: {mode: code, runtime: bash}\n---\nLook.")
	ctx := r.within(session.NewRunID(), session.Request{})
	kept := &tape{room: 9}
	if _, err := a.Run(transcript.With(ctx, transcript.New("marker", "", nil, kept.write)), nil, nil); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	run, _ := session.RunFromContext(ctx)
	checktest.Must(t, r.manager.CloseSession(ctx, run.Key("default"), session.CloseOptions{}))
	kept.room = -1
	res, err := a.Run(transcript.With(ctx, transcript.New("marker", "", kept.past(t), kept.write)), nil, nil)
	if err != nil || res.Text != "new\n" || r.engine.open() != 1 {
		t.Errorf("%q, %v, %d sandboxes", res.Text, err, r.engine.open())
	}
	var notices []string
	for _, m := range seen.list[len(seen.list)-1].Messages {
		if transcript.IsNotice(m) {
			notices = append(notices, m.Text())
		}
	}
	if len(notices) != 1 || !strings.Contains(notices[0], "your files are lost") {
		t.Errorf("notices: %q", notices)
	}
}

// TestContinueAnother verifies that a changed agent does not continue the earlier conversation. It starts a new
// conversation, which is recorded.
func TestContinueAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	model, _ := r.byTurn(marks()...)
	ctx := r.within(session.NewRunID(), session.Request{})
	kept := &tape{room: 5}
	before := r.agent("marker", fmt.Sprintf(marking, model, ""))
	if _, err := before.Run(transcript.With(ctx, transcript.New("marker", "", nil, kept.write)), nil, nil); !errors.Is(err, errDied) {
		t.Fatal(err)
	}
	kept.room = -1
	r2 := newRig(t)
	model, seen := r2.byTurn(marks()...)
	after := r2.agent("marker", fmt.Sprintf(marking, model, "")+" Many.")
	ctx = r2.within(session.NewRunID(), session.Request{})
	res, err := after.Run(transcript.With(ctx, transcript.New("marker", "", kept.past(t), kept.write)), nil, nil)
	if past := kept.past(t); err != nil || len(seen.list) != 4 || res.Turns != 4 || past.Lost() != "" || past.Turns() != 3 {
		t.Errorf("%+v, %v, asked %d times; on record: %d turns, lost: %q", res, err, len(seen.list), past.Turns(), past.Lost())
	}
}

// TestConversationTooLarge verifies that an agent continues if the conversation exceeds the record's limit, and that
// the record is marked as incomplete.
func TestConversationTooLarge(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	model, _ := r.byTurn(marks()...)
	a := r.agent("marker", fmt.Sprintf(marking, model, ""))
	kept := &tape{room: -1}
	full := func(ctx context.Context, part json.RawMessage) error {
		if len(kept.parts) == 3 && !strings.Contains(string(part), `"lost"`) {
			return transcript.ErrFull
		}
		return kept.write(ctx, part)
	}
	ctx := r.within(session.NewRunID(), session.Request{})
	rec := transcript.New("marker", "", nil, full)
	if res, err := a.Run(transcript.With(ctx, rec), nil, nil); err != nil || rec.Close() != nil || res.Turns != 4 {
		t.Errorf("%+v, %v", res, err)
	}
	if past := kept.past(t); past.Lost() == "" || len(kept.parts) != 4 {
		t.Errorf("%d parts, lost: %q", len(kept.parts), past.Lost())
	}
}

// TestNestedConversation verifies that agents run by an agent's tool are not part of the recorded conversation, even if
// it is the same agent.
func TestNestedConversation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var inner *tools.Agent
	genkit.DefineTool(r.g, "ask", "Asks the same agent.", func(tc *ai.ToolContext, _ struct{}) (string, error) {
		res, err := inner.Run(tc, obj{"deep": true}, nil)
		return res.Text, err
	})
	model, _ := r.byTurn(func(req *ai.ModelRequest) ([]*ai.Part, error) {
		if strings.Contains(req.Messages[0].Text(), "deep") {
			return say("inside")(req)
		}
		return call("ask", obj{})(req)
	}, say("outside"))
	inner = r.agent("asker", "---\nmodel: "+model+"\ntools: [ask]\ninput: {schema: {\"deep?\": boolean}}\n---\n{{#if deep}}deep{{else}}flat{{/if}}")
	kept := &tape{room: -1}
	res, err := inner.Run(transcript.With(context.Background(), transcript.New("asker", "", nil, kept.write)), nil, nil)
	if err != nil || res.Text != "outside" || len(kept.parts) != 2 || !strings.Contains(string(kept.parts[1]), "inside") {
		t.Errorf("%+v, %v, %s", res, err, kept.parts)
	}
}
