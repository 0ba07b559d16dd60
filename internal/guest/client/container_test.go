//go:build linux

package client_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// startBox starts a sandbox and connects to it.
func startBox(t testing.TB, o guesttest.ContainerOptions) (*guesttest.Container, *client.Conn) {
	t.Helper()
	o.Binary = binary
	if o.Docker == nil {
		o.Docker = []string{"--pids-limit", "96", "--memory", "256m", "--memory-swap", "256m"}
	}
	box := guesttest.StartContainer(t, o)
	return box, dialBox(t, box)
}

func dialBox(t testing.TB, box *guesttest.Container) *client.Conn {
	t.Helper()
	c, err := client.New(context.Background(), box.Dial(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// both runs a test as the default user and as root of the sandbox.
func both(t *testing.T, test func(t *testing.T, user string)) {
	for name, user := range map[string]string{"user": "1000:1000", "root": "0:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, user)
		})
	}
}

// alive checks that the sandbox still does what it is for.
func alive(t testing.TB, box *guesttest.Container, c *client.Conn) {
	t.Helper()
	if !box.Running() {
		t.Fatal("the sandbox is dead")
	}
	var res wire.RunResult
	eventually(t, "a command runs again", func() bool {
		var err error
		res, err = c.Run(testContext(t), sh("echo alive"))
		return err == nil
	})
	if string(res.Stdout.Head) != "alive\n" {
		t.Errorf("got %v", brief(res))
	}
}

func TestContainerPosture(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		_, c := startBox(t, guesttest.ContainerOptions{User: user})
		res := mustRun(t, c, sh("id -u; ulimit -c; cat /proc/self/oom_score_adj; for i in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$i ] && printf %s $i; done; echo; cat /proc/1/oom_score_adj"))
		want := strings.Split(user, ":")[0] + "\n0\n500\n012\n0\n"
		if got := string(res.Stdout.Head); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if h := c.Hello(); h.PID != 1 {
			t.Errorf("got %+v", h)
		}
	})
}

func TestContainerGuestIsOpaque(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		box, c := startBox(t, guesttest.ContainerOptions{User: user})
		script := `for f in environ mem maps auxv io stack syscall; do cat /proc/1/$f >/dev/null 2>&1 && echo read $f; done
			ls /proc/1/cwd/ >/dev/null 2>&1 && echo entered cwd
			ls /proc/1/root/ >/dev/null 2>&1 && echo entered root
			for n in 0 1 2 3 4 5 6 7; do ( echo forged > /proc/1/fd/$n ) 2>/dev/null && echo wrote fd $n; done
			( echo x > /proc/1/mem ) 2>/dev/null && echo wrote mem
			true`
		if user != "0:0" {
			script += `; ls /proc/1/fd >/dev/null 2>&1 && echo listed fd
			( echo 1000 > /proc/1/oom_score_adj ) 2>/dev/null && echo changed score; true`
		}
		if res := mustRun(t, c, sh(script)); len(res.Stdout.Head) > 0 {
			t.Errorf("a command could:\n%s", res.Stdout.Head)
		}
		alive(t, box, c)
	})
}

func TestContainerTakeover(t *testing.T) {
	t.Parallel()
	box, first := startBox(t, guesttest.ContainerOptions{})
	flood := sh("while :; do head -c 300000 /dev/urandom; done")
	go func() { _, _ = first.Attach(context.Background(), flood, nil, io.Discard, nil) }()
	time.Sleep(200 * time.Millisecond)
	for i := range 5 {
		began := time.Now()
		next := dialBox(t, box)
		if res := mustRun(t, next, sh("echo here")); string(res.Stdout.Head) != "here\n" {
			t.Errorf("host %d: %+v", i, res)
		}
		t.Logf("host %d after %v", i, time.Since(began))
		go func() { _, _ = next.Attach(context.Background(), req0(flood), nil, io.Discard, nil) }()
		time.Sleep(100 * time.Millisecond)
	}
	if err := first.Err(); err == nil {
		t.Error("the first host does not know that it was superseded")
	}
}

