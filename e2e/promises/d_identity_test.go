//go:build linux

package promises

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// callsWith returns a call of every tool with a sandbox id.
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

// TestD1OtherRun: the error for the id of another run's sandbox is the same as for an invented id.
func TestD1OtherRun(t *testing.T) {
	t.Parallel()
	owner, thief := newSandbox(t, pythonSandbox()), newSandbox(t, pythonSandbox())
	owner.ok(t, toolspec.ToolFSWrite, obj{"path": "secret", "contents": "canary"})
	execID := owner.ok(t, toolspec.ToolExec, obj{"cmd": []string{"sleep", "300"}, "stream": true})["exec_id"].(string)
	unknown := callsWith("sbx_"+record.NewID(), execID)
	for tool, in := range callsWith(owner.s.ID(), execID) {
		got, want := thief.call(t, tool, in), thief.call(t, tool, unknown[tool])
		if code(got) != toolspec.CodeNotFound {
			t.Errorf("%s: %v", tool, got)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s answers otherwise than for an unknown id (-unknown +other run's):\n%s", tool, diff)
		}
	}
	// Without the sandbox id, the exec id of another sandbox is unknown too.
	for _, tool := range []string{toolspec.ToolExecRead, toolspec.ToolExecWait, toolspec.ToolExecKill, toolspec.ToolExecWrite} {
		in := callsWith("", execID)[tool]
		delete(in, "sandbox_id")
		fails(t, tool, thief.call(t, tool, in), toolspec.CodeNotFound)
	}
	if log := w.log.String(); !strings.Contains(log, "refused a sandbox ID of another scope") || !strings.Contains(log, owner.s.ID()) ||
		!strings.Contains(log, thief.run.ID) {
		t.Error("the log does not name the caller and the sandbox")
	}
	if got := owner.sh(t, "cat secret"); got != "canary" {
		t.Errorf("the owner's file holds %q", got)
	}
	if out := owner.ok(t, toolspec.ToolExecWait, obj{"exec_id": execID, "timeout_seconds": 1}); out["status"] != "running" {
		t.Errorf("the owner's command: %v", out)
	}
}

// TestD2EngineIDs: an engine's container id is never accepted as a sandbox id, neither for our containers nor for
// others.
func TestD2EngineIDs(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
	state := w.stateDir(t, w.instance)
	engineID := b.s.Info().EngineID
	other := w.engine.stranger(t, debianImage, nil)
	fake := "sbx_" + record.NewID()
	// Has all labels of our sandboxes, but not the name, which an image's labels cannot set.
	alike := w.engine.stranger(t, debianImage, map[string]string{
		backend.LabelRole: backend.RoleSandbox, backend.LabelInstance: w.instance, backend.LabelID: fake,
		backend.LabelKey: "user:" + fake[4:] + ":default", backend.LabelRun: b.run.ID,
	})
	ids := append([]string{
		engineID, engineID[:12], "workcell-" + b.s.ID(), "/workcell-" + b.s.ID(), b.s.ID()[:12], b.s.ID() + "x", strings.ToUpper(b.s.ID()),
		" " + b.s.ID(), b.s.ID() + "\n", b.s.ID() + "/../" + b.s.ID(), fake, "*", "sbx_", ".",
	}, slices.Concat(other.names, alike.names)...)
	for _, id := range ids {
		for tool, in := range callsWith(id, "exe_"+record.NewID()) {
			fails(t, fmt.Sprintf("%s with %q", tool, id), b.call(t, tool, in), toolspec.CodeNotFound)
		}
		if _, err := w.manager.Connect(t.Context(), id); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Connect(%q): %v", id, err)
		}
		if err := w.manager.Remove(t.Context(), id, true); err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Remove(%q): %v", id, err)
		}
	}
	for id, state := range map[string]string{fake: state, alike.names[0]: state, b.s.ID(): w.stateDir(t, record.NewID())} {
		// The last state belongs to another instance.
		for _, args := range [][]string{{"sandbox", "exec", id, "--", "true"}, {"sandbox", "rm", id[:min(len(id), 12)]}} {
			if res := workcell(t, state, nil, args...); res.Code == 0 {
				t.Errorf("%v: %+v", args, res)
			}
		}
	}
	for _, s := range []stranger{other, alike} {
		if !s.runs() {
			t.Errorf("what is not ours, %v, was ended", s.names)
		}
	}
	b.alive(t)
}

