package server_test

import (
	"bytes"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// signalled is a reader. It returns "input" and closes sent when more data is requested.
type signalled struct {
	sent chan struct{}
	gone bool
}

func (s *signalled) Read(p []byte) (int, error) {
	if s.gone {
		close(s.sent)
		return 0, io.EOF
	}
	s.gone = true
	return copy(p, "input"), nil
}

// TestGivenUpBefore verifies that commands waiting for a scan of the workspace do not start if their host has canceled
// them, unless they must continue without the host. Data after a request is still the command's input.
func TestGivenUpBefore(t *testing.T) { // not parallel: two guest agents in one process share the tags
	s, err := server.New(server.Config{Workdir: t.TempDir()})
	must(t, err)
	release := s.Hold()
	t.Run("host", func(t *testing.T) { // the connections end with the subtest
		mux := raw(t, pipe(t, s))
		given := []*yamux.Stream{
			giveUp(t, mux, wire.OpRun, wire.RunRequest{ExecID: "run", KillOnCancel: true}, false),
			giveUp(t, mux, wire.OpRun, wire.RunRequest{ExecID: "detached"}, false),
			giveUp(t, mux, wire.OpAttach, wire.RunRequest{ExecID: "attached"}, false),
			giveUp(t, mux, wire.OpAttach, wire.RunRequest{ExecID: "fed", StdinStream: true}, true),
			giveUp(t, mux, wire.OpTerminal, wire.RunRequest{ExecID: "terminal", Terminal: &wire.TerminalSize{Rows: 24, Cols: 80}}, false),
		}
		if _, err := mux.Ping(); err != nil { // all requests have arrived
			t.Fatal(err)
		}
		c := connect(t, s)
		var out bytes.Buffer
		in := &signalled{sent: make(chan struct{})}
		var cat sync.WaitGroup
		cat.Go(func() {
			req := wire.RunRequest{ExecID: "cat", Spawn: wire.Spawn{Argv: []string{"/bin/cat"}}}
			if _, err := c.Attach(t.Context(), req, in, &out, nil); err != nil || out.String() != "input" {
				t.Errorf("cat gave %q, %v", &out, err)
			}
		})
		<-in.sent
		if _, err := c.Health(t.Context()); err != nil { // this request has also arrived
			t.Error(err)
		}
		release()
		cat.Wait()
		for _, st := range given { // waits for the guest agent, before the session ends
			if _, err := io.Copy(io.Discard, st); err != nil {
				t.Error(err)
			}
		}
		if _, err := c.Wait(t.Context(), wire.WaitRequest{ExecID: "detached", WaitMillis: -1}); err != nil {
			t.Error(err)
		}
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := s.ExecIDs(); len(got) != 2 || !slices.Contains(got, "cat") || !slices.Contains(got, "detached") {
		t.Errorf("started were %v", got)
	}
}

// giveUp sends the request for a command, followed by input, and cancels it. The returned stream ends when the guest
// agent has handled the request.
func giveUp(t *testing.T, mux *yamux.Session, op wire.Op, req wire.RunRequest, input bool) *yamux.Stream {
	t.Helper()
	req.Argv, req.YieldMillis = []string{"/bin/true"}, -1
	b, err := wire.AppendRequest(nil, op, &req)
	if err == nil && input {
		b, err = wire.AppendFrame(b, wire.Frame{Kind: wire.KindData, Channel: wire.ChanStdin, Body: []byte("input")})
	}
	must(t, err)
	st, err := mux.OpenStream()
	must(t, err)
	if _, err := st.Write(b); err != nil {
		t.Fatal(err)
	}
	must(t, st.Close())
	return st
}
