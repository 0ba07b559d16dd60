package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/codes"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// collector accepts OTLP over HTTP and stores the bytes. Protobuf stores text unchanged, so the tests can search it.
type collector struct {
	*httptest.Server
	mu   sync.Mutex // guards body
	body bytes.Buffer
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/traces" {
			t.Errorf("request to %s", r.URL.Path)
		}
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.body.Write(raw)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) contains(s string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.body.Bytes(), []byte(s))
}

// canary stands for a secret. It passes through the run's input, a prompt, arguments and outputs of tools, an
// environment, a command line, a file, and an error.
const canary = "canary-5f1e7a"

// canaryRun writes a workflow, an agent, and a script with the canary.
func canaryRun(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"w.yaml": `
id: canary
input: {type: object, properties: {secret: {type: string}}}
sandbox: {image: debian:bookworm-slim}
steps:
  - {id: say, type: agent, agent: teller, input: {secret: "${ input.secret }"}}
  - {id: show, type: exec, cmd: [echo, "${ input.secret }"], env: {SECRET: "${ input.secret }"}}
  - {id: broken, type: exec, cmd: ["${ input.secret }"], on_error: continue}
  - {id: done, type: end, output: "${ steps.say.output }"}
`,
		"agents/teller.prompt": "---\nmodel: googleai/none\nsandbox: {mode: code, runtime: bash}\ninput: {schema: {secret: string}}\n---\nTell {{secret}}\n",
		"s.yaml": `
agents:
  teller:
    - - {tool: sandbox_fs_write, input: {path: secret.txt, contents: "${ input.secret }"}}
      - {tool: sandbox_exec, input: {command: "cat secret.txt; echo $S", env: {S: "${ input.secret }"}, stdin: "${ input.secret }"}}
      - {tool: sandbox_exec, input: {cmd: ["${ input.secret }"]}}
      - {tool: sandbox_fs_read, input: {path: "${ input.secret }"}}
      - text: "${ outputs[1].stdout }"
`,
	} {
		path := filepath.Join(dir, name)
		checktest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		checktest.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return []string{"run", filepath.Join(dir, "w.yaml"), "--model", "scripted/" + filepath.Join(dir, "s.yaml"), "--input", "secret=" + canary}
}

// runTraced runs the command with additional variables and returns standard error.
func runTraced(t *testing.T, environ []string, args []string) string {
	t.Helper()
	cmd := workcell(t, args...)
	cmd.Env = environ
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if !strings.Contains(stdout.String(), canary) {
		t.Errorf("the result lacks the canary, so the run proves nothing:\n%s", stdout.String())
	}
	return stderr.String()
}

func TestTracesCarryNoContent(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	environ := append(testEnviron(t), "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL,
		"TRACEPARENT=00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	stderr := runTraced(t, environ, canaryRun(t))
	for _, want := range []string{"invoke_workflow canary", "workflow.step", "invoke_agent teller", "gen_ai.operation.name", "session.Open", "session.Exec", "session.WriteFile",
		"chat teller", "execute_tool sandbox_exec", "service.name", "\x01\x23\x45\x67\x89\xab\xcd\xef"} {
		if !c.contains(want) {
			t.Errorf("the traces lack %q", want)
		}
	}
	if c.contains(canary) {
		t.Error("the canary is in the traces")
	}
	if !strings.Contains(stderr, "workcell: trace: 0123456789abcdef0123456789abcdef\n") {
		t.Errorf("standard error does not name the caller's trace:\n%s", stderr)
	}
}

func TestTracesCarryContentWhenAsked(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]struct{ environ, flags []string }{
		"by the flag":                  {nil, []string{"--trace-content"}},
		"by the conventions' variable": {[]string{"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCollector(t)
			environ := append(testEnviron(t), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+c.URL+"/v1/traces", "OTEL_SERVICE_NAME=shop")
			runTraced(t, append(environ, ask.environ...), append(canaryRun(t), ask.flags...))
			for _, want := range []string{canary, "genkit:input", "gen_ai.input.messages", "gen_ai.tool.call.arguments", "shop"} {
				if !c.contains(want) {
					t.Errorf("the traces lack %q", want)
				}
			}
		})
	}
}

// TestCollectorThatIsNotThere verifies that an unavailable collector causes only a notice and a limited wait.
func TestCollectorThatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, vars := range map[string][]string{
		"http": {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
		"grpc": {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
		"odd":  {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stderr := runTraced(t, append(testEnviron(t), vars...), canaryRun(t))
			if n := strings.Count(stderr, "workcell: cannot export traces or metrics: "); n != 1 {
				t.Errorf("%d notices:\n%s", n, stderr)
			}
		})
	}
}

// TestOneCommandIsOneTrace verifies that all sandbox operations of a command are below one span with the command's
// name. A failure of the executed program is not an error of the span.
func TestOneCommandIsOneTrace(t *testing.T) {
	t.Parallel()
	environ := append(testEnviron(t), "OTEL_TRACES_EXPORTER=console")
	file := filepath.Join(t.TempDir(), "file")
	checktest.Must(t, os.WriteFile(file, []byte("x"), 0o600))
	for _, args := range [][]string{
		{"open", "--name", "box", "--image", "workcell/debian:12"}, {"exec", "box", "--", "false"}, {"cp", file, "box:file"}, {"rm", "box"},
	} {
		cmd := workcell(t, append([]string{"sandbox"}, args...)...)
		cmd.Env = environ
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run() // false fails
		var roots, failed []string
		traces := map[string]bool{}
		for line := range strings.Lines(stderr.String()) {
			var span struct {
				Name                string
				SpanContext, Parent struct{ TraceID, SpanID string }
				Status              struct{ Code string }
			}
			if json.Unmarshal([]byte(line), &span) != nil {
				continue
			}
			traces[span.SpanContext.TraceID] = true
			if strings.Trim(span.Parent.SpanID, "0") == "" {
				roots = append(roots, span.Name)
				if span.Status.Code == codes.Error.String() {
					failed = append(failed, span.Name)
				}
			}
		}
		if want := "workcell sandbox " + args[0]; len(traces) != 1 || len(roots) != 1 || roots[0] != want || failed != nil {
			t.Errorf("%v: roots %q, failed %q, want %q\n%s", args, roots, failed, want, stderr.String())
		}
	}
}
