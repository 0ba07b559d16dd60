package hosttools

import (
	"os"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// TestMain runs the tests, after which no goroutine of theirs may be left: neither a call of a tool, nor its
// connection. Or it is a process that a test has started.
func TestMain(m *testing.M) {
	for variable, program := range map[string]func() int{ledgerVariable: ledgerServer, waitingVariable: waitForApproval} {
		if os.Getenv(variable) != "" {
			os.Exit(program())
		}
	}
	// Genkit sets a global provider of its own at the first span unless there is one.
	otel.SetTracerProvider(sdktrace.NewTracerProvider())
	os.Exit(leaktest.Tests{M: enginetest.Tests{M: m}}.Run())
}
