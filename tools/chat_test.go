package tools_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/firebase/genkit/go/ai"
	aix "github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/ai/exp/localstore"
	"github.com/firebase/genkit/go/genkit"
	genkitx "github.com/firebase/genkit/go/genkit/exp"
	middlewarex "github.com/firebase/genkit/go/plugins/middleware/exp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// chat defines a Genkit agent with a sandbox and additional middleware. Its model plays turns.
func (r *rig) chat(name string, s tools.Sandbox, more []ai.Middleware, turns ...turn) (*aix.Agent[any], *requests) {
	r.t.Helper()
	model, seen := r.model(turns...)
	use := append([]ai.Middleware{r.plugin.Use(s)}, more...)
	return genkitx.DefineAgent(r.g, name, aix.InlinePrompt{ai.WithModelName(model), ai.WithUse(use...)},
		aix.WithSessionStore(localstore.NewInMemorySessionStore[any]())), seen
}

// ask runs one turn of a conversation and returns the answer. If id is empty, it starts a conversation.
func ask(t *testing.T, a *aix.Agent[any], id string) (text, session string) {
	t.Helper()
	var opts []aix.InvocationOption[any]
	if id != "" {
		opts = append(opts, aix.WithSessionID[any](id))
	}
	out, err := a.RunText(context.Background(), "go on", opts...)
	if err != nil || out.FinishReason != aix.AgentFinishReasonStop {
		t.Fatalf("%+v, %v", out, err)
	}
	return out.Message.Text(), out.SessionID
}

// tell answers with the output of the latest command, or with the code of its error.
func tell(req *ai.ModelRequest) ([]*ai.Part, error) {
	outs := outputsOf(req)
	last := outs[len(outs)-1]
	return say(str(last["stdout"]) + code(last))(req)
}

// TestChatKeepsItsSandbox verifies that a conversation of a Genkit agent finds the files of its earlier turns, and
// another conversation does not. If the sandbox expired, the model is notified about the new sandbox.
func TestChatKeepsItsSandbox(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "isolated"} {
		t.Run("session: "+kind, func(t *testing.T) {
			t.Parallel()
			r, s := newRig(t), codeMode()
			s.Session = kind
			look := call("sandbox_exec", obj{"command": "cat note || echo nothing"})
			a, seen := r.chat("chat", s, nil,
				call("sandbox_fs_write", obj{"path": "note", "contents": "of the first turn"}), tell,
				look, tell, look, tell, look, tell, look, tell)
			_, first := ask(t, a, "")
			if text, _ := ask(t, a, first); text != "of the first turn" {
				t.Errorf("the second turn finds %q", text)
			}
			if text, second := ask(t, a, ""); text != "nothing\n" || second == first {
				t.Errorf("another conversation finds %q", text)
			}
			infos := r.engine.all()
			if len(infos) != 2 {
				t.Fatalf("%d sandboxes", len(infos))
			}
			for _, info := range infos {
				key, err := record.ParseKey(info.Key)
				if err != nil || key.Namespace != record.NamespaceUser || strings.Contains(info.Key, first) {
					t.Errorf("key %s, %v", info.Key, err)
				}
				if err := r.manager.CloseSession(t.Context(), key, session.CloseOptions{}); err != nil { // like the idle timeout
					t.Error(err)
				}
			}
			for turn, want := range []int{1, 1} { // the second turn finds the new sandbox
				if text, _ := ask(t, a, first); text != "nothing\n" {
					t.Errorf("in a new sandbox it finds %q", text)
				}
				notices := 0
				for _, m := range seen.list[len(seen.list)-1].Messages {
					if strings.HasPrefix(m.Text(), "Your sandbox of earlier turns was removed") {
						notices++
					}
				}
				if notices != want {
					t.Errorf("turn %d: %d notices", turn, notices)
				}
			}
		})
	}
}

