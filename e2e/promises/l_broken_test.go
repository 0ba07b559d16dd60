//go:build linux

package promises

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/e2e/machinetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// typed reports whether an error has one of the distinguishable classes.
func typed(err error) bool {
	for _, class := range []error{
		backend.ErrQuota, backend.ErrUnavailable, backend.ErrLost, backend.ErrUnsupported, backend.ErrCapacity, backend.ErrImage, backend.ErrClosed,
	} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}

// check runs a command in a session, which must work.
func check(t *testing.T, s *session.Session, line, want string) {
	t.Helper()
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: line})
	if err != nil || string(res.Stdout.Bytes()) != want {
		t.Errorf("%s: %q, %+v, %v", line, res.Stdout.Bytes(), res.ExecStatus, err)
	}
}

// TestL4DiskFull: an engine with a full disk causes a typed error, leaves no incomplete objects, and keeps existing
// data.
func TestL4DiskFull(t *testing.T) {
	t.Parallel()
	x := newBroken(t, "400M", true)
	m := x.open(t)
	s, _, err := m.Open(t.Context(), session.UserKey("kept"), request())
	must(t, err)
	check(t, s, "echo kept > f", "")
	x.Fill(t)
	// Write a file.
	data := noise(4, 8<<20)
	if _, err := s.WriteFile(t.Context(), "big", bytes.NewReader(data), sandbox.WriteFileOptions{}); !errors.Is(err, backend.ErrQuota) {
		t.Errorf("writing: %v, want %v", err, backend.ErrQuota)
	}
	if _, err := s.WriteFile(t.Context(), "f", bytes.NewReader(data), sandbox.WriteFileOptions{Overwrite: true}); !errors.Is(err, backend.ErrQuota) {
		t.Errorf("writing over: %v, want %v", err, backend.ErrQuota)
	}
	check(t, s, "cat f; ls -A -I .workcell", "kept\nf\n")
	// In a command.
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "head -c 8M /dev/zero > big"})
	if err != nil || res.ExitCode == 0 || !strings.Contains(string(res.Stderr.Bytes()), "No space left") {
		t.Errorf("a command that writes: %+v %s, %v", res.ExecStatus, res.Stderr.Bytes(), err)
	}
	check(t, s, "rm -f big; cat f", "kept\n")
	// Create a sandbox: either there is enough space, or everything is removed again.
	x.Fill(t)
	for i := range 3 {
		other := x.open(t)
		_, _, err := other.Open(t.Context(), session.UserKey("new"), request())
		if err != nil && (!typed(err) || strings.Contains(err.Error(), x.Dir)) {
			t.Errorf("a new sandbox, %d: %v", i, err)
		}
		if err != nil {
			x.nothingLeft(t, other)
		}
	}
	check(t, s, "cat f", "kept\n")
	x.Free(t)
	other := x.open(t)
	next, _, err := other.Open(t.Context(), session.UserKey("after"), request())
	must(t, err)
	check(t, next, "echo works", "works\n")
	_, err = s.WriteFile(t.Context(), "big", bytes.NewReader(data), sandbox.WriteFileOptions{})
	must(t, err)
}

// TestL4Reserved: a workspace with a separate file system has reserved space. On a full disk, it is writable up to the
// limit, and the data stays. If the disk is too full for a workspace, it is not created.
func TestL4Reserved(t *testing.T) {
	t.Parallel()
	if w.name == "docker" { // monitors the size instead
		return
	}
	x := newBroken(t, "400M", false)
	m := x.open(t)
	req := request()
	req.Limits.WorkspaceBytes = 16 << 20
	s, _, err := m.Open(t.Context(), session.UserKey("kept"), req)
	must(t, err)
	if got := s.Info().Workspace; got != backend.WorkspaceSized {
		t.Fatalf("the workspace is held to its size by %q", got)
	}
	files := map[string][]byte{"before": noise(1, 2<<20), "after": noise(2, 6<<20), "again": noise(3, 6<<20)}
	write := func(name string) {
		t.Helper()
		_, err := s.WriteFile(t.Context(), name, bytes.NewReader(files[name]), sandbox.WriteFileOptions{})
		must(t, err)
	}
	write("before")
	x.Fill(t)
	write("after")
	check(t, s, "dd if=/dev/zero of=big bs=64k count=96 conv=fsync 2>/dev/null && rm big && sync -f . && echo written", "written\n")
	write("again")
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "exec head -c 16M /dev/zero > big"})
	if err != nil || res.ExitCode == 0 || !res.QuotaExceeded {
		t.Errorf("beyond the limit: %+v, %v", res.ExecStatus, err)
	}
	check(t, s, "rm big && sync -f . && echo kept > f && cat f", "kept\n")
	for name, want := range files {
		if got, _, err := s.ReadFileBytes(t.Context(), name, sandbox.ReadFileOptions{}); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s holds %d other bytes, %v", name, len(got), err)
		}
	}
	other := x.open(t)
	if _, _, err := other.Open(t.Context(), session.UserKey("new"), req); !typed(err) || strings.Contains(fmt.Sprint(err), x.Dir) {
		t.Errorf("a new sandbox on the full disk: %v", err)
	}
	x.nothingLeft(t, other)
	x.Free(t)
	req.Limits.WorkspaceBytes = 1 << 30
	if _, _, err := other.Open(t.Context(), session.UserKey("new"), req); !errors.Is(err, backend.ErrNoRoom) {
		t.Errorf("more than the disk has: %v, want %v", err, backend.ErrNoRoom)
	}
	x.nothingLeft(t, other)
}

