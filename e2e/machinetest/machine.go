//go:build linux

// Package machinetest runs private engines for tests, which the tests may damage.
package machinetest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session/record"
)

var must = checktest.Must

// patience is the maximum time until an engine answers. Hosts with running tests may be very busy.
const patience = 3 * time.Minute

// runTime is the maximum duration of a shell line. If a line hangs, the machine and the test end.
const runTime = 10 * time.Minute

// Machine is a small disk and a shell in new namespaces, for engines that a test may damage. The system's engines do
// not see it and are not affected by it. When the test ends or dies, all processes in the machine end too, because the
// shell is PID 1 of a PID namespace and reads commands from the test.
type Machine struct {
	Dir  string // sockets, settings, and logs
	Disk string // mount point of a small file system

	liveRestore bool // setting of the Docker Engine

	mu          sync.Mutex // one command at a time
	in          io.Writer
	out         *bufio.Reader
	stop        func() // kills all processes in the machine
	setDeadline func(time.Time) error
}

// outer creates the disk, runs the test's shell, and removes everything when the shell exits. A hang-up ends the shell.
// Mounts of a driver on the disk are visible outside.
const outer = `set -e
trap : HUP
truncate -s "$2" "$1/disk.img"
mkfs.ext4 -q -F -m 0 -O ^has_journal -E lazy_itable_init=1,nodiscard "$1/disk.img"
mount -o loop,shared "$1/disk.img" "$1/disk"
unshare -m -n -p -f --kill-child --mount-proc --propagation slave sh -c 'umount /sys/fs/cgroup/unified 2>/dev/null; ip link set lo up 2>/dev/null; exec sh -s' || true
n=0
until umount "$1/disk" || [ $n -ge 50 ]; do n=$((n+1)); sleep 0.1; done 2>/dev/null
umount -l "$1/disk" 2>/dev/null || true
rm -rf "$1"
`

// New creates a machine with a disk of size, in the format of truncate, for example 300M.
func New(t testing.TB, size string) *Machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests that break an engine start a private engine; run them as root")
	}
	dir, err := os.MkdirTemp("", "machine-") // short, because it contains sockets
	must(t, err)
	m := &Machine{Dir: dir, Disk: filepath.Join(dir, "disk")}
	must(t, os.Mkdir(m.Disk, 0o700))
	cmd := exec.Command("sh", "-c", outer, "sh", dir, size)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start())
	m.in, m.out = stdin, bufio.NewReader(stdout)
	m.stop = func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGHUP) } // all processes may have exited
	if pipe, ok := stdout.(*os.File); ok {
		m.setDeadline = pipe.SetReadDeadline
	} else {
		t.Fatalf("a pipe without deadlines: %T", stdout)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.logs())
		}
		_ = stdin.Close() // ends the shell
		hung := time.AfterFunc(runTime, m.stop)
		defer hung.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the machine of the test: %v, %s", err, errs.String())
		}
	})
	m.Run(t, "true")
	return m
}

// logs returns the ends of the engines' logs.
func (m *Machine) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(m.Dir + "/*.log") // the pattern is valid
	for _, f := range files {
		text, err := os.ReadFile(f)
		fmt.Fprintf(&all, "--- %s %v\n%s\n", filepath.Base(f), err, text[max(0, len(text)-3000):])
	}
	return all.String()
}

// ContainerdSocket returns the socket of the machine's containerd after StartEngine.
func (m *Machine) ContainerdSocket() string { return filepath.Join(m.Dir, "c.sock") }

// DockerHost returns the address of the machine's Docker Engine after StartEngine, in the format of DOCKER_HOST.
func (m *Machine) DockerHost() string { return "unix://" + filepath.Join(m.Dir, "d.sock") }

// Run runs a shell line in the machine, one at a time, and returns the output. The line must succeed.
func (m *Machine) Run(t testing.TB, line string) string {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	end := "end-" + record.NewID()
	must(t, m.setDeadline(time.Now().Add(runTime)))
	_, err := fmt.Fprintf(m.in, "{ %s\n} 2>&1\necho %s $?\n", line, end)
	must(t, err)
	var text strings.Builder
	for {
		got, err := m.out.ReadString('\n')
		if before, code, found := strings.Cut(got, end+" "); found {
			text.WriteString(before)
			if strings.TrimSpace(code) != "0" {
				t.Fatalf("%s: %s, exit code %s", line, text.String(), code)
			}
			return text.String()
		}
		text.WriteString(got)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			m.stop()
			t.Fatalf("%s: no end within %v: %s", line, runTime, text.String())
		}
		must(t, err)
	}
}

// start starts a daemon in the background. The log is in the machine's directory.
func (m *Machine) start(t testing.TB, name, line string) {
	t.Helper()
	m.Run(t, fmt.Sprintf("cd /; PATH=%[1]s/bin:$PATH %[3]s >>%[1]s/%[2]s.log 2>&1 </dev/null & echo $! >%[1]s/%[2]s.shellpid", m.Dir, name, line))
}

// Fill fills the disk completely.
func (m *Machine) Fill(t testing.TB) {
	t.Helper()
	m.Run(t, "head -c 10G /dev/zero >"+m.Disk+"/fill 2>/dev/null; sync -f "+m.Disk+"; i=0; while touch "+m.Disk+"/fill-$i 2>/dev/null && echo x >"+m.Disk+
		"/fill-$i 2>/dev/null && [ $i -lt 100 ]; do i=$((i+1)); done; true")
}

