package tools_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

func bash() tools.Sandbox { return tools.Sandbox{Runtime: "bash"} }

func TestRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(bash())
	if len(set.tools) != 1 {
		t.Fatalf("compute mode has %d tools", len(set.tools))
	}
	out := set.ok("sandbox_run", obj{
		"code": "echo \"$1|$2|$A\"; cat d/in.txt; echo e >&2; exit 3", "args": []string{"a b", "$(id)"},
		"env": obj{"A": "x y"}, "files": obj{"d/in.txt": "hi\n"},
	})
	if out["ok"] != false || out["exit_code"] != 3.0 || out["stdout"] != "a b|$(id)|x y\nhi\n" || out["stderr"] != "e\n" || out["runtime"] != "bash" || out["truncated"] != false {
		t.Errorf("%v", out)
	}
	if keys(out) != "backend duration_ms exit_code isolation ok policy runtime stderr stdout truncated" {
		t.Errorf("fields: %s", keys(out))
	}
	if out := set.ok("sandbox_run", obj{"code": "ls; pwd >/dev/null"}); out["ok"] != true || out["stdout"] != "main.sh\n" {
		t.Errorf("a second run is not fresh: %v", out)
	}
	if r.engine.created() != 2 || r.engine.open() != 0 {
		t.Errorf("%d sandboxes were made, %d are left", r.engine.created(), r.engine.open())
	}
}

// TestScriptInDeadSandbox verifies that a program in mode script gets another sandbox after the first one was lost, and
// that a lost sandbox is closed at the end of its agent.
func TestScriptInDeadSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	script := tools.Sandbox{Mode: "script", Runtime: "bash", Session: "isolated"}
	run := obj{"code": "cat note; echo x > note"}
	again := func(req *ai.ModelRequest) ([]*ai.Part, error) {
		checktest.Must(t, r.engine.die(r.engine.all()[0].ID))
		return call("sandbox_run", run)(req)
	}
	_, seen, err := r.generate(r.within(session.NewRunID(), session.Request{}), script, call("sandbox_run", run), again,
		say("done"))
	checktest.Must(t, err)
	list, err := r.manager.List(t.Context())
	if outs := seen.outputs(); err != nil || len(list) > 0 || code(outs[1]) != string(toolspec.CodeLost) {
		t.Errorf("%v: %+v, %v", outs, list, err)
	}
	script.Session = ""
	set := r.tools(script)
	set.ok("sandbox_run", run)
	checktest.Must(t, r.engine.die(r.engine.all()[0].ID))
	set.fails(toolspec.CodeLost, "sandbox_run", run)
	if out := set.ok("sandbox_run", run); out["stdout"] != "" || r.engine.open() != 1 {
		t.Errorf("%v, %d sandboxes", out, r.engine.open())
	}
}

func TestRunArguments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(bash())
	for name, tt := range map[string]struct {
		input any
		want  string
	}{
		"no code":    {obj{}, "code is required"},
		"empty code": {obj{"code": ""}, "code is empty"},
		"runtime":    {obj{"code": "x", "runtime": "ruby"}, `unknown runtime "ruby": must be python, node, or bash`},
		"timeout":    {obj{"code": "x", "timeout_seconds": 4000}, "timeout_seconds must be 1 to 3600, not 4000"},
		"main":       {obj{"code": "x", "files": obj{"./main.sh": ""}}, "files must not contain main.sh"},
		"absolute":   {obj{"code": "x", "files": obj{"/workspace/main.sh": ""}}, "cannot write /workspace/main.sh: paths must be relative"},
		"sandbox_id": {obj{"code": "x", "sandbox_id": "y"}, "unknown argument \"sandbox_id\""},
	} {
		if out := set.fails(toolspec.CodeInvalid, "sandbox_run", tt.input); !strings.Contains(message(out), tt.want) {
			t.Errorf("%s: %s, want %q", name, message(out), tt.want)
		}
	}
	if r.engine.created() != 0 {
		t.Errorf("%d sandboxes for calls that could not succeed", r.engine.created())
	}
	if out := set.fails(toolspec.CodePermission, "sandbox_run", obj{"code": "true", "files": obj{"../x": "x"}}); !strings.Contains(message(out), "cannot write ../x") {
		t.Errorf("a file outside: %v", out)
	}
	if r.engine.open() != 0 {
		t.Error("a sandbox is left")
	}
}

func TestRunLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := bash()
	s.TimeoutSeconds = 1
	s.MaxStdoutBytes = 2000
	set := r.tools(s)
	out := set.call(context.Background(), "sandbox_run", obj{"code": "echo partial; sleep 60"})
	if code(out) != "timeout" || out["stdout"] != "partial\n" || out["ok"] != false || !strings.Contains(message(out), "timed out after 1 seconds") {
		t.Errorf("timeout: %v", out)
	}
	out = set.ok("sandbox_run", obj{"code": "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done", "timeout_seconds": 30})
	text := str(out["stdout"])
	if out["truncated"] != true || len(text) > 2000 || !strings.Contains(text, "omitted here; print less") || strings.Contains(text, ".workcell") || !strings.HasSuffix(text, "line 999\n") {
		t.Errorf("cut: %d bytes, %v", len(text), out)
	}
	if r.engine.open() != 0 {
		t.Error("a sandbox is left")
	}
}

// TestRunIsAlwaysDestroyed verifies that the sandbox is removed however the call ends.
func TestRunIsAlwaysDestroyed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(bash())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		eventually(t, "the sandbox opens", func() bool { return r.engine.open() > 0 })
		cancel()
	}()
	if _, err := set.tools["sandbox_run"].RunRaw(ctx, obj{"code": "sleep 60"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	eventually(t, "the sandbox goes after a cancel", func() bool { return r.engine.open() == 0 })
	r.engine.onCreate(func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := set.tools["sandbox_run"].RunRaw(ctx, obj{"code": "true"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled while it opens: %v", err)
	}
	if r.engine.open() != 0 {
		t.Error("a sandbox is left after a cancelled open")
	}
}

// TestRunFromThePool verifies that compute mode uses pooled sandboxes.
func TestRunFromThePool(t *testing.T) {
	t.Parallel()
	opts := session.Options{Pool: []session.PoolSpec{{Request: session.Request{Image: "debian:bookworm-slim"}, Size: 1}}}
	r := rigOf(t, opts, fstest.MapFS{})
	for ready := false; !ready; time.Sleep(10 * time.Millisecond) {
		list, err := r.manager.List(t.Context())
		checktest.Must(t, err)
		ready = len(list) == 1 && list[0].State == session.StatePooled
	}
	out := r.tools(bash()).ok("sandbox_run", obj{"code": "echo ran"})
	if out["stdout"] != "ran\n" {
		t.Errorf("%v", out)
	}
	if key := r.engine.asked.Load().Key; !strings.HasPrefix(key, record.NamespacePool+":") {
		t.Errorf("a sandbox was made for it: %s", key)
	}
}
