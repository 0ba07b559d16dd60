package tools_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := codeMode()
	s.Limits = frontmatter.Limits{MemoryMB: 512, PIDs: 64, CPUMillicores: 500, ExecTimeoutSeconds: 30, TimeoutSeconds: 600}
	set := r.tools(s)
	out := set.ok("sandbox_open", nil)
	if keys(out) != "created image limits network note sandbox_id user workdir" {
		t.Errorf("fields: %s", keys(out))
	}
	if out["created"] != true || out["image"] != "debian:bookworm-slim" || out["user"] != "1000:1000" || out["network"] != "none" {
		t.Errorf("%v", out)
	}
	want := map[string]any{"memory_mb": 512.0, "pids": 64.0, "cpu_millicores": 500.0, "exec_timeout": "30s", "idle_timeout": "10m"}
	if diff := cmp.Diff(want, out["limits"]); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	for _, part := range []string{"no network", "pip, npm, apt", "Interpreters found: ", "sh", "512 MiB", "after 30 s", "at most 3600"} {
		if !strings.Contains(str(out["note"]), part) {
			t.Errorf("the note lacks %q: %s", part, out["note"])
		}
	}
	again := set.ok("sandbox_open", obj{})
	if again["created"] != false || again["sandbox_id"] != out["sandbox_id"] {
		t.Errorf("opened again: %v", again)
	}
	if r.engine.created() != 1 {
		t.Errorf("%d sandboxes", r.engine.created())
	}
}

// TestForeignSandboxes verifies that a run can use only its own sandboxes and learns nothing about others.
func TestForeignSandboxes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mine, other := r.tools(codeMode()), r.tools(codeMode())
	mine.ok("sandbox_open", nil)
	id := str(other.ok("sandbox_open", nil)["sandbox_id"])
	other.ok("sandbox_fs_write", obj{"path": "secret", "contents": "x"})
	unknown := mine.fails(toolspec.CodeNotFound, "sandbox_exec", obj{"command": "x", "sandbox_id": "sbx_" + record.NewID()})
	for name, foreign := range map[string]string{
		"another run's": id, "its prefix": id[:12], "engine's id": r.engine.all()[0].ID, "control characters": "a\x00\x1b[31m\n", "long": strings.Repeat("a", 10_000),
	} {
		for tool, input := range map[string]obj{
			"sandbox_exec": {"command": "true"}, "sandbox_fs_read": {"path": "secret"}, "sandbox_fs_write": {"path": "a", "contents": "b"},
			"sandbox_fs_list": {}, "sandbox_fs_delete": {"path": "secret"}, "sandbox_close": {"delete_workspace": true}, "sandbox_exec_kill": {"exec_id": "exe_x"},
		} {
			input["sandbox_id"] = foreign
			out := mine.call(context.Background(), tool, input)
			if diff := cmp.Diff(unknown["error"], out["error"]); diff != "" {
				t.Errorf("%s with %s (-unknown +got):\n%s", tool, name, diff)
			}
		}
	}
	if out := other.ok("sandbox_fs_read", obj{"path": "secret"}); out["contents"] != "x" {
		t.Errorf("%v", out)
	}
	if !strings.Contains(r.log.String(), "refused a sandbox ID of another scope") {
		t.Error("no audit line")
	}
}

func TestSessionKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(codeMode())
	first := set.ok("sandbox_open", nil)["sandbox_id"]
	second := set.ok("sandbox_open", obj{"session_key": "second"})["sandbox_id"]
	if first == second {
		t.Fatal("one sandbox for two names")
	}
	out := set.fails(toolspec.CodeInvalid, "sandbox_exec", obj{"command": "true"})
	for _, part := range []string{fmt.Sprintf("%v (default)", first), fmt.Sprintf("%v (second)", second)} {
		if !strings.Contains(message(out), part) {
			t.Errorf("%s lacks %s", message(out), part)
		}
	}
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": "2", "sandbox_id": second})
	set.fails(toolspec.CodeNotFound, "sandbox_fs_read", obj{"path": "f", "sandbox_id": first})
	if out := set.ok("sandbox_open", obj{"session_key": "default"}); out["sandbox_id"] != first || out["created"] != false {
		t.Errorf("default by name: %v", out)
	}
	for _, bad := range []string{"a:b", "../x", "..", ".hidden", "-x", "a/b", "a b", "a\x00b", "a\nb", "ü", strings.Repeat("a", 10_000)} {
		out := set.fails(toolspec.CodeInvalid, "sandbox_open", obj{"session_key": bad})
		if len(message(out)) > 500 || strings.ContainsAny(message(out), "\x00\n") {
			t.Errorf("message %q", message(out))
		}
	}
	if n := r.engine.created(); n != 2 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestIsolation verifies the rule of docs/concepts/isolation.md about which agents can use which sandboxes of a run.
func TestIsolation(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("isolation", session.Request{Image: "custom:1"})
	agent := func(session string) *toolset { return r.tools(tools.Sandbox{Mode: "code", Session: session}) }
	plain, vault, own := agent(""), agent("vault"), agent("isolated")
	open := func(who *toolset, key string) obj { return who.call(ctx, "sandbox_open", obj{"session_key": key}) }
	shared, secret, isolated := str(open(plain, "")["sandbox_id"]), str(open(vault, "")["sandbox_id"]), str(open(own, "")["sandbox_id"])
	name := ""
	for _, info := range r.engine.all() {
		if info.SessionID == isolated {
			_, name, _ = strings.Cut(strings.TrimPrefix(info.Key, "workflow:"), ":")
		}
	}
	if shared == secret || secret == isolated || !strings.HasPrefix(name, "isolated.") {
		t.Fatalf("sandboxes %s, %s and %s, called %s", shared, secret, isolated, name)
	}
	for who, want := range map[*toolset]map[string]string{
		plain: {"": shared, "default": shared, "vault": secret, name: ""},
		vault: {"": secret, "default": shared, "vault": secret, name: ""},
		own:   {"": isolated, "default": "", "vault": "", name: isolated},
	} {
		for key, id := range want {
			out := open(who, key)
			if id == "" && code(out) != "permission_denied" || str(out["sandbox_id"]) != id {
				t.Errorf("session %q opens %q: %v", who.call(ctx, "sandbox_open", nil)["sandbox_id"], key, out)
			}
		}
	}
	unknown := own.call(ctx, "sandbox_fs_list", obj{"sandbox_id": "sbx_" + record.NewID()})
	for _, out := range []obj{
		own.call(ctx, "sandbox_fs_list", obj{"sandbox_id": secret}), own.call(ctx, "sandbox_close", obj{"sandbox_id": shared, "delete_workspace": true}),
		vault.call(ctx, "sandbox_fs_list", obj{"sandbox_id": isolated}), plain.call(ctx, "sandbox_exec", obj{"sandbox_id": isolated, "command": "true"}),
	} {
		if diff := cmp.Diff(unknown, out); diff != "" {
			t.Errorf("(-unknown +got):\n%s", diff)
		}
	}
	// An isolated step isolates its agents, even if their files name a sandbox.
	step := session.WithSessionName(ctx, name)
	for _, who := range []*toolset{agent(""), agent("vault")} {
		if out := who.call(step, "sandbox_open", nil); out["sandbox_id"] != isolated {
			t.Errorf("an agent of an isolated step: %v", out)
		}
		if out := who.call(step, "sandbox_open", obj{"session_key": "vault"}); code(out) != "permission_denied" {
			t.Errorf("an agent of an isolated step opens another: %v", out)
		}
	}
	if n := r.engine.created(); n != 3 {
		t.Errorf("%d sandboxes", n)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(codeMode())
	if out := set.ok("sandbox_close", nil); out["ok"] != true || r.engine.created() != 0 {
		t.Errorf("closing nothing: %v", out)
	}
	id := set.ok("sandbox_open", nil)["sandbox_id"]
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": "kept"})
	run := set.ok("sandbox_exec", obj{"command": "sleep 100; echo late > late", "stream": true})
	set.ok("sandbox_close", obj{})
	out := set.fails(toolspec.CodeClosed, "sandbox_exec", obj{"command": "true", "sandbox_id": id})
	if !strings.Contains(message(out), "sandbox_open") {
		t.Errorf("message %s", message(out))
	}
	again := set.ok("sandbox_open", nil)
	if again["created"] != false || again["sandbox_id"] != id {
		t.Errorf("opened again: %v", again)
	}
	if out := set.ok("sandbox_fs_read", obj{"path": "f"}); out["contents"] != "kept" {
		t.Errorf("the file: %v", out)
	}
	if out := set.ok("sandbox_exec_wait", obj{"exec_id": run["exec_id"], "timeout_seconds": 10}); out["status"] != "killed" {
		t.Errorf("a command that was running at the close: %v", out)
	}
	for _, deletes := range []bool{false, false, true, true, false} {
		set.ok("sandbox_close", obj{"sandbox_id": id, "delete_workspace": deletes})
	}
	if r.engine.open() != 0 {
		t.Error("the sandbox is still there")
	}
	set.fails(toolspec.CodeClosed, "sandbox_fs_read", obj{"path": "f", "sandbox_id": id})
	fresh := set.ok("sandbox_open", nil)
	if fresh["created"] != true || fresh["sandbox_id"] == id {
		t.Errorf("a fresh one: %v", fresh)
	}
	set.fails(toolspec.CodeNotFound, "sandbox_fs_read", obj{"path": "f"})
}

// TestCloseAfterAFailure verifies that a sandbox whose removal failed is closed, and that closing it again removes it.
func TestCloseAfterAFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(codeMode())
	id := set.ok("sandbox_open", nil)["sandbox_id"]
	set.ok("sandbox_fs_write", obj{"path": "f", "contents": "gone"})
	refuse := func() error { return backend.ErrUnavailable }
	r.engine.fail.remove.Store(&refuse)
	closing := obj{"sandbox_id": id, "delete_workspace": true}
	for range 2 {
		set.fails(toolspec.CodeUnavailable, "sandbox_close", closing)
		set.fails(toolspec.CodeClosed, "sandbox_fs_read", obj{"path": "f", "sandbox_id": id})
	}
	r.engine.fail.remove.Store(nil)
	for range 2 {
		set.ok("sandbox_close", closing)
		if n := r.engine.open(); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	}
	if out := set.ok("sandbox_open", nil); out["created"] != true || out["sandbox_id"] == id {
		t.Errorf("a fresh one: %v", out)
	}
	set.ok("sandbox_close", obj{"sandbox_id": id})
	set.fails(toolspec.CodeNotFound, "sandbox_close", obj{"sandbox_id": "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa", "delete_workspace": true})
	if n := r.engine.open(); n != 1 {
		t.Errorf("%d sandboxes, want the fresh one", n)
	}
}

