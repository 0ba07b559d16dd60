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

// signalled reads "input", and is closed when more than that is asked for.
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

// TestGivenUpBefore: of the commands that wait for a look at the workspace, those are not started that their host gave
// up meanwhile, unless they are to go on without it. What came behind a request is the command's input all the same.
func TestGivenUpBefore(t *testing.T) { // not in parallel: two guests in one process share its tags
	s, err := server.New(server.Config{Workdir: t.TempDir()})
	must(t, err)
	release := s.Hold()
	t.Run("host", func(t *testing.T) { // whose links end with it
		mux := raw(t, pipe(t, s))
		given := []*yamux.Stream{
			giveUp(t, mux, wire.OpRun, wire.RunRequest{ExecID: "run", KillOnCancel: true}, false),
			giveUp(t, mux, wire.OpRun, wire.RunRequest{ExecID: "detached"}, false),
			giveUp(t, mux, wire.OpAttach, wire.RunRequest{ExecID: "attached"}, false),
			giveUp(t, mux, wire.OpAttach, wire.RunRequest{ExecID: "fed", StdinStream: true}, true),
			giveUp(t, mux, wire.OpTerminal, wire.RunRequest{ExecID: "terminal", Terminal: &wire.TerminalSize{Rows: 24, Cols: 80}}, false),
		}
		if _, err := mux.Ping(); err != nil { // all of it has arrived
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
		if _, err := c.Health(t.Context()); err != nil { // so has this
			t.Error(err)
		}
		release()
		cat.Wait()
		for _, st := range given { // until the guest is done with it: the end of the session is something else
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

// giveUp sends the request for a command, and input behind it, and returns it up. Its stream ends when the guest is
// done with it.
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
