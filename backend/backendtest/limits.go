package backendtest

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func limitChecks() []check {
	return []check{
		{"memory", (*suite).memory},
		{"processes", (*suite).processes},
		{"usage", (*suite).usage},
		{"tmp", (*suite).tmpLimit},
		{"owner", (*suite).owners},
		{"unenforceable", (*suite).unenforceable},
	}
}

// limited creates a sandbox with enforceable limits.
func (s *suite) limited(t *testing.T, image string, l backend.Limits) (backend.Info, *client.Conn) {
	t.Helper()
	spec := s.spec()
	spec.Image, spec.Limits = image, l
	info := s.create(t, spec)
	return info, s.dial(t, info.ID)
}

// unenforceable verifies that requests for unenforceable limits are rejected and not ignored.
func (s *suite) unenforceable(t *testing.T) {
	for name, c := range map[string]struct {
		can    bool
		limits backend.Limits
	}{
		"memory":    {s.caps.Memory, backend.Limits{MemoryBytes: 256 << 20}},
		"cpu":       {s.caps.CPU, backend.Limits{CPUMillis: 500}},
		"pids":      {s.caps.PIDs, backend.Limits{PIDs: 64}},
		"workspace": {s.caps.Workspace != "", backend.Limits{WorkspaceBytes: 8 << 20}},
	} {
		spec := s.lone(t)
		spec.Limits = c.limits
		err := s.tried(t, spec)
		if c.can != (err == nil) || err != nil && !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %v, enforceable: %v", name, err, c.can)
		}
	}
}