func TestContainerConnect(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		box, owner := startBox(t, guesttest.ContainerOptions{User: user})
		var others []*client.Conn
		for range 2 {
			c, err := client.New(testContext(t), box.Connect(), &client.Options{Fresh: true})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			others = append(others, c)
		}
		req := sh("sleep 0.5; echo shared")
		req.YieldMillis = 0
		mustRun(t, others[0], req)
		for _, c := range append(others, owner) {
			if st, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1}); err != nil || st.StdoutBytes != 7 {
				t.Errorf("got %+v, %v", st, err)
			}
		}
		data := noise(20 << 20)
		if _, err := put(t, others[1], "f", data); err != nil {
			t.Fatal(err)
		}
		if back, err := get(t, owner, "f"); err != nil || !bytes.Equal(back, data) {
			t.Errorf("%d bytes, %v", len(back), err)
		}
		if owner.Err() != nil {
			t.Errorf("the owner was disturbed: %v", owner.Err())
		}
	})
}

// A command cannot speak to the guest, neither by itself nor through the guest's own program.
func TestContainerSocketRefusesCommands(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		box, c := startBox(t, guesttest.ContainerOptions{User: user, Image: "workcell/python:3.11"})
		for _, script := range []string{
			`sleep 1 | /.workcell/workcell-guest connect | head -c 1 | wc -c`,
			`sleep 1 | setsid /.workcell/workcell-guest connect | head -c 1 | wc -c`,
			`python3 -c '
import socket
s = socket.socket(socket.AF_UNIX)
s.settimeout(2)
s.connect("\0workcell-guest")
try:
    print(len(s.recv(1)))
except ConnectionError:
    print(0)
'`,
			// Orphans become the guest's children, not parentless.
			`(sh -c 'sleep 0.3; sleep 1 | /.workcell/workcell-guest connect > out' >/dev/null 2>&1 &); sleep 1.5; wc -c < out`,
		} {
			if res := mustRun(t, c, sh(script)); strings.TrimSpace(string(res.Stdout.Head)) != "0" {
				t.Errorf("%s: got %q %s", script, res.Stdout.Head, res.Stderr.Head)
			}
		}
		// Nor can it take the name.
		res := mustRun(t, c, sh(`python3 -c '
import socket
socket.socket(socket.AF_UNIX).bind("\0workcell-guest")' 2>&1 | tail -1`))
		if !strings.Contains(string(res.Stdout.Head), "in use") {
			t.Errorf("got %q", res.Stdout.Head)
		}
		alive(t, box, c)
	})
}

func TestContainerPaused(t *testing.T) {
	t.Parallel()
	box, c := startBox(t, guesttest.ContainerOptions{})
	req := sh("sleep 1; echo done")
	req.YieldMillis = 0
	mustRun(t, c, req)
	box.Docker("pause")
	time.Sleep(2 * time.Second)
	box.Docker("unpause")
	st, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: 10_000})
	if err != nil || st.State != wire.ExecCompleted {
		t.Errorf("got %+v, %v", st, err)
	}
}