// TestD3KeyInjection: no name can select another run's sandbox.
func TestD3KeyInjection(t *testing.T) {
	t.Parallel()
	evil := []string{
		"a:b", ":", "a/b", "../x", "..", ".", "-x", "a b", "a\nb", "a\x00b", "é", "\u202ea", strings.Repeat("x", 10<<10), "workflow:run:default",
		"default:", "a%3Ab", "a\\b", "$(id)", "*",
	}
	b := newSandbox(t, pythonSandbox())
	for _, name := range evil {
		fails(t, fmt.Sprintf("session_key %.40q", name), b.call(t, toolspec.ToolOpen, obj{"session_key": name}), toolspec.CodeInvalid)
		for _, key := range []session.Key{session.WorkflowKey(name, "x"), record.AgentKey("x", name), session.UserKey(name), {Namespace: name, ID: "x", Name: "x"}} {
			if _, _, err := w.manager.Open(t.Context(), key, request()); !errors.Is(err, backend.ErrInvalid) {
				t.Errorf("Open(%.60q): %v", key, err)
			}
		}
		cfg := pythonSandbox()
		cfg.Session = name
		if _, err := agentOf(t.Context(), w.plugin, b.run, cfg); err == nil {
			t.Errorf("an agent's session %.40q was accepted", name)
		}
	}
}

// TestD5GoneIDs: the id of a closed sandbox is never reused, whether the user or the end of the manager closed it.
func TestD5GoneIDs(t *testing.T) {
	t.Parallel()
	first := newManager(t, w.driver, session.Options{})
	b, err := openSandbox(t.Context(), first, &tools.Plugin{Manager: first}, pythonSandbox())
	must(t, err)
	b.ok(t, toolspec.ToolClose, obj{"delete_workspace": true})
	gone(t, b, b.s.ID())
	out := b.ok(t, toolspec.ToolOpen, obj{})
	if out["sandbox_id"] == b.s.ID() || out["created"] != true {
		t.Errorf("opened again: %v", out)
	}
	gone(t, b, b.s.ID())
	must(t, first.Close(context.Background()))
	second := newManager(t, w.driver, session.Options{Instance: first.Instance()})
	again, err := agentOf(t.Context(), &tools.Plugin{Manager: second}, b.run, pythonSandbox())
	must(t, err)
	gone(t, again, out["sandbox_id"].(string))
}

// gone verifies that every tool rejects an id and opens no sandbox instead.
func gone(t *testing.T, b *testSandbox, id string) {
	t.Helper()
	for tool, in := range callsWith(id, "exe_"+record.NewID()) {
		if tool == toolspec.ToolClose { // has no effect
			continue
		}
		fails(t, tool, b.call(t, tool, in), toolspec.CodeClosed, toolspec.CodeNotFound)
	}
}

// TestD6ReservedNames: Workcell's own labels and variables cannot be set from outside.
func TestD6ReservedNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{backend.LabelInstance, backend.LabelRun, backend.LabelPrefix + "anything"} {
		if m, err := session.NewManager(w.driver, &session.Options{Labels: map[string]string{name: "x"}}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("label %s was accepted: %v, %v", name, m, err)
		}
	}
	stranger := "stranger" + record.NewID()
	image := debianImage
	if engine, ok := w.engine.(imaged); ok {
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
	// The sandbox belongs only to us, whatever labels the image has.
	if list, err := w.driver.List(t.Context(), backend.Filter{Instance: stranger}); err != nil || len(list) != 0 {
		t.Errorf("the stranger's sandboxes: %+v, %v", list, err)
	}
	if list, err := m.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != s.ID() || list[0].Run != "" {
		t.Errorf("our sandboxes: %+v, %v", list, err)
	}
	// The identifying variable of commands cannot be set, and the image's value is removed.
	if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"WORKCELL_EXEC": "x"}}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("WORKCELL_EXEC was accepted: %v", err)
	}
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "echo $WORKCELL_EXEC"})
	if must(t, err); strings.TrimSpace(string(res.Stdout.Bytes())) != res.ExecID {
		t.Errorf("WORKCELL_EXEC is %q in %s", res.Stdout.Bytes(), res.ExecID)
	}
}
