//go:build no_kubernetes

package enginetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/workcell-dev/workcell/backend"
)

// ErrNoCluster is returned for Kubernetes by tests built without it.
var ErrNoCluster = errors.New("these tests were built with the tag no_kubernetes")

func runOnCluster(*testing.M) int {
	fmt.Fprintln(os.Stderr, ErrNoCluster)
	return 1
}

func openOnCluster(context.Context) (backend.SandboxBackend, error) { return nil, ErrNoCluster }

// Leaks returns the possible leftover goroutines of the cluster's client.
func Leaks() []goleak.Option { return nil }
