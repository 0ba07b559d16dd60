//go:build linux

package promises

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/tools"
)

// posture is the output of posture.py.
type posture struct {
	Self, Init map[string]string
	Mounts     []struct {
		Root, At, Options, Type, Source string
		Tags                            []string
	}
	FDs        map[string]string
	Limits     string
	Devices    []string
	Namespaces map[string]string
	Masked     map[string]int
	Writable   []string
	Made       []string
	Sockets    []string
	Setuid     []string
}

// postureOf examines each sandbox once, because it takes long and the result must not change.
func postureOf(t *testing.T, b *testSandbox) posture {
	t.Helper()
	b.posture.mu.Lock()
	defer b.posture.mu.Unlock()
	if !b.posture.known {
		must(t, json.Unmarshal([]byte(b.exec(t, sandbox.ExecRequest{Argv: []string{"python3", "-c", program(t, "posture.py")}})), &b.posture.posture))
		b.posture.known = true
	}
	return b.posture.posture
}

// TestN1Privileges: a process has no capabilities in any set, even as root, cannot gain any, and has a system call
// filter.
func TestN1Privileges(t *testing.T) {
	t.Parallel()
	if w.root == nil {
		refuses(t, "root", rootSandbox(), toolspec.CodePermission)
	}
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		p := postureOf(t, b)
		uid, gid, _ := strings.Cut(b.s.Info().User, ":")
		for who, status := range map[string]map[string]string{"a command": p.Self, "the main process": p.Init} {
			unprivileged(t, who, status)
			for field, id := range map[string]string{"Uid": uid, "Gid": gid} {
				if want := strings.Join([]string{id, id, id, id}, "\t"); status[field] != want {
					t.Errorf("%s of %s: %q", field, who, status[field])
				}
			}
			if g := strings.Fields(status["Groups"]); len(g) > 1 || len(g) == 1 && g[0] != gid {
				t.Errorf("%s is in the groups %v", who, g)
			}
		}
	})
}

// unprivileged verifies that a process has no capabilities, cannot gain any, and has a system call filter.
func unprivileged(t *testing.T, who string, status map[string]string) {
	t.Helper()
	for field, want := range map[string]string{
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000",
		"CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
	} {
		if status[field] != want {
			t.Errorf("%s of %s is %s, want %s", field, who, status[field], want)
		}
	}
}

// TestN3Setuid: the default user is not root, and root's setuid programs gain nothing.
func TestN3Setuid(t *testing.T) {
	t.Parallel()
	var boxes []*testSandbox
	if e, ok := w.engine.(imaged); ok {
		var id bytes.Buffer
		_, err := w.user.s.Stream(t.Context(), sandbox.ExecRequest{Argv: []string{"cat", "/usr/bin/id"}}, sandbox.Streams{Stdout: &id})
		must(t, err)
		image := e.derive(t, change{file: &file{"usr/bin/suid-id", 0o6755, id.Bytes()}})
		for _, cfg := range []tools.Sandbox{{Mode: "code", Image: image}, {Mode: "code", Image: image, Root: "writable"}} {
			b := newSandbox(t, cfg)
			if got := b.sh(t, "ls -l /usr/bin/suid-id | cut -c1-10; suid-id -u; suid-id -ru; suid-id -g; id -u"); got != "-rwsr-sr-x\n1000\n1000\n1000\n1000\n" {
				t.Errorf("with a setuid program: %q", got)
			}
			boxes = append(boxes, b)
		}
	} else { // the host's setuid programs are visible, but their mounts must make them ineffective
		boxes = []*testSandbox{w.user, newSandbox(t, tools.Sandbox{Mode: "code", Image: pythonImage, Root: "writable"})}
		for _, b := range boxes {
			p := postureOf(t, b)
			for _, program := range p.Setuid {
				at, options := "", ""
				for _, m := range p.Mounts { // the last mount at the deepest path is the visible mount
					if (m.At == "/" || strings.HasPrefix(program, m.At+"/")) && len(m.At) >= len(at) {
						at, options = m.At, m.Options
					}
				}
				if !slices.Contains(strings.Split(options, ","), "nosuid") {
					t.Errorf("%s is on the mount %s with options %s", program, at, options)
				}
			}
			if got := b.sh(t, "su -c 'id -u' </dev/null 2>/dev/null; true"); strings.Contains(got, "0") {
				t.Errorf("su makes one %q", got)
			}
		}
	}
	for _, b := range boxes {
		// Setuid programs cannot be created in writable places either.
		b.sh(t, "for d in /workspace /tmp /dev/shm; do cp /usr/bin/id $d/id && chmod 6755 $d/id || exit 1; test $($d/id -u 2>/dev/null || echo 1000) = 1000 || exit 2; rm $d/id; done")
	}
}

