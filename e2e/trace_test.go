package e2e

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/jaegertest"
)

// TestTraceIsHandedOver runs a workflow without any collector, and hands the trace that was kept of it to a real Jaeger
// afterwards, which shows the same as when it had been there.
func TestTraceIsHandedOver(t *testing.T) {
	t.Parallel()
	bin, jaeger := buildCLI(t), jaegertest.Start(t, root(t))
	state := []string{"XDG_STATE_HOME=" + t.TempDir()}
	out := runCLI(t, bin, state, append([]string{
		"run", "examples/workflows/debug-and-fix.yaml", "-o", "json", "--backend", "local",
		"--model", "scripted/examples/workflows/scripts/debug-and-fix.yaml",
	}, mapping...)...)
	var printed struct {
		RunID string `json:"run_id"`
	}
	if err := json.Unmarshal([]byte(out.stdout), &printed); err != nil || out.code != 0 {
		t.Fatalf("exit code %d, %v\n%s", out.code, err, out.stderr)
	}
	text := runCLI(t, bin, state, "runs", "trace", printed.RunID).stdout
	match := regexp.MustCompile(`^trace ([0-9a-f]{32}): `).FindStringSubmatch(text)
	if match == nil {
		t.Fatalf("no trace:\n%s", text)
	}
	doc := runCLI(t, bin, state, "runs", "trace", printed.RunID, "-o", "json").stdout
	resp, err := http.Post("http://"+jaeger.OTLPHTTP+"/v1/traces", "application/json", strings.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close() // only its status counts
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("Jaeger answers %s", resp.Status)
	}
	tree := jaeger.WaitTrace(t.Context(), t, match[1], complete)
	checkTree(t, tree, printed.RunID, "local")
	checkGenAI(t, tree)
	checkNoContents(t, tree)
}