// TestToolsOfAChat verifies that tools without the middleware use the conversation's sandbox, and that agents a Genkit
// agent runs itself use it too. Tools outside of the agent's spans share another sandbox.
func TestToolsOfAChat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	model, _ := r.model(call("sandbox_fs_write", obj{"path": "note", "contents": "by the agent"}), say("done"))
	inner := r.agent("inner", "---\nmodel: "+model+"\nsandbox: {mode: code, runtime: bash}\n---\nWrite.")
	set := r.tools(codeMode())
	outer := genkitx.DefineCustomAgent(r.g, "outer", func(ctx context.Context, _ aix.Responder, sess *aix.SessionRunner[any]) (*aix.AgentResult, error) {
		text := ""
		err := sess.Run(ctx, func(ctx context.Context, _ *aix.AgentInput) (*aix.TurnResult, error) {
			if _, err := inner.Run(ctx, nil, nil); err != nil {
				return nil, err
			}
			text = str(set.call(ctx, "sandbox_fs_read", obj{"path": "note"})["contents"])
			outside := aix.NewSessionContext(context.Background(), sess.Session)
			set.call(outside, "sandbox_fs_write", obj{"path": "note", "contents": ", outside"})
			text += str(set.call(outside, "sandbox_exec", obj{"command": "cat note"})["stdout"])
			return &aix.TurnResult{FinishReason: aix.AgentFinishReasonStop}, nil
		})
		return &aix.AgentResult{Message: ai.NewModelTextMessage(text)}, err
	}, aix.WithSessionStore(localstore.NewInMemorySessionStore[any]()))
	if text, _ := ask(t, outer, ""); text != "by the agent, outside" || r.engine.open() != 2 {
		t.Errorf("%q, %d sandboxes", text, r.engine.open())
	}
}

// TestChatOfAnother verifies that the same session id from two users means two conversations with two sandboxes.
func TestChatOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(codeMode())
	look := genkitx.DefineCustomAgent(r.g, "look", func(ctx context.Context, _ aix.Responder, sess *aix.SessionRunner[any]) (*aix.AgentResult, error) {
		text := ""
		err := sess.Run(ctx, func(ctx context.Context, _ *aix.AgentInput) (*aix.TurnResult, error) {
			text = str(set.call(ctx, "sandbox_exec", obj{"command": "cat note || echo a secret > note"})["stdout"])
			return &aix.TurnResult{FinishReason: aix.AgentFinishReasonStop}, nil
		})
		return &aix.AgentResult{Message: ai.NewModelTextMessage(text)}, err
	}, aix.WithSessionStore(localstore.NewInMemorySessionStore[any]()))
	var texts []string
	id := ""
	for _, user := range []string{"ann", "ann", "bob"} {
		var opts []aix.InvocationOption[any]
		if id != "" {
			opts = append(opts, aix.WithSessionID[any](id))
		}
		out, err := look.RunText(session.WithUser(context.Background(), user), "go on", opts...)
		checktest.Must(t, err)
		id = out.SessionID
		texts = append(texts, out.Message.Text())
	}
	if got := strings.Join(texts, "|"); got != "|a secret\n|" || r.engine.open() != 2 {
		t.Errorf("%q, %d sandboxes", got, r.engine.open())
	}
}

// TestChosenSessionID verifies that a client-chosen session id gets no sandbox unless the program specifies the user.
// Otherwise, two clients that choose the same id would share a sandbox. The test covers agents, the middleware, and
// tools.
func TestChosenSessionID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	work := []turn{call("sandbox_exec", obj{"command": "cat note; echo x > note"}), tell}
	chat, _ := r.chat("chat", codeMode(), nil, work...)
	model, _ := r.byTurn(work...)
	inner := r.agent("inner", "---\nmodel: "+model+"\nsandbox: {mode: code, runtime: bash}\n---\nLook.")
	set := r.tools(codeMode())
	custom := genkitx.DefineCustomAgent(r.g, "custom", func(ctx context.Context, _ aix.Responder, sess *aix.SessionRunner[any]) (*aix.AgentResult, error) {
		text := ""
		err := sess.Run(ctx, func(ctx context.Context, _ *aix.AgentInput) (*aix.TurnResult, error) {
			_, runs := inner.Run(ctx, nil, nil)
			_, offered := r.plugin.Tools(ctx, codeMode())
			text = fmt.Sprint(code(set.call(ctx, "sandbox_open", nil)), errors.Is(runs, backend.ErrInvalid), errors.Is(offered, backend.ErrInvalid))
			return &aix.TurnResult{FinishReason: aix.AgentFinishReasonStop}, nil
		})
		return &aix.AgentResult{Message: ai.NewModelTextMessage(text)}, err
	}, aix.WithSessionStore(localstore.NewInMemorySessionStore[any]()))
	for _, id := range []string{"1", "00000000-0000-0000-0000-000000000001", strings.Repeat("4", 36)} {
		out, err := chat.RunText(t.Context(), "go on", aix.WithSessionID[any](id))
		if err != nil || out.Error == nil || !strings.Contains(out.Error.Error(), "session.WithUser") {
			t.Errorf("%s: %+v, %v", id, out, err)
		}
		out, err = custom.RunText(t.Context(), "go on", aix.WithSessionID[any](id))
		if err != nil || out.Message.Text() != "invalid_argumenttrue true" {
			t.Errorf("%s: %s, %v", id, out.Message.Text(), err)
		}
	}
	if n := r.engine.created(); n != 0 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestChatOfAnotherAgent verifies that two agents have different sandboxes even if their session ids are equal.
func TestChatOfAnotherAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{"one", "two"} {
		a, _ := r.chat(name, codeMode(), nil, call("sandbox_exec", obj{"command": "cat note; echo x > note"}), tell)
		out, err := a.RunText(session.WithUser(t.Context(), "ann"), "go on", aix.WithSessionID[any]("1"))
		if err != nil || out.Message.Text() != "" {
			t.Errorf("%s: %q, %v", name, out.Message.Text(), err)
		}
	}
	if n := r.engine.open(); n != 2 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestIsolatedWithinATurn verifies that an isolated Generate call in a tool of an isolated agent gets a new sandbox and
// removes it. It shares neither the agent's sandbox nor the sandbox of the previous call.
func TestIsolatedWithinATurn(t *testing.T) {
	t.Parallel()
	r, alone := newRig(t), codeMode()
	alone.Session = "isolated"
	look := call("sandbox_exec", obj{"command": "cat note; echo x > note"})
	inner, _ := r.byTurn(look, tell)
	inside := genkit.DefineTool(r.g, "ask", "asks", func(ctx *ai.ToolContext, _ obj) (obj, error) {
		resp, err := genkit.Generate(ctx, r.g, ai.WithModelName(inner), ai.WithPrompt("look"), ai.WithUse(r.plugin.Use(alone)))
		if err != nil {
			return nil, err
		}
		return obj{"found": resp.Text()}, nil
	})
	model, seen := r.model(look, call("ask", obj{}), call("ask", obj{}), call("sandbox_exec", obj{"command": "cat note"}), tell)
	a := genkitx.DefineAgent(r.g, "chat", aix.InlinePrompt{ai.WithModelName(model), ai.WithTools(inside), ai.WithUse(r.plugin.Use(alone))},
		aix.WithSessionStore(localstore.NewInMemorySessionStore[any]()))
	if text, _ := ask(t, a, ""); text != "x\n" {
		t.Errorf("the agent finds %q", text)
	}
	for _, out := range seen.outputs()[1:3] {
		if out["found"] != "" {
			t.Errorf("a call within finds %v", out)
		}
	}
	if r.engine.open() != 1 || r.engine.created() != 3 {
		t.Errorf("%d of %d sandboxes", r.engine.open(), r.engine.created())
	}
}

// TestIsolatedInAChat verifies that isolated agents run by a turn do not share a sandbox and leave none behind.
func TestIsolatedInAChat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	model, _ := r.byTurn(call("sandbox_exec", obj{"command": "cat note; echo x > note"}), tell)
	inner := r.agent("inner", "---\nmodel: "+model+"\nsandbox: {mode: code, runtime: bash, session: isolated}\n---\nLook.")
	outer := genkitx.DefineCustomAgent(r.g, "outer", func(ctx context.Context, _ aix.Responder, sess *aix.SessionRunner[any]) (*aix.AgentResult, error) {
		text := ""
		err := sess.Run(ctx, func(ctx context.Context, _ *aix.AgentInput) (*aix.TurnResult, error) {
			for range 2 {
				res, err := inner.Run(ctx, nil, nil)
				if err != nil {
					return nil, err
				}
				text += res.Text
			}
			return &aix.TurnResult{FinishReason: aix.AgentFinishReasonStop}, nil
		})
		return &aix.AgentResult{Message: ai.NewModelTextMessage(text)}, err
	}, aix.WithSessionStore(localstore.NewInMemorySessionStore[any]()))
	if text, _ := ask(t, outer, ""); text != "" || r.engine.open() != 0 {
		t.Errorf("%q, %d sandboxes", text, r.engine.open())
	}
}