// TestN4Namespaces: no namespace is shared with the host.
func TestN4Namespaces(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		p := postureOf(t, b)
		for _, ns := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
			if ns == "cgroup" && onCluster() {
				continue // depends on its node
			}
			host, err := os.Readlink("/proc/self/ns/" + ns)
			must(t, err)
			if p.Namespaces[ns] == "" || p.Namespaces[ns] == host {
				t.Errorf("namespace %s is %q, the machine's is %q", ns, p.Namespaces[ns], host)
			}
		}
		want := []string{"fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}
		got := slices.DeleteFunc(slices.Clone(p.Devices), func(d string) bool {
			return d == "console" || d == "core" || d == "mqueue" || d == "termination-log" && onCluster()
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("/dev (-want +got):\n%s", diff)
		}
		if first := b.sh(t, "cat /proc/1/comm"); p.Self["NSpid"] == "" || first != "workcell-guest\n" {
			t.Errorf("the first process is %q", first)
		}
		// The processes of this test are on the host.
		if got := b.sh(t, "cat /proc/[0-9]*/comm 2>/dev/null | grep -cE '^(promises.test|dockerd|containerd|kthreadd)'; true"); got != "0\n" {
			t.Errorf("processes of others are visible: %s", b.sh(t, "cat /proc/[0-9]*/comm"))
		}
	})
}

// TestN5NoSockets: the engine, its sockets, and Workcell's own state are not visible.
func TestN5NoSockets(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		if p := postureOf(t, b); len(p.Sockets) != 0 {
			t.Errorf("sockets %v", p.Sockets)
		}
		for _, place := range []string{"/var/run/docker.sock", "/run/docker.sock", "/run/containerd", "/var/lib/docker", "/var/lib/containerd", w.dir, "/.docker", "/root/.docker", "/var/run/secrets"} {
			if got := b.sh(t, "test -e "+place+" && echo there; true"); got != "" {
				t.Errorf("%s is visible", place)
			}
		}
		if got := b.sh(t, "find / -xdev -type s 2>/dev/null | grep -v ^/workspace; true"); got != "" {
			t.Errorf("sockets:\n%s", got)
		}
	})
}

// TestN6Mounts: there are only documented mounts, and none of them leads to the host or gives privileges. On local, all
// mounts except devices are nosuid and nodev, and mounts of the host are read-only.
func TestN6Mounts(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		known := w.engine.mounts()
		ours := map[string]bool{"/tmp": false, "/workspace": false, "/.workcell": true, "/dev/shm": false} // value: read-only
		for _, m := range postureOf(t, b).Mounts {
			options := strings.Split(m.Options, ",")
			if !known.MatchString(m.At) {
				t.Errorf("mount %+v", m)
			}
			if slices.ContainsFunc(m.Tags, func(tag string) bool { return strings.HasPrefix(tag, "shared:") }) {
				t.Errorf("what is mounted at %s shows on the machine: %v", m.At, m.Tags)
			}
			if readonly, ok := ours[m.At]; ok {
				delete(ours, m.At)
				safe := slices.Contains(options, "nosuid") && slices.Contains(options, "nodev")
				// A cluster has no such option for volumes.
				loose := readonly || m.At == "/workspace" && w.name == "docker" || onCluster()
				if !safe && !loose || readonly != slices.Contains(options, "ro") {
					t.Errorf("%s is mounted %s", m.At, m.Options)
				}
			}
			if m.At == "/" && slices.Contains(options, "ro") != (b != w.root && b.s.Info().Root == 0) {
				t.Errorf("the root is mounted %s", m.Options)
			}
			if (strings.HasPrefix(m.At, "/proc/sys") || m.At == "/sys") && !slices.Contains(options, "ro") {
				t.Errorf("%s is mounted %s", m.At, m.Options)
			}
			if w.name == "local" {
				// A hidden file in /proc is a null device.
				special := strings.HasPrefix(m.At, "/dev") || strings.HasPrefix(m.At, "/proc/")
				own := slices.Contains([]string{"tmpfs", "proc", "devpts", "mqueue", "overlay"}, m.Type) || strings.HasPrefix(m.At, "/dev/") ||
					strings.Contains(m.Root, "/workspaces/"+b.s.ID()+"/")
				if !slices.Contains(options, "nosuid") || !special && !slices.Contains(options, "nodev") || !own && !slices.Contains(options, "ro") {
					t.Errorf("mount %+v", m)
				}
			}
			if m.Root == "/" && m.Type != "overlay" && !slices.Contains([]string{"proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"}, m.Type) {
				t.Errorf("a whole file system of the machine at %s: %+v", m.At, m)
			}
		}
		if len(ours) != 0 {
			t.Errorf("not mounted: %v", ours)
		}
	})
}

