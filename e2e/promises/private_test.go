package promises

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
	"testing"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/session"
)

// machine is a small disk and a shell in namespaces of its own, in which a test runs engines that it may break. Nothing
// of it is seen by, or does anything to, the engines of the system. When the test ends, or dies, so does all that runs
// in it: the shell is the first process of its process namespace and reads its commands from the test.
type machine struct {
	dir  string // of sockets, settings and logs
	disk string // where a small file system is mounted

	mu  sync.Mutex // one command at a time
	in  io.Writer
	out *bufio.Reader
}

// outer makes the disk, runs the shell of the test, and takes everything away when that ends.
const outer = `set -e
truncate -s "$2" "$1/disk.img"
mkfs.ext4 -q -F -m 0 -O ^has_journal -E lazy_itable_init=1,nodiscard "$1/disk.img"
mount -o loop "$1/disk.img" "$1/disk"
unshare -m -n -p -f --mount-proc --propagation slave sh -c 'umount /sys/fs/cgroup/unified 2>/dev/null; ip link set lo up 2>/dev/null; exec sh -s' || true
n=0
until umount "$1/disk" || [ $n -ge 50 ]; do n=$((n+1)); sleep 0.1; done 2>/dev/null
umount -l "$1/disk" 2>/dev/null || true
rm -rf "$1"
`

// newMachine makes a machine whose disk holds size, as truncate reads it.
func newMachine(t testing.TB, size string) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("to break an engine without harm, these tests run one of their own, which needs root")
	}
	dir, err := os.MkdirTemp("", "promises-") // short: sockets lie in it
	must(t, err)
	m := &machine{dir: dir, disk: filepath.Join(dir, "disk")}
	must(t, os.Mkdir(m.disk, 0o700))
	cmd := exec.Command("sh", "-c", outer, "sh", dir, size)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	must(t, cmd.Start())
	m.in, m.out = stdin, bufio.NewReader(stdout)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.logs())
		}
		_ = stdin.Close() // that ends it
		if err := cmd.Wait(); err != nil {
			t.Errorf("the machine of the test: %v, %s", err, errs.String())
		}
	})
	m.run(t, "true")
	return m
}

// logs gives the ends of what the engines wrote.
func (m *machine) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(m.dir + "/*.log") // the pattern is well-formed
	for _, f := range files {
		text, err := os.ReadFile(f)
		fmt.Fprintf(&all, "--- %s %v\n%s\n", filepath.Base(f), err, text[max(0, len(text)-3000):])
	}
	return all.String()
}

// run runs a line of shell in the machine and gives what it printed.
func (m *machine) run(t testing.TB, line string) string {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	end := "end-" + session.NewID()
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
		must(t, err)
	}
}

// start starts a program in the background; its log is in the machine's directory. What it was before is forgotten.
func (m *machine) start(t testing.TB, name, line string) {
	t.Helper()
	m.run(t, fmt.Sprintf("cd /; PATH=%[1]s/bin:$PATH %[3]s >>%[1]s/%[2]s.log 2>&1 </dev/null & echo $! >%[1]s/%[2]s.shellpid", m.dir, name, line))
}

// kill ends a program that start started, and waits for its end.
func (m *machine) kill(t testing.TB, name, signal string) {
	t.Helper()
	m.run(t, fmt.Sprintf("pid=$(cat %s/%s.shellpid); kill -%s $pid; n=0; while kill -0 $pid 2>/dev/null && [ $n -lt 900 ]; do n=$((n+1)); sleep 0.1; done; ! kill -0 $pid 2>/dev/null",
		m.dir, name, signal))
}

// fill leaves no room on the disk; free gives it back.
func (m *machine) fill(t testing.TB) {
	t.Helper()
	m.run(t, "head -c 10G /dev/zero >"+m.disk+"/fill 2>/dev/null; sync; i=0; while touch "+m.disk+"/fill-$i 2>/dev/null && echo x >"+m.disk+
		"/fill-$i 2>/dev/null && [ $i -lt 100 ]; do i=$((i+1)); done; true")
}

func (m *machine) free(t testing.TB) { m.run(t, "rm -f "+m.disk+"/fill "+m.disk+"/fill-*") }

// startContainerd starts containerd with its root on the machine's disk. Starting it again finds everything again.
func (m *machine) startContainerd(t testing.TB) *ctrd.Client {
	t.Helper()
	socket := filepath.Join(m.dir, "c.sock")
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		m.disk+"/containerd", m.dir+"/run", socket, socket+".ttrpc")
	must(t, os.WriteFile(filepath.Join(m.dir, "containerd.toml"), []byte(config), 0o600))
	m.start(t, "containerd", "containerd -c "+m.dir+"/containerd.toml")
	var api *ctrd.Client
	eventually(t, "containerd answers", func() bool {
		var err error
		if api == nil {
			if api, err = ctrd.New(socket, ctrd.WithDefaultNamespace(containerd.DefaultNamespace), ctrd.WithTimeout(5*time.Second)); err != nil {
				return false
			}
			t.Cleanup(func() { _ = api.Close() }) // it may have been cut
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = api.Version(ctx)
		return err == nil
	})
	return api
}

