package promises

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// canary is a secret that must turn up nowhere. Each use of it has an ending of its own, so that a leak tells its way.
const canary = "c4n4ry-s3cret"

// leak looks for the canary, also as other programs would write it.
func leak(t *testing.T, where, text string) {
	t.Helper()
	for _, form := range []string{canary, strings.ReplaceAll(canary, "-", "%2D"), b64([]byte(canary))[:16]} {
		if i := strings.Index(text, form); i >= 0 {
			t.Errorf("%s holds the secret: …%q…", where, text[max(0, i-60):min(len(text), i+60)])
		}
	}
}

// collector takes traces as an OpenTelemetry collector would.
type collector struct {
	url string

	mu   sync.Mutex
	body bytes.Buffer
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				http.Error(rw, err.Error(), http.StatusBadRequest)
				return
			}
			body = z
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		_, _ = io.Copy(&c.body, body) // what is missing fails the test's own checks
	}))
	t.Cleanup(srv.Close)
	c.url = srv.URL
	return c
}

func (c *collector) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.body.String()
}

// inspectAll notes all that the engine tells of an instance's objects until stop is called.
func inspectAll(t *testing.T, instance string) (stop func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan string, 1)
	go func() {
		var all strings.Builder
		for ctx.Err() == nil {
			list, err := w.driver.List(ctx, backend.Filter{Instance: instance})
			if err != nil {
				continue
			}
			for _, info := range list {
				if text, err := w.engine.describe(ctx, info.ID); err == nil {
					all.WriteString(text)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		done <- all.String()
	}()
	return func() string { cancel(); return <-done }
}

// secretFiles writes a workflow, an agent and a script that use secrets everywhere where one can be used.
func secretFiles(t *testing.T) (workflow, script string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(strings.NewReplacer("CANARY", canary, "IMAGE", pythonImage).Replace(text)), 0o600))
		return path
	}
	write("agents/keeper.prompt", `---
model: googleai/gemini-2.5-flash
sandbox:
  mode: code
  image: "IMAGE"
  env: {TOKEN: CANARY-agent-env}
---
Keep CANARY-prompt, {{secret}}.
`)
	workflow = write("w.yaml", `id: w
input: {type: object, properties: {secret: {type: string}}}
sandbox: {image: "IMAGE", env: {TOKEN: CANARY-agent-env}}
steps:
  - id: run
    type: exec
    cmd: [sh, -c, 'cat > f; test -n "$TOKEN$STEP"', CANARY-argv]
    env: {STEP: "CANARY-step-env"}
    stdin: "CANARY-stdin ${ input.secret }"
  - {id: shell, type: exec, command: "git clone https://user:CANARY-userinfo@127.0.0.1:1/x 2>/dev/null; exit 3", on_error: agent}
  - {id: agent, type: agent, agent: keeper, input: {secret: CANARY-agent-input}}
  - {id: missing, type: exec, cmd: [no-such-program, CANARY-argv2], on_error: done}
  - {id: done, type: end, output: done}
`)
	script = write("script.yaml", `agents:
  keeper:
    - - {tool: sandbox_exec, input: {cmd: [sh, -c, 'cat >/dev/null; test -n "$KEY"', CANARY-tool-argv], env: {KEY: CANARY-tool-env}, stdin: CANARY-tool-stdin}}
      - {tool: sandbox_exec, input: {command: "echo CANARY-printed; echo CANARY-printed >&2; curl -u user:CANARY https://127.0.0.1:1; exit 4"}}
      - {tool: sandbox_fs_write, input: {path: secret.txt, contents: CANARY-file}}
      - {tool: sandbox_fs_read, input: {path: secret.txt}}
      - {tool: sandbox_fs_read, input: {path: CANARY-name}}
      - {tool: sandbox_exec, input: {cmd: [CANARY-program]}}
      - {tool: sandbox_exec, input: {cmd: ["true"], env: {"BAD=NAME": CANARY-bad-env}, cwd: /CANARY-dir}}
      - {tool: CANARY-tool, input: {x: CANARY}}
      - {text: "the answer is CANARY-answer"}
`)
	return workflow, script
}