// TestN7KernelFiles: files that describe the host are empty, and kernel settings cannot be changed, even by root.
func TestN7KernelFiles(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		p := postureOf(t, b)
		for place, size := range p.Masked {
			if size != 0 {
				t.Errorf("%d of %s is visible", size, place)
			}
		}
		if len(p.Writable) != 0 || len(p.Made) != 0 {
			t.Errorf("can be written: %v; could be made: %v", p.Writable, p.Made)
		}
	})
}

// TestN9SystemCalls: system calls for changing the container or attacking the kernel are refused.
func TestN9SystemCalls(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		var got map[string]string
		must(t, json.Unmarshal([]byte(b.python(t, "syscalls.py")), &got))
		if len(got) < 45 {
			t.Errorf("only %d calls: %v", len(got), got)
		}
		for _, name := range slices.Sorted(maps.Keys(got)) {
			switch got[name] {
			case "EPERM", "ENOSYS", "EACCES":
			default:
				t.Errorf("%s: %s", name, got[name])
			}
		}
	})
}

// TestN9Guest attacks the guest agent, the main process of the sandbox, from commands.
func TestN9Guest(t *testing.T) {
	t.Parallel()
	for name, cfg := range users() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSandbox(t, cfg)
			b.sh(t, "echo kept > f")
			// Use several floods at once, because the process gets signals while it handles others.
			b.sh(t, `flood() { for i in $(seq 100); do for s in $*; do kill -$s 1; done; done; }
				all=$(seq 1 64)
				for s in 10 "TERM SEGV 33" "TSTP TTIN TTOU CONT" 64 "$all"; do flood $s & flood $s & flood $all; wait; done`)
			b.alive(t)
			for _, change := range []string{"resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))", "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
				"os.sched_setaffinity(1, {0})", "os.setpriority(os.PRIO_PROCESS, 1, 9)", "os.setpriority(os.PRIO_USER, os.getuid(), 9)"} {
				if out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"python3", "-c", "import os, resource; " + change}}); out["exit_code"] != 1.0 {
					t.Errorf("%s: %v", change, out)
				}
			}
			b.alive(t)
			for _, f := range strings.Fields("environ mem maps auxv io stack syscall fd/0 fd/1 fd/2 fd/3 fd/4 fd/5 fd/6 fd/7") {
				if out := b.ok(t, toolspec.ToolExec, obj{"command": "head -c 1 /proc/1/" + f + " >/dev/null || echo forged >> /proc/1/" + f}); out["exit_code"] == 0.0 {
					t.Errorf("/proc/1/%s can be read or written", f)
				}
			}
			out := b.ok(t, toolspec.ToolExec, obj{"command": "readlink /proc/1/fd/1 /proc/1/exe /proc/1/cwd; cd /; ls /proc/1/cwd/ /proc/1/root/ /proc/1/map_files 2>&1 | grep -v '^ls:\\|^/proc'"})
			if out["stdout"] != "" {
				t.Errorf("of the main process is visible: %v", out)
			}
			if name == "user" {
				// While it starts a command, the main process itself raises the value for the command.
				b.ok(t, toolspec.ToolExec, obj{"command": "echo 1000 > /proc/1/oom_score_adj"})
				eventually(t, "the main process is not the first to be killed", func() bool {
					score := b.sh(t, "cat /proc/1/oom_score_adj")
					return score == "0\n" || onCluster() && score != "1000\n" // a cluster has a score for each pod
				})
			}
			if out := b.ok(t, toolspec.ToolExec, obj{"command": "rm -f /.workcell/workcell-guest || echo x > /.workcell/workcell-guest || mv /.workcell /x"}); out["exit_code"] == 0.0 {
				t.Error("the guest's program can be changed")
			}
			// A command may stop the processes of other commands while they start. This must not block the main process.
			// It may stop the connection before the answer arrives.
			var loop obj
			eventually(t, "the loop starts", func() bool {
				loop, _ = b.raw(t.Context(), toolspec.ToolExec,
					obj{"command": "while :; do kill -s STOP -- -1; done", "yield_ms": 0, "timeout_seconds": 5})
				return loop["exec_id"] != nil
			})
			eventually(t, "the loop ends", func() bool {
				_, _ = b.raw(t.Context(), toolspec.ToolExec, obj{"command": "true"}) // it and the connection may be stopped
				out, err := b.raw(t.Context(), toolspec.ToolExecWait, obj{"exec_id": loop["exec_id"]})
				return err == nil && out["status"] == "timed_out"
			})
			b.alive(t)
			// Data sent to the sockets, or by another guest agent started by a command, must change nothing.
			b.python(t, "pester.py")
			b.python(t, "faults.py")
			b.alive(t)
			check(t, b.s, "cat f", "kept\n")
		})
	}
}

