package promises

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
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// callsWith gives a call of every tool that takes the id of a sandbox.
func callsWith(id, execID string) map[string]obj {
	return map[string]obj{
		toolspec.ToolExec:      {"sandbox_id": id, "cmd": []string{"cat", "secret"}},
		toolspec.ToolExecRead:  {"sandbox_id": id, "exec_id": execID},
		toolspec.ToolExecWait:  {"sandbox_id": id, "exec_id": execID, "timeout_seconds": 1},
		toolspec.ToolExecWrite: {"sandbox_id": id, "exec_id": execID, "text": "x"},
		toolspec.ToolExecKill:  {"sandbox_id": id, "exec_id": execID},
		toolspec.ToolFSRead:    {"sandbox_id": id, "path": "secret"},
		toolspec.ToolFSWrite:   {"sandbox_id": id, "path": "secret", "contents": "evil", "overwrite": true},
		toolspec.ToolFSList:    {"sandbox_id": id},
		toolspec.ToolFSDelete:  {"sandbox_id": id, "path": "secret"},
		toolspec.ToolClose:     {"sandbox_id": id, "delete_workspace": true},
	}
}

// TestD1OtherRun: the id of another run's sandbox is worth as much as one that was made up.
func TestD1OtherRun(t *testing.T) {
	t.Parallel()
	owner, thief := newBox(t, pythonBox()), newBox(t, pythonBox())
	owner.ok(t, toolspec.ToolFSWrite, obj{"path": "secret", "contents": "canary"})
	execID := owner.ok(t, toolspec.ToolExec, obj{"cmd": []string{"sleep", "300"}, "stream": true})["exec_id"].(string)
	unknown := callsWith("sbx_"+session.NewID(), execID)
	for tool, in := range callsWith(owner.s.ID(), execID) {
		got, want := thief.call(t, tool, in), thief.call(t, tool, unknown[tool])
		if code(got) != toolspec.CodeNotFound {
			t.Errorf("%s: %v", tool, got)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s answers otherwise than for an unknown id (-unknown +other run's):\n%s", tool, diff)
		}
	}
	// Without its id the exec of another sandbox is as unknown.
	for _, tool := range []string{toolspec.ToolExecRead, toolspec.ToolExecWait, toolspec.ToolExecKill, toolspec.ToolExecWrite} {
		in := callsWith("", execID)[tool]
		delete(in, "sandbox_id")
		fails(t, tool, thief.call(t, tool, in), toolspec.CodeNotFound)
	}
	if log := w.log.String(); !strings.Contains(log, "refused the id of another scope's sandbox") || !strings.Contains(log, owner.s.ID()) ||
		!strings.Contains(log, thief.run.ID) {
		t.Error("the log does not tell who asked for whose sandbox")
	}
	if got := owner.sh(t, "cat secret"); got != "canary" {
		t.Errorf("the owner's file holds %q", got)
	}
	if out := owner.ok(t, toolspec.ToolExecWait, obj{"exec_id": execID, "timeout_seconds": 1}); out["status"] != "running" {
		t.Errorf("the owner's command: %v", out)
	}
}

// TestD2EngineIDs: what the engine calls a container is no id of a sandbox, whoever's container it is.
func TestD2EngineIDs(t *testing.T) {
	t.Parallel()
	b := newBox(t, pythonBox())
	state := w.stateDir(t, w.instance)
	engineID := b.s.Info().EngineID
	other := w.engine.stranger(t, nil)
	fake := "sbx_" + session.NewID()
	// Carries all labels of a sandbox of ours, but not the name, which an image's labels cannot choose.
	alike := w.engine.stranger(t, map[string]string{
		backend.LabelRole: backend.RoleSandbox, backend.LabelInstance: w.instance, backend.LabelID: fake,
		backend.LabelKey: "user:" + fake[4:] + ":default", backend.LabelRun: b.run.ID,
	})
	ids := append([]string{
		engineID, engineID[:12], "workcell-" + b.s.ID(), "/workcell-" + b.s.ID(), b.s.ID()[:12], b.s.ID() + "x", strings.ToUpper(b.s.ID()),
		" " + b.s.ID(), b.s.ID() + "\n", b.s.ID() + "/../" + b.s.ID(), fake, "*", "sbx_", ".",
	}, slices.Concat(other.names, alike.names)...)
	for _, id := range ids {
		for tool, in := range callsWith(id, "exe_"+session.NewID()) {
			fails(t, fmt.Sprintf("%s with %q", tool, id), b.call(t, tool, in), toolspec.CodeNotFound)
		}
		if _, err := w.manager.Connect(t.Context(), id); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Connect(%q): %v", id, err)
		}
		if err := w.manager.Remove(t.Context(), id, true); err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Remove(%q): %v", id, err)
		}
	}
	refused := func(state string, ids ...string) {
		t.Helper()
		for _, id := range ids {
			if res := workcell(t, state, nil, "sessions", "exec", id, "--", "true"); res.code == 0 {
				t.Errorf("sessions exec %s: %+v", id, res)
			}
			if res := workcell(t, state, nil, "sessions", "rm", id); res.code == 0 {
				t.Errorf("sessions rm %s: %+v", id, res)
			}
		}
	}
	refused(state, append([]string{fake, fake[:12], other.names[0]}, alike.names...)...)
	if short := engineID[:12]; !strings.HasPrefix(b.s.ID(), short) { // the command takes beginnings of ids
		refused(state, engineID, short)
	}
	refused(w.stateDir(t, session.NewID()), b.s.ID(), b.s.ID()[:12]) // another instance's
	// The driver, too, only knows what Workcell made.
	for _, s := range []stranger{other, alike} {
		id := s.names[0]
		if _, err := w.driver.Get(t.Context(), id); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Get of a foreign container: %v", err)
		}
		_ = w.driver.Remove(t.Context(), id, backend.RemoveOptions{Volumes: true}) // unknown is no error; it must do nothing
		_ = w.driver.Stop(t.Context(), id)                                         // likewise
		if !s.runs() {
			t.Errorf("what is not ours, %v, was ended", s.names)
		}
	}
	b.alive(t)
}