// TestO1Run runs a workflow with a scripted agent as a user would. Neither the traces that the command sends, Genkit's
// spans among them, nor what it prints, nor the engine's descriptions hold what went through.
func TestO1Run(t *testing.T) {
	t.Parallel()
	workflow, script := secretFiles(t)
	c := newCollector(t)
	instance := w.instance + session.NewID()
	var res result
	var described string
	for range 5 { // a busy engine may not describe the sandbox while it is there
		stop := inspectAll(t, instance)
		res = workcell(t, w.stateDir(t, instance), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "WORKCELL_DEBUG=1", "OTEL_BSP_SCHEDULE_DELAY=100"},
			"run", workflow, "--model", "scripted/"+script, "--input", "secret="+canary+"-input")
		described = stop()
		if res.code != 0 || !strings.Contains(res.stdout, "done") {
			t.Fatalf("%+v", res)
		}
		if strings.Contains(described, instance) {
			break
		}
	}
	spans := c.String()
	for _, name := range []string{"workflow.run", "session.Open", "session.Exec", "session.WriteFile", w.name + ".Create", "sandbox_exec", "workcell.sandbox.id"} {
		if !strings.Contains(spans, name) {
			t.Errorf("the traces have no %s", name)
		}
	}
	if !strings.Contains(described, instance) {
		t.Error("the engine was never asked in time")
	}
	leak(t, "the exported traces", spans)
	leak(t, "the engine's description", described)
	leak(t, "standard error", res.stderr)
	leak(t, "standard output", res.stdout)
	nothingLeft(t, instance)
}

// TestO1CommandLine: the same for sandboxes that are opened and used by hand, and for addresses with passwords in them.
func TestO1CommandLine(t *testing.T) {
	t.Parallel()
	instance := w.instance + session.NewID()
	state := w.stateDir(t, instance)
	c := newCollector(t)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "WORKCELL_DEBUG=1", "PASSED=" + canary + "-passed"}
	stop := inspectAll(t, instance)
	opened := workcell(t, state, env, "sessions", "open", "--name", "box", "--image", debianImage, "-e", "TOKEN="+canary+"-open", "-e", "PASSED")
	used := workcell(t, state, env, "sessions", "exec", "-e", "KEY="+canary+"-exec", "box", "--", "sh", "-c", "test -n \"$TOKEN$PASSED$KEY\"", canary+"-argv")
	failed := workcell(t, state, env, "sessions", "exec", "-e", "KEY="+canary+"-exec", "box", "--", "no-such-program", canary+"-argv")
	listed := workcell(t, state, env, "sessions", "ls", "-o", "json")
	described := stop()
	removed := workcell(t, state, env, "sessions", "rm", "box")
	if opened.code != 0 || used.code != 0 || failed.code != 127 || listed.code != 0 || removed.code != 0 {
		t.Fatalf("%+v\n%+v\n%+v\n%+v\n%+v", opened, used, failed, listed, removed)
	}
	for _, r := range []result{opened, used, failed, listed, removed} {
		leak(t, "what a command prints", r.stdout+r.stderr)
	}
	leak(t, "the exported traces", c.String())
	leak(t, "the engine's description", described)
	var files strings.Builder
	must(t, filepath.WalkDir(state, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files.Write(text)
		return err
	}))
	leak(t, "the state directory", files.String())
	for what, args := range map[string][]string{
		"DOCKER_HOST=tcp://user:" + canary + "@127.0.0.1:1":                   {"sessions", "ls"},
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://user:" + canary + "@127.0.0.1:1/": {"sessions", "ls"},
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=" + canary:                  {"sessions", "ls"},
		"GEMINI_API_KEY=" + canary:                                            {"sessions", "ls"},
	} {
		res := workcell(t, state, []string{what, "WORKCELL_DEBUG=1", "OTEL_EXPORTER_OTLP_TIMEOUT=500"}, args...)
		leak(t, what[:20], res.stdout+res.stderr)
	}
	nothingLeft(t, instance)
}

