//go:build linux

package client_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestContainerReaped verifies that a killed process tree leaves no zombies, and orphans are reaped.
func TestContainerReaped(t *testing.T) {
	t.Parallel()
	_, c := startSandbox(t, guesttest.ContainerOptions{Docker: []string{"--pids-limit", "400"}})
	for range 20 {
		req := sh("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 1000 & done; wait")
		req.TimeoutMillis = 100
		if res := mustRun(t, c, req); res.State != wire.ExecTimedOut {
			t.Fatalf("got %v", brief(res))
		}
		// A zombie keeps its name but loses its command line.
		if got := string(mustRun(t, c, sh("cat /proc/[0-9]*/comm | grep -c sleep; true")).Stdout.Head); got != "0\n" {
			t.Fatalf("%q of the killed are left", got)
		}
	}
	if res := mustRun(t, c, sh("i=0; while [ $i -lt 2000 ]; do (true &); i=$((i+1)); done")); res.ExitCode != 0 {
		t.Errorf("got %v", brief(res))
	}
	eventually(t, "orphans are reaped", func() bool {
		return string(mustRun(t, c, sh("cat /proc/[0-9]*/stat | grep -c ') Z '; true")).Stdout.Head) == "0\n"
	})
}

// TestContainerNoRoomToStart verifies the error if a process limit prevents the start of a command. The error is
// temporary if a running process can exit. Otherwise the error reports this.
func TestContainerNoRoomToStart(t *testing.T) {
	t.Parallel()
	sandbox, c := startSandbox(t, guesttest.ContainerOptions{})
	try := func(state string, code wire.Code, launch, text string) {
		t.Helper()
		_, err := c.Run(testContext(t), sh("true"))
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != code || e.Launch != launch || !strings.Contains(e.Message, text) {
			t.Errorf("%s: got %v", state, err)
		}
	}
	running := sh("sleep 1000")
	background(t, c, running)
	left := sh("setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
	mustRun(t, c, left)
	sandbox.Docker("update", "--pids-limit", "1")
	try("while a command runs", wire.CodeLaunch, "no_resources", "process limit of the sandbox")
	for _, id := range []string{running.ExecID, left.ExecID} {
		try("while something is left", wire.CodeLaunch, "no_resources", "process limit of the sandbox")
		kill(t, c, id)
	}
	try("while nothing runs", wire.CodeUnsupported, "", "no other command can be killed to free resources")
	if _, err := put(t, c, "f", noise(100_000)); err != nil {
		t.Errorf("a file: %v", err)
	}
	if l, err := c.List(testContext(t), wire.ListRequest{Path: "."}); err != nil || len(l.Entries) != 1 {
		t.Errorf("list: %+v, %v", l, err)
	}
	sandbox.Docker("update", "--pids-limit", "96")
	alive(t, sandbox, c)
}

// TestContainerThreads verifies that the guest agent creates no threads except the initial threads, which its filter
// protects.
func TestContainerThreads(t *testing.T) {
	t.Parallel()
	_, c := startSandbox(t, guesttest.ContainerOptions{Docker: []string{"--pids-limit", "400"}})
	threads := func() string { return string(mustRun(t, c, sh("ls /proc/1/task")).Stdout.Head) }
	before := threads()
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			req := sh("head -c 300000 /dev/zero")
			req.OpenFiles = 100
			mustRun(t, c, req)
			if _, err := put(t, c, newID(), noise(300_000)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(before, threads()); diff != "" {
		t.Errorf("threads (-want +got):\n%s", diff)
	}
}

// TestContainerForgedTag verifies that the guest agent's system call filter prevents a process from changing its tag to
// the tag of a later command. In this sandbox, tags use another resource limit because RLIMIT_LOCKS is not available.
func TestContainerForgedTag(t *testing.T) {
	t.Parallel()
	_, c := startSandbox(t, guesttest.ContainerOptions{Image: "workcell/python:3.11", Docker: []string{"--ulimit", "locks=9"}})
	forger, later := sh(`env -i setsid python3 -c '
import os, resource, time
if os.fork() or os.fork(): os._exit(0)
while not (os.path.exists("later") and open("later").read().endswith("\n")): time.sleep(0.01)
try: resource.setrlimit(resource.RLIMIT_RSS, resource.prlimit(int(open("later").read()), resource.RLIMIT_RSS))
except (OSError, ValueError): open("refused", "w")
time.sleep(4322)
' >/dev/null 2>&1 & sleep 4322`), sh("echo $$ >later; exec sleep 4323")
	forger.YieldMillis, later.YieldMillis = 0, 0
	mustRun(t, c, forger)
	mustRun(t, c, later)
	mustRun(t, c, sh(`timeout 30 sh -c 'while ! [ -e refused ]; do sleep 0.05; done'`))
	if st, err := c.Kill(testContext(t), wire.KillRequest{ExecID: forger.ExecID}); err != nil || st.State != wire.ExecKilled {
		t.Errorf("got %+v, %v", st, err)
	}
	res := mustRun(t, c, sh(`ls refused; grep -al '432[2]' /proc/[0-9]*/cmdline; grep -al '432[3]' /proc/[0-9]*/cmdline | wc -l`))
	if got := string(res.Stdout.Head); got != "refused\n1\n" {
		t.Errorf("left, besides the later one: %s", got)
	}
}

// harm tries to change the kernel's attributes of the guest agent's process and threads. It also prints which
// attributes of its process it may change.
const harm = `
import ctypes, os, resource, threading
libc = ctypes.CDLL(None, use_errno=True)
SETPRIORITY, IOPRIO_SET = {'x86_64': (141, 251), 'aarch64': (140, 30)}[os.uname().machine]
def call(*args):
    return 'ok' if libc.syscall(*(ctypes.c_long(a) for a in args)) == 0 else os.strerror(ctypes.get_errno())
def attempt(f, *args):
    try: f(*args)
    except OSError as e: return e.strerror
    return 'ok'
limits = [resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK, resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, 10]
for pid in map(int, os.listdir('/proc/1/task')):
    for l in limits: attempt(resource.prlimit, pid, l, (1, 1))
    for p in (os.SCHED_BATCH, os.SCHED_IDLE): attempt(os.sched_setscheduler, pid, p, os.sched_param(0))
    attempt(os.sched_setparam, pid, os.sched_param(0))
    attempt(os.sched_setaffinity, pid, {min(os.sched_getaffinity(0))})
    for which in (0, 1): call(SETPRIORITY, which, pid, 9)
    for which in (1, 2): call(IOPRIO_SET, which, pid, 3 << 13)
for uid in (0, os.getuid()):
    call(SETPRIORITY, 2, uid, 9)
    call(IOPRIO_SET, 3, uid, 3 << 13)
open('/proc/1/oom_score_adj', 'w').write('900') if os.getuid() == 0 else None
own = {'limits': attempt(resource.prlimit, 0, resource.RLIMIT_NOFILE, (50, 60)), 'nice': call(SETPRIORITY, 0, os.getpid(), 3),
    'group': call(SETPRIORITY, 1, 0, 4), 'io': call(IOPRIO_SET, 1, os.getpid(), 2 << 13 | 5),
    'affinity': attempt(os.sched_setaffinity, os.getpid(), os.sched_getaffinity(0)),
    'class': attempt(os.sched_setscheduler, threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0)),
    'read': attempt(resource.prlimit, 1, resource.RLIMIT_NOFILE)}
tags = {attempt(resource.prlimit, 0, 10, (5, 5)), call({'x86_64': 160, 'aarch64': 164}[os.uname().machine], 10, id(bytes(16)) + 32)}
print({k: v for k, v in own.items() if v != 'ok'}, tags)
`

// guestState prints the attributes targeted by harm.
const guestState = `
import os, resource, time
any(open('/proc/1/oom_score_adj').read() == '0\n' or time.sleep(.01) for _ in range(500)) # a child's, while one is made
print({n: resource.prlimit(1, getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT_')}, open('/proc/1/oom_score_adj').read())
for t in sorted(map(int, os.listdir('/proc/1/task'))):
    print(t, os.sched_getscheduler(t), os.sched_getaffinity(t), os.getpriority(os.PRIO_PROCESS, t))
`

// TestContainerHarmToTheGuest verifies that changes of a command to the guest agent's limits, priorities, and score are
// undone after the command.
func TestContainerHarmToTheGuest(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		sandbox, c := startSandbox(t, guesttest.ContainerOptions{User: user, Image: "workcell/python:3.11"})
		python := func(script string) string {
			req := sh("")
			req.Argv = []string{"python3", "-c", script}
			res := mustRun(t, c, req)
			return string(res.Stdout.Head) + string(res.Stderr.Head)
		}
		before := python(guestState)
		if got := python(harm); got != "{} {'Operation not permitted'}\n" {
			t.Errorf("what a command may do to itself fails, or it changes its tag: %s", got)
		}
		if diff := cmp.Diff(before, python(guestState)); diff != "" {
			t.Errorf("the guest changed (-want +got):\n%s", diff)
		}
		alive(t, sandbox, c)
		req := sh("setsid sleep 1000 & sleep 1000") // a process identified by the tag
		req.TimeoutMillis = 100
		if res := mustRun(t, c, req); res.State != wire.ExecTimedOut {
			t.Errorf("got %v", brief(res))
		}
	})
}

// connector starts the guest agent's program like a connecting engine, and immediately tries to open its memory.
const connector = `
import os, signal
opened = 0
for i in range(100):
    pid = os.fork()
    if pid == 0: os.execv('/.workcell/workcell-guest', ['workcell-guest', 'connect'])
    while open('/proc/%d/comm' % pid).read() != 'workcell-guest\n': pass
    try:
        os.close(os.open('/proc/%d/mem' % pid, os.O_RDWR))
        opened += 1
    except OSError: pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print(opened)
`

// TestContainerConnectIsOpaque verifies that commands cannot access the memory of the guest agent's program, even right
// after the start.
func TestContainerConnectIsOpaque(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		_, c := startSandbox(t, guesttest.ContainerOptions{User: user, Image: "workcell/python:3.11"})
		req := sh("")
		req.Argv = []string{"python3", "-c", connector}
		if res := mustRun(t, c, req); string(res.Stdout.Head) != "0\n" {
			t.Errorf("opened %s of 100 times %s", res.Stdout.Head, res.Stderr.Head)
		}
	})
}
