//go:build linux

package promises

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/session/record"
)

// canary is a secret, which must not appear anywhere. Each use appends a different suffix, which identifies the source
// of a leak.
const canary = "c4n4ry-s3cret"

// leak searches for the canary, including encodings of other programs.
func leak(t *testing.T, where, text string) {
	t.Helper()
	for _, form := range []string{canary, strings.ReplaceAll(canary, "-", "%2D"), b64([]byte(canary))[:16]} {
		if i := strings.Index(text, form); i >= 0 {
			t.Errorf("%s holds the secret: …%q…", where, text[max(0, i-60):min(len(text), i+60)])
		}
	}
}

// newCollector starts an OpenTelemetry collector and returns the address and the received data.
func newCollector(t *testing.T) (url string, traces *buffertest.Buffer) {
	t.Helper()
	traces = &buffertest.Buffer{}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				http.Error(rw, err.Error(), http.StatusBadRequest)
				return
			}
			body = z
		}
		_, _ = io.Copy(traces, body) // missing data fails the test's own checks
	}))
	t.Cleanup(srv.Close)
	return srv.URL, traces
}

// inspectAll records the engine's descriptions of an instance's sandboxes until stop is called.
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

// secretFiles writes a workflow, an agent, and a script with secrets in all possible places.
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

// TestO1Run runs a workflow with a scripted agent like a user. The secrets must not appear in the command's traces,
// including Genkit's spans, in the output, or in the engine's descriptions.
func TestO1Run(t *testing.T) {
	t.Parallel()
	workflow, script := secretFiles(t)
	collector, traces := newCollector(t)
	instance := w.instance + record.NewID()
	var res rig.Result
	var described string
	for range 5 { // a busy engine may not describe the sandbox during the sandbox's lifetime
		stop := inspectAll(t, instance)
		res = workcell(t, w.stateDir(t, instance), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector, "WORKCELL_DEBUG=1", "OTEL_BSP_SCHEDULE_DELAY=100"},
			"run", workflow, "--model", "scripted/"+script, "--input", "secret="+canary+"-input")
		described = stop()
		if res.Code != 0 || !strings.Contains(res.Stdout, "done") {
			t.Fatalf("%+v", res)
		}
		if strings.Contains(described, instance) {
			break
		}
	}
	spans := traces.String()
	for _, name := range []string{"invoke_workflow ", "session.Open", "session.Exec", "session.WriteFile", w.name + ".Create", "sandbox_exec", "workcell.sandbox.id"} {
		if !strings.Contains(spans, name) {
			t.Errorf("the traces have no %s", name)
		}
	}
	if !strings.Contains(described, instance) {
		t.Error("the engine was never asked in time")
	}
	leak(t, "the exported traces", spans)
	leak(t, "the engine's description", described)
	leak(t, "standard error", res.Stderr)
	leak(t, "standard output", res.Stdout)
	nothingLeft(t, instance)
}

// TestO1CommandLine verifies the same for sandboxes of the command line, and for addresses with passwords.
func TestO1CommandLine(t *testing.T) {
	t.Parallel()
	instance := w.instance + record.NewID()
	state := w.stateDir(t, instance)
	collector, traces := newCollector(t)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector, "WORKCELL_DEBUG=1", "PASSED=" + canary + "-passed"}
	stop := inspectAll(t, instance)
	described := ""
	for _, c := range []struct {
		code int
		args []string
	}{
		{0, []string{"open", "--name", "box", "--image", debianImage, "-e", "TOKEN=" + canary + "-open", "-e", "PASSED"}},
		{0, []string{"exec", "-e", "KEY=" + canary + "-exec", "box", "--", "sh", "-c", "test -n \"$TOKEN$PASSED$KEY\"", canary + "-argv"}},
		{127, []string{"exec", "-e", "KEY=" + canary + "-exec", "box", "--", "no-such-program", canary + "-argv"}},
		{0, []string{"ls", "-o", "json"}},
		{0, []string{"rm", "box"}},
	} {
		if c.args[0] == "rm" {
			described = stop()
		}
		res := workcell(t, state, env, append([]string{"sandbox"}, c.args...)...)
		if res.Code != c.code {
			t.Errorf("sessions %s: %+v", c.args[0], res)
		}
		leak(t, "what sessions "+c.args[0]+" prints", res.Stdout+res.Stderr)
	}
	leak(t, "the exported traces", traces.String())
	leak(t, "the engine's description", described)
	files, err := contentsBelow(state)
	must(t, err)
	leak(t, "the state directory", files)
	for _, variable := range []string{
		"DOCKER_HOST=tcp://user:" + canary + "@127.0.0.1:1", "OTEL_EXPORTER_OTLP_ENDPOINT=http://user:" + canary + "@127.0.0.1:1/",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=" + canary, "GEMINI_API_KEY=" + canary,
	} {
		res := workcell(t, state, []string{variable, "WORKCELL_DEBUG=1", "OTEL_EXPORTER_OTLP_TIMEOUT=500"}, "sandbox", "ls")
		leak(t, variable[:20], res.Stdout+res.Stderr)
	}
	nothingLeft(t, instance)
}
