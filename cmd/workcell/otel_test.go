package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/internal/environ"
)

// collector takes OTLP over HTTP and keeps the bytes: text in them is as it is in protobuf.
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

// canary stands for a secret: it passes through the run's input, a prompt, arguments and outputs of tools, an
// environment, a command line, a file, and an error.
const canary = "canary-5f1e7a"

// canaryRun writes a workflow, an agent and a script that pass the canary around.
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
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"run", filepath.Join(dir, "w.yaml"), "--model", "scripted/" + filepath.Join(dir, "s.yaml"), "--input", "secret=" + canary}
}

// runTraced runs the command with more variables and gives its standard error.
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
	for _, want := range []string{"workflow.run", "workflow.step", "agent.Run", "session.Open", "session.Exec", "session.WriteFile",
		"scripted/teller", "sandbox_exec", "service.name", "\x01\x23\x45\x67\x89\xab\xcd\xef"} {
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
	c := newCollector(t)
	environ := append(testEnviron(t), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+c.URL+"/v1/traces", "OTEL_SERVICE_NAME=shop")
	runTraced(t, environ, append(canaryRun(t), "--trace-content"))
	if !c.contains(canary) || !c.contains("genkit:input") || !c.contains("shop") {
		t.Error("the traces lack the canary, genkit:input or the service's name")
	}
}

// TestCollectorThatIsNotThere must cost a notice and a bounded wait, not the run.
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
			if n := strings.Count(stderr, "notice: traces could not be exported: "); n != 1 {
				t.Errorf("%d notices:\n%s", n, stderr)
			}
		})
	}
}

func TestTracesOnTheConsole(t *testing.T) {
	t.Parallel()
	stderr := runTraced(t, append(testEnviron(t), "OTEL_TRACES_EXPORTER=console"), canaryRun(t))
	m := regexp.MustCompile(`(?m)^workcell: trace: ([0-9a-f]{32})$`).FindStringSubmatch(stderr)
	if m == nil {
		t.Fatalf("no trace is named:\n%s", stderr)
	}
	spans := 0
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, `{"name":`) {
			spans++
			if !strings.Contains(line, m[1]) || strings.Contains(line, canary) {
				t.Errorf("a span of another trace than %s, or with the canary: %s", m[1], line)
			}
		}
	}
	if spans < 10 {
		t.Errorf("%d spans:\n%s", spans, stderr)
	}
}

// TestOneCommandIsOneTrace: whatever a command does with sandboxes lies below one span of its name. That what it ran failed
// is a result.
func TestOneCommandIsOneTrace(t *testing.T) {
	t.Parallel()
	environ := append(testEnviron(t), "OTEL_TRACES_EXPORTER=console")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"open", "--name", "box", "--image", "workcell/debian:12"}, {"exec", "box", "--", "false"}, {"cp", file, "box:file"}, {"rm", "box"},
	} {
		cmd := workcell(t, append([]string{"sessions"}, args...)...)
		cmd.Env = environ
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		_ = cmd.Run() // false fails
		var roots, failed []string
		traces := map[string]bool{}
		for line := range strings.Lines(stderr.String()) {
			var span consoleSpan
			if json.Unmarshal([]byte(line), &span) != nil {
				continue
			}
			traces[span.TraceID] = true
			if span.ParentID == "" {
				roots = append(roots, span.Name)
				if span.Status == codes.Error.String() {
					failed = append(failed, span.Name)
				}
			}
		}
		if want := "workcell sessions " + args[0]; len(traces) != 1 || len(roots) != 1 || roots[0] != want || failed != nil {
			t.Errorf("%v: roots %q, failed %q, want %q\n%s", args, roots, failed, want, stderr.String())
		}
	}
}

func TestNewExporterIsOffByDefault(t *testing.T) {
	t.Parallel()
	for name, vars := range map[string]map[string]string{
		"nothing":  {},
		"none":     {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
		"disabled": {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
	} {
		if e, err := newExporter(t.Context(), environ.Of(vars), io.Discard); e != nil || err != nil {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	if _, err := newExporter(t.Context(), environ.Of(map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}), io.Discard); err == nil {
		t.Error("zipkin is no error")
	}
}

func TestScrubber(t *testing.T) {
	t.Parallel()
	export := func(keep bool) tracetest.SpanStub {
		memory := tracetest.NewInMemoryExporter()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(&scrubber{next: memory, keepContent: keep}))
		_, span := provider.Tracer("x").Start(context.Background(), "span")
		span.SetAttributes(attribute.String("genkit:input", "in"), attribute.String("genkit:output", "out"),
			attribute.String("genkit:init", "init"), attribute.String("genkit:name", "name"),
			attribute.String("long", strings.Repeat("é", maxAttributeLength)), attribute.Int("n", 3))
		span.RecordError(io.ErrUnexpectedEOF)
		span.SetStatus(codes.Error, "description")
		span.End()
		return memory.GetSpans()[0]
	}
	keys := func(list []attribute.KeyValue) string {
		var out []string
		for _, kv := range list {
			out = append(out, string(kv.Key))
		}
		return strings.Join(out, " ")
	}
	s := export(false)
	if got, want := keys(s.Attributes), "genkit:name long n"; got != want {
		t.Errorf("attributes = %s, want %s", got, want)
	}
	if n := len(s.Attributes[1].Value.AsString()); n != maxAttributeLength {
		t.Errorf("the long value has %d bytes", n)
	}
	if got, want := keys(s.Events[0].Attributes), "exception.type"; got != want {
		t.Errorf("event = %s, want %s", got, want)
	}
	if s.Status.Description != "" || s.Status.Code != codes.Error {
		t.Errorf("status = %+v", s.Status)
	}
	s = export(true)
	if len(s.Attributes) != 6 || s.Status.Description != "description" || len(s.Events[0].Attributes) != 2 {
		t.Errorf("kept span = %+v", s)
	}
}

func TestExportNoticeIsGivenOnce(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	n := &exportNotice{w: &b}
	n.Handle(context.DeadlineExceeded)
	n.Handle(io.EOF)
	if got, want := b.String(), "workcell: notice: traces could not be exported: the collector did not answer in time\n"; got != want {
		t.Errorf("notices = %q, want %q", got, want)
	}
}

// TestEndpointWithoutScheme: the exporter would send elsewhere without a word that a user understands.
func TestEndpointWithoutScheme(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		lookup := environ.Lookup(func(key string) (string, bool) {
			if key != name {
				return "", false
			}
			return "127.0.0.1:4318", true
		})
		exporter, err := newExporter(t.Context(), lookup, io.Discard)
		if want := name + "=127.0.0.1:4318 is no URL, write http://127.0.0.1:4318"; err == nil || err.Error() != want || exporter != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
