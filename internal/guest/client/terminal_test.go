//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// viewer is a host connected to a terminal.
type viewer struct {
	t     *testing.T
	leave context.CancelFunc
	keys  *io.PipeWriter
	typed *io.PipeReader
	over  chan struct{} // closed when it has ended
	res   wire.RunResult
	err   error

	mu   sync.Mutex // guards the fields below
	more *sync.Cond
	text strings.Builder
	done bool
}

// view runs call, which is Terminal or Join. The input comes from the method enter, and await sees the output.
func view(t *testing.T, call func(context.Context, io.Reader, io.Writer) (wire.RunResult, error)) *viewer {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	s := &viewer{t: t, leave: cancel, over: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	s.typed, s.keys = io.Pipe()
	go func() {
		s.res, s.err = call(ctx, s.typed, s)
		_ = s.typed.Close() // unblocks enter
		s.mu.Lock()
		s.done = true
		s.mu.Unlock()
		s.more.Broadcast()
		close(s.over)
	}()
	t.Cleanup(func() { cancel(); <-s.over })
	return s
}

func (s *viewer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.more.Broadcast()
	return s.text.Write(p)
}

// await waits until the output contains text.
func (s *viewer) await(text string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !strings.Contains(s.text.String(), text) {
		if s.done {
			s.t.Fatalf("it ended with %v, %v without %q:\n%.4000q", brief(s.res), s.err, text, s.text.String())
		}
		s.more.Wait()
	}
}

func (s *viewer) enter(keys string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, keys); err != nil {
		s.t.Fatalf("typing %q: %v", keys, err)
	}
}

// ends waits for the end and returns the complete output.
func (s *viewer) ends() (string, wire.RunResult) {
	s.t.Helper()
	<-s.over
	if s.err != nil {
		s.t.Fatalf("it ended with %v:\n%.4000q", s.err, s.text.String())
	}
	return s.text.String(), s.res
}

// goes disconnects from the terminal.
func (s *viewer) goes() {
	s.t.Helper()
	s.leave()
	if <-s.over; !errors.Is(s.err, context.Canceled) {
		s.t.Fatalf("leaving: %v, %v", brief(s.res), s.err)
	}
}

// terminal returns a request for a script on a terminal.
func terminal(script string) wire.RunRequest {
	return wire.RunRequest{ExecID: newID(), Terminal: &wire.TerminalSize{Rows: 24, Cols: 80},
		Spawn: wire.Spawn{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "TERM=xterm"}}}
}

func openTerminal(t *testing.T, c *client.Conn, req wire.RunRequest) *viewer {
	return view(t, func(ctx context.Context, in io.Reader, out io.Writer) (wire.RunResult, error) {
		return c.Terminal(ctx, req, in, out)
	})
}

func join(t *testing.T, c *client.Conn, id string) *viewer {
	return view(t, func(ctx context.Context, in io.Reader, out io.Writer) (wire.RunResult, error) {
		return c.Join(ctx, wire.TerminalRequest{ExecID: id, Size: wire.TerminalSize{Rows: 24, Cols: 80}}, in, out)
	})
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := terminal("tty; stty size; for i in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$i ] && printf %s $i; done; echo; " +
		"ps -o tpgid= -p $$ | grep -q -v -- -1 && echo controlling; echo $TERM >&2; exit 7")
	got, res := openTerminal(t, c, req).ends()
	tty, rest, _ := strings.Cut(got, "\r\n")
	if !strings.HasPrefix(tty, "/dev/pts/") || rest != "24 80\r\n012\r\ncontrolling\r\nxterm\r\n" || res.ExitCode != 7 || !res.Terminal {
		t.Errorf("got %q, %v", got, brief(res))
	}
	rec, err := c.Read(testContext(t), wire.ReadRequest{ExecID: req.ExecID})
	if err != nil || !rec.Done || rec.Status.EndedMillis <= 0 {
		t.Fatalf("got %+v, %v", rec, err)
	}
	if all := joined(rec.Chunks); all != got {
		t.Errorf("recorded was %q, shown %q", all, got)
	}
	// A resize succeeds even after the end.
	if err := c.Resize(testContext(t), wire.TerminalRequest{ExecID: req.ExecID, Size: wire.TerminalSize{Rows: 1, Cols: 1}}); err != nil {
		t.Error(err)
	}
}

