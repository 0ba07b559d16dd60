//go:build linux

package promises

import (
	"context"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

var must, eventually = checktest.Must, checktest.Eventually

type obj = map[string]any

// programs are the programs that run in sandboxes.
//
//go:embed testdata/*.py
var programs embed.FS

func program(t testing.TB, name string) string {
	t.Helper()
	src, err := programs.ReadFile("testdata/" + name)
	must(t, err)
	return string(src)
}

// pythonSandbox returns the configuration of an agent's default sandbox.
func pythonSandbox() tools.Sandbox {
	return tools.Sandbox{Mode: frontmatter.ModeCode, Image: pythonImage}
}

// rootSandbox returns the configuration with the most privileges available to an attacker.
func rootSandbox() tools.Sandbox {
	return tools.Sandbox{Mode: frontmatter.ModeCode, Image: pythonImage, User: "0:0", Root: frontmatter.RootWritable}
}

// testSandbox is a sandbox with the tools of an agent.
type testSandbox struct {
	s     *session.Session
	run   session.Run
	tools map[string]ai.Tool

	posture struct { // see postureOf
		mu sync.Mutex
		posture
		known bool
	}
}

// openSandbox opens the sandbox of a new run with sandbox_open.
func openSandbox(ctx context.Context, m *session.Manager, p *tools.Plugin, cfg tools.Sandbox) (*testSandbox, error) {
	b, err := agentOf(ctx, p, session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()}, cfg)
	if err != nil {
		return nil, err
	}
	out, err := b.raw(ctx, toolspec.ToolOpen, obj{})
	if err != nil || out["error"] != nil {
		return nil, errors.Join(err, fmt.Errorf("sandbox_open: %v", out["error"]))
	}
	b.s, err = m.Lookup(ctx, b.run.Scope(), out["sandbox_id"].(string))
	return b, err
}

// agentOf returns the tools of a run's agent. The sandbox is not open yet.
func agentOf(ctx context.Context, p *tools.Plugin, run session.Run, cfg tools.Sandbox) (*testSandbox, error) {
	list, err := p.Tools(session.WithRun(ctx, run), cfg)
	if err != nil {
		return nil, err
	}
	b := &testSandbox{run: run, tools: map[string]ai.Tool{}}
	for _, tool := range list {
		b.tools[tool.Name()] = tool
	}
	return b, nil
}

// newSandbox opens a sandbox for one test.
func newSandbox(t testing.TB, cfg tools.Sandbox) *testSandbox {
	t.Helper()
	b, err := openSandbox(t.Context(), w.manager, w.plugin, cfg)
	must(t, err)
	t.Cleanup(func() {
		if err := w.manager.CloseScope(context.Background(), b.run.Scope()); err != nil {
			t.Errorf("closing the sandbox: %v", err)
		}
	})
	return b
}

// raw calls a tool like Genkit, with JSON input and output.
func (b *testSandbox) raw(ctx context.Context, tool string, input any) (obj, error) {
	out, err := b.tools[tool].RunRaw(session.WithRun(ctx, b.run), input)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	var m obj
	return m, json.Unmarshal(text, &m)
}

// call calls a tool. A Go error, which would end an agent's run, fails the test.
func (b *testSandbox) call(t testing.TB, tool string, input any) obj {
	t.Helper()
	out, err := b.raw(t.Context(), tool, input)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return out
}

// ok is like call, but the call must succeed.
func (b *testSandbox) ok(t testing.TB, tool string, input any) obj {
	t.Helper()
	out := b.call(t, tool, input)
	if code(out) != "" {
		t.Fatalf("%s %.200v: %v", tool, input, out["error"])
	}
	return out
}

// code returns the error code of an output, or an empty string.
func code(out obj) toolspec.Code {
	e, _ := out["error"].(obj)
	c, _ := e["code"].(string)
	return toolspec.Code(c)
}

