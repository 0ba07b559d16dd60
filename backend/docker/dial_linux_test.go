package docker_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
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

// TestSlowInfo verifies that an interrupted rollback is completed, even if the engine takes longer than Patience to
// return the location of the workspaces.
func TestSlowInfo(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.on(func(r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/info") {
			time.Sleep(5 * time.Second)
		}
		return true
	})
	b, spec := newBackend(t, nil), newSpec()
	info := backendtest.Create(t, b, spec)
	_, err := b.Snapshot(t.Context(), info.ID, "one")
	must(t, err)
	backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "echo x > later")
	engine, err := engineAPI(t).Info(t.Context())
	must(t, err)
	snapshots := filepath.Join(engine.DockerRootDir, "volumes", "workcell-"+spec.ID+"-workspace", "snapshots")
	must(t, os.WriteFile(filepath.Join(snapshots, ".busy"), []byte(`{"rollback":"one"}`), 0o600))
	slow := newBackend(t, func(o *docker.Options) { o.Host, o.Patience = p.host, 2*time.Second })
	backendtest.Prints(t, backendtest.Dial(t, slow, info.ID), "ls", "")
}