func TestTerminalJobControl(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := terminal("")
	req.Argv = nil // a shell
	req.Env = append(req.Env, "PS1=at$((40+2))> ", "SHELL=/bin/sh", "HOME=/")
	s := openTerminal(t, c, req)
	s.await("at42> ")
	s.enter("sh -c 'echo in$((1+1))front; exec sleep 1000'\n")
	s.await("in2front\r\n")
	s.enter("\x1a")
	s.await("Stopped")
	s.enter("kill -KILL %1; wait %1; echo back$((2+2))\n")
	s.await("back4\r\n")
	s.enter("exit 9\nexit 9\n") // the first exit only warns if the shell has not noticed the end of its job
	got, res := s.ends()
	if res.ExitCode != 9 || strings.Contains(got, "job control") {
		t.Errorf("got %q, %v", got, brief(res))
	}
}

// TestTerminalIsLeftAndJoined verifies that hosts can disconnect from a terminal and join it. A terminal has one
// viewer: a joining host replaces the current one.
func TestTerminalIsLeftAndJoined(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := terminal(`stty -echo; echo first; printf '\033[6n\033]0;title\007\033[31mred\n'; read x; echo "got $x"; read y; exit 5`)
	s := openTerminal(t, c, req)
	s.await("red\r\n")
	s.goes()
	s = join(t, c, req.ExecID)
	s.await("red\r\n") // shown again, without queries to the terminal
	other := join(t, c, req.ExecID)
	other.await("red\r\n")
	if <-s.over; !errors.Is(s.err, client.ErrTakenOver) {
		t.Errorf("the one before got %v, %v", brief(s.res), s.err)
	}
	other.enter("typed\n")
	other.await("got typed\r\n")
	// The end of a host's input does not end the command's input. Another request can end it.
	_ = other.keys.Close()
	if err := c.WriteStdin(testContext(t), wire.StdinRequest{ExecID: req.ExecID, EOF: true}); err != nil {
		t.Error(err)
	}
	want := "first\r\n\x1b[31mred\r\ngot typed\r\n"
	for range 2 {
		if got, res := other.ends(); got != want || res.ExitCode != 5 {
			t.Errorf("got %q, %v", got, brief(res))
		}
		other = join(t, c, req.ExecID) // after its end
	}
}

func TestTerminalHoldsBackItsCommand(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const lines = 400_000 // more than the recording and all buffers can store
	s := openTerminal(t, c, terminal(fmt.Sprintf("stty -opost -echo; seq %d; echo written; read x", lines)))
	s.await("written\n")
	s.enter("\n") // the end does not wait long for buffered output
	got, res := s.ends()
	var want strings.Builder
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	want.WriteString("written\n")
	if got != want.String() || res.StdoutBytes != int64(len(got)) {
		t.Errorf("%d bytes instead of %d, %v", len(got), want.Len(), brief(res))
	}
}

// TestTerminalLeftAlone verifies that a terminal without a connected host is ended after the timeout, and a terminal
// with a connected host is not.
func TestTerminalLeftAlone(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	kept := terminal("sleep 1.5; exit 4")
	left := terminal("trap '' TERM; echo ready; while :; do sleep 0.02; done")
	kept.TimeoutMillis, left.TimeoutMillis = 500, 500
	k, l := openTerminal(t, c, kept), openTerminal(t, c, left)
	l.await("ready")
	l.goes()
	if st, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: left.ExecID, WaitMillis: -1}); err != nil || st.State != wire.ExecTimedOut || st.Signal != "SIGHUP" {
		t.Errorf("got %+v, %v", st, err)
	}
	if _, res := k.ends(); res.State != wire.ExecCompleted || res.ExitCode != 4 {
		t.Errorf("got %v", brief(res))
	}
}

