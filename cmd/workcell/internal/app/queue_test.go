//go:build !no_postgres

package app

import (
	"errors"
	"os"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

// TestResumeWithoutDatabase verifies that an unreachable database does not count as an invalid file of the run.
func TestResumeWithoutDatabase(t *testing.T) {
	t.Parallel()
	_, j := journals(t)
	o := Options{Env: environ.Of(nil), StateDir: t.TempDir(), State: "postgres://127.0.0.1:1/x", Config: os.DevNull}
	journal(t, j.For("dead", `{"workflow":"/f","detached":true}`), "run_1", step(workflow.EventStepStarted, "fix"))
	err := New(o).Resume(t.Context(), j, "run_1", "", false, nil)
	if code, _ := Classify(err); !errors.Is(err, postgres.ErrUnreachable) || code != ExitFailed {
		t.Errorf("exit code %d, %v", code, err)
	}
}

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
