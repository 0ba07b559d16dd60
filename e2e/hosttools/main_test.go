package hosttools

import (
	"os"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// TestMain runs the tests. Afterwards, none of their goroutines may be left, neither for a tool call nor for the
// connection. The binary may also be a process started by a test.
func TestMain(m *testing.M) {
	for variable, program := range map[string]func() int{ledgerVariable: ledgerServer, waitingVariable: waitForApproval} {
		if os.Getenv(variable) != "" {
			os.Exit(program())
		}
	}
	// Without a global provider, Genkit sets one at the first span.
	otel.SetTracerProvider(sdktrace.NewTracerProvider())
	os.Exit(leaktest.Tests{M: enginetest.Tests{M: m}}.Run())
}
