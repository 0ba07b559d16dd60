//go:build linux

package local_test

import (
	"context"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	backendtest.Run(t, harness(shared()))
}

func harness(dir string) backendtest.Harness {
	return backendtest.Harness{
		Name:   "local",
		New:    func(t testing.TB) backend.SandboxBackend { return newBackend(t, dir) },
		Debian: "workcell/debian:12", Python: "workcell/python:3.11", NoImages: true,
		Leftovers: func(_ context.Context, instance string) ([]string, error) { return leftovers(dir, instance) },
		Vanish:    func(_ context.Context, id string) error { return vanish(dir, id) },
		Describe:  func(_ context.Context, id string) (string, error) { return describe(dir, id) },
		Foreign:   func(t testing.TB, labels map[string]string) []string { return foreign(t, dir, labels) },
	}
}