// TestD3KeyInjection: no name can stand for another run's sandbox.
func TestD3KeyInjection(t *testing.T) {
	t.Parallel()
	evil := []string{
		"a:b", ":", "a/b", "../x", "..", ".", "-x", "a b", "a\nb", "a\x00b", "é", "\u202ea", strings.Repeat("x", 10<<10), "workflow:run:default",
		"default:", "a%3Ab", "a\\b", "$(id)", "*",
	}
	b := newBox(t, pythonBox())
	for _, name := range evil {
		fails(t, fmt.Sprintf("session_key %.40q", name), b.call(t, toolspec.ToolOpen, obj{"session_key": name}), toolspec.CodeInvalid)
		for _, key := range []session.Key{session.WorkflowKey(name, "x"), session.AgentKey("x", name), session.UserKey(name), {Namespace: name, ID: "x", Name: "x"}} {
			if _, _, err := w.manager.Open(t.Context(), key, request()); !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("Open(%.60q): %v", key, err)
			}
		}
		if _, err := agentOpen(t, pythonBox().Image, name); err == nil && name != "" {
			t.Errorf("an agent's session %.40q was accepted", name)
		}
	}
	seen := map[string]session.Key{}
	parts := []string{"a", "b", "a.b", "a_b", "a-b", "0", "_", "x.y-z", "workflow", "default", "A"}
	for _, ns := range parts {
		for _, id := range parts {
			for _, name := range parts {
				key := session.Key{Namespace: ns, ID: id, Name: name}
				text := key.String()
				if had, ok := seen[text]; ok {
					t.Errorf("%+v and %+v are both %s", had, key, text)
				}
				seen[text] = key
				if back, err := session.ParseKey(text); err != nil || back != key {
					t.Errorf("%s is read as %+v, %v", text, back, err)
				}
			}
		}
	}
}

// agentOpen makes the tools of an agent whose file names its session.
func agentOpen(t *testing.T, image, name string) (*box, error) {
	t.Helper()
	return agentOf(t.Context(), w.plugin, session.Run{Namespace: session.NamespaceAgent, ID: session.NewRunID()},
		tools.Sandbox{Mode: "code", Image: image, Session: name})
}

