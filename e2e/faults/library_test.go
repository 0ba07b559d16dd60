//go:build linux

package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/e2e/machinetest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
)

var must, eventually = checktest.Must, checktest.Eventually

// image is the image of sandboxes in the library's tests.
const image = "workcell/debian:12"

// engines returns the engines for tests of faults independent of the engine.
func engines() []string { return []string{"docker", "containerd", "local"} }

// openDriver opens the driver of an engine at an address. containerd and local keep their files in state.
func openDriver(ctx context.Context, engine, address, state string, patience time.Duration) (backend.SandboxBackend, error) {
	switch engine {
	case "docker":
		return docker.New(ctx, &docker.Options{Host: address, Patience: patience})
	case "containerd":
		return containerd.New(ctx, &containerd.Options{Address: address, StateDir: state, Patience: patience})
	}
	return local.New(ctx, &local.Options{StateDir: state})
}

// connect opens the driver of the system's engine like a program with the library, with the patience for a busy engine.
func connect(ctx context.Context, engine string) (backend.SandboxBackend, error) {
	address := map[string]string{"docker": os.Getenv("DOCKER_HOST"), "containerd": containerdAddress()}[engine]
	state := map[string]string{"containerd": containerd.DefaultStateDir, "local": localState}[engine]
	return openDriver(ctx, engine, address, state, patience)
}

// behind starts a proxy in front of an engine and returns a driver for it. The driver has little patience.
func behind(t *testing.T, engine string) (*proxy, backend.SandboxBackend) {
	t.Helper()
	if engine == "docker" {
		host, err := dockerclient.ParseHostURL(cmp.Or(os.Getenv("DOCKER_HOST"), dockerclient.DefaultDockerHost))
		must(t, err)
		l, err := net.Listen("tcp", "127.0.0.1:0") // like an engine on another host, whose streams are separate
		must(t, err)
		p := newProxy(t, l, host.Scheme, cmp.Or(host.Path, host.Host))
		driver, err := docker.New(t.Context(), &docker.Options{Host: "tcp://" + l.Addr().String(), Patience: 2 * time.Second})
		must(t, err)
		return p, driver
	}
	dir, err := os.MkdirTemp("", "faults-") // the path of t.TempDir may be too long for a socket
	must(t, err)
	l, err := net.Listen("unix", filepath.Join(dir, "e.sock"))
	must(t, err)
	p := newProxy(t, l, "unix", containerdAddress())
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	driver, err := openDriver(t.Context(), engine, l.Addr().String(), containerd.DefaultStateDir, 2*time.Second)
	must(t, err)
	return p, driver
}

// localState is the local driver's directory for sandboxes if it runs as root.
const localState = "/var/lib/workcell/local"

func containerdAddress() string {
	return cmp.Or(os.Getenv("CONTAINERD_ADDRESS"), containerd.DefaultAddress)
}

// library is a program with our library, with records on disk.
type library struct {
	*session.Manager
	driver backend.SandboxBackend
	store  *sqlite.Store
}

// openLibrary returns a manager with records in a directory. The manager closes driver at the end.
func openLibrary(ctx context.Context, driver backend.SandboxBackend, dir string) (*library, error) {
	l := &library{driver: driver}
	instance, err := os.ReadFile(filepath.Join(dir, "instance"))
	if err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	if l.store, err = sqlite.Open(ctx, filepath.Join(dir, "library.db")); err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	l.Manager, err = session.NewManager(driver, &session.Options{
		Instance: strings.TrimSpace(string(instance)), Store: l.store, ReapEvery: time.Second, // retries failed removals soon
	})
	if err != nil {
		return nil, errors.Join(err, l.store.Close(), driver.Close())
	}
	return l, nil
}

func (l *library) close(ctx context.Context) error {
	return errors.Join(l.Manager.Close(ctx), l.store.Close(), l.driver.Close())
}

// library opens a library for the host, until the end of the test.
func (h *host) library(t *testing.T, driver backend.SandboxBackend) *library {
	t.Helper()
	h.named(t)
	l, err := openLibrary(t.Context(), driver, h.State)
	must(t, err)
	t.Cleanup(func() {
		if err := l.close(context.Background()); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return l
}

// named creates the host's instance id, like the first command would.
func (h *host) named(t *testing.T) {
	t.Helper()
	path := filepath.Join(h.State, "instance")
	if _, err := os.Stat(path); err == nil {
		return
	}
	must(t, os.MkdirAll(h.State, 0o700))
	must(t, os.WriteFile(path, []byte(record.NewID()+"\n"), 0o600))
}

// mainProcess returns the PID of a sandbox's main process.
func mainProcess(engine string, s *session.Session) (int, error) {
	id := s.Info().EngineID
	switch engine {
	case "docker":
		out, err := exec.Command("docker", "inspect", "--format", "{{.State.Pid}}", id).Output()
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(out)))
	case "containerd":
		out, err := exec.Command("ctr", "--address", containerdAddress(), "--namespace", containerd.DefaultNamespace, "tasks", "ls").Output()
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == machinetest.ContainerID(id) && f[2] == "RUNNING" {
				return strconv.Atoi(f[1])
			}
		}
		return 0, errors.Join(err, os.ErrProcessDone)
	}
	text, err := os.ReadFile(filepath.Join(localState, "sandboxes", s.ID(), "run.json"))
	if err != nil {
		return 0, err
	}
	var run struct{ PID int }
	return run.PID, json.Unmarshal(text, &run)
}

// killMain kills the main process of a sandbox and waits for the end. It returns false if there was no such process.
func killMain(t *testing.T, engine string, s *session.Session) bool {
	t.Helper()
	pid, err := mainProcess(engine, s)
	if err != nil || pid <= 0 {
		return false
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer p.Release() //nolint:errcheck // it only frees
	// The PID may have been reused. The handle is valid if the engine still reports this PID.
	if again, err := mainProcess(engine, s); err != nil || again != pid || p.Kill() != nil {
		return false
	}
	for deadline := time.Now().Add(patience); !ended(pid) && p.Signal(syscall.Signal(0)) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) { // not Fatal, because this may run in another goroutine than the test
			t.Errorf("process %d was killed and has not ended", pid)
			return true
		}
	}
	return true
}

// ended reports whether a process has exited, even if the parent has not reaped it.
func ended(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return err != nil || strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// output runs a program, which must succeed, and returns the output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