func message(out obj) string {
	e, _ := out["error"].(obj)
	m, _ := e["message"].(string)
	return m
}

// fails verifies that an output is an error of one of the classes.
func fails(t testing.TB, what string, out obj, want ...toolspec.Code) {
	t.Helper()
	if !slices.Contains(want, code(out)) {
		t.Errorf("%s: %.300v, want an error of class %v", what, out, want)
	}
}

// sh runs a shell line, which must succeed, and returns the standard output.
func (b *testSandbox) sh(t testing.TB, line string) string {
	t.Helper()
	return b.exec(t, sandbox.ExecRequest{Command: line})
}

// python runs a program of testdata, which must succeed, and returns the standard output.
func (b *testSandbox) python(t testing.TB, name string, args ...string) string {
	t.Helper()
	return b.exec(t, sandbox.ExecRequest{Argv: append([]string{"python3", "-c", program(t, name)}, args...)})
}

func (b *testSandbox) exec(t testing.TB, req sandbox.ExecRequest) string {
	t.Helper()
	req.HeadBytes, req.TailBytes = 64<<10, 64<<10
	res, err := b.s.Exec(t.Context(), req)
	if err != nil {
		t.Fatalf("%.300s: %v", fmt.Sprint(req.Argv, req.Command), err)
	}
	if res.Status != sandbox.ExecCompleted || res.ExitCode != 0 || res.Signal != "" {
		t.Fatalf("%.300s: %+v\n%s%s", fmt.Sprint(req.Argv, req.Command), res.ExecStatus, res.Stdout.Bytes(), res.Stderr.Bytes())
	}
	return string(res.Stdout.Bytes())
}

// background starts a program of testdata, which runs until the test ends, and returns the first output.
func (b *testSandbox) background(t testing.TB, name string, args ...string) (said string) {
	t.Helper()
	res, err := b.s.Exec(t.Context(), sandbox.ExecRequest{
		Argv: append([]string{"python3", "-c", program(t, name)}, args...), Background: true, Timeout: 10 * time.Minute,
	})
	must(t, err)
	t.Cleanup(func() {
		if _, err := b.s.Command(res.ExecID).Signal(context.Background(), ""); err != nil {
			t.Errorf("ending %s: %v", name, err)
		}
	})
	eventually(t, name+" runs", func() bool {
		out := b.ok(t, toolspec.ToolExecRead, obj{"exec_id": res.ExecID, "wait_ms": 1000})
		if out["done"] == true {
			t.Fatalf("%s ended: %v", name, out)
		}
		chunks := out["chunks"].([]any)
		if len(chunks) > 0 {
			said, _ = chunks[0].(obj)["text"].(string)
		}
		return len(chunks) > 0
	})
	return said
}

// alive verifies that the sandbox still works.
func (b *testSandbox) alive(t testing.TB) {
	t.Helper()
	if got := b.sh(t, "echo alive"); got != "alive\n" {
		t.Errorf("the next command printed %q", got)
	}
}

// dir creates a directory for the test in the workspace, and returns the name.
func (b *testSandbox) dir(t testing.TB) string {
	t.Helper()
	name := "test-" + record.NewID()
	_, err := b.s.MakeDir(t.Context(), name, 0)
	must(t, err)
	return name
}

// each runs a test in the shared sandboxes of an unprivileged user and of root.
func each(t *testing.T, f func(t *testing.T, b *testSandbox)) {
	t.Helper()
	eachOf(t, map[string]*testSandbox{"user": w.user, "root": w.root}, f)
}

// eachOf runs a test in shared sandboxes. It skips sandboxes not supported by the engine.
func eachOf(t *testing.T, sandboxes map[string]*testSandbox, f func(t *testing.T, b *testSandbox)) {
	t.Helper()
	for name, b := range sandboxes {
		if b == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, b)
			b.alive(t)
		})
	}
}