// TestD5GoneIDs: an id is never given to another sandbox, however the first one ended.
func TestD5GoneIDs(t *testing.T) {
	t.Parallel()
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		b := newBox(t, pythonBox())
		id := b.s.ID()
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "secret", "contents": "old"})
		b.ok(t, toolspec.ToolClose, obj{"delete_workspace": true})
		gone(t, b, id)
		out := b.ok(t, toolspec.ToolOpen, obj{})
		if out["sandbox_id"] == id || out["created"] != true {
			t.Errorf("opened again: %v", out)
		}
		gone(t, b, id)
	})
	t.Run("given back", func(t *testing.T) {
		t.Parallel()
		b := newBox(t, pythonBox())
		b.ok(t, toolspec.ToolClose, obj{})
		gone(t, b, b.s.ID())
	})
	t.Run("expired", func(t *testing.T) {
		t.Parallel()
		m := newManager(t, w.driver, session.Options{IdleTimeout: 300 * time.Millisecond, ReapEvery: 100 * time.Millisecond})
		p := &tools.Plugin{Manager: m}
		b, err := openBox(t.Context(), m, p, pythonBox())
		must(t, err)
		eventually(t, "the idle sandbox is removed", func() bool { return len(m.InScope(b.run.Scope())) == 0 })
		eventually(t, "its container is gone", func() bool { return !w.engine.running(t.Context(), b.s.Info().EngineID) })
		gone(t, b, b.s.ID())
	})
	t.Run("restarted", func(t *testing.T) {
		t.Parallel()
		first := newManager(t, w.driver, session.Options{})
		b, err := openBox(t.Context(), first, &tools.Plugin{Manager: first}, pythonBox())
		must(t, err)
		must(t, first.Close(context.Background()))
		second := newManager(t, w.driver, session.Options{Instance: first.Instance()})
		again, err := agentOf(t.Context(), &tools.Plugin{Manager: second}, b.run, pythonBox())
		must(t, err)
		gone(t, again, b.s.ID())
	})
}

// gone checks that every tool refuses an id, and opens nothing in its place.
func gone(t *testing.T, b *box, id string) {
	t.Helper()
	for tool, in := range callsWith(id, "exe_"+session.NewID()) {
		if tool == toolspec.ToolClose { // gives nothing away and may be repeated, see TestJ4CloseTwice
			continue
		}
		fails(t, tool, b.call(t, tool, in), toolspec.CodeClosed, toolspec.CodeNotFound)
	}
}

// TestD6ReservedNames: labels and variables of ours cannot be set from outside.
func TestD6ReservedNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{backend.LabelInstance, backend.LabelRun, backend.LabelPrefix + "anything"} {
		if m, err := session.NewManager(w.driver, &session.Options{Labels: map[string]string{name: "x"}}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("label %s was accepted: %v, %v", name, m, err)
		}
	}
	stranger := "stranger" + session.NewID()
	image := debianImage
	engine, images := w.engine.(imaged)
	if images {
		image = engine.derive(t, change{
			env: map[string]string{"WORKCELL_EXEC": "exe_forged"},
			labels: map[string]string{
				backend.LabelInstance: stranger, backend.LabelRun: "run_stranger", backend.LabelID: "sbx_x", backend.LabelRole: backend.RoleSandbox,
				backend.LabelKey: "user:stranger:default", "dev.workcell.config": "{}",
			},
		})
	}
	m := newManager(t, w.driver, session.Options{})
	s, _, err := m.Open(t.Context(), session.UserKey("d6"), session.Request{Image: image})
	must(t, err)
	// The sandbox is ours and only ours, whatever its image says.
	if list, err := w.driver.List(t.Context(), backend.Filter{Instance: stranger}); err != nil || len(list) != 0 {
		t.Errorf("the stranger's sandboxes: %+v, %v", list, err)
	}
	if list, err := m.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != s.ID() || list[0].Run != "" {
		t.Errorf("our sandboxes: %+v, %v", list, err)
	}
	// What somebody else runs, from this image and with its labels, is nobody's sandbox.
	other := w.engine.stranger(t, map[string]string{backend.LabelInstance: stranger, backend.LabelRole: backend.RoleSandbox, backend.LabelID: "sbx_x"})
	same := other
	if images {
		same = engine.strangerFrom(t, image, nil)
	}
	if list, err := w.driver.List(t.Context(), backend.Filter{Instance: stranger}); err != nil || len(list) != 0 {
		t.Errorf("adopted: %+v, %v", list, err)
	}
	reaper, err := session.NewManager(w.driver, &session.Options{Instance: stranger, ReapEvery: 10 * time.Millisecond})
	must(t, err)
	if list, err := reaper.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("adopted by its instance: %+v, %v", list, err)
	}
	time.Sleep(200 * time.Millisecond) // twenty rounds
	must(t, reaper.Close(context.Background()))
	if !other.runs() || !same.runs() {
		t.Error("what is not ours was ended")
	}
	// The variable by which commands are found cannot be set, and the image's does not survive.
	if _, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"WORKCELL_EXEC": "x"}}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("WORKCELL_EXEC was accepted: %v", err)
	}
	res, err := s.Exec(t.Context(), session.ExecRequest{Command: "echo $WORKCELL_EXEC"})
	if must(t, err); strings.TrimSpace(string(res.Stdout.Bytes())) != res.ExecID {
		t.Errorf("WORKCELL_EXEC is %q in %s", res.Stdout.Bytes(), res.ExecID)
	}
}