// A host that is stopped without being closed holds the attach; another one still gets in through connect.
func TestContainerStuckHost(t *testing.T) {
	t.Parallel()
	box, _ := startBox(t, guesttest.ContainerOptions{})
	stuck := box.Dial()
	nothing := make([]byte, 1)
	var nonce wire.Nonce
	nonce[0] = 7
	if _, err := stuck.Write(wire.AppendMarker(make([]byte, wire.FlushSize), wire.FromHost, wire.Marker{Nonce: nonce, Version: wire.ProtocolVersion})); err != nil {
		t.Fatal(err)
	}
	if _, err := stuck.Read(nothing); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(testContext(t), box.Connect(), &client.Options{Fresh: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if res := mustRun(t, c, sh("echo here")); string(res.Stdout.Head) != "here\n" {
		t.Errorf("got %v", brief(res))
	}
}

func TestContainerFilesBelongToTheUser(t *testing.T) {
	t.Parallel()
	_, c := startBox(t, guesttest.ContainerOptions{})
	if _, err := put(t, c, "a/b/f", []byte("x")); err != nil {
		t.Fatal(err)
	}
	res := mustRun(t, c, sh("stat -c '%u:%g %a' a a/b a/b/f; mkdir closed; touch closed/f; chmod 0 closed; echo x > unreadable; chmod 0 unreadable"))
	if got := string(res.Stdout.Head); got != "1000:1000 755\n1000:1000 755\n1000:1000 644\n" {
		t.Errorf("got %q %s", got, res.Stderr.Head)
	}
	if _, err := put(t, c, "src", nil); err != nil {
		t.Fatal(err)
	}
	for name, op := range ops(t, c) {
		p := "closed/f"
		if name == "list" {
			p = "closed"
		}
		if err := op(p); codeOf(err) != wire.CodePermission || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := get(t, c, "unreadable"); codeOf(err) != wire.CodePermission {
		t.Errorf("unreadable: %v", err)
	}
	l, err := c.List(testContext(t), wire.ListRequest{Path: ".", Recursive: true})
	if err != nil || l.Truncated {
		t.Errorf("a closed directory spoils the list: %+v, %v", l, err)
	}
}

func TestContainerDiskFull(t *testing.T) {
	t.Parallel()
	// The default work directory is replaced by one that is small.
	_, c := startBox(t, guesttest.ContainerOptions{Docker: []string{"--tmpfs", "/small:size=4m,uid=1000,gid=1000,mode=0755"}, Args: []string{"--workdir", "/small"}})
	if _, err := put(t, c, "f", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if _, err := put(t, c, "f", noise(20<<20)); codeOf(err) != wire.CodeQuota {
		t.Errorf("got %v", err)
	}
	if b, err := get(t, c, "f"); err != nil || string(b) != "old" {
		t.Errorf("the old file became %d bytes, %v", len(b), err)
	}
	req := sh("head -c 20000000 /dev/zero")
	req.Spill = true
	if res := mustRun(t, c, req); res.Stdout.Total != 20000000 || !res.Stdout.PathCut {
		t.Errorf("got %+v", res.Stdout)
	}
}

// TestContainerQuota: a file system that holds the limit beside the guest, as one with a quota does, has no room left before
// a look finds the limit reached.
func TestContainerQuota(t *testing.T) {
	t.Parallel()
	_, c := startBox(t, guesttest.ContainerOptions{
		Docker: []string{"--tmpfs", "/small:size=4m,uid=1000,gid=1000,mode=0755"},
		Args:   []string{"--workdir", "/small", "--workspace-bytes=4194304", "--workspace-watched=true"},
	})
	for size, full := range map[string]bool{"3000000": false, "4100000": true} {
		res := mustRun(t, c, sh("head -c "+size+" /dev/zero > f"))
		if res.ExitCode != 0 || res.QuotaExceeded != full {
			t.Errorf("%s bytes: %+v", size, res.ExecStatus)
		}
	}
}

// A tag in the image or an entry point of its own does not matter; what matters is that nothing of it is needed.
func TestContainerWithoutPrograms(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, d := range []string{"workspace", "tmp", "dev", "proc"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tag := "workcell-guesttest:" + newID()
	script := "tar -C " + root + " -c . | docker import - " + tag
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", tag).Run() })
	_, c := startBox(t, guesttest.ContainerOptions{Image: tag})
	if _, err := put(t, c, "d/f", []byte("x")); err != nil {
		t.Error(err)
	}
	if l, err := c.List(testContext(t), wire.ListRequest{Path: ".", Recursive: true}); err != nil || len(l.Entries) != 2 {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := c.Run(testContext(t), sh("true")); launchOf(err) != "not_found" {
		t.Errorf("got %v", err)
	}
	req := sh("")
	req.Argv = []string{"/.workcell/workcell-guest", "version"}
	if res := mustRun(t, c, req); string(res.Stdout.Head) != "test\n" {
		t.Errorf("got %v", brief(res))
	}
	req = req0(req)
	req.TimeoutMillis, req.GraceMillis = 300, 100
	req.Argv = []string{"/.workcell/workcell-guest", "--socket", ""}
	req.StdinOpen = true
	if res := mustRun(t, c, req); res.State != wire.ExecTimedOut {
		t.Errorf("a guest in the guest: %+v %s", res, res.Stderr.Head)
	}
}
