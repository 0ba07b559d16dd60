package conformance

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestOwnKernel verifies a sandbox on gVisor next to sandboxes on the host's kernel. `make test-gvisor` runs all suites
// on gVisor. This test covers the driver code that is specific to gVisor: the guest agent's file, its stream, the
// loopback interface, limits, and files on the host.
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
			filesOfTheHost(t, s)
			treeEnds(t, s)
			memoryHolds(t, s)
		})
	}
}

func kernelOfItsOwn(t *testing.T, s *session.Session) {
	if got := output(t, s, "cat /proc/version"); !strings.Contains(got, "gVisor") && !strings.Contains(output(t, s, "uname -r"), "gvisor") {
		t.Errorf("the kernel is %s", got)
	}
	for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Uid:\t1000\t1000\t1000\t1000"} {
		if got := output(t, s, "cat /proc/self/status"); !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
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

// filesOfTheHost verifies writes on a file system without the flags of renameat2.
func filesOfTheHost(t *testing.T, s *session.Session) {
	write := func(text string, overwrite bool) error {
		_, err := s.WriteFile(t.Context(), "f", strings.NewReader(text), sandbox.WriteFileOptions{Mode: 0o755, Overwrite: overwrite})
		return err
	}
	must(t, write("one", false))
	if err := write("two", false); !errors.Is(err, fs.ErrExist) && !errors.Is(err, backend.ErrExists) {
		t.Errorf("an existing file: %v", err)
	}
	must(t, write("three", true))
	if got := output(t, s, "cat f; stat -c ' %a' f; ls -A -I .workcell"); got != "three 755\nf\n" {
		t.Errorf("the file is %q", got)
	}
}

func treeEnds(t *testing.T, s *session.Session) {
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "setsid sleep 1000 & sleep 1000", Timeout: time.Second})
	if err != nil || res.Status != sandbox.ExecTimedOut {
		t.Errorf("%+v, %v", res.ExecStatus, err)
	}
	if got := output(t, s, "cat /proc/[0-9]*/comm"); strings.Contains(got, "sleep") {
		t.Errorf("left of the tree: %s", got)
	}
}

// memoryHolds verifies that the sandbox ends at its memory limit, because its kernel uses the memory.
func memoryHolds(t *testing.T, s *session.Session) {
	_, err := s.Exec(context.WithoutCancel(t.Context()), sandbox.ExecRequest{Argv: []string{"python3", "-c", "x = bytearray(b'1' * (600 << 20)); print(len(x))"}})
	if !errors.Is(err, backend.ErrLost) {
		t.Errorf("beyond the memory: %v", err)
	}
}
