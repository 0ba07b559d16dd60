//go:build unix

package docker_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	dockerclient "github.com/docker/docker/client"
)

// engines gives the kinds of engine that this machine lets a test take away.
func engines() map[string]func(testing.TB) *restartable {
	kinds := map[string]func(testing.TB) *restartable{"socket": socketEngine}
	missing := false
	for _, program := range []string{"dockerd", "containerd", "unshare", "nsenter", "ip"} {
		_, err := exec.LookPath(program)
		missing = missing || err != nil
	}
	if runtime.GOOS == "linux" && os.Getuid() == 0 && !missing {
		kinds["killed"] = func(t testing.TB) *restartable { return privateEngine(t, false) }
		kinds["killed with live restore"] = func(t testing.TB) *restartable { return privateEngine(t, true) }
	}
	return kinds
}

// socketEngine is the machine's own engine behind a socket that can be closed.
func socketEngine(t testing.TB) *restartable {
	p := newProxy(t)
	return &restartable{
		host: p.host, survives: true,
		kill:  func(testing.TB) { p.stop() },
		start: func(t testing.TB) { p.start(t) },
	}
}

// privateEngine starts an engine of its own, with a containerd of its own, in namespaces where it disturbs no other.
func privateEngine(t testing.TB, liveRestore bool) *restartable {
	t.Helper()
	dir, err := os.MkdirTemp("", "wcengine")
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	log, err := os.Create(at("log"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("containerd.toml", fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"+
		"[grpc]\n  address = %q\n[ttrpc]\n  address = %q\n", at("cd"), at("cs"), at("c.sock"), at("t.sock")))
	write("daemon.json", fmt.Sprintf(`{"live-restore": %v}`, liveRestore))

	spawn := func(t testing.TB, argv ...string) *exec.Cmd {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	holder := spawn(t, "unshare", "-m", "-n", "--propagation", "slave", "sh", "-c",
		"ip link set lo up; umount /sys/fs/cgroup/unified; touch "+at("ready")+"; exec sleep 100000")
	waitFor(t, "namespaces", func() bool { _, err := os.Stat(at("ready")); return err == nil })
	inside := []string{"nsenter", "-t", fmt.Sprint(holder.Process.Pid), "-m", "-n"}
	containerd := spawn(t, append(inside, "containerd", "-c", at("containerd.toml"))...)
	waitFor(t, "containerd", func() bool { _, err := os.Stat(at("c.sock")); return err == nil })

	host := "unix://" + at("docker.sock")
	var dockerd *exec.Cmd
	start := func(t testing.TB) {
		dockerd = spawn(t, append(inside, "dockerd", "--config-file", at("daemon.json"), "--data-root", at("docker"), "--exec-root", at("exec"),
			"--pidfile", at("pid"), "-H", host, "--containerd", at("c.sock"))...)
	}
	end := func(cmd *exec.Cmd, sig syscall.Signal) {
		_ = cmd.Process.Signal(sig) // it may have ended by itself
		_ = cmd.Wait()              // so that it is no zombie; how it ended matters to nobody
	}
	start(t)
	t.Cleanup(func() {
		end(dockerd, syscall.SIGTERM)
		end(containerd, syscall.SIGTERM)
		end(holder, syscall.SIGKILL)
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(at("log"))
			t.Logf("%s", text[max(0, len(text)-4000):])
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	loadInto(t, host, debianImage)
	return &restartable{host: host, survives: liveRestore, start: start, kill: func(testing.TB) { end(dockerd, syscall.SIGKILL) }}
}

// loadInto copies an image of the machine's engine into another one, once that answers.
func loadInto(t testing.TB, host, ref string) {
	t.Helper()
	to, err := dockerclient.NewClientWithOpts(dockerclient.WithHost(host), dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close() //nolint:errcheck // nothing is pending
	ctx := context.Background()
	waitFor(t, "the engine", func() bool { _, err := to.Ping(ctx); return err == nil })
	from, err := engineAPI(t).ImageSave(ctx, []string{ref})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close() //nolint:errcheck // only read from
	res, err := to.ImageLoad(ctx, from)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	said, err := io.ReadAll(res.Body)
	if err != nil || strings.Contains(string(said), `"error"`) {
		t.Fatalf("loading %s: %s, %v", ref, said, err)
	}
}
