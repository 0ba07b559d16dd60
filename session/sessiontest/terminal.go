package sessiontest

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// atTerminal is one connection to a terminal.
type atTerminal struct {
	t     *testing.T
	shown buffertest.Buffer
	keys  *io.PipeWriter
	sizes chan sandbox.TerminalSize
	over  chan struct{} // closed when the connection ends
	res   sandbox.ExecResult
	err   error
}

func goTo(t *testing.T, call func(sandbox.TerminalStreams) (sandbox.ExecResult, error)) *atTerminal {
	a := &atTerminal{t: t, sizes: make(chan sandbox.TerminalSize, 1), over: make(chan struct{})}
	typed, keys := io.Pipe()
	a.keys = keys
	go func() {
		defer close(a.over)
		a.res, a.err = call(sandbox.TerminalStreams{Stdin: typed, Stdout: &a.shown, Resize: a.sizes})
		_ = typed.Close() // stops the typing
	}()
	t.Cleanup(func() { _ = keys.Close(); <-a.over }) // if it has not ended already
	return a
}

// enter types keys and waits until the terminal shows text.
func (a *atTerminal) enter(keys, text string) {
	a.t.Helper()
	_, err := io.WriteString(a.keys, keys)
	must(a.t, err)
	Eventually(a.t, "the terminal shows "+text, func() bool {
		over := false
		select {
		case <-a.over:
			over = true
		default:
		}
		shown := a.shown.String()
		if over && !strings.Contains(shown, text) {
			a.t.Fatalf("the terminal has ended with %v; it shows %q", a.err, shown)
		}
		return strings.Contains(shown, text)
	})
}

func (a *atTerminal) ends() (sandbox.ExecResult, error) {
	<-a.over
	return a.res, a.err
}

// terminals starts a terminal, disconnects, and connects again.
func terminals(t *testing.T, s *session.Session) {
	ctx := t.Context()
	req := sandbox.TerminalRequest{Size: sandbox.TerminalSize{Rows: 24, Cols: 80}, Env: map[string]string{"TERM": "xterm"}}
	a := goTo(t, func(at sandbox.TerminalStreams) (sandbox.ExecResult, error) { return s.Terminal(ctx, req, at) })
	a.enter("tty; echo $FROM_SESSION $((40+2))\n", "session 42\r\n")
	a.enter("stty size\n", "24 80\r\n")
	a.sizes <- sandbox.TerminalSize{Rows: 41, Cols: 101}
	a.enter("until stty size | grep 101; do sleep 0.02; done\n", "41 101\r\n")
	a.enter("sh -c 'echo asleep $((40+3)); exec sleep 1000'\n", "asleep 43\r\n")
	a.enter("\x03echo status $?\n", "status 130\r\n")
	if text := a.shown.String(); !strings.Contains(text, "/dev/pts/") || strings.Contains(text, "job control") || strings.Contains(text, "I have no name") {
		t.Errorf("the terminal is not a shell's own: %q", text)
	}
	_ = a.keys.Close()
	left, err := a.ends()
	if !errors.Is(err, sandbox.ErrDetached) || left.ExecID == "" {
		t.Fatalf("leaving: %+v, %v", left.ExecStatus, err)
	}
	if st := status(t, s, left.ExecID); st.Done() || !st.Terminal || st.Age <= 0 {
		t.Errorf("left: %+v", st)
	}

	b := goTo(t, func(at sandbox.TerminalStreams) (sandbox.ExecResult, error) {
		return s.Command(left.ExecID).Attach(ctx, req.Size, at)
	})
	b.enter("", "status 130\r\n")                     // shown again
	_, _ = io.WriteString(b.keys, "exit 7\nexit 7\n") // the terminal may have exited before the second one
	if res, err := b.ends(); err != nil || res.ExitCode != 7 || res.Status != sandbox.ExecCompleted {
		t.Errorf("%+v, %v\n%q", res.ExecStatus, err, b.shown.String())
	}
	if st := status(t, s, left.ExecID); !st.Done() || st.Age < st.Duration {
		t.Errorf("ended: %+v", st)
	}
}

// status returns the status of a command from the list.
func status(t *testing.T, s *session.Session, execID string) sandbox.ExecStatus {
	t.Helper()
	list, err := s.Commands(t.Context())
	must(t, err)
	for _, st := range list {
		if st.ExecID == execID {
			return st
		}
	}
	t.Fatalf("%s is not in the list", execID)
	return sandbox.ExecStatus{}
}
