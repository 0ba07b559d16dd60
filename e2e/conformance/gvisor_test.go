package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestOwnKernel verifies a sandbox on gVisor next to sandboxes on the host's kernel. `make test-gvisor` runs all suites
// on gVisor. This test covers the selection of the runtime for one manager, and the memory limit.
func TestOwnKernel(t *testing.T) {
	t.Parallel()
	for _, name := range enginetest.Names() {
		if name == "local" || name == "kubernetes" {
			continue // has no OCI runtimes, see backendtest
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := manager(t, engine{name, privateDir(t)}.connect(t), session.Options{Defaults: session.Defaults{OCIRuntime: "runsc"}})
			req := request()
			req.Image, req.Limits = pythonImage, backend.Limits{MemoryBytes: 256 << 20}
			s := open(t, m, session.UserKey("own-kernel"), req)
			kernelOfItsOwn(t, s)
			memoryHolds(t, s)
		})
	}
}

func kernelOfItsOwn(t *testing.T, s *session.Session) {
	if got := output(t, s, "cat /proc/version"); !strings.Contains(got, "gVisor") && !strings.Contains(output(t, s, "uname -r"), "gvisor") {
		t.Errorf("the kernel is %s", got)
	}
	if got := output(t, s, "cat /proc/net/dev | tail -n +3 | cut -d: -f1"); strings.TrimSpace(got) != "lo" {
		t.Errorf("interfaces: %s", got)
	}
	if got := output(t, s, `python3 -c "
import socket, threading
l = socket.create_server(('127.0.0.1', 0))
threading.Thread(target=lambda: l.accept()[0].sendall(b'heard')).start()
print(socket.create_connection(l.getsockname()).recv(9).decode())"`); got != "heard\n" {
		t.Errorf("the loopback interface: %q", got)
	}
}

// memoryHolds verifies that the sandbox ends at the memory limit, because the sandbox's kernel uses the memory.
func memoryHolds(t *testing.T, s *session.Session) {
	_, err := s.Exec(context.WithoutCancel(t.Context()), sandbox.ExecRequest{Argv: []string{"python3", "-c", "x = bytearray(b'1' * (600 << 20)); print(len(x))"}})
	if !errors.Is(err, backend.ErrLost) {
		t.Errorf("beyond the memory: %v", err)
	}
}
