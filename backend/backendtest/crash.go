package backendtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func crashChecks() []check {
	return []check{
		{"owner killed", (*suite).ownerKilled},
		{"sandbox ends after its owner", (*suite).orphanEnds},
		{"command found again", (*suite).commandFound},
		{"visitors killed", (*suite).visitorsKilled},
		{"killed while creating", (*suite).creatorKilled},
		{"nothing leaks", (*suite).nothingLeaks},
	}
}

// ownerKilled has the process that made a sandbox die at work. Another one finds the sandbox, goes on with its command
// and removes it.
func (s *suite) ownerKilled(t *testing.T) {
	spec := s.lone(t)
	owner := s.spawn(t, "owner", spec)
	w := owner.hear(t)
	t.Cleanup(func() { s.remove(t, w.ID) })
	owner.kill()

	heir := s.backend(t)
	list, err := heir.List(t.Context(), backend.Filter{Instance: spec.Instance})
	if err != nil || len(list) != 1 || list[0].ID != w.ID || list[0].State != backend.StateRunning || list[0].SessionID != spec.ID {
		t.Fatalf("List: %+v, %v", list, err)
	}
	rw, err := heir.Dial(t.Context(), w.ID)
	conn := connect(t, rw, err)
	if got := sh(t, conn, "cat owner"); got != "mine\n" {
		t.Errorf("files: %q", got)
	}
	execs, err := conn.Execs(t.Context())
	if err != nil || !runs(execs, w.ExecID) {
		t.Fatalf("commands: %+v, %v", execs, err)
	}
	sh(t, conn, "touch stop")
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
	must(t, heir.Remove(t.Context(), w.ID, backend.RemoveOptions{Volumes: true}))
	s.gone(t, w.ID)
	s.nothingLeft(t, spec.Instance)
}

// orphanEnds has the only process die that knows a sandbox. When its command is through, the sandbox ends by itself, can be
// told from one that somebody looks for, and still has its files.
func (s *suite) orphanEnds(t *testing.T) {
	spec := s.lone(t)
	owner := s.spawn(t, "orphan", spec)
	w := owner.hear(t)
	t.Cleanup(func() { s.remove(t, w.ID) })
	owner.kill()
	eventually(t, "the end of the sandbox", func() bool {
		list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance})
		if err != nil || len(list) != 1 || !list[0].Ephemeral {
			t.Fatalf("List: %+v, %v", list, err)
		}
		return list[0].State == backend.StateStopped
	})
	must(t, s.b.Start(t.Context(), w.ID))
	if got := sh(t, s.dial(t, w.ID), "cat done"); s.caps.Persistent && got != "kept\n" {
		t.Errorf("it ended under its command: %q", got)
	}
}

// visits is how many streams each visitor opens.
const visits = 5

// visitorsKilled has processes die that were connected beside the owner. Nothing of them may stay in the sandbox, where it
// would use up the process limit.
func (s *suite) visitorsKilled(t *testing.T) {
	spec := s.spec()
	if s.caps.PIDs {
		spec.Limits.PIDs = 64 // less than the bridges of all visitors have threads, and twice those of one
	}
	info := s.create(t, spec)
	for range 3 {
		v := s.spawn(t, "visitor", spec)
		v.hear(t)
		v.kill()
	}
	rw, err := s.connector(t, s.b).Connect(t.Context(), info.ID)
	conn := connect(t, rw, err)
	// What an engine started has no parent in the sandbox: only the guest and this connection's bridge may be left.
	const count = `n=0; for f in /proc/[0-9]*/status; do while read -r k v; do case "$k $v" in "PPid: 0") n=$((n+1));; esac; done <$f; done; echo $n`
	eventually(t, "the end of what the visitors left", func() bool {
		n, err := strconv.Atoi(strings.TrimSpace(sh(t, conn, count)))
		return err == nil && n <= 2
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

// recorded reads all that a command wrote to its standard output.
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

// creatorKilled kills a process at different steps of a creation. Whatever it left, the session can be made anew, and
// its removal removes everything.
func (s *suite) creatorKilled(t *testing.T) {
	begin := time.Now()
	whole := s.create(t, s.spec())
	took := time.Since(begin)
	s.remove(t, whole.ID)
	const steps = 8
	for i := range steps {
		t.Run(fmt.Sprintf("%d of %d", i+1, steps), func(t *testing.T) {
			spec := s.lone(t)
			spec.Limits.WorkspaceBytes = workspaceLimit
			creator := s.spawn(t, "creator", spec)
			creator.hear(t) // it begins
			time.Sleep(took * time.Duration(i) / (steps - 1))
			creator.kill()
			s.recover(t, spec)
			s.nothingLeft(t, spec.Instance)
		})
	}
}

// recover makes a sandbox of a session of which there may be remains, and removes it.
func (s *suite) recover(t *testing.T, spec backend.Spec) {
	t.Helper()
	b := s.backend(t)
	var info backend.Info
	eventually(t, "the session to be made anew", func() bool {
		list, err := b.List(t.Context(), backend.Filter{Instance: spec.Instance})
		must(t, err)
		for _, old := range list {
			must(t, b.Remove(t.Context(), old.ID, backend.RemoveOptions{}))
		}
		// The engine may still be at what the dead process asked for.
		info, err = b.Create(t.Context(), spec)
		if err != nil && !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrUnavailable) {
			t.Fatalf("Create: %v", err)
		}
		return err == nil
	})
	rw, err := b.Dial(t.Context(), info.ID)
	conn := connect(t, rw, err)
	if got := sh(t, conn, "echo x > f; cat f; stat -c %u f"); got != "x\n1000\n" {
		t.Errorf("afterwards: %q", got)
	}
	must(t, b.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true}))
}

