//go:build linux

package promises

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// eachLimited runs a test in small sandboxes of an unprivileged user and of root.
func eachLimited(t *testing.T, limits frontmatter.Limits, f func(t *testing.T, b *testSandbox)) {
	t.Helper()
	for name, cfg := range users() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Limits = limits
			b := newSandbox(t, cfg)
			f(t, b)
			b.alive(t)
			w.user.alive(t)
		})
	}
}

// TestH1Memory: a command with excessive memory use is killed, and the result reports this. The result of a command
// killed by another signal must not.
func TestH1Memory(t *testing.T) {
	t.Parallel()
	const hog = "b = []\nwhile True: b.append(b'x' * (1 << 20))"
	eachLimited(t, frontmatter.Limits{MemoryMB: 64}, func(t *testing.T, b *testSandbox) {
		for name, in := range map[string]obj{
			"directly": {"cmd": []string{"python3", "-c", hog}}, "below a shell": {"command": "python3 -c \"$HOG\"; exit $?", "env": obj{"HOG": hog}},
		} {
			out := b.ok(t, toolspec.ToolExec, in)
			if out["status"] != "oom_killed" || out["exit_code"] != 137.0 || !strings.Contains(out["stderr"].(string), "64 MiB") {
				t.Errorf("%s: %v", name, out)
			}
			b.alive(t)
		}
		// Files in memory count too. Even if all of them are full, enough memory remains to continue.
		for _, dir := range []string{"/dev/shm", "/tmp"} {
			out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"dd", "if=/dev/zero", "of=" + dir + "/fill", "bs=1M", "count=200"}})
			if out["exit_code"] != 1.0 || !strings.Contains(out["stderr"].(string), "No space left") {
				t.Errorf("200 MiB in %s: %v", dir, out)
			}
		}
		b.sh(t, "rm /dev/shm/fill /tmp/fill")
		// A command killed by its own signal is different.
		if out := b.ok(t, toolspec.ToolExec, obj{"command": "kill -9 $$"}); out["status"] != "completed" || out["signal"] != "SIGKILL" {
			t.Errorf("kill -9: %v", out)
		}
	})
}

// TestH5Descriptors: commands and file tools work while processes of a sandbox hold the maximum number of descriptors
// per command and per user. Other sandboxes work too.
func TestH5Descriptors(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
	limit, err := strconv.Atoi(strings.TrimSpace(b.sh(t, "ulimit -Hn")))
	must(t, err)
	for _, kind := range []string{"files", "epoll"} {
		had, why := takeAll(t, b, kind)
		if why != "EMFILE" || had > limit || had < limit-100 {
			t.Errorf("%s: %d of %d, then %s", kind, had, limit, why)
		}
		b.alive(t)
	}
	b.ok(t, toolspec.ToolFSWrite, obj{"path": "f", "contents": "there"})
	if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": "f"})); string(got) != "there" {
		t.Errorf("the file contains %q", got)
	}
	newSandbox(t, pythonSandbox()).python(t, "counters.py", "files", "0")
}

// takeAll makes a sandbox allocate the maximum of a resource. It returns the allocated number and the reason for the
// limit.
func takeAll(t *testing.T, b *testSandbox, kind string) (had int, why string) {
	t.Helper()
	n, why, _ := strings.Cut(strings.TrimSpace(b.background(t, "counters.py", kind)), " ")
	had, err := strconv.Atoi(n)
	must(t, err)
	return had, why
}