// TestO1Library: the session API's own spans, logs and errors.
func TestO1Library(t *testing.T) {
	t.Parallel()
	log, spans := &buffer{}, tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	driver := newDriver(t, connection{logger: log.logger(), tracer: tp})
	m := newManager(t, driver, session.Options{Logger: log.logger(), TracerProvider: tp})
	b, err := openBox(t.Context(), m, &tools.Plugin{Manager: m, Logger: log.logger()}, tools.Sandbox{
		Mode: "code", Image: debianImage, Env: map[string]string{"TOKEN": canary},
	})
	must(t, err)
	var failures []error
	note := func(err error) {
		t.Helper()
		if err == nil {
			t.Error("this should have failed")
			return
		}
		failures = append(failures, err)
	}
	ctx := t.Context()
	exec := func(req session.ExecRequest) error { _, err := b.s.Exec(ctx, req); return err }
	must(t, exec(session.ExecRequest{Argv: []string{"sh", "-c", "cat; echo $TOKEN; exit 3", canary}, Stdin: []byte(canary), Env: map[string]string{"A": canary}}))
	_, err = b.s.WriteFile(ctx, "f", strings.NewReader(canary), session.WriteFileOptions{})
	must(t, err)
	note(exec(session.ExecRequest{Argv: []string{"no-such-program", canary}, Env: map[string]string{"A": canary}, Stdin: []byte(canary)}))
	note(exec(session.ExecRequest{Argv: []string{"true", canary + "\x00"}}))
	note(exec(session.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"A": canary + "\x00"}}))
	note(exec(session.ExecRequest{Argv: []string{"true", canary + strings.Repeat("x", 3<<20)}}))
	note(exec(session.ExecRequest{Argv: []string{"true"}, Command: canary}))
	note(exec(session.ExecRequest{Argv: []string{"true"}, Timeout: time.Hour * 9, Stdin: []byte(canary)}))
	_, err = b.s.WriteFile(ctx, "f", strings.NewReader(canary), session.WriteFileOptions{})
	note(err)
	_, err = b.s.WriteFile(ctx, "g", strings.NewReader(canary), session.WriteFileOptions{Size: 3})
	note(err)
	_, err = b.s.WriteFile(ctx, "g", io.MultiReader(strings.NewReader(canary), &failingReader{}), session.WriteFileOptions{})
	note(err)
	_, _, err = m.Open(ctx, b.s.Key(), session.Request{Image: debianImage, Env: map[string]string{"TOKEN": canary + "-other"}})
	note(err)
	_, _, err = m.Open(ctx, session.UserKey("x"), session.Request{Image: debianImage, Env: map[string]string{"A=B": canary}})
	note(err)
	for _, image := range []string{"https://user:" + canary + "@registry.test/x", "user:" + canary + "@registry.test/x:1"} {
		_, _, err := m.Open(ctx, session.UserKey("y"), session.Request{Image: image})
		if note(err); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("image with a password: %v", err)
		}
	}
	out := b.call(t, toolspec.ToolExec, obj{"cmd": obj{canary: canary}, canary[:3]: 1, "env": []any{1, canary}})
	fails(t, "nonsense for a tool", out, toolspec.CodeInvalid)
	must(t, m.CloseScope(ctx, b.run.Scope()))
	must(t, tp.ForceFlush(ctx))

	leak(t, "the log", log.String())
	for _, err := range failures {
		leak(t, "an error", err.Error())
	}
	if len(spans.GetSpans()) < 15 {
		t.Errorf("only %d spans", len(spans.GetSpans()))
	}
	for _, s := range spans.GetSpans() {
		leak(t, "span "+s.Name, fmt.Sprint(s.Attributes, s.Events, s.Status.Description, s.Name, s.Links))
		if s.Status.Code == codes.Error && len(s.Status.Description) > 40 {
			t.Errorf("span %s tells the text of an error: %s", s.Name, s.Status.Description)
		}
	}
}

// failingReader breaks off.
type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, errors.New("the source broke") }