// nothingLeaks uses a backend in a process of its own, and counts what stays in that process after Close.
func (s *suite) nothingLeaks(t *testing.T) {
	spec := s.lone(t)
	c := s.spawn(t, "tidy", spec)
	c.hear(t)
	<-c.done
	if c.err != nil {
		t.Errorf("the other process: %v\n%s", c.err, c.out.String())
	}
}

// childTidy takes a sandbox through its life, several times, and then looks for goroutines and descriptors.
func (s *suite) childTidy(t *testing.T, spec backend.Spec, tell func(word)) {
	spec.Limits.WorkspaceBytes = workspaceLimit
	rest := goleak.IgnoreCurrent()
	before := -1
	for range 3 {
		s.tidyLife(t, spec)
		if before < 0 { // what the process opens once and keeps
			before = descriptorCount(t)
		}
	}
	if n := descriptorCount(t); n > before {
		t.Errorf("%d descriptors are open, %d before", n, before)
	}
	if err := goleak.Find(rest); err != nil {
		t.Error(err)
	}
	tell(word{})
}

func (s *suite) tidyLife(t *testing.T, spec backend.Spec) {
	ctx := context.Background()
	b := s.h.New(t)
	info, err := b.Create(ctx, spec)
	must(t, err)
	for range 2 {
		for _, open := range []func() error{
			func() error { rw, err := b.Dial(ctx, info.ID); return tidyUse(ctx, rw, err) },
			func() error { rw, err := s.connector(t, b).Connect(ctx, info.ID); return tidyUse(ctx, rw, err) },
			func() error { return b.Stop(ctx, info.ID) },
			func() error { return b.Start(ctx, info.ID) },
		} {
			must(t, open())
		}
	}
	failing := spec
	failing.ID, failing.Image = "sbx_"+freshInstance(), "workcelltest/none:none"
	if _, err := b.Create(ctx, failing); err == nil {
		t.Error("a missing image is no error")
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	failing.Image = spec.Image
	if other, err := b.Create(short, failing); err == nil {
		must(t, b.Remove(ctx, other.ID, backend.RemoveOptions{Volumes: true}))
	}
	must(t, b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}))
	must(t, b.Close())
}

// tidyUse runs a command over a stream and closes it.
func tidyUse(ctx context.Context, rw io.ReadWriteCloser, err error) error {
	if err != nil {
		return err
	}
	conn, err := client.New(ctx, rw, nil)
	if err != nil {
		return err
	}
	_, err = conn.Run(ctx, command("/bin/true"))
	return errors.Join(err, conn.Close())
}

func descriptorCount(t *testing.T) int {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	n := 0
	// Connections that were closed by one side may take a moment.
	for range 50 {
		names, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		if n == len(names) {
			break
		}
		n = len(names)
		time.Sleep(20 * time.Millisecond)
	}
	return n
}