// Free reverts Fill.
func (m *Machine) Free(t testing.TB) { m.Run(t, "rm -f "+m.Disk+"/fill "+m.Disk+"/fill-*") }

// StartEngine starts a private engine: docker, or containerd with the runtime of OwnRuntime. For local, it does
// nothing. With liveRestore, a Docker Engine keeps containers running when it stops.
func (m *Machine) StartEngine(t testing.TB, name string, liveRestore bool) {
	t.Helper()
	if name == "local" {
		return
	}
	m.startContainerd(t)
	if m.liveRestore = liveRestore; name == "docker" {
		m.startDockerd(t)
	}
}

// LoadImage copies an image from the system's engine to the machine's engine.
func (m *Machine) LoadImage(t testing.TB, engine, image string) {
	t.Helper()
	line := map[string]string{
		"docker": fmt.Sprintf("docker save %s | docker --host %s load", image, m.DockerHost()),
		"containerd": fmt.Sprintf("ctr --namespace %[1]s images export - docker.io/%[2]s | ctr --address %[3]s --namespace %[1]s images import -",
			containerd.DefaultNamespace, image, m.ContainerdSocket()),
	}[engine]
	if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// Restart stops a daemon, dockerd or containerd, with a signal and starts it again with the same data.
func (m *Machine) Restart(t testing.TB, daemon, signal string) {
	t.Helper()
	m.Run(t, fmt.Sprintf("pid=$(cat %s/%s.shellpid); kill -%s $pid; n=0; while kill -0 $pid 2>/dev/null && [ $n -lt 1800 ]; do n=$((n+1)); sleep 0.1; done; ! kill -0 $pid 2>/dev/null",
		m.Dir, daemon, signal))
	if daemon == "dockerd" {
		m.startDockerd(t)
	} else {
		m.startContainerd(t)
	}
}

// ContainerID returns the name of a container for the engine's id of a sandbox. containerd's name contains a shorter
// part of the session's id.
func ContainerID(engineID string) string {
	session, own, ours := strings.Cut(engineID, ".")
	if !ours {
		return engineID
	}
	return session[:min(32, len(session))] + "." + own
}

// KillShim kills the shim between the engine and a sandbox.
func (m *Machine) KillShim(t testing.TB, engineID string) {
	t.Helper()
	m.Run(t, `found=; for p in /proc/[0-9]*; do
		if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "containerd-shim.* -id `+ContainerID(engineID)+`"; then kill -9 ${p#/proc/}; found=1; fi
	done; test -n "$found"`)
}

// startContainerd starts containerd with the root directory on the machine's disk, and waits until it answers.
func (m *Machine) startContainerd(t testing.TB) {
	t.Helper()
	socket := m.ContainerdSocket()
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		m.Disk+"/containerd", m.Dir+"/run", socket, socket+".ttrpc")
	must(t, os.WriteFile(filepath.Join(m.Dir, "containerd.toml"), []byte(config), 0o600))
	m.start(t, "containerd", "containerd -c "+m.Dir+"/containerd.toml")
	answers(t, "containerd", func(ctx context.Context) error {
		api, err := ctrd.New(socket, ctrd.WithTimeout(5*time.Second))
		if err != nil {
			return err
		}
		_, err = api.Version(ctx)
		return errors.Join(err, api.Close())
	})
}

// startDockerd starts a Docker Engine, and waits until it answers. It requires the machine's containerd.
func (m *Machine) startDockerd(t testing.TB) {
	t.Helper()
	config := fmt.Sprintf(`{"data-root": %q, "exec-root": %q, "pidfile": %q, "hosts": [%q], "containerd": %q, "live-restore": %v,
		"bridge": "none", "iptables": false, "ip6tables": false, "runtimes": {"own": {"path": %q}}}`,
		m.Disk+"/docker", m.Dir+"/exec", m.Dir+"/docker.pid", m.DockerHost(), m.ContainerdSocket(), m.liveRestore, m.Dir+"/bin/own-runc")
	must(t, os.WriteFile(filepath.Join(m.Dir, "daemon.json"), []byte(config), 0o600))
	m.start(t, "dockerd", "dockerd --config-file "+m.Dir+"/daemon.json")
	api, err := dockerclient.NewClientWithOpts(dockerclient.WithHost(m.DockerHost()), dockerclient.WithAPIVersionNegotiation())
	must(t, err)
	defer api.Close() //nolint:errcheck // only asked
	answers(t, "dockerd", func(ctx context.Context) error {
		_, err := api.ServerVersion(ctx)
		return err
	})
}

// answers waits for an engine's first answer.
func answers(t testing.TB, name string, ask func(ctx context.Context) error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := ask(ctx)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer within %v: %v", name, patience, err)
		}
	}
}

// OwnRuntime copies a runtime to a place where a test can remove it.
func (m *Machine) OwnRuntime(t testing.TB) string {
	t.Helper()
	path := filepath.Join(m.Dir, "bin", "own-runc")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	m.Run(t, "cp $(command -v runc) "+path)
	return path
}
