package docker_test

import (
	"os"
	"testing"

	"github.com/workcell-dev/workcell/backend/backendtest"
)

// TestDialWithoutProcess: who may enter the sandbox's network namespace on the engine's own machine comes in without a
// process of the engine's in the sandbox, for which a sandbox whose commands use up its processes may have no room.
// Others are served by one, as TestRemoteEngine shows.
func TestDialWithoutProcess(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := backendtest.Create(t, b, newSpec())
	backendtest.Prints(t, backendtest.Dial(t, b, info.ID), "echo connected", "connected\n")
	res, err := engineAPI(t).ContainerInspect(t.Context(), info.ID)
	must(t, err)
	if root := os.Geteuid() == 0; root && len(res.ExecIDs) != 0 {
		t.Errorf("the engine started %d processes in the sandbox for it", len(res.ExecIDs))
	}
}