// TestH9Counters: a sandbox gets its share while another sandbox allocates the maximum of a resource that the kernel
// counts per host, user, or namespace. Sandboxes of one user share a few counters. For these counters, the second
// sandbox must work without the resource.
func TestH9Counters(t *testing.T) {
	t.Parallel()
	const many = 1 << 20
	b, other := newSandbox(t, pythonSandbox()), newSandbox(t, pythonSandbox())
	local := w.name == "local"
	for kind, c := range map[string]struct {
		most   int
		shared bool
	}{
		"terminals": {map[bool]int{false: 64, true: many}[onCluster()], onCluster()}, "asynchronous I/O": {0, false}, "keys": {0, false},
		"inotify": {map[bool]int{false: many, true: 32}[local], !local}, "signals": {many, !local}, "timers": {many, !local},
		"shared memory": {many, false}, "semaphores": {many, false}, "message queues": {many, false},
		"POSIX message queues": {many, true}, "pipes": {many, true}, "descriptors on their way": {many, true},
	} {
		had, why := takeAll(t, b, kind)
		if had > c.most || why == "enough" {
			t.Errorf("%s: %d, then %s", kind, had, why)
		}
		want := "4 enough\n"
		if c.most == 0 {
			want = "0 " + why + "\n"
		}
		if got := other.python(t, "counters.py", kind, "0", "4"); got != want && !c.shared {
			t.Errorf("%s: after %d and %s, another sandbox has %q", kind, had, why, got)
		}
		other.alive(t)
	}
	b.alive(t)
	if w.bridgedUser != nil && !onCluster() {
		if had, why := takeAll(t, newSandbox(t, bridged(pythonSandbox())), "connections"); had > 4000 || why != "EPERM" {
			t.Errorf("connections: %d, then %s", had, why)
		}
	}
}

// TestH6Spin keeps every processor busy from several sandboxes. It must still be possible to create, use, and remove
// other sandboxes.
func TestH6Spin(t *testing.T) {
	t.Parallel()
	var spinning []*testSandbox
	for range 3 {
		b := newSandbox(t, pythonSandbox())
		b.background(t, "spin.py", strconv.Itoa(2*runtime.NumCPU()))
		spinning = append(spinning, b)
	}
	m := newManager(t, w.driver, session.Options{})
	for i := range 6 {
		_, err := w.user.s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"true"}})
		must(t, err)
		if i%3 == 0 {
			key := session.WorkflowKey(session.NewRunID(), record.DefaultName)
			_, _, err := m.Open(t.Context(), key, request())
			must(t, err)
			must(t, m.CloseScope(t.Context(), key.Scope()))
		}
	}
	for _, b := range spinning {
		b.alive(t)
	}
}

// TestH7Flood: while a sandbox's commands flood the socket of its main process, other sandboxes can be created, used,
// and removed. The flooded sandbox must not be lost: its owner and another connected process can still use it.
func TestH7Flood(t *testing.T) {
	t.Parallel()
	store := record.NewMemoryStore()
	m := newManager(t, w.driver, session.Options{Store: store})
	b, err := openSandbox(t.Context(), m, &tools.Plugin{Manager: m}, pythonSandbox())
	must(t, err)
	b.background(t, "flood.py", "24")
	other, err := session.NewManager(w.driver, &session.Options{Instance: m.Instance(), Store: store})
	must(t, err)
	t.Cleanup(func() { must(t, other.Detach(context.Background())) })
	for range 3 {
		s, err := other.Connect(t.Context(), b.s.ID())
		must(t, err)
		check(t, s, "echo connected", "connected\n")
		must(t, s.Close(t.Context()))
		key := session.WorkflowKey(session.NewRunID(), record.DefaultName)
		next, _, err := m.Open(t.Context(), key, request())
		must(t, err)
		check(t, next, "echo opened", "opened\n")
		must(t, m.CloseScope(t.Context(), key.Scope()))
		w.user.alive(t)
		b.alive(t)
	}
	if info := b.s.Info(); info.State != session.StateReady {
		t.Errorf("the flooded sandbox is %v", info.State)
	}
}

// workspaceMB is the workspace limit of these tests.
const workspaceMB = 4

