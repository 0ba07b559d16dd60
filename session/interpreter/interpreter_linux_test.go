package interpreter_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// The tests in e2e/interpreter test interpreters on every engine. The tests here need no engine.

// open opens a sandbox.
func open(t *testing.T) *session.Session {
	t.Helper()
	key := session.WorkflowKey(session.NewRunID(), record.DefaultName)
	s, _, err := manager(t).Open(t.Context(), key, session.Request{Image: "host"})
	checktest.Must(t, err)
	return s
}

// manager returns a manager of a new local backend.
func manager(t *testing.T) *session.Manager {
	t.Helper()
	dir := t.TempDir()
	checktest.Must(t, os.Chmod(dir, 0o700))
	b, err := local.New(t.Context(), &local.Options{StateDir: dir})
	checktest.Must(t, err)
	m, err := session.NewManager(b, nil)
	if err != nil {
		t.Fatal(errors.Join(err, b.Close()))
	}
	t.Cleanup(func() { checktest.Must(t, errors.Join(m.Close(context.Background()), b.Close())) })
	return m
}

// TestWarnings verifies that an interpreter may print warnings before it answers.
func TestWarnings(t *testing.T) {
	t.Parallel()
	s := open(t)
	const script = `#!/bin/sh
echo a warning >&2
sleep 1
PATH=$BEFORE exec python3 "$@"`
	_, err := s.WriteFile(t.Context(), "bin/python3", strings.NewReader(script), sandbox.WriteFileOptions{Mode: 0o755})
	checktest.Must(t, err)
	env := map[string]string{"PATH": s.Workdir() + "/bin:" + sandbox.DefaultPath, "BEFORE": sandbox.DefaultPath}
	req := interpreter.Request{Language: interpreter.Python, Code: "6 * 7", Exec: sandbox.ExecRequest{Env: env}}
	var program *sandbox.Command
	req.Exec.Started = func(c *sandbox.Command) { program = c }
	res, err := interpreter.Run(t.Context(), s.Sandbox, req)
	if err != nil || res.Text != "42" || res.ExecID != program.ID() {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestRunningAmongRubbish verifies that Running finds interpreters even if programs of the sandbox have damaged the
// files of other interpreters.
func TestRunningAmongRubbish(t *testing.T) {
	t.Parallel()
	s := open(t)
	for _, c := range []struct {
		script string
		want   []string
	}{
		{"true", nil},
		{`mkdir -p D/x D/shut; printf one > D/python.exec; printf two > D/x/node.exec; echo > D/a.exec; chmod 0 D/a.exec
mkdir D/b.exec; ln -s /etc/passwd D/c.exec; mkfifo D/d.exec; head -c 100000 /dev/zero > D/e.exec; chmod 0 D/shut`, []string{"one", "two"}},
		{"chmod 0 D", nil},
		{"chmod 700 D; rm -rf D; echo > D", nil},
		{"rm D; ln -s / D", nil},
	} {
		res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "cd /tmp; " + strings.ReplaceAll(c.script, "D", ".workcell-interpreter")})
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("%s: %+v, %v", c.script, res, err)
		}
		ids, err := interpreter.Running(t.Context(), s.Sandbox)
		ids = slices.DeleteFunc(ids, func(id string) bool { return len(id) > 3 || id == "\n" })
		slices.Sort(ids)
		if err != nil || !slices.Equal(ids, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.script, ids, err, c.want)
		}
	}
}

// slow is an approver who needs longer than the program's timeout.
type slow struct{}

func (slow) Approve(context.Context, hosttools.ApprovalRequest) (hosttools.Decision, error) {
	time.Sleep(3 * time.Second)
	return hosttools.Decision{Allow: true}, nil
}

// TestApproval verifies that the timeout of a program is extended while its call of a host tool waits for an approval.
func TestApproval(t *testing.T) {
	t.Parallel()
	find := func(context.Context, hosttools.Call) (res hosttools.Result, err error) { return }
	lookup := hosttools.Tool{Definition: hosttools.Definition{Name: "lookup"}, Handle: find}
	host, err := hosttools.New(nil, hosttools.Static("app", lookup))
	checktest.Must(t, err)
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup", Ask: "true"}}}
	ctx := hosttools.WithApprover(t.Context(), slow{})
	list, err := (&tools.Plugin{Manager: manager(t), HostTools: host}).Tools(ctx, tools.Sandbox{
		Image: "host", Mode: "code", HostTools: &rules,
	})
	checktest.Must(t, err)
	exec := list[slices.IndexFunc(list, func(tool ai.Tool) bool { return tool.Name() == "sandbox_exec" })]
	for range 2 { // the first program starts the interpreter
		out, err := exec.RunRaw(ctx, map[string]any{
			"interpreter": "python", "code": "from workcell import tools\ntools.app.lookup()", "timeout_seconds": 1,
		})
		if answer, _ := out.(map[string]any); err != nil || answer["exit_code"] != 0.0 {
			t.Errorf("%v, %v", out, err)
		}
	}
}

// TestInterruptedAmongOthers verifies that the interpreter survives an interrupted program if another program is
// running. Other commands of the sandbox do not count.
func TestInterruptedAmongOthers(t *testing.T) {
	t.Parallel()
	s := open(t)
	run := func(code string, exec sandbox.ExecRequest) interpreter.Result {
		t.Helper()
		req := interpreter.Request{Language: interpreter.Python, Code: code, Exec: exec}
		res, err := interpreter.Run(t.Context(), s.Sandbox, req)
		checktest.Must(t, err)
		return res
	}
	_, err := s.Start(t.Context(), sandbox.ExecRequest{Argv: []string{"sleep", "1000"}})
	checktest.Must(t, err)
	forever := sandbox.ExecRequest{Timeout: time.Second}
	if res := run("while True: pass", forever); !res.Kept || res.Lost || res.Status != sandbox.ExecTimedOut {
		t.Errorf("%+v", res)
	}
	const waits = "import os, time; os.mkdir('running')\nwhile not os.path.exists('go'): time.sleep(.01)"
	other := run(waits, sandbox.ExecRequest{Background: true})
	for _, err := s.StatFile(t.Context(), "running"); err != nil; _, err = s.StatFile(t.Context(), "running") {
		time.Sleep(10 * time.Millisecond)
	}
	if res := run("import os; os.mkdir('ran')", forever); res.Kept || res.Lost || res.Status != sandbox.ExecTimedOut {
		t.Errorf("behind another program: %+v", res)
	}
	_, err = s.MakeDir(t.Context(), "go", 0)
	checktest.Must(t, err)
	if res, err := s.Command(other.ExecID).Wait(t.Context(), time.Minute); err != nil || res.ExitCode != 0 || !res.Done() {
		t.Errorf("the other program: %+v, %v", res, err)
	}
	run("0", sandbox.ExecRequest{})
	if _, err := s.StatFile(t.Context(), "ran"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("an interrupted program ran later: %v", err)
	}
}
