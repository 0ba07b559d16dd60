//go:build !no_kubernetes

package enginetest

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

func runOnCluster(m *testing.M) int { return clustertest.Main(m) }

func openOnCluster(ctx context.Context) (backend.SandboxBackend, error) {
	return kubernetes.New(ctx, clustertest.Options(os.Getenv(clustertest.NamespaceVariable)))
}

// Leaks returns the possible leftover goroutines of the cluster's client.
func Leaks() []goleak.Option { return clustertest.Leaks() }
