package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// meterCollector is an OTLP endpoint for metrics. It stores the latest values of each metric.
type meterCollector struct {
	*httptest.Server
	mu   sync.Mutex          // guards the fields below
	sums map[string]float64  // by metric: sum of the values or observations
	text map[string][]string // by metric: values of the attributes
}

func newMeterCollector(t *testing.T) *meterCollector {
	c := &meterCollector{sums: map[string]float64{}, text: map[string][]string{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		var req collectorpb.ExportMetricsServiceRequest
		if err = errors.Join(err, proto.Unmarshal(raw, &req)); err != nil || r.URL.Path != "/v1/metrics" {
			t.Errorf("a request to %s: %v", r.URL.Path, err)
		}
		c.add(&req)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *meterCollector) add(req *collectorpb.ExportMetricsServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rm := range req.ResourceMetrics {
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				c.sums[m.Name] = 0 // values are cumulative, so the latest one counts
				for _, p := range m.GetHistogram().GetDataPoints() {
					c.point(m, p.GetSum(), p.Attributes)
				}
				for _, p := range m.GetSum().GetDataPoints() {
					c.point(m, float64(p.GetAsInt()), p.Attributes)
				}
			}
		}
	}
}

func (c *meterCollector) point(m *metricspb.Metric, value float64, attrs []*commonpb.KeyValue) {
	c.sums[m.Name] += value
	for _, kv := range attrs {
		c.text[m.Name] = append(c.text[m.Name], kv.Key+"="+kv.Value.GetStringValue())
	}
}