// startDockerd starts a Docker Engine that leaves containers running when it ends. It needs the machine's containerd.
func (m *machine) startDockerd(t testing.TB) *dockerclient.Client {
	t.Helper()
	socket := "unix://" + filepath.Join(m.dir, "d.sock")
	config := fmt.Sprintf(`{"data-root": %q, "exec-root": %q, "pidfile": %q, "hosts": [%q], "containerd": %q, "live-restore": true,
		"bridge": "none", "iptables": false, "ip6tables": false, "runtimes": {"own": {"path": %q}}}`,
		m.disk+"/docker", m.dir+"/exec", m.dir+"/docker.pid", socket, m.dir+"/c.sock", m.dir+"/bin/own-runc")
	must(t, os.WriteFile(filepath.Join(m.dir, "daemon.json"), []byte(config), 0o600))
	m.start(t, "dockerd", "dockerd --config-file "+m.dir+"/daemon.json")
	api, err := dockerclient.NewClientWithOpts(dockerclient.WithHost(socket), dockerclient.WithAPIVersionNegotiation())
	must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	eventually(t, "dockerd answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := api.ServerVersion(ctx)
		return err == nil
	})
	return api
}

// ownRuntime puts a runtime where a test can take it away.
func (m *machine) ownRuntime(t testing.TB) string {
	t.Helper()
	path := filepath.Join(m.dir, "bin", "own-runc")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	m.run(t, "cp $(command -v runc) "+path)
	return path
}

// broken is an engine of a test's own, of the kind that is attacked.
type broken struct {
	*machine
	engine  engine
	runtime string            // one of its own, by path; empty where there is no such thing
	restart map[string]func() // ways in which it is ended and comes back
	shim    string            // program that stands between engine and sandbox
}

// newBroken starts one, with the plain image in it.
func newBroken(t *testing.T, disk string) *broken {
	t.Helper()
	m := newMachine(t, disk)
	x := &broken{machine: m, shim: "containerd-shim"}
	switch e := w.engine.(type) {
	case *dockerEngine:
		x.runtime = m.ownRuntime(t)
		m.startContainerd(t)
		own := &dockerEngine{api: m.startDockerd(t), host: "unix://" + filepath.Join(m.dir, "d.sock")}
		x.engine = own
		tar, err := e.api.ImageSave(t.Context(), []string{debianImage})
		must(t, err)
		defer tar.Close()
		res, err := own.api.ImageLoad(t.Context(), tar)
		must(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		must(t, errors.Join(err, res.Body.Close()))
		x.restart = map[string]func(){
			"dockerd ended":     func() { m.kill(t, "dockerd", "TERM"); m.startDockerd(t) },
			"dockerd killed":    func() { m.kill(t, "dockerd", "KILL"); m.startDockerd(t) },
			"containerd killed": func() { m.kill(t, "containerd", "KILL"); m.startContainerd(t) },
		}
	case *containerdEngine:
		x.runtime = m.ownRuntime(t)
		own := &containerdEngine{api: m.startContainerd(t), socket: filepath.Join(m.dir, "c.sock"), state: filepath.Join(m.disk, "state"),
			runtimes: map[string]string{"own": x.runtime}}
		x.engine = own
		var tar bytes.Buffer
		ctx := namespaces.WithNamespace(t.Context(), containerd.DefaultNamespace)
		must(t, e.api.Export(ctx, &tar, archive.WithImage(e.api.ImageService(), "docker.io/"+debianImage)))
		_, err := own.api.Import(ctx, &tar)
		must(t, err)
		x.restart = map[string]func(){
			"containerd ended":  func() { m.kill(t, "containerd", "TERM"); m.startContainerd(t) },
			"containerd killed": func() { m.kill(t, "containerd", "KILL"); m.startContainerd(t) },
		}
	case *localEngine:
		x.engine, x.shim = &localEngine{state: filepath.Join(m.disk, "state")}, ""
	}
	return x
}

// open connects to it and gives a manager, which must leave nothing.
func (x *broken) open(t *testing.T) *session.Manager {
	t.Helper()
	driver, err := x.engine.connect(t.Context(), connection{})
	must(t, err)
	m, err := session.NewManager(driver, &session.Options{Instance: w.instance + "-" + session.NewID()})
	must(t, err)
	t.Cleanup(func() {
		must(t, errors.Join(m.Close(context.Background()), driver.Close()))
		x.nothingLeft(t, m.Instance())
	})
	return m
}

// nothingLeft waits until nothing of an instance is there any more.
func (x *broken) nothingLeft(t testing.TB, instance string) {
	t.Helper()
	eventually(t, "nothing is left of "+instance, func() bool {
		left, err := x.engine.left(context.Background(), instance)
		return err == nil && len(left) == 0
	})
}
