//go:build linux

package faults

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/rig"
)

// lingering is a workflow that is killed while a command is running. The command ends soon afterwards, so the sandbox
// becomes idle.
const lingering = `id: lingering
sandbox: {runtime: bash, limits: {idle_timeout: 1s}}
steps:
  - {id: first, type: exec, command: "echo first > file"}
  - {id: second, type: exec, command: "sleep 10"}
`

// reaps enables reapers for the host's processes. The test must then wait for the reapers.
func (h *host) reaps() {
	h.Env = slices.DeleteFunc(h.Env, func(v string) bool { return v == "WORKCELL_REAPER=off" })
}

// reapers returns the PIDs of the reapers for the host's processes.
func (h *host) reapers(t *testing.T) []int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var pids []int
	for _, file := range lines {
		text, _ := os.ReadFile(file) // it may have exited
		if args := strings.Split(string(text), "\x00"); slices.Contains(args, "reaper") && slices.Contains(args, h.State) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// watched waits until exactly one reaper is running.
func (h *host) watched(t *testing.T) (pid int) {
	t.Helper()
	eventually(t, "there is one reaper", func() bool {
		pids := h.reapers(t)
		if len(pids) == 1 {
			pid = pids[0]
		}
		return len(pids) == 1
	})
	return pid
}

// TestReaper kills a run together with all processes that its terminal or its caller could kill. The user runs no other
// command. The reaper must still remove the sandbox, and then exit.
func TestReaper(t *testing.T) {
	on(t, engines(), func(t *testing.T, h *host) {
		h.reaps()
		f := faultOf("SIGKILL of a run, and no other process", h.engine)
		random := chance(t)
		for lap := range laps(1) {
			cmd := h.Command("run", workflow(t, lingering))
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			p := rig.Start(t, cmd)
			if lap == 0 {
				p.Await(t, "second", "exec")
				h.isDetached(t, h.watched(t))
			} else {
				time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond) // the test varies this moment randomly
			}
			must(t, syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGKILL))
			p.Kill()
			f.inject(1)
			if _, err := os.Stat(filepath.Join(h.State, "instance")); err != nil {
				continue // the run had not started
			}
			eventually(t, "the reaper removes the sandbox", func() bool { return len(h.left(t)) == 0 })
			eventually(t, "the reaper goes, too", func() bool { return len(h.reapers(t)) == 0 })
		}
	})
}

// isDetached verifies that ending the parent's session, terminal, or process group does not affect a process.
func (h *host) isDetached(t *testing.T, pid int) {
	t.Helper()
	text := string(read(t, filepath.Join("/proc", strconv.Itoa(pid), "stat")))
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	id := strconv.Itoa(pid)
	if group, session, terminal := fields[2], fields[3], fields[4]; group != id || session != id || terminal != "0" {
		t.Errorf("reaper %d is in group %s, session %s, at terminal %s", pid, group, session, terminal)
	}
	if dir, err := os.Readlink(filepath.Join("/proc", id, "cwd")); err != nil || dir != "/" {
		t.Errorf("its directory is %s, %v", dir, err)
	}
}

// TestReaperIsNotNoticed: a command without remaining sandboxes stops the reaper. A command whose sandboxes will expire
// must end completely for the caller, which may wait until all inherited streams and descriptors are closed.
func TestReaperIsNotNoticed(t *testing.T) {
	on(t, []string{"local"}, func(t *testing.T, h *host) {
		h.reaps()
		h.OK(t, "run", workflow(t, ending))
		h.OK(t, "sandbox", "open", "--name", "forever")
		if pids := h.reapers(t); len(pids) != 0 {
			t.Errorf("left: %v", pids)
		}
		ours, theirs, err := os.Pipe()
		must(t, err)
		defer ours.Close()
		cmd := h.Command("sandbox", "open", "--name", "box", "--idle-timeout", "1h")
		cmd.ExtraFiles = []*os.File{theirs}
		out, err := cmd.Output() // waits for the exit and until no other process holds the streams
		theirs.Close()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		h.watched(t)
		must(t, ours.SetReadDeadline(time.Now().Add(patience)))
		if rest, err := io.ReadAll(ours); err != nil {
			t.Errorf("the pipe that it was given: %q, %v", rest, err)
		}
		h.OK(t, "sandbox", "open", "--name", "another", "--idle-timeout", "1h")
		one := h.watched(t) // either of the two reapers
		h.OK(t, "sandbox", "rm", "--all")
		if err := syscall.Kill(one, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			// Otherwise it would check only after a minute.
			t.Error(err)
		}
		eventually(t, "the reaper goes", func() bool { return len(h.reapers(t)) == 0 })
	})
}