func TestTerminalOfTheNextHost(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	req := terminal("stty -echo; echo ready; read x; echo got $x; exit 6")
	s := openTerminal(t, c, req)
	s.await("ready")
	_ = c.Close()
	if <-s.over; !errors.Is(s.err, client.ErrConnLost) {
		t.Errorf("got %v", s.err)
	}
	c = dial(t, g)
	execs, err := c.Execs(testContext(t))
	if err != nil || len(execs) != 1 || !execs[0].Terminal || execs[0].State != wire.ExecRunning {
		t.Fatalf("got %+v, %v", execs, err)
	}
	s = join(t, c, req.ExecID)
	s.enter("it\n")
	if got, res := s.ends(); got != "ready\r\ngot it\r\n" || res.ExitCode != 6 {
		t.Errorf("got %q, %v", got, brief(res))
	}
}

func TestTerminalRefused(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	ctx := testContext(t)
	plain := sh("true")
	mustRun(t, c, plain)
	noSize, onRun := terminal("true"), sh("true")
	noSize.Terminal, onRun.Terminal = nil, &wire.TerminalSize{}
	missing := terminal("")
	missing.Argv = []string{"/no/such/program"}
	start := func(req wire.RunRequest) error {
		_, err := c.Terminal(ctx, req, nil, nil)
		return err
	}
	joined := func(id string) error {
		_, err := c.Join(ctx, wire.TerminalRequest{ExecID: id}, nil, nil)
		return err
	}
	_, ran := c.Run(ctx, onRun)
	_, attached := c.Attach(ctx, onRun, nil, nil, nil)
	for name, tc := range map[string]struct {
		err    error
		code   wire.Code
		launch string
	}{
		"no program":         {start(missing), wire.CodeLaunch, "not_found"},
		"no size":            {start(noSize), wire.CodeInvalid, ""},
		"run":                {ran, wire.CodeInvalid, ""},
		"attach":             {attached, wire.CodeInvalid, ""},
		"join without one":   {joined(plain.ExecID), wire.CodeInvalid, ""},
		"join of nothing":    {joined("nobody"), wire.CodeNotFound, ""},
		"size of nothing":    {c.Resize(ctx, wire.TerminalRequest{ExecID: "nobody"}), wire.CodeNotFound, ""},
		"size without a tty": {c.Resize(ctx, wire.TerminalRequest{ExecID: plain.ExecID}), wire.CodeInvalid, ""},
	} {
		var e *wire.Error
		if !errors.As(tc.err, &e) || e.Code != tc.code || e.Launch != tc.launch {
			t.Errorf("%s: got %v", name, tc.err)
		}
	}
	// A command with a failed start holds no resources.
	eventually(t, "nothing runs", func() bool {
		h, err := c.Health(ctx)
		return err == nil && h.Running == 0
	})
}

// stuck is a writer. It blocks until free is closed.
type stuck struct {
	io.Writer
	free chan struct{}
}

func (s stuck) Write(p []byte) (int, error) {
	<-s.free
	return s.Writer.Write(p)
}

// stalled returns a viewer of a new terminal. The viewer does not read output until resume is called.
func stalled(t *testing.T, c *client.Conn, req wire.RunRequest) (s *viewer, resume func()) {
	t.Helper()
	free := make(chan struct{})
	s = view(t, func(ctx context.Context, in io.Reader, out io.Writer) (wire.RunResult, error) {
		return c.Terminal(ctx, req, in, stuck{out, free})
	})
	resume = sync.OnceFunc(func() { close(free) })
	t.Cleanup(resume)
	printsMore(t, c, 500_000) // enough output to show that it runs; it stalls a little later
	return s, resume
}

// printing returns a command with more output than fits in all buffers of a host that does not read.
func printing(blocks int) string { return fmt.Sprintf("dd if=/dev/zero bs=4096 count=%d 2>&-", blocks) }

