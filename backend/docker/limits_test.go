package docker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestMemoryHog has commands killed at the limit, and the guest and another sandbox live on.
func TestMemoryHog(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Image, spec.Limits = pythonImage, backend.Limits{MemoryBytes: 64 << 20}
	info := create(t, b, spec)
	other := create(t, b, newSpec())
	conn := dial(t, b, info.ID)
	if n, err := b.OOMKills(t.Context(), info.ID); err != nil || n != 0 {
		t.Errorf("before: %d kills, %v", n, err)
	}
	for name, argv := range map[string][]string{
		"heap":       {"python3", "-c", "x = bytearray(512 << 20)"},
		"tmp":        {"python3", "-c", "open('/tmp/x', 'wb').write(b'x' * (200 << 20))"},
		"shm":        {"python3", "-c", "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(b'x' * (1 << 20)); f.flush()"},
		"many small": {"sh", "-c", "for i in 1 2 3 4 5 6 7 8; do python3 -c 'x = bytearray(20 << 20); import time; time.sleep(1)' & done; wait"},
	} {
		res := run(t, conn, argv...)
		if name != "many small" && res.ExitCode == 0 && res.Signal == "" {
			t.Errorf("%s: it came through: %+v", name, res.ExecStatus)
		}
		if name == "heap" && res.State != wire.ExecOOMKilled {
			t.Errorf("%s: state %s, signal %s", name, res.State, res.Signal)
		}
		run(t, conn, "sh", "-c", "rm -f /tmp/x /dev/shm/x")
		if got := sh(t, conn, "echo alive"); got != "alive\n" {
			t.Errorf("%s: afterwards %q", name, got)
		}
	}
	if n, err := b.OOMKills(t.Context(), info.ID); err != nil || n == 0 {
		t.Errorf("afterwards: %d kills, %v", n, err)
	}
	if got := sh(t, dial(t, b, other.ID), "echo alive"); got != "alive\n" {
		t.Errorf("the other sandbox: %q", got)
	}
	if n, err := b.OOMKills(t.Context(), other.ID); err != nil || n != 0 {
		t.Errorf("the other sandbox: %d kills, %v", n, err)
	}
}

// TestForkBomb fills the process limit; the sandbox must stay usable and removable.
func TestForkBomb(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Image, spec.Limits = pythonImage, backend.Limits{PIDs: 48}
	info := create(t, b, spec)
	conn := dial(t, b, info.ID)
	script := `
import os, time
made = 0
try:
    while made < 5000:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except BlockingIOError:
    pass
print(made)
`
	ctx := t.Context()
	res, err := conn.Run(ctx, wire.RunRequest{
		Spawn:  wire.Spawn{Argv: []string{"python3", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, TimeoutMillis: 20_000},
		ExecID: "forks", YieldMillis: -1, HeadBytes: 1024,
	})
	if err != nil {
		t.Fatal(err)
	}
	made := strings.TrimSpace(string(res.Stdout.Head))
	if len(made) != 2 || made > "68" {
		t.Errorf("%q children under a limit of 48 processes", made)
	}
	if _, err := conn.Kill(ctx, wire.KillRequest{ExecID: "forks"}); err != nil {
		t.Errorf("Kill: %v", err)
	}
	bomb, err := conn.Run(ctx, wire.RunRequest{
		Spawn:  wire.Spawn{Argv: []string{"sh", "-c", "b() { b | b & }; b; sleep 30"}, Env: []string{"PATH=/usr/bin:/bin"}, TimeoutMillis: 1000, GraceMillis: 100},
		ExecID: "bomb", YieldMillis: -1, HeadBytes: 1024,
	})
	if err != nil {
		t.Fatal(err)
	}
	if bomb.State == wire.ExecRunning {
		t.Errorf("the bomb: %+v", bomb.ExecStatus)
	}
	if got := sh(t, conn, "echo alive"); got != "alive\n" {
		t.Errorf("afterwards: %q", got)
	}
	begin := time.Now()
	if err := b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}); err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d > 30*time.Second {
		t.Errorf("Remove took %v", d)
	}
}

