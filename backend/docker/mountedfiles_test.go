//go:build linux

package docker_test

import (
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestMountedFiles verifies that the limit of the root includes the engine's mounted files in /etc. The engine stores
// these files on its own disk.
func TestMountedFiles(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	for _, file := range []string{"hosts", "hostname", "resolv.conf"} {
		spec := newSpec()
		spec.User, spec.Root, spec.Limits.WorkspaceBytes = "0:0", backend.RootWritable, 4<<20
		conn := backendtest.Dial(t, b, backendtest.Create(t, b, spec).ID)
		backendtest.Prints(t, conn, "echo 127.0.0.1 here >>/etc/"+file+" && echo written", "written\n")
		script := "head -c 3M /dev/zero >>/etc/" + file + "; head -c 3M /dev/zero >/var/more; sleep 30"
		if res := backendtest.Exec(t, conn, "/bin/sh", "-c", script); res.State != wire.ExecQuotaKilled {
			t.Errorf("%s: %s after 6 MiB of 4", file, res.State)
		}
		backendtest.Prints(t, conn, ": >/etc/"+file+" && echo emptied", "emptied\n")
		backendtest.Sh(t, conn, "echo 127.0.0.1 here >>/etc/"+file)
	}
}
