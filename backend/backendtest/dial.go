package backendtest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func dialChecks() []check {
	return []check{
		{"beside", (*suite).beside},
		{"takeover", (*suite).takeover},
		{"close", (*suite).closeStream},
		{"cancelled", (*suite).cancelledDial},
	}
}

// This check opens streams in another process, and expects no processes of closed streams in the sandbox.
func (s *suite) beside(t *testing.T) {
	info := s.create(t, s.spec())
	owner := s.dial(t, info.ID)
	count := func() string { return Sh(t, owner, "set -- /proc/[0-9]*; echo $#") }
	before := count()
	other := s.backend(t) // simulates another process
	var conns []*client.Conn
	for range 2 {
		conns = append(conns, Dial(t, other, info.ID))
	}
	for i, c := range append(conns, owner) {
		if got := Sh(t, c, "echo $0"); got != "/bin/sh\n" {
			t.Errorf("stream %d: %q", i, got)
		}
		if c.Hello().BootID != owner.Hello().BootID {
			t.Errorf("stream %d leads to another guest", i)
		}
	}
	must(t, conns[0].Close())
	for _, c := range []*client.Conn{conns[1], owner} {
		Prints(t, c, "echo on", "on\n")
	}
	must(t, conns[1].Close())
	Eventually(t, "the streams' processes to end", func() bool { return count() == before })
}

// takeover verifies that a process can dial a sandbox after another process.
func (s *suite) takeover(t *testing.T) {
	info := s.create(t, s.spec())
	owner := s.dial(t, info.ID)
	started := command("/bin/sh", "-c", "while [ ! -e /workspace/on ]; do sleep 0.05; done; echo done")
	started.YieldMillis = 0
	request(t, owner, started)
	next := Dial(t, s.backend(t), info.ID)
	Prints(t, next, "touch /workspace/on; echo taken", "taken\n")
	status, err := next.Wait(t.Context(), wire.WaitRequest{ExecID: started.ExecID, WaitMillis: -1})
	if err != nil || status.State != wire.ExecCompleted || status.StdoutBytes != 5 {
		t.Errorf("the former owner's command: %+v, %v", status, err)
	}
	Prints(t, owner, "echo still", "still\n")
}

// closeStream expects the end of a pending read when the stream is closed.
func (s *suite) closeStream(t *testing.T) {
	info := s.create(t, s.spec())
	rw, err := s.b.Dial(t.Context(), info.ID)
	must(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, rw)
		done <- err
	}()
	for range 2 {
		must(t, rw.Close())
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("the read ended without an error")
		}
	case <-time.After(patience):
		t.Fatal("Close does not end a read")
	}
	if _, err := rw.Write([]byte("x")); err == nil {
		t.Error("a write succeeded after Close")
	}
	Prints(t, s.dial(t, info.ID), "echo on", "on\n")
}

// cancelledDial verifies calls whose contexts have ended or end soon.
func (s *suite) cancelledDial(t *testing.T) {
	info := s.create(t, s.spec())
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range Calls(s.b, info.ID, s.spec) {
		Fails(t, name, call(over), context.Canceled)
	}
	// The stream must remain open after the context of Dial ends.
	ctx, cancel := context.WithCancel(t.Context())
	rw, err := s.b.Dial(ctx, info.ID)
	cancel()
	Prints(t, Connect(t, rw, err), "echo on", "on\n")
	s.dialsCutShort(t, info.ID)
}

// dialsCutShort cancels the context at 100 different moments of a Dial. Each Dial must return either a stream or an
// error.
func (s *suite) dialsCutShort(t *testing.T, id string) {
	began := time.Now()
	rw, err := s.b.Dial(t.Context(), id)
	took := time.Since(began)
	for i := range 100 {
		if err == nil && rw == nil {
			t.Fatal("Dial returned neither a stream nor an error")
		}
		if rw != nil {
			_ = rw.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(i)/50)
		rw, err = s.b.Dial(ctx, id)
		cancel()
	}
}
