//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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

func TestContainerSignalsToTheGuest(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		box, c := startBox(t, guesttest.ContainerOptions{User: user})
		mustRun(t, c, sh("i=1; while [ $i -le 64 ]; do kill -$i 1; i=$((i+1)); done; for s in TERM INT HUP QUIT ABRT SEGV BUS FPE ILL TRAP KILL STOP TSTP; do kill -$s 1; done 2>/dev/null; true"))
		time.Sleep(100 * time.Millisecond)
		alive(t, box, c)
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

// forker forks for ever, whether it fails or not, in processes that leave their session and ignore signals.
const forker = `
import os, signal, time
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError:
        time.sleep(0.001)
`

// Not beside other tests, as the one below it: what they measure is not how they fare beside a fork bomb.
func TestContainerForkBomb(t *testing.T) {
	box, c := startBox(t, guesttest.ContainerOptions{Image: "workcell/python:3.11", Docker: []string{"--pids-limit", "512", "--cpus", "1"}})
	req := sh("")
	req.Argv = []string{"python3", "-c", forker}
	req.TimeoutMillis, req.GraceMillis = 2000, 100
	res, err := c.Run(testContext(t), req)
	if err != nil || res.State != wire.ExecTimedOut {
		t.Errorf("got %v, %v", brief(res), err)
	}
	t.Logf("the bomb was gone %v after its time", time.Duration(res.DurationMicros)*time.Microsecond-2*time.Second)
	alive(t, box, c)
	if h, err := c.Health(testContext(t)); err != nil || h.PIDsUsed > 30 {
		t.Errorf("left behind: %+v, %v", h, err)
	}
}

// While the sandbox has no room for processes, a command fails to start, in words, and the guest still answers.
func TestContainerNoRoomForProcesses(t *testing.T) {
	box, c := startBox(t, guesttest.ContainerOptions{Image: "workcell/python:3.11"})
	bomb := sh("")
	bomb.Argv = []string{"python3", "-c", forker}
	bomb.YieldMillis = 1500
	mustRun(t, c, bomb)
	launch := map[string]int{}
	for range 50 {
		if _, err := c.Run(testContext(t), sh("true")); err != nil {
			launch[launchOf(err)]++
		}
	}
	if launch["no_resources"] == 0 || len(launch) != 1 {
		t.Errorf("got %v", launch)
	}
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if _, err := c.List(testContext(t), wire.ListRequest{Path: "."}); err != nil {
				t.Error(err)
			}
			_, _ = c.Run(testContext(t), sh("true")) // fails as above
			if _, err := put(t, c, newID(), noise(100_000)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if st, err := c.Kill(testContext(t), wire.KillRequest{ExecID: bomb.ExecID}); err != nil || st.State != wire.ExecKilled && st.State != wire.ExecOOMKilled {
		t.Errorf("Kill: %+v, %v", st, err)
	}
	alive(t, box, c)
}

func TestContainerOutOfMemory(t *testing.T) {
	t.Parallel()
	box, c := startBox(t, guesttest.ContainerOptions{Docker: []string{"--memory", "64m", "--memory-swap", "64m", "--shm-size", "48m"}})
	hog := sh("")
	hog.Argv = []string{"/usr/bin/tail", "/dev/zero"}
	if res := mustRun(t, c, hog); res.State != wire.ExecOOMKilled || res.Signal != "SIGKILL" || res.OOMKills == 0 {
		t.Errorf("got %+v", res.ExecStatus)
	}
	// A shell reports its child's end as 137.
	if res := mustRun(t, c, sh("tail /dev/zero; exit $?")); res.State != wire.ExecOOMKilled || res.ExitCode != 137 {
		t.Errorf("got %+v", res.ExecStatus)
	}
	alive(t, box, c)
	for range 3 {
		mustRun(t, c, sh("head -c 100000000 /dev/zero > /dev/shm/x"))
		alive(t, box, c)
	}
}

// Shared memory that fills the whole limit stays when its writer is killed, and nothing can run any more. Drivers keep
// /dev/shm and /tmp well below the limit; where somebody lifted that, the guest lives on its reserve. If the kernel
// finds the guest in need first, the host must be told that the sandbox is gone, and not wait.
func TestContainerSharedMemoryFillsTheLimit(t *testing.T) {
	t.Parallel()
	box, c := startBox(t, guesttest.ContainerOptions{Docker: []string{"--memory", "64m", "--memory-swap", "64m", "--shm-size", "1g"}})
	for i := range 20 {
		req := sh("head -c 100000000 /dev/zero >> /dev/shm/x")
		req.TimeoutMillis = 20_000
		_, err := c.Run(testContext(t), req)
		if err == nil || codeOf(err) != "" {
			_, err = c.Health(testContext(t))
		}
		if errors.Is(err, client.ErrConnLost) {
			eventually(t, "the lost sandbox has ended", func() bool { return !box.Running() })
			t.Logf("round %d: the kernel ended the guest", i)
			return
		}
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	if !box.Running() {
		t.Fatal("the sandbox is dead")
	}
}

func TestContainerOwnKillIsNotOOM(t *testing.T) {
	t.Parallel()
	_, c := startBox(t, guesttest.ContainerOptions{})
	for _, script := range []string{"kill -KILL $$", "exit 137"} {
		if res := mustRun(t, c, sh(script)); res.State != wire.ExecCompleted || res.OOMKills != 0 {
			t.Errorf("%s: got %+v", script, res.ExecStatus)
		}
	}
}

func TestContainerZombies(t *testing.T) {
	t.Parallel()
	box, c := startBox(t, guesttest.ContainerOptions{Image: "workcell/python:3.11", Docker: []string{"--pids-limit", "400"}})
	req := sh(`python3 -c '
import os
for round in range(50):
    for i in range(200):
        if os.fork() == 0:
            if os.fork() == 0: os._exit(0)
            os._exit(0)
        os.wait()
'`)
	if res := mustRun(t, c, req); res.ExitCode != 0 {
		t.Fatalf("%+v %s", res, res.Stderr.Head)
	}
	eventually(t, "10,000 orphans are reaped", func() bool {
		h, err := c.Health(testContext(t))
		return err == nil && h.Zombies == 0
	})
	alive(t, box, c)
}

func TestContainerTrees(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		_, c := startBox(t, guesttest.ContainerOptions{User: user, Docker: []string{"--pids-limit", "300"}})
		var wg sync.WaitGroup
		for name, script := range trees {
			wg.Go(func() {
				req := sh(strings.ReplaceAll(script, "NAME", "4321"))
				req.TimeoutMillis, req.GraceMillis = 400, 300
				if res := mustRun(t, c, req); res.State != wire.ExecTimedOut {
					t.Errorf("%s: got %+v", name, res.ExecStatus)
				}
			})
		}
		wg.Wait()
		res := mustRun(t, c, sh(`for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null | grep 'sleep 432[1]'; done; true`))
		if len(res.Stdout.Head) > 0 {
			t.Errorf("left behind:\n%s", res.Stdout.Head)
		}
	})
}

// A process that lowers its own tag, to that of another exec or to one that nobody has, does not get away with it.
func TestContainerForgedTag(t *testing.T) {
	t.Parallel()
	_, c := startBox(t, guesttest.ContainerOptions{Image: "workcell/python:3.11"})
	req := sh(`env -i setsid python3 -c '
import os, resource, time
if os.fork(): os._exit(0)
if os.fork(): os._exit(0)
RLIMIT_LOCKS = 10
resource.setrlimit(RLIMIT_LOCKS, (5, 5))
time.sleep(4322)
' >/dev/null 2>&1 & sleep 0.5; sleep 4322`)
	req.TimeoutMillis, req.GraceMillis = 1500, 200
	if res := mustRun(t, c, req); res.State != wire.ExecTimedOut {
		t.Errorf("got %v", brief(res))
	}
	res := mustRun(t, c, sh(`grep -l '432[2]' /proc/[0-9]*/cmdline 2>/dev/null; true`))
	if len(res.Stdout.Head) > 0 {
		t.Errorf("left behind:\n%s", res.Stdout.Head)
	}
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

func TestContainerMemoryIsFlat(t *testing.T) {
	t.Parallel()
	box, c := startBox(t, guesttest.ContainerOptions{})
	rss := func() int64 {
		t.Helper()
		h, err := c.Health(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		return h.RSSBytes >> 10
	}
	t.Logf("at rest %d KiB", rss())
	for range 2000 {
		mustRun(t, c, wire.RunRequest{ExecID: newID(), YieldMillis: -1, HeadBytes: 4096, Spawn: wire.Spawn{Argv: []string{"/bin/echo", "hello"}}})
	}
	after := rss()
	t.Logf("after 2,000 commands %d KiB", after)
	if after > 12<<10 {
		t.Errorf("%d KiB after 2,000 commands", after)
	}
	data := noise(100 << 20)
	if _, err := put(t, c, "f", data); err != nil {
		t.Fatal(err)
	}
	t.Logf("after a file of 100 MiB came %d KiB", rss())
	if _, err := get(t, c, "f"); err != nil {
		t.Fatal(err)
	}
	t.Logf("after it went back %d KiB", rss())
	yes := sh("exec yes")
	yes.TimeoutMillis, yes.Spill = 3000, true
	res := mustRun(t, c, yes)
	t.Logf("after %d MB of yes %d KiB", res.Stdout.Total/1e6, rss())
	mustRun(t, c, sh("head -c 100000000 /dev/zero; i=0; while [ $i -lt 20000 ]; do echo; i=$((i+1)); done"))
	if after = rss(); after > 16<<10 {
		t.Errorf("%d KiB at the end", after)
	}
	alive(t, box, c)
}

func TestContainerTenGigabytes(t *testing.T) {
	t.Parallel()
	_, c := startBox(t, guesttest.ContainerOptions{})
	req := sh("head -c 3000000000 /dev/zero; echo end")
	req.HeadBytes, req.TailBytes = 10, 4
	res := mustRun(t, c, req)
	if res.Stdout.Total != 3000000004 || string(res.Stdout.Tail) != "end\n" || res.Stdout.Omitted != 3000000004-14 {
		t.Errorf("got %+v", res.Stdout)
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
