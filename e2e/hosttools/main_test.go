package hosttools

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"
)

// TestMain runs the tests, after which no goroutine of theirs may be left: neither a call of a tool, nor its connection. Or it is
// a process that a test has started.
func TestMain(m *testing.M) {
	for variable, program := range map[string]func() int{
		asServer: serveRudely, bombVariable: bombServer, ledgerVariable: ledgerServer, waitingVariable: waitForApproval,
	} {
		if os.Getenv(variable) != "" {
			os.Exit(program())
		}
	}
	// Genkit sets a global provider of its own at the first span unless there is one.
	otel.SetTracerProvider(sdktrace.NewTracerProvider())
	code := m.Run()
	if code == 0 {
		var err error
		for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			if err = goleak.Find(); err == nil || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "hosttools:", err)
			code = 1
		}
	}
	os.Exit(code)
}