// TestH3DiskFull fills the workspace from commands and with the file tools, with one file, many large files, and
// command output. The errors must report the limit, existing files must not be damaged, other sandboxes must work, and
// deleting files must free space.
func TestH3DiskFull(t *testing.T) {
	t.Parallel()
	eachLimited(t, frontmatter.Limits{WorkspaceMB: workspaceMB}, func(t *testing.T, b *testSandbox) {
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "kept", "contents": "kept"})
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "here/old", "contents": "old"})
		watched := b.s.Info().Workspace == backend.WorkspaceWatched
		out := refusedFor(t, b, "exec head -c 16M /dev/zero > one")
		if text := out["stderr"].(string); !watched && !strings.Contains(text, "No space left") {
			t.Errorf("one file: %v", out)
		}
		b.sh(t, "rm one")
		// At this rate, the monitor has half a minute until far too much is written.
		out = refusedFor(t, b, "i=0; while :; do head -c 131072 /dev/zero > here/$i || exit 3; i=$((i+1)); sleep 0.05; done")
		if want := map[bool]string{true: "quota_killed", false: "completed"}[watched]; out["status"] != want {
			t.Errorf("many files: %v, want %s", out, want)
		}
		if text := out["stderr"].(string); watched && !strings.Contains(text, fmt.Sprint(workspaceMB, " MiB")) {
			t.Errorf("the limit is not named: %q", text)
		}
		if n, err := strconv.Atoi(strings.Fields(b.sh(t, "du -sm ."))[0]); err != nil || n > 64 {
			t.Errorf("%d MiB were written, %v", n, err)
		}
		whileFull(t, b)
		if out := b.ok(t, toolspec.ToolFSDelete, obj{"path": "here", "recursive": true}); out["deleted"].(float64) < 20 {
			t.Errorf("making room: %v", out)
		}
		b.ok(t, toolspec.ToolFSWrite, obj{"path": "here/new", "contents": strings.Repeat("x", 192<<10)})
		if out := b.ok(t, toolspec.ToolExec, obj{"command": "head -c 1M /dev/zero > one && cat kept"}); out["stdout"] != "kept" || out["quota_exceeded"] == true {
			t.Errorf("afterwards: %v", out)
		}
	})
}

// TestH3Allocate: if the workspace limit is monitored, no system call can allocate space faster than writing it.
func TestH3Allocate(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
	var got map[string]any
	must(t, json.Unmarshal([]byte(b.python(t, "allocate.py")), &got))
	if n, _ := got["blocks"].(float64); n < 2048 {
		t.Errorf("what the C library reserved has %v blocks", got["blocks"])
	}
	delete(got, "blocks")
	for name, outcome := range got {
		if watched := b.s.Info().Workspace == backend.WorkspaceWatched; watched && outcome != "ENOTSUP" {
			t.Errorf("%s: %v", name, outcome)
		}
	}
}

// TestH3Root fills a writable root file system outside of the workspace: with one file, with many files, and with
// copies of the image's files. The result must report the limit, other sandboxes must work, and deleting files must
// free space.
func TestH3Root(t *testing.T) {
	t.Parallel()
	cfg := rootSandbox()
	cfg.Limits = frontmatter.Limits{WorkspaceMB: workspaceMB, MemoryMB: 64}
	b := newSandbox(t, cfg)
	limits := b.ok(t, toolspec.ToolOpen, obj{})["limits"].(obj)
	watched := limits["root_enforcement"] == "watched"
	if size := limits["root_mb"]; watched && size != float64(workspaceMB) || size == nil {
		t.Errorf("the reported limits are %v", limits)
	}
	b.sh(t, "mkdir /var/fill")
	out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"dd", "if=/dev/zero", "of=/var/fill/one", "bs=1M", "count=64"}})
	if text := out["stderr"].(string); out["exit_code"] == 0.0 || !watched && !strings.Contains(text, "No space left") ||
		watched && (out["quota_exceeded"] != true || !strings.Contains(text, "outside /workspace")) {
		t.Errorf("one file: %v", out)
	}
	w.user.alive(t)
	b.sh(t, "rm /var/fill/one")
	if watched {
		fillWatchedRoot(t, b)
		b.sh(t, "rm -r /var/fill")
	}
	if out := b.ok(t, toolspec.ToolExec, obj{"command": "head -c 1M /dev/zero > /var/one && rm /var/one && echo written"}); out["stdout"] != "written\n" || out["quota_exceeded"] == true {
		t.Errorf("with room again: %v", out)
	}
	if !watched {
		return
	}
	out = b.ok(t, toolspec.ToolExec, obj{"command": "find /usr/lib/python3* -name '*.py' -exec chmod a+x {} +", "yield_ms": 600_000})
	if out["quota_exceeded"] != true {
		t.Errorf("copies of the image's files: %v", out)
	}
}

