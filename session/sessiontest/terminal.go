package sessiontest

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// screen is what a terminal shows.
type screen struct {
	mu   sync.Mutex // guards text
	text strings.Builder
	news chan struct{} // has a value when there is more
}

func newScreen() *screen { return &screen{news: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	select {
	case s.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// atTerminal is one's stay at a terminal.
type atTerminal struct {
	t *testing.T
	*screen
	keys  *io.PipeWriter
	sizes chan session.TerminalSize
	over  chan struct{} // closed at its end
	res   session.ExecResult
	err   error
}

func goTo(t *testing.T, call func(session.TerminalStreams) (session.ExecResult, error)) *atTerminal {
	a := &atTerminal{t: t, screen: newScreen(), sizes: make(chan session.TerminalSize, 1), over: make(chan struct{})}
	typed, keys := io.Pipe()
	a.keys = keys
	go func() {
		defer close(a.over)
		a.res, a.err = call(session.TerminalStreams{Stdin: typed, Stdout: a.screen, Resize: a.sizes})
		_ = typed.Close() // ends the typing
	}()
	t.Cleanup(func() { _ = keys.Close(); <-a.over }) // unless it has ended already
	return a
}

func (a *atTerminal) await(text string) {
	a.t.Helper()
	for {
		if strings.Contains(a.String(), text) {
			return
		}
		select {
		case <-a.news:
		case <-a.over:
			if !strings.Contains(a.String(), text) {
				a.t.Fatalf("the terminal ended with %+v, %v without %q:\n%q", a.res.ExecStatus, a.err, text, a.String())
			}
		}
	}
}

func (a *atTerminal) enter(keys string) {
	a.t.Helper()
	if _, err := io.WriteString(a.keys, keys); err != nil {
		a.t.Fatal(err)
	}
}

func (a *atTerminal) ends() (session.ExecResult, error) {
	<-a.over
	return a.res, a.err
}

// terminals works at one, leaves it and comes back.
func terminals(t *testing.T, s *session.Session) {
	ctx := t.Context()
	req := session.TerminalRequest{Size: session.TerminalSize{Rows: 24, Cols: 80}, Env: map[string]string{"TERM": "xterm"}}
	a := goTo(t, func(at session.TerminalStreams) (session.ExecResult, error) { return s.Terminal(ctx, req, at) })
	a.enter("tty; stty size; echo $FROM_SESSION $((40+2))\n")
	a.await("/dev/pts/")
	a.await("24 80\r\n")
	a.await("session 42\r\n")
	a.sizes <- session.TerminalSize{Rows: 41, Cols: 101}
	a.enter("until stty size | grep 101; do sleep 0.02; done\n")
	a.await("41 101\r\n")
	a.enter("sh -c 'echo asleep $((40+3)); exec sleep 1000'\n")
	a.await("asleep 43\r\n")
	a.enter("\x03echo status $?\n")
	a.await("status 130\r\n")
	if text := a.String(); strings.Contains(text, "job control") || strings.Contains(text, "I have no name") {
		t.Errorf("the terminal is not a shell's own: %q", text)
	}
	_ = a.keys.Close()
	left, err := a.ends()
	if !errors.Is(err, session.ErrDetached) || left.ExecID == "" {
		t.Fatalf("leaving: %+v, %v", left.ExecStatus, err)
	}
	if st := status(t, s, left.ExecID); st.Done() || !st.Terminal || st.Age <= 0 {
		t.Errorf("left: %+v", st)
	}

	b := goTo(t, func(at session.TerminalStreams) (session.ExecResult, error) {
		return s.JoinTerminal(ctx, left.ExecID, req.Size, at)
	})
	b.await("status 130\r\n") // shown again
	b.enter("exit 7\nexit 7\n")
	if res, err := b.ends(); err != nil || res.ExitCode != 7 || res.Status != session.ExecCompleted {
		t.Errorf("%+v, %v\n%q", res.ExecStatus, err, b.String())
	}
	if st := status(t, s, left.ExecID); !st.Done() || st.Age < st.Duration {
		t.Errorf("ended: %+v", st)
	}
	terminalsRefused(t, s)
}

func terminalsRefused(t *testing.T, s *session.Session) {
	ctx := t.Context()
	run := func(req session.TerminalRequest) error {
		res, err := s.Terminal(ctx, req, session.TerminalStreams{})
		if res.ExecID != "" && err != nil {
			t.Errorf("%+v was not started and has an id", req)
		}
		return err
	}
	var launch *session.LaunchError
	if err := run(session.TerminalRequest{Env: map[string]string{"PATH": "/nowhere", "SHELL": ""}}); !errors.As(err, &launch) || launch.Reason != session.LaunchNotFound {
		t.Errorf("without a shell: %v", err)
	}
	if err := run(session.TerminalRequest{Argv: []string{"no-such-program"}}); !errors.As(err, &launch) || launch.Reason != session.LaunchNotFound {
		t.Errorf("without the program: %v", err)
	}
	for _, req := range []session.TerminalRequest{{Argv: []string{""}}, {Unattended: 1}, {Env: map[string]string{"": "x"}}} {
		if err := run(req); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	if _, err := s.JoinTerminal(ctx, "nobody", session.TerminalSize{}, session.TerminalStreams{}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("joining nobody: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Terminal(gone, session.TerminalRequest{}, session.TerminalStreams{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// status finds a command in the list.
func status(t *testing.T, s *session.Session, execID string) session.ExecStatus {
	t.Helper()
	list, err := s.ListExecs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range list {
		if st.ExecID == execID {
			return st
		}
	}
	t.Fatalf("%s is not in the list", execID)
	return session.ExecStatus{}
}
