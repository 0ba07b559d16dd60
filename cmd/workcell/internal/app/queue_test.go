//go:build !no_postgres

package app

import (
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestDetachStays verifies the flags preventing a run from being detached, before and after its start.
func TestDetachStays(t *testing.T) {
	t.Parallel()
	some := []string{"x"}
	for name, flags := range map[string]runFlags{
		"":            {Defaults: &session.Defaults{}},
		"allow-image": {AllowImage: some}, "map-image": {MapImage: some},
		"mount":       {Defaults: &session.Defaults{Mounts: []backend.Mount{{}}}},
		"oci-runtime": {Defaults: &session.Defaults{OCIRuntime: "runsc"}},
		"isolation":   {Defaults: &session.Defaults{Isolation: "kernel"}}, "egress-allow-private": {EgressAllowPrivate: some},
		"pip-index": {PipIndex: "x"}, "npm-registry": {NpmRegistry: "x"}, "host-tools": {HostTools: "x"},
		"audit": {Audit: "x"}, "audit-hash": {AuditHash: true}, "trace-content": {TraceContent: true},
		"out": {Out: "x"}, "force": {Force: true}, "apply": {Apply: true},
	} {
		if got, todo := flags.localFlag(); got != name || (todo != "") != (name != "") {
			t.Errorf("--%s: %q, %q", name, got, todo)
		}
	}
}