// TestL7Runtime: a killed shim means a lost sandbox, a missing runtime is a typed error, and nothing is left in either
// case.
func TestL7Runtime(t *testing.T) {
	t.Parallel()
	x := newBroken(t, "600M", true)
	m := x.open(t)
	req := request()
	if x.runtime != "" {
		req.OCIRuntime = "own"
	}
	s, _, err := m.Open(t.Context(), session.UserKey("first"), req)
	must(t, err)
	check(t, s, "echo kept > f", "")
	pipes := x.pipes(t)
	other := x.open(t)
	putBack := x.takeRuntime(t)
	_, _, err = other.Open(t.Context(), session.UserKey("second"), req)
	// The error may be temporary. An engine may consider a missing runtime an error of the request.
	if err != nil && (!typed(err) && !errors.Is(err, backend.ErrInvalid) || strings.Contains(err.Error(), x.Dir)) {
		t.Errorf("without a runtime: %v", err)
	}
	if err == nil && x.runtime != "" {
		t.Error("a sandbox without a runtime")
	}
	must(t, other.Close(t.Context()))
	x.nothingLeft(t, other)
	eventually(t, "no FIFO of what never ran is left", func() bool { return len(x.pipes(t)) <= len(pipes) })
	// Running sandboxes need neither.
	check(t, s, "cat f", "kept\n")
	putBack()
	x.killShim(t, s.Info().EngineID)
	eventually(t, "the sandbox is reported as lost", func() bool {
		_, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}})
		if err != nil && !typed(err) {
			t.Fatalf("after the kill: %v", err)
		}
		return errors.Is(err, backend.ErrLost)
	})
	next, _, err := m.Open(t.Context(), session.UserKey("next"), req)
	must(t, err)
	check(t, next, "echo works", "works\n")
	must(t, m.Close(t.Context()))
	x.nothingLeft(t, m)
	eventually(t, "no FIFO is left", func() bool { return len(x.pipes(t)) == 0 })
}

// pipes returns the FIFOs of the engine and of the driver, without the FIFOs of shims whose cleanup containerd has
// given up. It gives up after five seconds, which is too short on a busy host.
func (x *broken) pipes(t *testing.T) []string {
	t.Helper()
	out := x.Run(t, "find "+x.Dir+" -type p -not -path '*/io.containerd.runtime.v2.task/*' 2>/dev/null; true")
	return strings.Fields(out)
}

// takeRuntime removes the program that creates sandboxes. putBack restores it.
func (x *broken) takeRuntime(t *testing.T) (putBack func()) {
	t.Helper()
	if x.runtime != "" {
		x.Run(t, "mv "+x.runtime+" "+x.runtime+".away")
		return func() { x.Run(t, "mv "+x.runtime+".away "+x.runtime) }
	}
	x.Run(t, "for f in "+x.Disk+"/state/guest/*/workcell-guest; do mv $f "+x.Dir+"/guest.away; done")
	return func() {
		x.Run(t, "for d in "+x.Disk+"/state/guest/*; do test -e $d/workcell-guest || cp "+x.Dir+"/guest.away $d/workcell-guest; done")
	}
}

// killShim kills the shim between the engine and a sandbox. If there is no shim, it kills the main process.
func (x *broken) killShim(t *testing.T, id string) {
	t.Helper()
	if w.name != "local" {
		x.KillShim(t, id)
		return
	}
	pid, err := x.engine.pid(t.Context(), id)
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

// broken is a private engine of a test, of the kind under attack.
type broken struct {
	*machinetest.Machine
	engine  engine
	runtime string // path of a private runtime; empty if the engine has no runtimes
}

// newBroken starts a private engine with the plain image. With liveRestore, the containers of a Docker Engine outlive
// it.
func newBroken(t *testing.T, disk string, liveRestore bool) *broken {
	t.Helper()
	m := machinetest.New(t, disk)
	x := &broken{Machine: m}
	if _, ok := w.engine.(served); ok {
		x.runtime = m.OwnRuntime(t)
		m.StartEngine(t, w.name, liveRestore)
		m.LoadImage(t, w.name, debianImage)
	}
	state := filepath.Join(m.Disk, "state")
	switch w.name {
	case "docker":
		api, err := dockerclient.NewClientWithOpts(dockerclient.WithHost(m.DockerHost()), dockerclient.WithAPIVersionNegotiation())
		must(t, err)
		x.engine = &dockerEngine{api: api, host: m.DockerHost()}
	case "containerd":
		images, err := openContainerdImages(m.ContainerdSocket(), containerd.DefaultNamespace)
		must(t, err)
		x.engine = &containerdEngine{containerdImages: images, socket: m.ContainerdSocket(), state: state, runtimes: map[string]string{"own": x.runtime}}
	case "local":
		x.engine = &localEngine{state: state}
	}
	t.Cleanup(func() { _ = x.engine.close() }) // it may have been cut off
	return x
}

// open connects to the engine and returns a manager. At the end, it verifies that the manager left nothing.
func (x *broken) open(t *testing.T) *session.Manager {
	t.Helper()
	driver, err := x.engine.connect(t.Context(), connection{})
	must(t, err)
	m, err := session.NewManager(driver, &session.Options{Instance: w.instance + "-" + record.NewID()})
	must(t, err)
	t.Cleanup(func() {
		must(t, errors.Join(m.Close(context.Background()), driver.Close()))
		x.nothingLeft(t, m)
	})
	return m
}

// nothingLeft waits until all objects of a manager are gone.
func (x *broken) nothingLeft(t testing.TB, m *session.Manager) {
	t.Helper()
	eventually(t, "nothing is left of "+m.Instance(), func() bool {
		left, err := x.engine.left(context.Background(), m.Instance())
		return err == nil && len(left) == 0
	})
}
