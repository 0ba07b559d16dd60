package containerd_test

import (
	"testing"

	"github.com/workcell-dev/workcell/backend/backendtest"
)

func BenchmarkBackend(b *testing.B) { backendtest.RunBenchmarks(b, harness(b)) }