// TestCgroupLimits reads the limits where the kernel keeps them.
func TestCgroupLimits(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Limits = backend.Limits{CPUMillis: 250, MemoryBytes: 128 << 20, PIDs: 77}
	conn := dial(t, b, create(t, b, spec).ID)
	get := func(v1, v2 string) string {
		return strings.TrimSpace(sh(t, conn, "cat /sys/fs/cgroup/"+v1+" 2>/dev/null || cat /sys/fs/cgroup/"+v2))
	}
	if got := get("memory/memory.limit_in_bytes", "memory.max"); got != "144703488" {
		t.Errorf("memory %s", got)
	}
	if got := get("memory/memory.memsw.limit_in_bytes", "memory.swap.max"); got != "144703488" && got != "0" {
		t.Errorf("memory and swap %s", got)
	}
	if got := get("pids/pids.max", "pids.max"); got != "97" {
		t.Errorf("pids %s", got)
	}
	if got := get("cpu/cpu.cfs_quota_us", "cpu.max"); got != "25000" && got != "25000 100000" {
		t.Errorf("cpu %s", got)
	}
}

func TestDiskLimits(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Limits = backend.Limits{TmpBytes: 4 << 20, WorkspaceBytes: 8 << 20}
	info := create(t, b, spec)
	conn := dial(t, b, info.ID)
	for _, c := range []struct {
		dir      string
		fits     string
		tooMuch  string
		manyName string
	}{{"/tmp", "3", "5", "2000"}, {"/workspace", "7", "9", "4000"}} {
		sh(t, conn, "dd if=/dev/zero of="+c.dir+"/a bs=1M count="+c.fits+" 2>/dev/null && rm "+c.dir+"/a")
		res := run(t, conn, "sh", "-c", "dd if=/dev/zero of="+c.dir+"/a bs=1M count="+c.tooMuch)
		if res.ExitCode == 0 || !strings.Contains(string(res.Stderr.Head), "No space left") {
			t.Errorf("%s: exit %d, %s", c.dir, res.ExitCode, res.Stderr.Head)
		}
		sh(t, conn, "rm -f "+c.dir+"/a")
		res = run(t, conn, "sh", "-c", "i=0; while [ $i -lt "+c.manyName+" ]; do : > "+c.dir+"/n$i || exit 3; i=$((i+1)); done")
		if res.ExitCode == 0 || !strings.Contains(string(res.Stderr.Head), "No space left") {
			t.Errorf("%s, many files: exit %d, %s", c.dir, res.ExitCode, res.Stderr.Head)
		}
		sh(t, conn, "find "+c.dir+" -maxdepth 1 -name 'n*' -delete")
	}
	if got := sh(t, conn, "stat -c '%u:%g %a' /workspace"); got != "1000:1000 755\n" {
		t.Errorf("workspace: %q", got)
	}
	if got := sh(t, conn, "grep ' /workspace ' /proc/self/mounts"); !strings.Contains(got, "nosuid,nodev") {
		t.Errorf("workspace: %q", got)
	}
	if res := run(t, conn, "sh", "-c", "dd if=/dev/zero of=/dev/shm/a bs=1M count=65"); res.ExitCode == 0 {
		t.Error("/dev/shm has no limit")
	}
}

// TestSmallMemory fills all that lies in memory by default: what is left lets commands go on, if only to delete it.
func TestSmallMemory(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Limits = backend.Limits{MemoryBytes: 32 << 20}
	info := create(t, b, spec)
	if info.Limits.TmpBytes != 16<<20 {
		t.Errorf("/tmp has %d bytes", info.Limits.TmpBytes)
	}
	conn := dial(t, b, info.ID)
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		res := run(t, conn, "dd", "if=/dev/zero", "of="+dir+"/a", "bs=1M")
		if res.ExitCode == 0 || !strings.Contains(string(res.Stderr.Head), "No space left") {
			t.Errorf("%s: exit %d, signal %s, %s", dir, res.ExitCode, res.Signal, res.Stderr.Head)
		}
	}
	sh(t, conn, "rm /tmp/a /dev/shm/a")
}

