package e2e

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/jaegertest"
)

// TestJaeger runs a workflow that exports its trace to a real Jaeger, and one whose trace is handed to Jaeger afterwards. Jaeger
// shows the same for both.
func TestJaeger(t *testing.T) {
	bin, jaeger := buildCLI(t), jaegertest.Start(t, root(t))
	t.Run("exported", func(t *testing.T) {
		t.Parallel()
		state := []string{"XDG_STATE_HOME=" + t.TempDir(), "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + jaeger.OTLPGRPC, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}
		run, id := debugAndFix(t, bin, state)
		checkInJaeger(t, jaeger, run, id)
	})
	t.Run("handed over", func(t *testing.T) {
		t.Parallel()
		state := []string{"XDG_STATE_HOME=" + t.TempDir()}
		run, id := debugAndFix(t, bin, state)
		doc := runCLI(t, bin, state, "runs", "trace", run, "-o", "json").Stdout
		resp, err := http.Post("http://"+jaeger.OTLPHTTP+"/v1/traces", "application/json", strings.NewReader(doc))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close() // only its status counts
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("Jaeger answers %s", resp.Status)
		}
		checkInJaeger(t, jaeger, run, id)
	})
}

// debugAndFix runs the example and returns the ids of the run and of the trace that was kept of it.
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

func checkInJaeger(t *testing.T, jaeger *jaegertest.Jaeger, run, trace string) {
	t.Helper()
	tree := jaeger.WaitTrace(t.Context(), t, trace, complete)
	checkTree(t, tree, run, "local")
	checkGenAI(t, tree)
	checkNoContents(t, tree)
}
