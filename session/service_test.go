//go:build linux

package session_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sessiontest"
)

// TestService runs the conformance suite's service tests with local processes.
func TestService(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	s := mustOpen(t, newManager(t, e, opts), session.WorkflowKey("run_1", "default"))
	sessiontest.Service(t, s, func() *session.Session {
		v := mustConnect(t, newManager(t, e, opts), s.ID())
		return v
	})
}

// python is a command that connects to an address, sends a word, and prints the reply.
func python(addr, word string) sandbox.ExecRequest {
	return sandbox.ExecRequest{Argv: []string{"python3", "-c", `
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect("\0" + sys.argv[1][1:])
s.sendall(sys.argv[2].encode()); s.shutdown(socket.SHUT_WR); print(s.makefile().read())`, addr, word},
		Services: []sandbox.ServiceGrant{{Name: "tools", Value: "granted"}}}
}

// TestServiceSurvivesBrokenLink verifies that connections end with the link and that later connections work.
func TestServiceSurvivesBrokenLink(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	s := mustOpen(t, newManager(t, e, nil), session.WorkflowKey("run_1", "default"))
	began, ended := make(chan bool, 1), make(chan error, 1)
	addr, stop, err := s.Serve(t.Context(), sandbox.Service{Name: "tools", Handle: func(_ context.Context, c *sandbox.ServiceConn) {
		word := make([]byte, 4)
		if _, err := io.ReadFull(c, word); err != nil || c.Grant != "granted" {
			t.Errorf("%q, %v, grant %v", word, err, c.Grant)
		}
		if string(word) != "stay" {
			_, _ = c.Write(word)
			return
		}
		began <- true
		for {
			if _, err := c.Read(word); !errors.Is(err, io.EOF) {
				ended <- err
				return
			}
			if _, err := c.Write(word); err != nil {
				ended <- err
				return
			}
		}
	}})
	must(t, err)
	defer stop()
	req := python(addr, "stay")
	req.Background = true
	run(t, s, req)
	<-began
	for range 3 {
		e.all()[0].process().cut()
		_, err := s.Commands(t.Context()) // reconnects to the sandbox
		must(t, err)
		if res := run(t, s, python(addr, "next")); string(res.Stdout.Bytes()) != "next\n" {
			t.Errorf("got %q; %s", res.Stdout.Bytes(), res.Stderr.Bytes())
		}
	}
	if err := <-ended; err == nil {
		t.Error("a connection outlived its link")
	}
}

// TestServiceEndsWithSession verifies that no part of a service remains after the session is closed.
func TestServiceEndsWithSession(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newManager(t, newEngine(t), nil), session.WorkflowKey("run_1", "default"))
	ended := make(chan bool)
	addr, stop, err := s.Serve(t.Context(), sandbox.Service{Name: "tools", Handle: func(ctx context.Context, c *sandbox.ServiceConn) {
		<-ctx.Done()
		_, _ = io.Copy(io.Discard, c)
		close(ended)
	}})
	must(t, err)
	req := python(addr, "stay")
	req.Background = true
	run(t, s, req)
	must(t, s.Close(t.Context()))
	stop()
	select {
	case <-ended:
	default: // never accepted
	}
	if _, _, err := s.Serve(t.Context(), sandbox.Service{Name: "tools", Handle: func(context.Context, *sandbox.ServiceConn) {}}); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("a service of a closed session: %v", err)
	}
	if err := s.Command("x").Extend(t.Context(), 1); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("more time in a closed session: %v", err)
	}
}
