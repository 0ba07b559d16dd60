package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/porttest"
)

// jaeger is a running Jaeger.
type jaeger struct{ otlpGRPC, otlpHTTP, api string }

// startJaeger runs the Jaeger of hack/tool.sh until the end of the test.
func startJaeger(t *testing.T) jaeger {
	t.Helper()
	binary, err := rig.Output(exec.Command(filepath.Join(root(t), "hack", "tool.sh"), "jaeger"))
	checktest.Must(t, err)
	names := []string{"JAEGER_OTLP_GRPC_PORT", "JAEGER_OTLP_HTTP_PORT", "JAEGER_QUERY_PORT", "JAEGER_QUERY_GRPC_PORT", "JAEGER_HEALTH_PORT"}
	ports, err := porttest.Loopback(len(names))
	checktest.Must(t, err)
	cmd := exec.Command(strings.TrimSpace(binary), "--config", filepath.Join(root(t), "e2e", "jaeger", "config.yaml"))
	cmd.Env = os.Environ()
	for i, name := range names {
		cmd.Env = append(cmd.Env, name+"="+ports[i])
	}
	p := rig.Start(t, cmd)
	checktest.Eventually(t, "Jaeger is ready", func() bool {
		if p.Exited() {
			t.Fatalf("Jaeger exited:\n%s", p.Text())
		}
		resp, err := http.Get("http://127.0.0.1:" + ports[4] + "/status")
		if err != nil {
			return false
		}
		resp.Body.Close() // only the status matters
		return resp.StatusCode == http.StatusOK
	})
	return jaeger{"127.0.0.1:" + ports[0], "127.0.0.1:" + ports[1], "http://127.0.0.1:" + ports[2]}
}

// TestJaeger runs a workflow with a trace export to a real Jaeger, and a workflow whose stored trace is sent to Jaeger
// later. Jaeger must show the same for both.
func TestJaeger(t *testing.T) {
	bin, jaeger := buildCLI(t), startJaeger(t)
	t.Run("exported", func(t *testing.T) {
		t.Parallel()
		state := []string{"XDG_STATE_HOME=" + t.TempDir(), "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + jaeger.otlpGRPC, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}
		run, id := debugAndFix(t, bin, state)
		checkInJaeger(t, jaeger, run, id)
	})
	t.Run("handed over", func(t *testing.T) {
		t.Parallel()
		state := []string{"XDG_STATE_HOME=" + t.TempDir()}
		run, id := debugAndFix(t, bin, state)
		doc := runCLI(t, bin, state, "runs", "trace", run, "-o", "json").Stdout
		resp, err := http.Post("http://"+jaeger.otlpHTTP+"/v1/traces", "application/json", strings.NewReader(doc))
		must(t, err)
		resp.Body.Close() // only the status matters
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("Jaeger answers %s", resp.Status)
		}
		checkInJaeger(t, jaeger, run, id)
	})
}

// debugAndFix runs the example and returns the id of the run and the id of the stored trace.
func debugAndFix(t *testing.T, bin string, state []string) (run, trace string) {
	t.Helper()
	out := runCLI(t, bin, state, append([]string{
		"run", "examples/workflows/debug-and-fix.yaml", "-o", "json", "--backend", "local",
		"--model", "scripted/examples/workflows/scripts/debug-and-fix.yaml",
	}, mapping...)...)
	var printed struct {
		RunID string `json:"run_id"`
	}
	if err := json.Unmarshal([]byte(out.Stdout), &printed); err != nil || out.Code != 0 {
		t.Fatalf("exit code %d, %v\n%s", out.Code, err, out.Stderr)
	}
	text := runCLI(t, bin, state, "runs", "trace", printed.RunID).Stdout
	match := regexp.MustCompile(`^trace ([0-9a-f]{32}): `).FindStringSubmatch(text)
	if match == nil {
		t.Fatalf("no trace:\n%s", text)
	}
	return printed.RunID, match[1]
}

func checkInJaeger(t *testing.T, j jaeger, run, trace string) {
	t.Helper()
	var tree *jaegerapi.Trace
	checktest.Eventually(t, "the whole trace "+trace, func() bool { // spans arrive in batches
		var err error
		if tree, err = (&jaegerapi.Client{URL: j.api}).Trace(t.Context(), trace); errors.Is(err, jaegerapi.ErrNotFound) {
			return false
		}
		checktest.Must(t, err)
		return complete(tree)
	})
	checkTree(t, tree, run, "local")
	checkGenAI(t, tree)
	checkNoContents(t, tree)
}