// TestWorkspaceOwner tries users other than the default, with both kinds of workspace.
func TestWorkspaceOwner(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	for _, user := range []string{"1000:1000", "0:0", "4242:100", "2147483647:2147483647"} {
		for _, size := range []int64{0, 1 << 20} {
			t.Run(user, func(t *testing.T) {
				t.Parallel()
				spec := newSpec()
				spec.User, spec.Limits.WorkspaceBytes = user, size
				conn := dial(t, b, create(t, b, spec).ID)
				if got := sh(t, conn, "stat -c %u:%g /workspace; id -u; id -g; touch /workspace/x && stat -c %u:%g /workspace/x"); got !=
					user+"\n"+strings.Replace(user, ":", "\n", 1)+"\n"+user+"\n" {
					t.Errorf("%q", got)
				}
			})
		}
	}
	removeLater(t, "workcell/init:4242-100", "workcell/init:2147483647-2147483647")
}

// TestRefusedSpecs are refused before anything is made.
func TestRefusedSpecs(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	for name, c := range map[string]struct {
		adjust func(*backend.Spec)
		want   error
	}{
		"no id":            {func(s *backend.Spec) { s.ID = "" }, backend.ErrInvalid},
		"id with a slash":  {func(s *backend.Spec) { s.ID = "../x" }, backend.ErrInvalid},
		"id with newline":  {func(s *backend.Spec) { s.ID = "x\ny" }, backend.ErrInvalid},
		"long id":          {func(s *backend.Spec) { s.ID = strings.Repeat("x", 10_000) }, backend.ErrInvalid},
		"user by name":     {func(s *backend.Spec) { s.User = "root" }, backend.ErrInvalid},
		"negative memory":  {func(s *backend.Spec) { s.Limits.MemoryBytes = -1 }, backend.ErrInvalid},
		"tiny memory":      {func(s *backend.Spec) { s.Limits.MemoryBytes = 1 << 20 }, backend.ErrInvalid},
		"network":          {func(s *backend.Spec) { s.Network = "host" }, backend.ErrInvalid},
		"container's net":  {func(s *backend.Spec) { s.Network = "container:x" }, backend.ErrInvalid},
		"runtime":          {func(s *backend.Spec) { s.Runtime = "no-such-runtime" }, backend.ErrUnsupported},
		"platform":         {func(s *backend.Spec) { s.Platform = "linux/s390x" }, backend.ErrUnsupported},
		"windows":          {func(s *backend.Spec) { s.Platform = "windows/amd64" }, backend.ErrUnsupported},
		"reserved label":   {func(s *backend.Spec) { s.Labels = map[string]string{backend.LabelInstance: "x"} }, backend.ErrInvalid},
		"unknown reserved": {func(s *backend.Spec) { s.Labels = map[string]string{"dev.workcell.new": "x"} }, backend.ErrInvalid},
		"empty label":      {func(s *backend.Spec) { s.Labels = map[string]string{"": "x"} }, backend.ErrInvalid},
		"huge label":       {func(s *backend.Spec) { s.Labels = map[string]string{"x": strings.Repeat("x", 1<<20)} }, backend.ErrTooLarge},
		"root mode":        {func(s *backend.Spec) { s.Root = 7 }, backend.ErrInvalid},
		"pull policy":      {func(s *backend.Spec) { s.Pull = "sometimes" }, backend.ErrInvalid},
		"no image":         {func(s *backend.Spec) { s.Image = "" }, backend.ErrInvalid},
	} {
		spec := newSpec()
		c.adjust(&spec)
		if _, err := b.Create(t.Context(), spec); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