// task returns the handle from the latest delegation.
func task(req *ai.ModelRequest) string {
	outs := outputsOf(req)
	return str(outs[len(outs)-1]["taskId"])
}

// with calls a background task tool for the task of the latest delegation.
func with(tool string) turn {
	return func(req *ai.ModelRequest) ([]*ai.Part, error) {
		return call(tool, obj{"taskIds": []string{task(req)}})(req)
	}
}

// TestBackgroundAgents verifies that sub-agents in the background use their caller's sandbox, and a private sandbox
// with session: isolated.
func TestBackgroundAgents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alone := codeMode()
	alone.Session = "isolated"
	work := []turn{call("sandbox_exec", obj{"command": "cat plan 2>/dev/null; echo written > result"}), tell}
	_, sharer := r.chat("sharer", codeMode(), nil, work...)
	_, loner := r.chat("loner", alone, nil, work...)
	boss, _ := r.chat("boss", codeMode(), []ai.Middleware{middlewarex.Agents{
		Async: true, Agents: []aix.AgentRef{{Name: "sharer"}, {Name: "loner"}},
	}},
		call("sandbox_fs_write", obj{"path": "plan", "contents": "the plan"}),
		call("delegate_to_loner", obj{"task": "Work.", "background": true}), with("wait_for_background_tasks"),
		call("sandbox_exec", obj{"command": "test ! -e result && echo untouched"}),
		call("delegate_to_sharer", obj{"task": "Work.", "background": true}), with("wait_for_background_tasks"),
		call("sandbox_exec", obj{"command": "cat result"}),
		func(req *ai.ModelRequest) ([]*ai.Part, error) {
			outs := outputsOf(req)
			return say(fmt.Sprint(outs[3]["stdout"], outs[6]["stdout"]))(req)
		})
	if text, _ := ask(t, boss, ""); text != "untouched\nwritten\n" {
		t.Errorf("%q", text)
	}
	if out := sharer.outputs()[0]; out["stdout"] != "the plan" {
		t.Errorf("who shares the sandbox reads %v", out)
	}
	if out := loner.outputs()[0]; out["stdout"] != "" {
		t.Errorf("who is alone reads %v", out)
	}
	if n := r.engine.open(); n != 2 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestAbortedAgent verifies that aborting a sub-agent in the background kills all of its processes. Processes the
// caller runs in the same sandbox continue.
func TestAbortedAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.chat("worker", codeMode(), nil,
		call("sandbox_exec", obj{"command": "sleep 1000 & echo $! >> theirs; exec sleep 1000", "yield_ms": 200}),
		call("sandbox_exec", obj{"command": "until [ -s theirs ]; do sleep 0.05; done; setsid sleep 1000 & echo $! >> theirs; echo $$ >> theirs; echo > ready; sleep 1000", "yield_ms": 600_000}),
		say("never"))
	boss, _ := r.chat("boss", codeMode(), []ai.Middleware{middlewarex.Agents{Async: true, Agents: []aix.AgentRef{{Name: "worker"}}}},
		call("sandbox_exec", obj{"command": "echo $$ > mine; exec sleep 1000", "yield_ms": 200}),
		call("delegate_to_worker", obj{"task": "Work.", "background": true}),
		func(req *ai.ModelRequest) ([]*ai.Part, error) {
			return call("sandbox_exec", obj{"command": "while ! [ -e ready -a -s mine ]; do sleep 0.05; done; echo " + task(req)})(req)
		},
		func(req *ai.ModelRequest) ([]*ai.Part, error) {
			outs := outputsOf(req)
			return call("abort_background_tasks", obj{"taskIds": []string{str(outs[1]["taskId"])}})(req)
		},
		call("sandbox_exec", obj{"command": "cat mine theirs"}), tell)
	text, _ := ask(t, boss, "")
	pids := strings.Fields(text)
	if len(pids) != 4 {
		t.Fatalf("processes: %q", text)
	}
	for _, pid := range pids[1:] {
		eventually(t, "process "+pid+" of the aborted agent ends", func() bool { return !lives(t, pid) })
	}
	if !lives(t, pids[0]) {
		t.Error("a process of the caller has ended too")
	}
}

// lives reports whether a process is running. The sandboxes of a rig are processes on the host.
func lives(t *testing.T, pid string) bool {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(n)
	return err == nil && p.Signal(syscall.Signal(0)) == nil
}
