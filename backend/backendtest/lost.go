package backendtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

func lossChecks() []check {
	return []check{
		{"main process killed", (*suite).killed},
		{"removed", (*suite).vanished},
		{"cancelled create", (*suite).cancelledCreate},
		{"processes and files that resist", (*suite).stubborn},
		{"frozen main process", (*suite).frozen},
		{"closed", (*suite).closedBackend},
		{"closed during create", (*suite).closedDuringCreate},
	}
}

// killed kills the main process from outside, after a command removed the user's permissions on the workspace.
func (s *suite) killed(t *testing.T) {
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	must(t, killMain(t, Sh(t, conn, "readlink /proc/self/ns/pid; echo kept > f; chmod 0 .")))
	ends(t, conn)
	Eventually(t, "the engine to notice", func() bool {
		got, err := s.b.Get(t.Context(), info.ID)
		return err == nil && got.State == backend.StateStopped
	})
	err := second(s.b.Dial(t.Context(), info.ID))
	Fails(t, "Dial", err, backend.ErrLost)
	forAgents(t, err)
	if list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance}); err != nil || len(list) != 1 || list[0].State != backend.StateStopped {
		t.Errorf("List: %+v, %v", list, err)
	}
	must(t, s.b.Start(t.Context(), info.ID))
	want := map[bool]string{true: "kept\n", false: ""}[s.caps.Persistent]
	Prints(t, s.dial(t, info.ID), "cat f 2>/dev/null; true", want)
}

// ends waits for the end of a connection to a removed sandbox.
func ends(t testing.TB, conn *client.Conn) {
	t.Helper()
	select {
	case <-conn.Done():
		Fails(t, "the connection", conn.Err(), client.ErrConnLost)
	case <-time.After(patience):
		t.Error("the connection does not end")
	}
}

// vanished verifies that a workspace can be removed after the sandbox disappeared.
func (s *suite) vanished(t *testing.T) {
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	must(t, s.h.Vanish(t.Context(), info.ID))
	ends(t, conn)
	s.gone(t, info.ID)
	if list, err := s.b.List(t.Context(), backend.Filter{Instance: spec.Instance}); err != nil || len(list) != 0 {
		t.Errorf("List: %+v, %v, want nothing", list, err)
	}
	Remove(t, s.b, info.ID)
	s.nothingLeft(t, spec.Instance)
}

// cancelledCreate cancels Create at different times and verifies that nothing remains.
func (s *suite) cancelledCreate(t *testing.T) {
	begin := time.Now()
	whole := s.create(t, s.spec())
	took := max(time.Since(begin), 5*time.Millisecond)
	Remove(t, s.b, whole.ID)
	const steps = 14
	for i := range steps {
		spec := s.lone(t)
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(took*time.Duration(i)/(steps-2), cancel)
		info, err := s.b.Create(ctx, spec)
		timer.Stop()
		cancel()
		switch {
		case err == nil: // Create finished before the cancellation
			Remove(t, s.b, info.ID)
		case !errors.Is(err, context.Canceled):
			t.Errorf("Create: %v, want context.Canceled", err)
		}
		s.nothingLeft(t, spec.Instance)
	}
}

// closedBackend verifies calls of a closed backend. The sandbox keeps running.
func (s *suite) closedBackend(t *testing.T) {
	info, _ := s.inDebian(t)
	gone := s.backend(t)
	for range 3 {
		must(t, gone.Close())
	}
	for name, call := range Calls(gone, info.ID, s.spec) {
		Fails(t, name, call(t.Context()), backend.ErrClosed)
	}
	s.inState(t, info.ID, backend.StateRunning)
}

// closedDuringCreate verifies that a backend can be closed during creations.
func (s *suite) closedDuringCreate(t *testing.T) {
	spec := s.lone(t)
	b := s.backend(t)
	var wg sync.WaitGroup
	for i := range 4 {
		one := s.spec()
		one.Instance = spec.Instance
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 10 * time.Millisecond) // to stop the creations at different steps
			if info, err := b.Create(t.Context(), one); err == nil {
				Remove(t, s.b, info.ID)
			} else if !errors.Is(err, backend.ErrClosed) {
				t.Errorf("Create: %v, want ErrClosed", err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	Fails(t, "Close", b.Close(), nil)
	wg.Wait()
	s.nothingLeft(t, spec.Instance)
}

// stubborn verifies Stop and Remove with processes ignoring signals and a workspace resisting deletion. They must not
// touch host files behind links in the workspace.
func (s *suite) stubborn(t *testing.T) {
	canary := filepath.Join(t.TempDir(), "canary")
	must(t, os.MkdirAll(filepath.Join(canary, "dir"), 0o777))
	must(t, os.WriteFile(filepath.Join(canary, "dir", "file"), []byte("alive"), 0o666))
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	namespace := Sh(t, conn, "readlink /proc/self/ns/pid")
	for range 3 {
		deaf := command("/bin/sh", "-c", "trap '' TERM INT HUP QUIT; setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' & while :; do sleep 1; done")
		deaf.YieldMillis = 0
		request(t, conn, deaf)
	}
	Sh(t, conn, `
		d=.; i=0; while [ $i -lt 200 ]; do d=$d/dddddddddd; i=$((i+1)); done; mkdir -p $d
		mkdir -p locked/inside; touch locked/inside/file; mkfifo fifo
		touch -- '-rf' '*' "$(printf 'a\nb\033[31m')" "$(printf '\377\376')"
		ln -s `+canary+` link; ln -s `+canary+`/dir locked/inside/link; ln -s / root; ln -s . self
		chmod 000 locked/inside locked`)
	Eventually(t, "the processes to run", func() bool { return len(members(t, namespace)) >= 10 })
	before := processesOf(t, namespace)
	must(t, s.b.Stop(t.Context(), info.ID))
	before.gone(t, "Stop")
	must(t, s.b.Start(t.Context(), info.ID))
	before = processesOf(t, Sh(t, s.dial(t, info.ID), "readlink /proc/self/ns/pid"))
	Remove(t, s.b, info.ID)
	before.gone(t, "Remove")
	if text, err := os.ReadFile(filepath.Join(canary, "dir", "file")); err != nil || string(text) != "alive" {
		t.Errorf("a file of the host: %q, %v", text, err)
	}
	s.nothingLeft(t, spec.Instance)
}

// frozen stops the main process with a signal from outside. The engine must still be able to kill and remove it.
func (s *suite) frozen(t *testing.T) {
	spec := s.lone(t)
	info := s.create(t, spec)
	conn := s.dial(t, info.ID)
	must(t, freeze(t, Sh(t, conn, "readlink /proc/self/ns/pid")))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, s.b.Stop(ctx, info.ID))
	ends(t, conn)
	must(t, s.b.Start(ctx, info.ID))
	conn = s.dial(t, info.ID)
	must(t, freeze(t, Sh(t, conn, "readlink /proc/self/ns/pid")))
	must(t, s.b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}))
	s.nothingLeft(t, spec.Instance)
}
