//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/porttest"
)

// TestDevServesFlowsToTheDeveloperUI verifies that the reflection server answers the requests of the Developer UI and
// runs a flow.
func TestDevServesFlowsToTheDeveloperUI(t *testing.T) {
	t.Parallel()
	examples, err := filepath.Abs("../../examples")
	checktest.Must(t, err)
	telemetry := newTelemetryServer(t)
	ports, err := porttest.Loopback(1)
	checktest.Must(t, err)
	port := ports[0]
	cmd := workcell(t, "dev", filepath.Join(examples, "agents"), filepath.Join(examples, "workflows/debug-and-fix.yaml"),
		"--model", "scripted/"+filepath.Join(examples, "workflows/scripts/debug-and-fix.yaml"))
	cmd.Env = append(testEnviron(t), "GENKIT_REFLECTION_PORT="+port, "GENKIT_TELEMETRY_SERVER="+telemetry.url)
	cmd.Dir = t.TempDir() // Genkit writes to .genkit in this directory
	var stdout, stderr buffertest.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	checktest.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // already ended, unless the test failed
	for deadline := time.Now().Add(3 * time.Minute); !strings.Contains(stderr.String(), "serving 1 workflow and 7 agents"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not serve:\n%s", stderr.String())
		}
	}

	actions := call(t, "GET", "http://127.0.0.1:"+port+"/api/actions", "")
	for _, want := range []string{`"/flow/debug-and-fix"`, `"/executable-prompt/python-developer"`, `"/tool.v2/workcell/sandbox_exec"`, `scripted, without a model`} {
		if !strings.Contains(actions, want) {
			t.Errorf("the Developer UI does not see %s", want)
		}
	}
	if strings.Contains(actions, "/tool/sandbox_exec") || strings.Contains(actions, "/tool.v2/sandbox_exec") {
		t.Error("sandbox_exec is registered under the name that models call")
	}
	if out := call(t, "POST", "http://127.0.0.1:"+port+"/api/runAction", `{"key": "/tool.v2/workcell/sandbox_exec", "input": {"command": "echo $((6*7))"}}`); !strings.Contains(out, `"stdout":"42\n"`) {
		t.Errorf("a tool that is run by hand: %s", out)
	}
	for range 2 { // every run uses the recorded answers from the beginning
		answer := call(t, "POST", "http://127.0.0.1:"+port+"/api/runAction", `{"key": "/flow/debug-and-fix", "input": {}}`)
		var result struct {
			Result struct {
				AllPassed bool `json:"all_passed"`
			} `json:"result"`
		}
		if err := json.Unmarshal([]byte(answer), &result); err != nil || !result.Result.AllPassed {
			t.Errorf("the flow answered %s (%v)\n%s", answer, err, stderr.String())
		}
	}
	if telemetry.traces.Load() == 0 {
		t.Error("the Developer UI got no traces")
	}
	stopServing(t, cmd, &stdout, &stderr)
}

// telemetryServer receives traces like the Developer UI.
type telemetryServer struct {
	url    string
	traces atomic.Int64
}

func newTelemetryServer(t *testing.T) *telemetryServer {
	s := &telemetryServer{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/api/traces") {
			s.traces.Add(1)
		}
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func call(t *testing.T, method, url, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	checktest.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	checktest.Must(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	checktest.Must(t, err)
	return string(raw)
}

// stopServing stops the command with a signal, the normal end.
func stopServing(t *testing.T, cmd *exec.Cmd, stdout, stderr *buffertest.Buffer) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil { // background jobs of a shell ignore interrupts
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v\n%s", err, stderr.String())
	}
	if stdout.String() != "" {
		t.Errorf("standard output = %q", stdout.String())
	}
}
