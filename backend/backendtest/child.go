package backendtest

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// childEnv is the environment variable with the order for a test binary started by the suite.
const childEnv = "WORKCELL_CONFORMANCE_CHILD"

// order describes the task of a child process.
type order struct {
	Role         string // a key of roles
	Instance, ID string // of the sandbox to create
}

// word is a message of a child process. The child writes messages to descriptor 3, one per line.
type word struct {
	ID     string // ID of the created sandbox
	ExecID string // ID of the running command in the sandbox
	Error  string
}

// roles returns the functions of child processes. They send messages with tell, and then return or wait to be killed.
func roles() map[string]func(s *suite, t *testing.T, spec backend.Spec, tell func(word)) {
	return map[string]func(*suite, *testing.T, backend.Spec, func(word)){
		"owner":     (*suite).childOwner,
		"creator":   (*suite).childCreator,
		"visitor":   (*suite).childVisitor,
		"orphan":    (*suite).childOrphan,
		"committer": (*suite).childCommitter,
		"snapshots": (*suite).childSnapshots,
		"forker":    (*suite).childForker,
	}
}

// beChild runs the role of a child process if this process is one, and reports whether it was.
func beChild(t *testing.T, h Harness) bool {
	t.Helper()
	text, ok := os.LookupEnv(childEnv)
	if !ok {
		return false
	}
	var o order
	must(t, json.Unmarshal([]byte(text), &o))
	pipe := os.NewFile(3, "parent")
	enc := json.NewEncoder(pipe)
	s := &suite{root: t, h: h, instance: o.Instance}
	spec := s.spec()
	spec.ID, spec.Key, spec.Run = o.ID, "user:"+o.ID, "run_"+o.ID
	roles()[o.Role](s, t, spec, func(w word) { must(t, enc.Encode(w)) })
	return true
}

// child is a process started by the suite.
type child struct {
	cmd   *exec.Cmd
	words *bufio.Scanner
	done  chan struct{} // closed when the process exited
	out   strings.Builder
	err   error // exit error
}

// spawn starts the test binary again in a role. The end of the test kills the process.
func (s *suite) spawn(t *testing.T, role string, spec backend.Spec) *child {
	t.Helper()
	text, err := json.Marshal(order{role, spec.Instance, spec.ID})
	must(t, err)
	exe, err := os.Executable()
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	defer w.Close() //nolint:errcheck // the child has its own
	c := &child{words: bufio.NewScanner(r), done: make(chan struct{})}
	c.cmd = exec.Command(exe, "-test.run=^"+s.root.Name()+"$", "-test.count=1", "-test.timeout=15m")
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	c.cmd.ExtraFiles = []*os.File{w}
	must(t, c.cmd.Start())
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	t.Cleanup(func() {
		c.kill()
		_ = r.Close() // only used for reading
	})
	return c
}

// kill kills the process to simulate a crash.
func (c *child) kill() {
	_ = c.cmd.Process.Kill() // the process may have exited
	<-c.done
}

// hear returns the next message of the process.
func (c *child) hear(t *testing.T) word {
	t.Helper()
	var w word
	if !c.words.Scan() {
		c.kill()
		t.Fatalf("no message from the other process: %v\n%s", c.words.Err(), c.out.String())
	}
	must(t, json.Unmarshal(c.words.Bytes(), &w))
	if w.Error != "" {
		t.Fatalf("the other process: %s", w.Error)
	}
	return w
}

// orphanTimeout is the orphan timeout of a sandbox whose owner is killed. It is long enough for a test to connect to a
// sandbox that starts or restarts.
const orphanTimeout = 8 * time.Second

// childCreate creates the sandbox in a process and kills this process. It reports a failure with tell.
func (s *suite) childCreate(t *testing.T, spec backend.Spec, tell func(word)) backend.Info {
	t.Helper()
	s.b = s.h.New(t)
	info, err := s.b.Create(context.Background(), spec)
	if err != nil {
		tell(word{Error: err.Error()})
		t.FailNow()
	}
	return info
}

// childOwner creates a sandbox, starts a command in it, and waits to be killed.
func (s *suite) childOwner(t *testing.T, spec backend.Spec, tell func(word)) {
	info := s.childCreate(t, spec, tell)
	conn := s.dial(t, info.ID)
	Sh(t, conn, "echo mine > owner")
	long := command("/bin/sh", "-c", "i=0; while [ ! -e stop ]; do echo $i; i=$((i+1)); sleep 0.02; done; echo end")
	long.YieldMillis = 0
	long.TimeoutMillis = 0
	long.ExecID = rand.Text()
	request(t, conn, long)
	Eventually(t, "output", func() bool { return Sh(t, conn, "echo on") == "on\n" })
	tell(word{ID: info.ID, ExecID: long.ExecID})
	select {}
}

// childOrphan creates a sandbox with an orphan timeout. The timeout starts when this process has died and the command,
// which runs longer, has exited.
func (s *suite) childOrphan(t *testing.T, spec backend.Spec, tell func(word)) {
	spec.OrphanTimeout, spec.Ephemeral = orphanTimeout, true
	info := s.childCreate(t, spec, tell)
	long := command("/bin/sh", "-c", fmt.Sprintf("sleep %d; echo kept > done", 2*orphanTimeout/time.Second))
	long.YieldMillis = 0
	request(t, s.dial(t, info.ID), long)
	tell(word{ID: info.ID})
	select {}
}

// childVisitor opens streams to a sandbox of the suite and waits to be killed.
func (s *suite) childVisitor(t *testing.T, spec backend.Spec, tell func(word)) {
	s.b = s.h.New(t)
	list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance})
	if err != nil {
		tell(word{Error: err.Error()})
		return
	}
	i := slices.IndexFunc(list, func(in backend.Info) bool { return in.SessionID == spec.ID })
	for range visits {
		Sh(t, s.dial(t, list[i].ID), "echo here")
	}
	tell(word{ID: list[i].ID})
	select {}
}

// childCreator creates a sandbox and may be killed at any time.
func (s *suite) childCreator(t *testing.T, spec backend.Spec, tell func(word)) {
	s.b = s.h.New(t)
	spec.Limits.WorkspaceBytes = workspaceLimit
	tell(word{})
	info, err := s.b.Create(context.Background(), spec)
	tell(word{ID: info.ID, Error: fmt.Sprint(err)})
	select {}
}
