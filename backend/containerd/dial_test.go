//go:build linux

package containerd_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// TestForeignNetwork verifies connections under a runtime with or without a separate network stack. Each stream uses a
// process in the sandbox, which ends together with the stream.
func TestForeignNetwork(t *testing.T) {
	t.Parallel()
	runc, err := exec.LookPath("runc")
	must(t, err)
	b := newBackend(t, func(o *containerd.Options) { o.OCIRuntimes = map[string]string{"other": runc} })
	spec := newSpec()
	spec.OCIRuntime = "other"
	info := backendtest.Create(t, b, spec)
	conn := backendtest.Dial(t, b, info.ID)
	count := func() string { return backendtest.Sh(t, conn, "set -- /proc/[0-9]*; echo $#") }
	before := count()
	other := backendtest.Dial(t, newBackend(t, nil), info.ID)
	if got := backendtest.Sh(t, other, "seq 100000 | tail -n 1; seq 100000"); !strings.HasPrefix(got, "100000\n1\n2\n") {
		t.Errorf("%.40q", got)
	}
	must(t, other.Close())
	backendtest.Eventually(t, "the process of the second stream to end", func() bool { return count() == before })
	must(t, b.Stop(t.Context(), info.ID))
	<-conn.Done()
	backendtest.Fails(t, "Dial of a stopped one", second(b.Dial(t.Context(), info.ID)), backend.ErrLost)
}
