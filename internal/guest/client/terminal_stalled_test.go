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

// stuck takes nothing until it is let go.
type stuck struct {
	io.Writer
	free chan struct{}
}

func (s stuck) Write(p []byte) (int, error) {
	<-s.free
	return s.Writer.Write(p)
}

// stalled is a viewer at a new terminal that takes none of its output until resume is called.
func stalled(t *testing.T, c *client.Conn, req wire.RunRequest) (s *viewer, resume func()) {
	t.Helper()
	free := make(chan struct{})
	s = view(t, func(ctx context.Context, in io.Reader, out io.Writer) (wire.RunResult, error) {
		return c.Terminal(ctx, req, in, stuck{out, free})
	})
	resume = sync.OnceFunc(func() { close(free) })
	t.Cleanup(resume)
	printsMore(t, c, 500_000) // as much as that shows that it runs; it stalls a little later
	return s, resume
}

// printing writes more than a host that takes nothing has room for.
func printing(blocks int) string { return fmt.Sprintf("dd if=/dev/zero bs=4096 count=%d 2>&-", blocks) }

// Another host is not kept from a terminal by one that takes nothing; that one may come back.
func TestTerminalBesideAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := terminal("stty -echo; " + printing(400) + "; echo; echo written; read x; echo got $x; read y; exit 5")
	first, resume := stalled(t, c, req)
	other := join(t, c, req.ExecID)
	other.await("written\r\n")
	other.enter("it\n")
	other.await("got it\r\n")
	resume()
	if <-first.over; !errors.Is(first.err, client.ErrSlowReader) {
		t.Errorf("the one that was detached got %v, %v", brief(first.res), first.err)
	}
	back := join(t, c, req.ExecID)
	back.await("got it\r\n")
	back.enter("end\n")
	for _, s := range []*viewer{other, back} {
		if _, res := s.ends(); res.ExitCode != 5 {
			t.Errorf("got %v", brief(res))
		}
	}
}

// A command can be ended while the only host at its terminal takes nothing. That one hears of it later, and how much it
// missed.
func TestTerminalKilledBeforeAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	// It goes on to print for the grace period, longer than the host is waited for.
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
		if _, err := fmt.Sscanf(word, "%d bytes are left out here", &missing); err != nil {
			t.Errorf("%q: %v", word, err)
		}
	}
	if res.State != wire.ExecKilled || int64(len(shown))+missing != res.StdoutBytes {
		t.Errorf("%d bytes are shown and %d missing, %v", len(shown), missing, brief(res))
	}
}

// A command that ends does so for all others while a host at its terminal takes nothing. What it left behind runs on,
// and who comes and goes does not cut off that host.
func TestTerminalEndsBeforeAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	const blocks = 400
	req := terminal("trap '' HUP; { " + printing(blocks) + "; while :; do echo; sleep 0.1; done; } & " +
		"until [ -e go ]; do sleep 0.02; done; exit 3")
	s, resume := stalled(t, c, req)
	if _, err := c.PutFile(testContext(t), wire.FilePutRequest{Path: "go"}, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	if st, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1}); err != nil || st.State != wire.ExecCompleted || st.ExitCode != 3 {
		t.Errorf("got %+v, %v", st, err)
	}
	printed := printsMore(t, c, blocks*4096)
	if _, res := join(t, c, req.ExecID).ends(); res.State != wire.ExecCompleted || res.ExitCode != 3 {
		t.Errorf("another one got %v", brief(res))
	}
	printsMore(t, c, printed+20) // long enough for the host to be cut off, if it were
	resume()
	if _, res := s.ends(); res.State != wire.ExecCompleted || res.ExitCode != 3 || !res.Leaked {
		t.Errorf("got %v", brief(res))
	}
	if _, err := c.Kill(testContext(t), wire.KillRequest{ExecID: req.ExecID}); err != nil {
		t.Error(err)
	}
}

// printsMore waits until the only command has printed more than some bytes, and returns how many.
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