// TestN10Limits reads the limits from inside.
func TestN10Limits(t *testing.T) {
	t.Parallel()
	eachNetwork(t, func(t *testing.T, b *testSandbox) {
		limits := postureOf(t, b).Limits
		for _, pattern := range []string{`Max core file size +0 +0 `, `Max open files +\d+ +\d+ `, `Max file size +\d+ +\d+ `} {
			if !regexp.MustCompile(pattern).MatchString(limits) {
				t.Errorf("no %s in %s", pattern, limits)
			}
		}
		if got := b.sh(t, "ulimit -c unlimited 2>/dev/null; ulimit -n 1000000 2>/dev/null; ulimit -c; ulimit -Hn"); !strings.HasPrefix(got, "0\n") || strings.Contains(got, "unlimited") {
			t.Errorf("after raising them: %q", got)
		}
		for what, files := range map[string][]string{
			"memory": {"memory/memory.limit_in_bytes", "memory.max"}, "processes": {"pids/pids.max", "pids.max"},
		} {
			if what == "processes" && onCluster() {
				continue // limit of its node
			}
			got := b.sh(t, fmt.Sprintf("cat /sys/fs/cgroup/%s 2>/dev/null || cat /sys/fs/cgroup/%s", files[0], files[1]))
			if n := strings.TrimSpace(got); n == "max" || len(n) > 12 {
				t.Errorf("%s: limit %s", what, n)
			}
		}
	})
}

// TestN11Descriptors: commands get only their three streams, even if many start at once.
func TestN11Descriptors(t *testing.T) {
	t.Parallel()
	const list = "import os, sys\nfor f in sorted(os.listdir('/proc/self/fd'), key=int):\n  try: w = os.readlink('/proc/self/fd/' + f)\n  except OSError: continue\n  if not w.startswith('/proc/'): print(f)"
	each(t, func(t *testing.T, b *testSandbox) {
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				req := sandbox.ExecRequest{Argv: []string{"python3", "-c", list}}
				var out bytes.Buffer
				var res sandbox.ExecResult
				var err error
				if i%3 == 0 {
					res, err = b.s.Stream(t.Context(), req, sandbox.Streams{Stdin: strings.NewReader("x"), Stdout: &out, Stderr: io.Discard})
				} else {
					req.Stdin = [][]byte{nil, make([]byte, 1<<20)}[i%3-1]
					res, err = b.s.Exec(t.Context(), req)
					out.Write(res.Stdout.Bytes())
				}
				if err != nil || out.String() != "0\n1\n2\n" {
					t.Errorf("descriptors %q, %v, %+v, %s", out.String(), err, res.ExecStatus, res.Stderr.Bytes())
				}
			})
		}
		wg.Wait()
		if fds := postureOf(t, b).FDs; len(fds) != 3 || !strings.HasPrefix(fds["1"], "pipe:") || path.Dir(fds["0"]) != "/dev" {
			t.Errorf("descriptors %v", fds)
		}
	})
}

// TestN12Benchmark examines the isolation from outside: every field of the engine's description of a sandbox, or the
// kernel's data on the processes.
func TestN12Benchmark(t *testing.T) {
	t.Parallel()
	eachNetwork(t, w.engine.inspect)
}

// guestArguments returns the arguments of a container's guest agent: the timeout without a host, which is some minutes
// longer than the sandbox's idle timeout, and the default limits of the workspace and the root.
func guestArguments(b *testSandbox) []string {
	alone := max(b.s.Info().IdleTimeout, 2*time.Minute) + 2*time.Minute
	args := []string{fmt.Sprintf("--orphan-timeout=%v", alone), "--ephemeral=false", "--workspace-bytes=524288000",
		"--workspace-files=128000", "--workspace-watched=true"}
	if b.s.Info().Root == backend.RootReadonly {
		return args
	}
	return append(args, "--root-bytes=4294967296", "--root-files=1048576")
}

// fileLimit returns the maximum file size of a process in such a container, in MiB.
func fileLimit(b *testSandbox) int64 {
	if b.s.Info().Root == backend.RootReadonly {
		return 500
	}
	return 4096
}
