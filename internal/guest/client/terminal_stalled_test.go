//go:build linux

package client_test

import (
	"context"
	"fmt"
	"io"
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

// stalled is a seat at a new terminal whose host takes none of its output until go on is called. Then the seat must not
// have come to the command's end: it was sent away.
func stalled(t *testing.T, c *client.Conn, req wire.RunRequest) (goOn func()) {
	t.Helper()
	free := make(chan struct{})
	s := sit(t, func(ctx context.Context, in io.Reader, out io.Writer) (wire.RunResult, error) {
		return c.Terminal(ctx, req, in, stuck{out, free})
	})
	let := func() {
		select {
		case <-free:
		default:
			close(free)
		}
	}
	t.Cleanup(let)
	eventually(t, "much is written", func() bool { // as much as that shows that it runs; it stalls a little later
		execs, err := c.Execs(testContext(t))
		return err == nil && len(execs) == 1 && execs[0].StdoutBytes > 500_000
	})
	return func() {
		t.Helper()
		let()
		if <-s.over; s.err == nil {
			t.Errorf("it came to the end: %v", brief(s.res))
		}
	}
}

// printing writes more than a host that takes nothing has room for.
func printing(blocks int) string { return fmt.Sprintf("dd if=/dev/zero bs=4096 count=%d 2>&-", blocks) }

// Another host is not kept from a terminal by one that takes nothing; that one may come back.
func TestTerminalBesideAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := terminal("stty -echo; " + printing(400) + "; echo; echo written; read x; echo got $x; read y; exit 5")
	goOn := stalled(t, c, req)
	other := join(t, c, req.ExecID)
	other.await("written\r\n")
	other.enter("it\n")
	other.await("got it\r\n")
	goOn()
	back := join(t, c, req.ExecID)
	back.await("got it\r\n")
	back.enter("end\n")
	for _, s := range []*seat{other, back} {
		if _, res := s.ends(); res.ExitCode != 5 {
			t.Errorf("got %v", brief(res))
		}
	}
}

// A command can be ended while the only host at its terminal takes nothing.
func TestTerminalKilledBeforeAStalledViewer(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	// It goes on to print for the grace period.
	req := terminal("trap '' TERM HUP; " + printing(1_000_000))
	req.GraceMillis = 1000
	goOn := stalled(t, c, req)
	if st, err := c.Kill(testContext(t), wire.KillRequest{ExecID: req.ExecID}); err != nil || st.State != wire.ExecKilled {
		t.Errorf("got %+v, %v", st, err)
	}
	goOn()
	eventually(t, "nothing runs", func() bool {
		h, err := c.Health(testContext(t))
		return err == nil && h.Running == 0
	})
}
