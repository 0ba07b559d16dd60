package docker_test

import (
	"os"
	"testing"

	"github.com/workcell-dev/workcell/backend/backendtest"
)

// TestDialWithoutProcess verifies that a process with permission to enter the sandbox's network namespace connects
// without a helper process in the sandbox. A sandbox whose commands use all processes has no room for a helper process.
// Other clients use a helper process, see TestRemoteEngine.
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
