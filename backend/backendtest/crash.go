package backendtest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func crashChecks() []check {
	return []check{
		{"owner killed", (*suite).ownerKilled},
		{"sandbox ends after its owner", (*suite).orphanEnds},
		{"visitors killed", (*suite).visitorsKilled},
		{"killed while creating", (*suite).creatorKilled},
	}
}

// ownerKilled verifies that after the death of a sandbox's creator, another process can find the sandbox, resume the
// command, and remove the sandbox.
func (s *suite) ownerKilled(t *testing.T) {
	spec := s.lone(t)
	owner := s.spawn(t, "owner", spec)
	w := owner.hear(t)
	t.Cleanup(func() { Remove(t, s.b, w.ID) })
	owner.kill()

	adopter := s.backend(t)
	list, err := adopter.List(t.Context(), backend.Filter{Instance: spec.Instance})
	if err != nil || len(list) != 1 || list[0].ID != w.ID || list[0].State != backend.StateRunning || list[0].SessionID != spec.ID {
		t.Fatalf("List: %+v, %v", list, err)
	}
	conn := Dial(t, adopter, w.ID)
	Prints(t, conn, "cat owner", "mine\n")
	execs, err := conn.Execs(t.Context())
	if err != nil || !runs(execs, w.ExecID) {
		t.Fatalf("commands: %+v, %v", execs, err)
	}
	Sh(t, conn, "touch stop")
	status, err := conn.Wait(t.Context(), wire.WaitRequest{ExecID: w.ExecID, WaitMillis: patience.Milliseconds()})
	if err != nil || status.State != wire.ExecCompleted || status.ExitCode != 0 {
		t.Fatalf("the command: %+v, %v", status, err)
	}
	lines := strings.Split(strings.TrimSpace(recorded(t, conn, w.ExecID)), "\n")
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprint(i) {
			t.Fatalf("line %d of the output is %q", i, line)
		}
	}
	if len(lines) < 2 || lines[len(lines)-1] != "end" {
		t.Errorf("the output has %d lines and ends with %q", len(lines), lines[len(lines)-1])
	}
	must(t, adopter.Remove(t.Context(), w.ID, backend.RemoveOptions{Volumes: true}))
	s.gone(t, w.ID)
	s.nothingLeft(t, spec.Instance)
}

// orphanEnds verifies that a sandbox stops after the command has exited and the only user was killed. The stopped
// sandbox is recognizable as ephemeral and still has all files.
func (s *suite) orphanEnds(t *testing.T) {
	spec := s.lone(t)
	owner := s.spawn(t, "orphan", spec)
	w := owner.hear(t)
	t.Cleanup(func() { Remove(t, s.b, w.ID) })
	owner.kill()
	Eventually(t, "the end of the sandbox", func() bool {
		list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance})
		if err != nil || len(list) != 1 || !list[0].Ephemeral {
			t.Fatalf("List: %+v, %v", list, err)
		}
		return list[0].State == backend.StateStopped
	})
	must(t, s.b.Start(t.Context(), w.ID))
	conn := s.dial(t, w.ID)
	if !s.caps.Persistent {
		return
	}
	Prints(t, conn, "cat done", "kept\n")
}

// visits is the number of streams of each visitor.
const visits = 5

// visitorsKilled verifies that connections of killed processes leave no processes in the sandbox. Such processes would
// count against the process limit.
func (s *suite) visitorsKilled(t *testing.T) {
	spec := s.spec()
	if s.caps.PIDs && !s.caps.Isolation[""].AtLeast(backend.IsolationKernel) { // gVisor counts its own threads
		spec.Limits.PIDs = 64 // fewer than the threads of all visitors' bridges, twice those per bridge
	}
	info := s.create(t, spec)
	for range 3 {
		v := s.spawn(t, "visitor", spec)
		v.hear(t)
		v.kill()
	}
	conn := s.dial(t, info.ID)
	// Processes started by the engine have no parent in the sandbox. Only the guest agent and this connection's bridge may
	// remain.
	const count = `n=0; for f in /proc/[0-9]*/status; do while read -r k v; do case "$k $v" in "PPid: 0") n=$((n+1));; esac; done <$f; done; echo $n`
	Eventually(t, "the end of the visitors' processes", func() bool {
		res, err := conn.Run(t.Context(), command("/bin/sh", "-c", count)) // fails while they need the whole limit
		n, wrong := strconv.Atoi(strings.TrimSpace(string(res.Stdout.Head)))
		return errors.Join(err, wrong) == nil && n <= 2
	})
}

func runs(execs []wire.ExecStatus, id string) bool {
	for _, e := range execs {
		if e.ExecID == id && e.State == wire.ExecRunning {
			return true
		}
	}
	return false
}

// recorded returns the complete standard output of a command.
func recorded(t *testing.T, conn *client.Conn, id string) string {
	t.Helper()
	var out strings.Builder
	for next := int64(0); ; {
		res, err := conn.Read(t.Context(), wire.ReadRequest{ExecID: id, SinceSeq: next})
		if err != nil || res.Dropped != 0 {
			t.Fatalf("output since %d: %d chunks dropped, %v", next, res.Dropped, err)
		}
		for _, c := range res.Chunks {
			if c.Stream == wire.Stdout {
				out.Write(c.Data)
			}
		}
		if res.Done {
			return out.String()
		}
		next = res.NextSeq
	}
}

// creatorKilled verifies that a session can be created again after a process was killed during the creation, at
// different steps. Removing the session must remove all leftovers.
func (s *suite) creatorKilled(t *testing.T) {
	begin := time.Now()
	whole := s.create(t, s.spec())
	took := time.Since(begin)
	Remove(t, s.b, whole.ID)
	const steps = 8
	for i := range steps {
		t.Run(fmt.Sprintf("%d of %d", i+1, steps), func(t *testing.T) {
			spec := s.lone(t)
			spec.Limits.WorkspaceBytes = workspaceLimit
			creator := s.spawn(t, "creator", spec)
			creator.hear(t) // the creation begins
			time.Sleep(took * time.Duration(i) / (steps - 1))
			creator.kill()
			s.recover(t, spec)
			s.nothingLeft(t, spec.Instance)
		})
	}
}

// recover creates and removes a sandbox of a session, even with leftovers.
func (s *suite) recover(t *testing.T, spec backend.Spec) {
	t.Helper()
	b := s.backend(t)
	info := remake(t, b, spec)
	conn := Dial(t, b, info.ID)
	Prints(t, conn, "echo x > f; cat f; stat -c %u f", "x\n1000\n")
	must(t, b.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true}))
}

// remake creates a sandbox of a session, even with leftovers.
func remake(t *testing.T, b backend.SandboxBackend, spec backend.Spec) (info backend.Info) {
	t.Helper()
	Eventually(t, "the session to be made again", func() bool {
		list, err := b.List(t.Context(), backend.Filter{Instance: spec.Instance})
		must(t, err)
		for _, old := range list {
			if old.SessionID == spec.ID {
				must(t, b.Remove(t.Context(), old.ID, backend.RemoveOptions{}))
			}
		}
		// The engine may still be processing requests of the dead process.
		info, err = b.Create(t.Context(), spec)
		if err != nil && !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrUnavailable) {
			t.Fatalf("Create: %v", err)
		}
		return err == nil
	})
	return info
}