// fillWatchedRoot writes many files until the monitor kills the command. Afterwards, writes must fail.
func fillWatchedRoot(t *testing.T, b *testSandbox) {
	t.Helper()
	out := refusedFor(t, b, "i=0; while :; do head -c 131072 /dev/zero > /var/fill/$i || exit 3; i=$((i+1)); sleep 0.05; done")
	want := fmt.Sprintf("limit of %d MiB for files outside /workspace reached", workspaceMB)
	if text := out["stderr"].(string); out["status"] != "quota_killed" || !strings.Contains(text, want) {
		t.Errorf("many files: %v", out)
	}
	if n, err := strconv.Atoi(strings.Fields(b.sh(t, "du -sm /var/fill"))[0]); err != nil || n < workspaceMB || n > 64 {
		t.Errorf("%d MiB were written, %v", n, err)
	}
	for _, at := range []string{"/var/fill/more", "/workspace/more"} {
		if out := refusedFor(t, b, "echo more > "+at); out["status"] != "completed" {
			t.Errorf("one more at %s: %v", at, out)
		}
	}
	w.root.alive(t)
}

// refusedFor runs a command, which must fail because the workspace is full. The result must report this.
func refusedFor(t *testing.T, b *testSandbox, line string) obj {
	t.Helper()
	out := b.ok(t, toolspec.ToolExec, obj{"command": line, "yield_ms": 600_000})
	if out["exit_code"] == 0.0 || out["quota_exceeded"] != true {
		t.Errorf("%s: %v", line, out)
	}
	return out
}

// whileFull verifies the behavior of a sandbox with a full workspace.
func whileFull(t *testing.T, b *testSandbox) {
	t.Helper()
	big := strings.Repeat("x", 192<<10)
	before := b.sh(t, "ls -A . here")
	for what, in := range map[string]obj{
		"a new file":     {"path": "here/new", "contents": big},
		"an old file":    {"path": "here/old", "contents": big, "overwrite": true},
		"in a new place": {"path": "here/new", "contents_b64": b64([]byte(big))},
	} {
		out := b.call(t, toolspec.ToolFSWrite, in)
		if fails(t, what, out, toolspec.CodeQuota); !strings.Contains(fmt.Sprint(out["error"]), "Delete files") {
			t.Errorf("%s: no way out is named: %v", what, out["error"])
		}
	}
	if after := b.sh(t, "ls -A . here"); after != before {
		t.Errorf("there was %q and is %q", before, after)
	}
	if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": "here/old"})); string(got) != "old" {
		t.Errorf("the old file holds %.100q", got)
	}
	b.ok(t, toolspec.ToolFSList, obj{"recursive": true})
	// Excessive output is truncated, and no command is killed.
	if out := b.ok(t, toolspec.ToolExec, obj{"command": "seq 1 300000; cat kept"}); out["exit_code"] != 0.0 || !strings.HasSuffix(out["stdout"].(string), "\nkept") {
		t.Errorf("output: %v, %v", out["status"], out["exit_code"])
	}
	w.user.alive(t)
}