// memory verifies that commands are killed at the memory limit, and the guest agent and another sandbox keep running.
func (s *suite) memory(t *testing.T) {
	if !s.caps.Memory {
		return // unenforceable covers this case
	}
	_, conn := s.limited(t, s.h.Python, backend.Limits{MemoryBytes: 64 << 20})
	if res := Exec(t, conn, "python3", "-c", "x = bytearray(512 << 20)"); res.State != wire.ExecOOMKilled || res.Signal != "SIGKILL" {
		t.Errorf("state %s, signal %s", res.State, res.Signal)
	}
	Exec(t, conn, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do python3 -c 'x = bytearray(20 << 20); import time; time.sleep(1)' & done; wait")
	res := Exec(t, conn, "sh", "-c", "python3 -c 'x = bytearray(512 << 20)' || true")
	if res.State != wire.ExecCompleted || res.ExitCode != 0 || res.OOMKills != 1 {
		t.Errorf("a child that was killed: %+v", res.ExecStatus)
	}
	if res := Exec(t, conn, "false"); res.OOMKills != 0 || res.ForksDenied != 0 || res.TmpFull != 0 || res.ShmFull != 0 {
		t.Errorf("a command that reached no limit: %+v", res.ExecStatus)
	}
	_, conn = s.inDebian(t)
	Prints(t, conn, "echo alive", "alive\n")
}

// forks creates as many child processes as possible and prints their number.
const forks = `
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

// processes verifies that the process limit holds and leaves enough processes for the guest agent. It also verifies
// that a sandbox with a fork bomb can be removed.
func (s *suite) processes(t *testing.T) {
	if !s.caps.PIDs {
		return // unenforceable covers this case; without a limit, this test would harm the host
	}
	info, conn := s.limited(t, s.h.Python, backend.Limits{PIDs: 48})
	req := command("python3", "-c", forks)
	res := request(t, conn, req)
	made, err := strconv.Atoi(strings.TrimSpace(string(res.Stdout.Head)))
	if err != nil || made < 10 || made > 68 {
		t.Errorf("%d children under a limit of 48 processes, %v, %s", made, err, res.Stderr.Head)
	}
	if counted := res.ForksDenied > 0; counted != s.caps.Memory { // without control groups, no counter exists
		t.Errorf("%d processes and threads were not made", res.ForksDenied)
	}
	must(t, second(conn.Kill(t.Context(), wire.KillRequest{ExecID: req.ExecID})))
	Prints(t, conn, "echo alive", "alive\n")
	bomb := command("sh", "-c", "b() { b | b & }; b; sleep 60")
	bomb.YieldMillis = 0
	request(t, conn, bomb)
	Remove(t, s.b, info.ID)
	s.gone(t, info.ID)
}

// usage verifies that the guest agent reports the CPU time and memory of a command.
func (s *suite) usage(t *testing.T) {
	_, conn := s.limited(t, s.h.Python, backend.Limits{})
	use := func() wire.Health {
		h, err := conn.Health(t.Context())
		must(t, err)
		return h
	}
	before := use()
	Sh(t, conn, "python3 -c 'import time\nwhile time.process_time() < 0.5: pass'; head -c 33554432 /dev/zero > /tmp/x")
	after := use()
	if used := after.CPUMillis - before.CPUMillis; s.caps.CPU && used < 450 {
		t.Errorf("half a second of CPU time counts as %d ms", used)
	}
	if s.caps.Memory && (before.MemoryUsed <= 0 || after.MemoryUsed < 32<<20) {
		t.Errorf("memory: %d bytes, then %d with 32 MiB of files", before.MemoryUsed, after.MemoryUsed)
	}
}

// fill fills a directory of 4 MiB by size. If the number of files is limited, it also fills the directory with files.
func fill(t *testing.T, conn *client.Conn, dir string, files bool) {
	t.Helper()
	full := func(what string, res wire.RunResult) {
		if res.ExitCode == 0 || !strings.Contains(string(res.Stderr.Head), "No space left") {
			t.Errorf("%s, %s: exit %d, %s", dir, what, res.ExitCode, res.Stderr.Head)
		}
	}
	Sh(t, conn, "dd if=/dev/zero of="+dir+"/a bs=1M count=3 2>/dev/null && rm "+dir+"/a")
	full("big file", Exec(t, conn, "sh", "-c", "dd if=/dev/zero of="+dir+"/a bs=1M count=5"))
	Sh(t, conn, "rm -f "+dir+"/a")
	if files {
		full("many files", Exec(t, conn, "sh", "-c", "i=0; while [ $i -lt 5000 ]; do : > "+dir+"/n$i || exit 3; i=$((i+1)); done"))
	}
	Sh(t, conn, "find "+dir+" -maxdepth 1 -name 'n*' -delete")
}

func (s *suite) tmpLimit(t *testing.T) {
	limits := backend.Limits{TmpBytes: 4 << 20, ShmBytes: 24 << 20}
	if s.caps.Memory {
		limits.MemoryBytes = 256 << 20
	}
	info, conn := s.limited(t, s.h.Debian, limits)
	if got := info.Limits; got.TmpBytes != limits.TmpBytes || got.ShmBytes != limits.ShmBytes {
		t.Errorf("Info has %+v", got)
	}
	fill(t, conn, "/tmp", !s.h.Cluster)
	res := Exec(t, conn, "sh", "-c", "head -c 25M /dev/zero > /dev/shm/a; head -c 5M /dev/zero > /tmp/a; exit 0")
	if res.ExitCode != 0 || res.TmpFull != 4<<20 || res.ShmFull != 24<<20 {
		t.Errorf("full directories: %+v", res.ExecStatus)
	}
}

// owners verifies users other than the default, with both kinds of workspace.
func (s *suite) owners(t *testing.T) {
	sizes := []int64{0}
	if s.caps.Workspace != "" {
		sizes = append(sizes, 1<<20)
	}
	users := []string{"4242:100", "2147483647:2147483647"}
	if !s.h.Cluster { // isolationOfRoot covers this case
		users = append(users, "0:0")
	}
	for _, user := range users {
		for _, size := range sizes {
			t.Run(user, func(t *testing.T) {
				t.Parallel()
				spec := s.spec()
				spec.User, spec.Limits.WorkspaceBytes = user, size
				conn := s.dial(t, s.create(t, spec).ID)
				script := "stat -c %u:%g /workspace; id -u; id -g; touch /workspace/x && stat -c %u:%g /workspace/x"
				Prints(t, conn, script, user+"\n"+strings.Replace(user, ":", "\n", 1)+"\n"+user+"\n")
			})
		}
	}
}