// TestTerminalTakenFromAStalledViewer verifies that a host can join a terminal whose viewer does not read, and this
// viewer can join again.
func TestTerminalTakenFromAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := terminal("stty -echo; " + printing(400) + "; echo; echo written; read x; echo got $x; read y; exit 5")
	first, resume := stalled(t, c, req)
	other := join(t, c, req.ExecID)
	other.await("written\r\n")
	other.enter("it\n")
	other.await("got it\r\n")
	resume()
	if <-first.over; !errors.Is(first.err, client.ErrTakenOver) {
		t.Errorf("the one that was detached got %v, %v", brief(first.res), first.err)
	}
	back := join(t, c, req.ExecID)
	back.await("got it\r\n")
	back.enter("end\n")
	if _, res := back.ends(); res.ExitCode != 5 {
		t.Errorf("got %v", brief(res))
	}
}

// TestTerminalKilledBeforeAStalledViewer verifies that a command can be killed while the only viewer of the terminal
// does not read. The viewer later gets the result and the amount of missed output.
func TestTerminalKilledBeforeAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	// The command prints during the grace period, which is longer than the guest agent waits for the viewer.
	req := terminal("trap '' TERM HUP; " + printing(1_000_000))
	req.GraceMillis = 4000
	s, resume := stalled(t, c, req)
	if st, err := c.Kill(testContext(t), wire.KillRequest{ExecID: req.ExecID}); err != nil || st.State != wire.ExecKilled {
		t.Errorf("got %+v, %v", st, err)
	}
	eventually(t, "nothing runs", func() bool {
		h, err := c.Health(testContext(t))
		return err == nil && h.Running == 0
	})
	resume()
	got, res := s.ends()
	shown, word, _ := strings.Cut(got, "\r\n[")
	var missing int64
	if word != "" {
		if _, err := fmt.Sscanf(word, "%d bytes omitted", &missing); err != nil {
			t.Errorf("%q: %v", word, err)
		}
	}
	if res.State != wire.ExecKilled || int64(len(shown))+missing != res.StdoutBytes {
		t.Errorf("%d bytes are shown and %d missing, %v", len(shown), missing, brief(res))
	}
}

// TestTerminalEndsBeforeAStalledViewer verifies that other hosts see the end of a command while the viewer of the
// terminal does not read. Remaining processes of the command keep running, and a host joining after the end does not
// disconnect the viewer.
func TestTerminalEndsBeforeAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const blocks = 400
	req := terminal("trap '' HUP; { " + printing(blocks) + "; while :; do echo; sleep 0.1; done; } & " +
		"until [ -e go ]; do sleep 0.02; done; exit 3")
	s, resume := stalled(t, c, req)
	mustPut(t, c, "go", nil)
	if st, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1}); err != nil || st.State != wire.ExecCompleted || st.ExitCode != 3 {
		t.Errorf("got %+v, %v", st, err)
	}
	printed := printsMore(t, c, blocks*4096)
	if _, res := join(t, c, req.ExecID).ends(); res.State != wire.ExecCompleted || res.ExitCode != 3 {
		t.Errorf("another host got %v", brief(res))
	}
	printsMore(t, c, printed+20) // long enough to disconnect the viewer, if this happened
	resume()
	if _, res := s.ends(); res.State != wire.ExecCompleted || res.ExitCode != 3 || !res.Leaked {
		t.Errorf("got %v", brief(res))
	}
	kill(t, c, req.ExecID)
}

// printsMore waits until the only command has printed more than than bytes, and returns the number of bytes.
func printsMore(t *testing.T, c *client.Conn, than int64) (n int64) {
	t.Helper()
	eventually(t, "more is printed", func() bool {
		execs, err := c.Execs(testContext(t))
		if err == nil && len(execs) == 1 {
			n = execs[0].StdoutBytes
		}
		return n > than
	})
	return n
}