// users returns the configurations for tests that open sandboxes: for an unprivileged user and, if the engine supports
// it, for root.
func users() map[string]tools.Sandbox {
	all := map[string]tools.Sandbox{"user": pythonSandbox()}
	if w.root != nil {
		all["root"] = rootSandbox()
	}
	return all
}

// request returns the plain sandbox request for tests of the session API.
func request() session.Request { return session.Request{Image: debianImage} }

// newManager returns a manager with a new instance, and verifies at the end that nothing is left.
func newManager(t testing.TB, b backend.SandboxBackend, opts session.Options) *session.Manager {
	t.Helper()
	if opts.Instance == "" {
		opts.Instance = w.instance + "-" + record.NewID()
	}
	m, err := session.NewManager(b, &opts)
	must(t, err)
	t.Cleanup(func() {
		must(t, m.Close(context.Background()))
		nothingLeft(t, m.Instance())
	})
	return m
}

// nothingLeft waits until the engine has no objects of an instance.
func nothingLeft(t testing.TB, instance string) {
	t.Helper()
	var left []string
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left, err = w.engine.left(context.Background(), instance); err == nil && len(left) == 0 {
			return
		}
	}
	t.Errorf("left on the engine: %v, %v", left, err)
}

// newDriver connects to the engine.
func newDriver(t testing.TB, c connection) backend.SandboxBackend {
	t.Helper()
	b, err := w.engine.connect(t.Context(), c)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

// refuses verifies that an engine rejects a sandbox with unsupported features, or with features forbidden for this
// user.
func refuses(t *testing.T, what string, cfg tools.Sandbox, want toolspec.Code) {
	t.Helper()
	b, err := agentOf(t.Context(), w.plugin, session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()}, cfg)
	must(t, err)
	fails(t, what, b.call(t, toolspec.ToolOpen, obj{}), want)
	if left := w.manager.InScope(b.run.Scope()); len(left) != 0 {
		t.Errorf("%s: %v", what, left)
	}
}

// patience is the maximum wait for an expected event. The test host may be very busy. A hang still fails the test,
// because intentional blocks of tests last for ten minutes.
const patience = 3 * time.Minute

// timedOut runs a command without an end with sandbox_exec. The timeout must be long enough to reach the state required
// by ready. On a busy host, timedOut increases the timeout.
func (b *testSandbox) timedOut(t testing.TB, in obj, seconds int, ready func(out obj) bool) obj {
	t.Helper()
	for {
		in["timeout_seconds"], in["yield_ms"] = seconds, 600_000
		out := b.ok(t, toolspec.ToolExec, in)
		if out["status"] != "timed_out" {
			t.Fatalf("after %d s: %v", seconds, out)
		}
		if ready(out) || seconds > 60 {
			return out
		}
		seconds *= 6
	}
}

func b64(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// contents returns the contents read by sandbox_fs_read.
func contents(t testing.TB, out obj) []byte {
	t.Helper()
	if text, ok := out["contents"].(string); ok {
		return []byte(text)
	}
	text, ok := out["contents_b64"].(string)
	if !ok {
		t.Fatalf("sandbox_fs_read: %.300v", out)
	}
	data, err := base64.StdEncoding.DecodeString(text)
	must(t, err)
	return data
}

// command prepares a run of the command line with additional environment variables.
func command(t testing.TB, state string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := w.cli()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + state, "WORKCELL_STATE_DIR=" + state, "WORKCELL_REAPER=off", hostCanary + "=seen"}, env...)
	cmd.Env = append(append(w.engine.environ(), "WORKCELL_BACKEND="+w.name), cmd.Env...)
	cmd.WaitDelay = time.Minute
	return cmd
}

// workcell runs the command line until it exits.
func workcell(t testing.TB, state string, env []string, args ...string) rig.Result {
	t.Helper()
	return rig.Run(t, command(t, state, env, args...))
}

// noise returns n pseudorandom bytes for a seed.
func noise(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}
