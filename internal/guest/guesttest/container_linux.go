package guesttest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// ContainerOptions configure StartContainer. Zero fields select the defaults of a sandbox.
type ContainerOptions struct {
	Binary string   // path of the guest agent; required
	Image  string   // defaults to workcell/debian:12
	User   string   // defaults to 1000:1000
	Args   []string // arguments of the guest agent
	Docker []string // additional arguments of docker run
}

// Container is a guest agent as the main process of a hardened container on the local engine. The end of the test
// removes it.
type Container struct {
	Name    string
	Workdir string // host directory of the workspace

	t testing.TB
}

// StartContainer starts a container with the settings of the Docker driver relevant to the guest agent.
func StartContainer(t testing.TB, o ContainerOptions) *Container {
	t.Helper()
	if o.Image == "" {
		o.Image = "workcell/debian:12"
	}
	if o.User == "" {
		o.User = "1000:1000"
	}
	c := &Container{Workdir: tempDir(t), t: t}
	uid, err := strconv.Atoi(strings.Split(o.User, ":")[0])
	if err == nil {
		err = os.Chown(c.Workdir, uid, uid)
	}
	if err != nil {
		t.Fatalf("guesttest: %v", err)
	}
	args := []string{"run", "-d", "--label", "dev.workcell.guesttest=1", "--log-driver", "none", "--network", "none",
		"--read-only", "--user", o.User, "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp",
		"-v", c.Workdir + ":/workspace", "-v", o.Binary + ":/.workcell/workcell-guest:ro", "-w", "/workspace",
		"--entrypoint", "/.workcell/workcell-guest"}
	args = append(append(append(args, o.Docker...), o.Image), o.Args...)
	out, err := exec.Command("docker", args...).Output()
	if err != nil {
		t.Fatalf("guesttest: docker run: %v\n%s", err, stderr(err))
	}
	c.Name = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("docker", "rm", "-f", "-v", c.Name).CombinedOutput(); err != nil {
			t.Errorf("guesttest: docker rm: %v\n%s", err, out)
		}
		// Files of commands belong to another user, and their directories may deny all access.
		_ = filepath.WalkDir(c.Workdir, func(p string, d os.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				return os.Chmod(p, 0o700)
			}
			return nil
		})
	})
	return c
}

// Dial connects to the guest agent's socket in the container's network namespace.
func (c *Container) Dial() io.ReadWriteCloser {
	c.t.Helper()
	pid, err := exec.Command("docker", "inspect", "-f", "{{.State.Pid}}", c.Name).Output()
	if err != nil {
		c.t.Fatalf("guesttest: docker inspect: %v\n%s", err, stderr(err))
	}
	var conn *net.UnixConn
	dialed := make(chan error)
	go func() {
		runtime.LockOSThread() // permanently: the thread exits with the goroutine
		ns, err := os.Open("/proc/" + strings.TrimSpace(string(pid)) + "/ns/net")
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close() // only a handle
		}
		for end := time.Now().Add(time.Minute); err == nil; time.Sleep(10 * time.Millisecond) {
			var dialErr error
			if conn, dialErr = wire.DialSocket(wire.SocketName); dialErr == nil || time.Now().After(end) {
				err = dialErr
				break
			}
		}
		dialed <- err
	}()
	if err := <-dialed; err != nil {
		c.t.Fatalf("guesttest: %v", err)
	}
	c.t.Cleanup(func() { _ = conn.Close() }) // may already be closed
	return conn
}

// Running reports whether the container's main process is running.
func (c *Container) Running() bool {
	c.t.Helper()
	out, err := exec.Command("docker", "inspect", "-f", "{{.State.Running}}", c.Name).Output()
	return err == nil && strings.TrimSpace(string(out)) == "true"
}

// Docker runs a docker command with the container's name as the last argument.
func (c *Container) Docker(args ...string) {
	c.t.Helper()
	if out, err := exec.Command("docker", append(args, c.Name)...).CombinedOutput(); err != nil {
		c.t.Fatalf("guesttest: docker %v: %v\n%s", args, err, out)
	}
}

func stderr(err error) string {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return string(e.Stderr)
	}
	return fmt.Sprint(err)
}