// TestMetrics verifies that the metrics of a run and an MCP server match the list in docs/reference/telemetry.md.
func TestMetrics(t *testing.T) {
	t.Parallel()
	c := newMeterCollector(t)
	environ := append(testEnviron(t), "OTEL_METRICS_EXPORTER=otlp", "OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai/dup",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="+c.URL+"/v1/metrics", "WORKCELL_BACKEND=local")
	runTraced(t, environ, canaryRun(t))
	callMCP(t, environ, nil, `{"name":"session_status","arguments":{}}`)
	c.mu.Lock()
	defer c.mu.Unlock()
	documented := documentedMetrics(t)
	for _, name := range documented {
		_, ok := c.sums[name]
		if slices.Contains([]string{ // no command was out of memory, there is no embedder, and the scripted model reports only totals
			"workcell.sandbox.oom_kills", "gen_ai.client.embeddings.duration",
			"gen_ai.client.inference.usage.cache_read.input_tokens", "gen_ai.client.inference.usage.reasoning.output_tokens",
		}, name) {
			if ok {
				t.Errorf("%s is %v", name, c.sums[name])
			}
		} else if !ok {
			t.Errorf("%s was not sent", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.sums)) {
		if !slices.Contains(documented, name) {
			t.Errorf("%s was sent and is not documented", name)
		}
		for _, text := range c.text[name] {
			if strings.Contains(text, canary) || regexp.MustCompile(`(run|sbx|exe)_[a-z2-7]{26}`).MatchString(text) {
				t.Errorf("%s has the attribute %s: an id or a secret makes a time series of each value", name, text)
			}
		}
	}
	for name, want := range map[string]float64{"workcell.sandbox.active": 0, "workcell.sandbox.removed": 1, "gen_ai.invoke_agent.tool_calls": 4} {
		if c.sums[name] != want {
			t.Errorf("%s is %v, want %v", name, c.sums[name], want)
		}
	}
	if c.sums["gen_ai.client.inference.usage.input_tokens"] == 0 || c.sums["gen_ai.execute_tool.duration"] == 0 {
		t.Errorf("nothing was measured: %v", c.sums)
	}
	if !slices.Contains(c.text["mcp.server.operation.duration"], "gen_ai.tool.name=session_status") {
		t.Errorf("attributes of MCP requests: %q", c.text["mcp.server.operation.duration"])
	}
}

// callMCP runs an MCP server, calls a tool, waits for the answer, and hangs up.
func callMCP(t *testing.T, environ, flags []string, call string) {
	t.Helper()
	cmd := workcell(t, append([]string{"mcp"}, flags...)...)
	cmd.Env = environ
	in, err := cmd.StdinPipe()
	checktest.Must(t, err)
	out, err := cmd.StdoutPipe()
	checktest.Must(t, err)
	checktest.Must(t, cmd.Start())
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":`+call+`}
`); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.Contains(lines.Text(), `"id":2`); {
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatalf("mcp: %v", err)
	}
}

// documentedMetrics returns the names in the table of docs/reference/telemetry.md.
func documentedMetrics(t *testing.T) (names []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "telemetry.md"))
	checktest.Must(t, err)
	_, section, _ := strings.Cut(string(raw), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				names = append(names, m[1])
			}
		}
	}
	if len(names) < 20 || len(names) > 24 {
		t.Fatalf("%d metrics are documented", len(names))
	}
	return names
}

// TestAudit verifies that the audit log contains every decision and command of a run, in order, with context.
func TestAudit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	environ := append(testEnviron(t), "WORKCELL_BACKEND=local")
	runTraced(t, environ, append(canaryRun(t), "--audit", file))
	type record struct {
		Event, Run, Step, Agent, Tool, Sandbox, Exec, Decision, Error string
		Isolation, Backend, Policy                                    string
		Argv                                                          []string
		Exit                                                          *int
		Settings                                                      json.RawMessage
	}
	var records []record
	raw, err := os.ReadFile(file)
	checktest.Must(t, err)
	begun, digests := map[string]record{}, map[string]string{}
	for line := range bytes.Lines(raw) {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		records = append(records, r)
		if r.Run == "" || r.Run != records[0].Run {
			t.Errorf("of another run: %s", line)
		}
		if r.Settings != nil {
			digests[r.Policy] = digestOf(t, r.Settings)
		}
		if r.Isolation != "process" || r.Backend != "local" || digests[r.Policy] != r.Policy {
			t.Errorf("without evidence, or settings with another digest: %s", line)
		}
		switch r.Event {
		case "command":
			if r.Policy == "" {
				t.Errorf("a command without policy: %s", line)
			}
			begun[r.Exec] = r
		case "exit":
			if begun[r.Exec].Sandbox != r.Sandbox || r.Exit == nil && r.Error == "" {
				t.Errorf("an end without beginning or outcome: %s", line)
			}
			delete(begun, r.Exec)
		}
	}
	if len(begun) != 0 {
		t.Errorf("commands without end: %v", begun)
	}
	for what, is := range map[string]func(r record) bool{
		"the agent's command": func(r record) bool {
			return r.Event == "command" && r.Step == "say" && r.Agent == "teller" && r.Tool == "sandbox_exec" && slices.Contains(r.Argv, "cat secret.txt; echo $S")
		},
		"the step's command": func(r record) bool {
			return r.Event == "command" && r.Step == "show" && r.Agent == "" && slices.Equal(r.Argv, []string{"echo", canary})
		},
		"the file that was written": func(r record) bool {
			return r.Event == "tool" && r.Tool == "sandbox_fs_write" && r.Decision == "allowed"
		},
		"the sandbox":          func(r record) bool { return r.Event == "open" },
		"the end of a command": func(r record) bool { return r.Event == "exit" && r.Exit != nil && *r.Exit == 0 },
	} {
		if !slices.ContainsFunc(records, is) {
			t.Errorf("%s is not on record:\n%s", what, raw)
		}
	}

	runTraced(t, environ, append(canaryRun(t), "--audit", file, "--audit-hash"))
	all, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(all, raw) || len(all) == len(raw) {
		t.Fatalf("the file was not appended to: %v", err)
	}
	if added := all[len(raw):]; bytes.Contains(added, []byte(canary)) || !bytes.Contains(added, []byte("argv_sha256")) {
		t.Errorf("want hashes instead of commands:\n%s", added)
	}
}

// digestOf computes the digest of settings as docs/operations/audit-log.md describes it.
func digestOf(t *testing.T, settings json.RawMessage) string {
	t.Helper()
	var v any
	checktest.Must(t, json.Unmarshal(settings, &v))
	canonical, err := json.Marshal(v) // of maps, whose keys are sorted; nothing here needs an escape
	checktest.Must(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(canonical))
}

// TestAuditOfMCP verifies that the audit log contains the refusals of the guard with their rules.
func TestAuditOfMCP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, policy := filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "guard.yaml")
	checktest.Must(t, os.WriteFile(policy, []byte("commands: {refuse: [{pattern: git push}]}\n"), 0o600))
	callMCP(t, append(testEnviron(t), "WORKCELL_BACKEND=local"), []string{"--audit", file, "--policy", policy},
		`{"name":"sandbox_exec","arguments":{"command":"git push --force"}}`)
	raw, err := os.ReadFile(file)
	if err != nil || bytes.Count(raw, []byte("\n")) != 1 || !bytes.Contains(raw, []byte(`"tool":"sandbox_exec","decision":"refused","rule":"git push"`)) {
		t.Errorf("%v, on record:\n%s", err, raw)
	}
}

// TestAuditThatCannotBeWritten verifies that a command fails before any action if it cannot write the audit log.
func TestAuditThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	cmd := workcell(t, append(canaryRun(t), "--audit", "/dev/full")...)
	cmd.Env = append(testEnviron(t), "WORKCELL_BACKEND=local")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "cannot write the audit file") || strings.Contains(string(out), "sandbox_exec ok") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKeptTrace verifies that a run's trace can be drawn without a collector, contains no contents, and is removed with
// the run.
func TestKeptTrace(t *testing.T) {
	t.Parallel()
	environ := append(testEnviron(t), "WORKCELL_BACKEND=local")
	stderr := runTraced(t, environ, canaryRun(t))
	m := regexp.MustCompile(`run (run_[a-z2-7]{26}) started: `).FindStringSubmatch(stderr)
	if m == nil {
		t.Fatalf("no run is named:\n%s", stderr)
	}
	show := func(args ...string) string {
		t.Helper()
		cmd := workcell(t, append([]string{"runs", "trace"}, args...)...)
		cmd.Env = environ
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if bytes.Contains(out, []byte(canary)) {
			t.Errorf("the canary is in the trace:\n%s", out)
		}
		return string(out)
	}
	text := show(m[1][:10])
	for _, want := range []string{"invoke_workflow canary ", "invoke_agent teller ", "chat teller ", "execute_tool sandbox_exec ", "session.Exec ", "local.Create "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if all := show(m[1], "--all"); strings.Count(all, "\n") <= strings.Count(text, "\n") || !strings.Contains(all, "agent:teller") {
		t.Errorf("all spans:\n%s", all)
	}
	if svg := show(m[1], "-o", "svg"); !strings.HasPrefix(svg, "<svg ") {
		t.Errorf("the picture:\n%.200s", svg)
	}
	var doc struct{ ResourceSpans []any }
	if err := json.Unmarshal([]byte(show(m[1], "-o", "json")), &doc); err != nil || len(doc.ResourceSpans) == 0 {
		t.Errorf("OTLP JSON: %v", err)
	}
	cmd := workcell(t, "runs", "trace", "run_none")
	cmd.Env = environ
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), `"run_none" not found`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTraceOfAKilledRun verifies that the trace contains the spans from one second before the process was killed.
func TestTraceOfAKilledRun(t *testing.T) {
	t.Parallel()
	u, dir := newUser(t, "local"), t.TempDir()
	u.environ = append(u.environ, "WORKCELL_STATE_DIR="+dir)
	flow := filepath.Join(t.TempDir(), "killed.yaml")
	if err := os.WriteFile(flow, []byte(`
id: killed
sandbox: {image: debian:bookworm-slim}
steps:
  - {id: quick, type: exec, cmd: ["true"]}
  - {id: long, type: exec, cmd: [sleep, "3600"], timeout: 1h}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := u.command("run", flow)
	checktest.Must(t, cmd.Start())
	var kept []string
	var raw []byte
	for deadline := time.Now().Add(3 * time.Minute); !bytes.Contains(raw, []byte(`"workflow.step`)); {
		time.Sleep(50 * time.Millisecond)
		if kept, _ = filepath.Glob(filepath.Join(dir, "runs", "run_*", runtrace.FileName)); len(kept) == 1 {
			raw, _ = os.ReadFile(kept[0])
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			t.Fatalf("nothing is kept: %v", kept)
		}
	}
	_ = cmd.Process.Kill() // fails if the process has exited, which Wait reports
	if err := cmd.Wait(); err == nil {
		t.Error("the run ended")
	}
	id := filepath.Base(filepath.Dir(kept[0]))
	out, _ := u.run(0, "runs", "trace", id)
	if !strings.Contains(out, "workflow.step quick") || strings.Contains(out, "invoke_workflow") {
		t.Error(out)
	}
	u.run(0, "runs", "cancel", id)
}
