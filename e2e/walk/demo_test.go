package walk

import (
	"regexp"
	"testing"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
)

// TestDemo runs the demo as on a new host, prints the time until the first line of work, and searches for the trace in
// Jaeger.
func TestDemo(t *testing.T) {
	w := newWalker(t)
	w.take(t, `export DOCKER_HOST=unix:///none BACKEND=local GOFLAGS=-modcacherw GOCACHE=$HOME/build GOMODCACHE=$HOME/modules`, step{})
	t.Cleanup(func() { w.say(t, "hack/service.sh jaeger stop") })
	out, code := w.say(t, `(set -o pipefail; began=${EPOCHREALTIME/./}
		make demo 2>&1 | while IFS= read -r line; do echo "$(((${EPOCHREALTIME/./} - began) / 1000)) ms $line"; done)`)
	found := regexp.MustCompile(`(?ms)^(\d+ ms) run run_.*^(\d+ ms) == the trace.*invoke_workflow debug-and-fix.*^(\d+ ms) in Jaeger: (http\S+)/trace/(\w+)$`).FindStringSubmatch(out)
	if code != "0" || found == nil {
		t.Fatalf("exit code %s:\n%s", code, out)
	}
	t.Logf("make demo: first line of work after %s, trace after %s, in Jaeger after %s", found[1], found[2], found[3])
	trace, err := (&jaegerapi.Client{URL: found[4]}).Trace(t.Context(), found[5])
	if err != nil || len(trace.Roots) != 1 || trace.Roots[0].Name != "invoke_workflow debug-and-fix" || len(trace.Spans) < 40 {
		t.Errorf("Jaeger returns %+v, %v", trace, err)
	}
	w.take(t, "go run ./examples/quickstart", step{says: `(?m)^1229$`})
}