// TestH3Places: all writable places have a size limit, even for a user that owns directories without access
// permissions. A pod has files of the node. One of them is writable, and the size is limited like other files.
func TestH3Places(t *testing.T) {
	t.Parallel()
	for name, of := range users() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := pythonSandbox()
			cfg.User, cfg.Limits = of.User, frontmatter.Limits{WorkspaceMB: workspaceMB, MemoryMB: 256}
			b := newSandbox(t, cfg)
			seen := map[string]string{} // last mount at a place
			for line := range strings.Lines(b.sh(t, "cat /proc/self/mountinfo")) {
				seen[strings.Fields(line)[4]] = line
			}
			for at, line := range seen {
				mount, source, _ := strings.Cut(line, " - ")
				options, kind := strings.Split(strings.Fields(mount)[5], ","), strings.Fields(source)[0]
				holdsNothing := slices.Contains([]string{"proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"}, kind)
				switch device := b.sh(t, "test -c "+at+" && echo device; true") != ""; {
				case slices.Contains(options, "ro"), holdsNothing, device, at == "/workspace":
				case onCluster() && (at == "/dev/termination-log" || b.sh(t, "test -w "+at+" || echo closed") != ""):
				case kind != "tmpfs":
					t.Errorf("%s can be written, and has no size: %s", at, line)
				default:
					var blocks, size int64
					_, err := fmt.Sscan(b.sh(t, "stat -f -c '%b %S' "+at), &blocks, &size)
					if must(t, err); blocks == 0 || blocks*size > 256<<20 {
						t.Errorf("%s has room for %d bytes", at, blocks*size)
					}
				}
			}
			for _, dir := range []string{"/", "/usr", "/etc", "/var/tmp", "/run", "/.workcell", "/proc", "/sys", "/sys/fs/cgroup"} {
				if out := b.ok(t, toolspec.ToolExec, obj{"command": "chmod u+w " + dir + "; echo x > " + dir + "/fill"}); out["exit_code"] == 0.0 {
					t.Errorf("%s can be written", dir)
				}
			}
		})
	}
}

// TestH3FileSize: the size of a command's files is limited, and the command gets an error.
func TestH3FileSize(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{})
	req := request()
	req.Limits.FileBytes = 1 << 20
	s, _, err := m.Open(t.Context(), session.UserKey("short-files"), req)
	must(t, err)
	for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
		res, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"dd", "if=/dev/zero", "of=" + dir + "/f", "bs=1M", "count=2"}})
		if err != nil || res.Signal != "SIGXFSZ" && res.ExitCode == 0 {
			t.Errorf("in %s: %+v, %v", dir, res.ExecStatus, err)
		}
		check(t, s, "stat -c %s "+dir+"/f; rm "+dir+"/f", "1048576\n")
	}
}

// TestH3SharedMemory: processes share 200 MiB by default, as loaders of data and browsers do. A command killed by the
// kernel because /dev/shm is full gets the limit of the file.
func TestH3SharedMemory(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *testSandbox) {
		const share = `
import multiprocessing as mp, multiprocessing.shared_memory as sm
m = sm.SharedMemory(create=True, size=200 << 20)
def fill():
    other = sm.SharedMemory(m.name)
    for i in range(0, m.size, 1 << 20): other.buf[i:i + (1 << 20)] = b"x" * (1 << 20)
    other.close()
p = mp.Process(target=fill); p.start(); p.join()
print(p.exitcode, m.buf[0], m.buf[m.size - 1]); m.close(); m.unlink()`
		if out := b.exec(t, sandbox.ExecRequest{Argv: []string{"python3", "-c", share}}); out != "0 120 120\n" {
			t.Errorf("200 MiB of shared memory: %q", out)
		}
	})
	eachLimited(t, frontmatter.Limits{ShmMB: 8}, func(t *testing.T, b *testSandbox) {
		const burst = "import mmap; f = open('/dev/shm/f', 'w+b'); f.truncate(32 << 20); " +
			"m = mmap.mmap(f.fileno(), 0); m[:] = bytes(32 << 20)"
		out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"python3", "-c", burst}})
		if out["signal"] != "SIGBUS" || !strings.Contains(out["stderr"].(string), "/dev/shm is full (8 MiB)") {
			t.Errorf("32 MiB in 8 MiB: %v", out)
		}
		b.sh(t, "rm /dev/shm/f")
	})
}
