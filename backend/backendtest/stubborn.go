package backendtest

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func stubbornChecks() []check {
	return []check{
		{"processes and files", (*suite).stubbornRemains},
		{"frozen main process", (*suite).frozen},
		{"unattended output", (*suite).unattended},
		{"owner that stops reading", (*suite).stalledOwner},
	}
}

// stubbornRemains has processes that ignore signals and a workspace that resists deletion. Stop and Remove end both, and
// touch nothing of the host that the workspace points to.
func (s *suite) stubbornRemains(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "canary")
	must(t, os.MkdirAll(filepath.Join(canary, "dir"), 0o777))
	must(t, os.WriteFile(filepath.Join(canary, "dir", "file"), []byte("alive"), 0o666))
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	namespace := sh(t, conn, "readlink /proc/self/ns/pid")
	for range 3 {
		deaf := command("/bin/sh", "-c", "trap '' TERM INT HUP QUIT; setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' & while :; do sleep 1; done")
		deaf.YieldMillis = 0
		request(t, conn, deaf)
	}
	sh(t, conn, `
		d=.; i=0; while [ $i -lt 300 ]; do d=$d/dddddddddd; i=$((i+1)); done; mkdir -p $d
		mkdir -p locked/inside; touch locked/inside/file; mkfifo fifo
		touch -- '-rf' '*' "$(printf 'a\nb\033[31m')" "$(printf '\377\376')"
		ln -s `+canary+` link; ln -s `+canary+`/dir locked/inside/link; ln -s / root; ln -s . self
		chmod 000 locked/inside locked`)
	eventually(t, "the processes to run", func() bool { return len(members(t, namespace)) >= 10 })
	before := processesOf(t, namespace)
	must(t, s.b.Stop(t.Context(), info.ID))
	before.gone(t, "Stop")
	must(t, s.b.Start(t.Context(), info.ID))
	before = processesOf(t, sh(t, s.dial(t, info.ID), "readlink /proc/self/ns/pid"))
	s.remove(t, info.ID)
	before.gone(t, "Remove")
	if text, err := os.ReadFile(filepath.Join(canary, "dir", "file")); err != nil || string(text) != "alive" {
		t.Errorf("a file of the host: %q, %v", text, err)
	}
	s.nothingLeft(t, spec.Instance)
}

// frozen stops the main process from outside: the engine must still be able to end and remove it.
func (s *suite) frozen(t *testing.T) {
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	must(t, freeze(t, sh(t, conn, "readlink /proc/self/ns/pid")))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, s.b.Stop(ctx, info.ID))
	ends(t, conn)
	must(t, s.b.Start(ctx, info.ID))
	conn = s.dial(t, info.ID)
	must(t, freeze(t, sh(t, conn, "readlink /proc/self/ns/pid")))
	must(t, s.b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}))
	s.nothingLeft(t, spec.Instance)
}

// unattended leaves a sandbox alone with a command that writes more than any buffer holds.
func (s *suite) unattended(t *testing.T) {
	info := s.create(t, s.spec())
	const size = 20_000_000
	conn := s.dial(t, info.ID)
	loud := command("/bin/sh", "-c", "while [ ! -e on ]; do sleep 0.05; done; head -c 20000000 /dev/zero; touch done")
	loud.YieldMillis = 0
	request(t, conn, loud)
	must(t, conn.Close())
	conn = s.dial(t, info.ID)
	sh(t, conn, "touch on")
	must(t, conn.Close()) // with the output under way
	conn = s.dial(t, info.ID)
	status, err := conn.Wait(t.Context(), wire.WaitRequest{ExecID: loud.ExecID, WaitMillis: patience.Milliseconds()})
	if err != nil || status.State != wire.ExecCompleted || status.StdoutBytes != size {
		t.Errorf("%+v, %v", status, err)
	}
}

// gate is a stream whose incoming side can be shut, as that of a process that was stopped.
type gate struct {
	io.ReadWriteCloser
	mu   sync.Mutex // guards shut
	shut chan struct{}
}

func (g *gate) Read(p []byte) (int, error) {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
	return g.ReadWriteCloser.Read(p)
}

// stalledOwner has an owner that takes no more bytes while its commands write. Others work all the same.
func (s *suite) stalledOwner(t *testing.T) {
	info := s.create(t, s.spec())
	rw, err := s.b.Dial(t.Context(), info.ID)
	must(t, err)
	g := &gate{ReadWriteCloser: rw}
	owner, err := client.New(t.Context(), g, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	started := make(chan struct{}, 64)
	for range 16 {
		wg.Go(func() {
			flood := command("/bin/cat", "/dev/zero")
			_, _ = owner.Attach(ctx, flood, nil, writer(func(p []byte) (int, error) { // ends with its connection
				select {
				case started <- struct{}{}:
				default:
				}
				return len(p), nil
			}), nil)
		})
	}
	<-started
	g.mu.Lock()
	g.shut = make(chan struct{})
	g.mu.Unlock()
	rw, err = s.connector(t, s.b).Connect(t.Context(), info.ID)
	beside := connect(t, rw, err)
	for range 20 {
		if got := sh(t, beside, "echo on"); got != "on\n" {
			t.Errorf("beside it: %q", got)
		}
	}
	cancel()
	close(g.shut)
	_ = owner.Close()
	wg.Wait()
	if got := sh(t, s.dial(t, info.ID), "echo mine"); got != "mine\n" {
		t.Errorf("a new owner: %q", got)
	}
}

// writer is a function as a writer.
type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