// TestClosedBehindOurBack verifies that a sandbox that disappeared is never replaced silently.
func TestClosedBehindOurBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("run_1", session.Request{})
	set := r.toolsIn(ctx, codeMode())
	id := set.ok("sandbox_open", nil)["sandbox_id"]
	checktest.Must(t, r.manager.CloseSession(ctx, session.WorkflowKey("run_1", "default"), session.CloseOptions{}))
	set.fails(toolspec.CodeClosed, "sandbox_exec", obj{"command": "true"})
	set.fails(toolspec.CodeClosed, "sandbox_exec", obj{"command": "true", "sandbox_id": id})
	out := set.ok("sandbox_open", nil)
	if out["created"] != true || !strings.Contains(str(out["note"]), "files from earlier calls are lost") {
		t.Errorf("%v", out)
	}
	checktest.Must(t, r.manager.CloseScope(ctx, record.Scope{Namespace: "workflow", ID: "run_1"}))
	set.fails(toolspec.CodeClosed, "sandbox_open", nil)
}

func TestOpenFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, tt := range map[string]struct {
		err  error
		code toolspec.Code
		want string
	}{
		"image":       {fmt.Errorf("%w: no such image: x", backend.ErrImage), toolspec.CodeUnavailable, "Report that the image is missing"},
		"unavailable": {fmt.Errorf("%w: engine at unix:///var/run/docker.sock", backend.ErrUnavailable), toolspec.CodeUnavailable, ""},
		"capacity":    {backend.ErrCapacity, toolspec.CodeCapacity, "If you have the tool sandbox_close"},
		"unsupported": {fmt.Errorf("%w: no disk quota", backend.ErrUnsupported), toolspec.CodeUnsupported, ""},
		"internal":    {errors.New("mkdir /var/lib/docker/x: boom"), toolspec.CodeInternal, ""},
	} {
		r.engine.onCreate(func(context.Context) error { return tt.err })
		out := r.tools(codeMode()).fails(tt.code, "sandbox_exec", obj{"command": "true"})
		if !strings.Contains(message(out), tt.want) || strings.Contains(message(out), "/var/") {
			t.Errorf("%s: %s", name, message(out))
		}
	}
	if r.engine.open() != 0 {
		t.Error("sandboxes are left")
	}
}

