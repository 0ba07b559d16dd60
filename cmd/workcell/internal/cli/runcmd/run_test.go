//go:build !no_postgres

package runcmd

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/session"
)

// TestDetachStays verifies that a run with a flag that `run --detach` rejects cannot be detached later.
func TestDetachStays(t *testing.T) {
	t.Parallel()
	some := []string{"x"}
	runs := map[string]app.RunFlags{
		"allow-image": {AllowImage: some}, "map-image": {MapImage: some}, "mount": {Defaults: &session.Defaults{Mounts: []backend.Mount{{}}}},
		"oci-runtime": {Defaults: &session.Defaults{OCIRuntime: "runsc"}}, "isolation": {Defaults: &session.Defaults{Isolation: "kernel"}},
		"egress-allow-private": {EgressAllowPrivate: some}, "pip-index": {PipIndex: "x"},
		"npm-registry": {NpmRegistry: "x"}, "host-tools": {HostTools: "x"}, "audit": {Audit: "x"}, "audit-hash": {AuditHash: true}, "trace-content": {TraceContent: true},
		"out": {Out: "x"}, "force": {Force: true}, "apply": {Apply: true},
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(stayHere())), slices.Sorted(maps.Keys(runs))); diff != "" {
		t.Errorf("flags that do not travel, and runs with them (-want +got):\n%s", diff)
	}
	for name, flags := range runs {
		if got := (app.RunNote{RunFlags: flags}).Stays(); got != name {
			t.Errorf("--%s: %q stays", name, got)
		}
	}
	if got := (app.RunNote{RunFlags: app.RunFlags{Defaults: &session.Defaults{}}}).Stays(); got != "" {
		t.Errorf("%s stays of a run without", got)
	}
}
