package backendtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// keptKey is that of the sandbox whose process dies.
func keptKey() session.Key { return session.WorkflowKey("run_1", "default") }

// recordsOf gives where the processes of an instance keep their records.
func recordsOf(instance string) string { return filepath.Join(os.TempDir(), instance, "state.db") }

// keeper gives a manager on records that it shares with other processes.
func keeper(b backend.SandboxBackend, instance string) (*session.Manager, *sqlitestore.Store, error) {
	store, err := sqlitestore.Open(context.Background(), recordsOf(instance))
	if err != nil {
		return nil, nil, err
	}
	m, err := session.NewManager(b, &session.Options{Instance: instance, Store: store, ReapEvery: -1})
	return m, store, err
}

// childKeeper opens a session, starts a command in it and waits for its death.
func (s *suite) childKeeper(t *testing.T, spec backend.Spec, tell func(word)) {
	s.b = s.h.New(t)
	m, _, err := keeper(s.b, spec.Instance)
	must(t, err)
	x, _, err := m.Open(context.Background(), keptKey(), session.Request{Image: s.h.Debian, Pull: backend.PullNever})
	if err != nil {
		tell(word{Error: err.Error()})
		return
	}
	res, err := x.Exec(context.Background(), session.ExecRequest{Background: true,
		Command: "i=0; while [ ! -e stop ]; do echo $i; i=$((i+1)); sleep 0.02; done; echo end"})
	must(t, err)
	eventually(t, "output", func() bool {
		read, err := x.ReadExec(context.Background(), session.ReadExecRequest{ExecID: res.ExecID})
		must(t, err)
		return len(read.Chunks) > 0
	})
	tell(word{ID: x.ID(), ExecID: res.ExecID})
	select {}
}

// commandFound has the process that owns a session die while a command runs. The next one that opens the key finds the
// command by its id, reads on where it stopped reading, and gets all that the command ever wrote.
func (s *suite) commandFound(t *testing.T) {
	spec := s.lone(t)
	t.Cleanup(func() { must(t, os.RemoveAll(filepath.Dir(recordsOf(spec.Instance)))) })
	owner := s.spawn(t, "keeper", spec)
	w := owner.hear(t)
	owner.kill()

	m, store, err := keeper(s.b, spec.Instance)
	must(t, err)
	defer func() { must(t, store.Close()) }()
	defer func() { must(t, m.Close(context.Background())) }()
	x, created, err := m.Open(t.Context(), keptKey(), session.Request{Image: s.h.Debian, Pull: backend.PullNever})
	if err != nil || created || x.ID() != w.ID {
		t.Fatalf("Open: %v, new %v, want %s: %v", x, created, w.ID, err)
	}
	var out strings.Builder
	next, done := readOn(t, x, w.ExecID, 0, &out)
	if done {
		t.Fatalf("the command ended with its process: %q", out.String())
	}
	inShell(t, x, "touch stop")
	status, err := x.WaitExec(t.Context(), w.ExecID, -1)
	if err != nil || status.Status != session.ExecCompleted || status.ExitCode != 0 {
		t.Fatalf("the command: %+v, %v", status, err)
	}
	for !done {
		next, done = readOn(t, x, w.ExecID, next, &out)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprint(i) {
			t.Fatalf("line %d of the output is %q", i, line)
		}
	}
	if len(lines) < 2 || lines[len(lines)-1] != "end" {
		t.Errorf("the output has %d lines and ends with %q", len(lines), lines[len(lines)-1])
	}
}

// readOn reads what a command wrote since a chunk.
func readOn(t *testing.T, x *session.Session, id string, since int64, out *strings.Builder) (next int64, done bool) {
	t.Helper()
	read, err := x.ReadExec(t.Context(), session.ReadExecRequest{ExecID: id, SinceSeq: since, Wait: patience})
	if err != nil || read.Dropped != 0 {
		t.Fatalf("output since %d: %d chunks dropped, %v", since, read.Dropped, err)
	}
	for _, c := range read.Chunks {
		out.Write(c.Data)
	}
	return read.NextSeq, read.Done
}