// TestSharing verifies that agents with different requests can open the same sandbox.
func TestSharing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := r.within("run_1", session.Request{})
	open := func(ctx context.Context, s tools.Sandbox) obj { return r.tools(s).call(ctx, "sandbox_open", nil) }
	special := codeMode()
	special.Limits.MemoryMB = 512
	special.Env = map[string]string{"A": "b"}
	waiting := r.tools(codeMode())
	r.engine.onCreate(func(context.Context) error { // another agent opens the sandbox during the creation
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		if out, err := waiting.tools["sandbox_open"].RunRaw(short, nil); err == nil {
			t.Errorf("an agent without wishes does not wait: %v", out)
		}
		r.engine.fail.create.Store(nil)
		return nil
	})
	first := open(ctx, special)
	if second := open(ctx, tools.Sandbox{Mode: "code"}); second["sandbox_id"] != first["sandbox_id"] || second["created"] != false {
		t.Errorf("an agent without wishes: %v", second)
	}
	other := codeMode()
	other.Limits.MemoryMB = 256
	if out := open(ctx, other); code(out) != "exists" || !strings.Contains(message(out), `the sandbox "default" of this run already exists with different settings: limits`) {
		t.Errorf("an agent with another wish: %v", out)
	}
	other.Session = "own"
	// A workflow step can replace the default sandbox.
	for name, out := range map[string]obj{"another session": open(ctx, other), "the step's": open(session.WithSessionName(ctx, "step"), codeMode())} {
		if code(out) != "" || out["sandbox_id"] == first["sandbox_id"] {
			t.Errorf("%s: %v", name, out)
		}
	}
	// The run's request fills in fields the agent does not set.
	base := session.WithBase(session.WithSessionName(ctx, "base"), session.Request{Image: "custom:1", Env: map[string]string{"X": "y"}})
	if out := open(base, codeMode()); out["image"] != "custom:1" {
		t.Errorf("with a base: %v", out)
	}
}

// TestSharingAfterRestart verifies that an agent without wishes adopts the sandbox of an agent with wishes.
func TestSharingAfterRestart(t *testing.T) {
	t.Parallel()
	opts := session.Options{Instance: "i", Store: record.NewMemoryStore()}
	r := rigOf(t, opts, fstest.MapFS{})
	ctx := r.within("run_1", session.Request{})
	special := codeMode()
	special.Limits.MemoryMB = 512
	first := r.toolsIn(ctx, special).call(ctx, "sandbox_open", nil)
	checktest.Must(t, r.manager.Detach(t.Context()))
	m, err := session.NewManager(r.engine, &opts)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, m.Close(context.Background())) })
	r.manager, r.plugin = m, &tools.Plugin{Manager: m}
	out := r.toolsIn(ctx, codeMode()).call(ctx, "sandbox_open", nil)
	if out["sandbox_id"] != first["sandbox_id"] || out["created"] != false {
		t.Errorf("%v, want the sandbox %v", out, first["sandbox_id"])
	}
}
