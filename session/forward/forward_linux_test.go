package forward_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/forward"
	"github.com/workcell-dev/workcell/session/record"
)

// The tests in e2e/forward test forwarded connections on every engine. The tests here need no engine.

// TestMorePortsThanConnections verifies that unused ports do not prevent connections to other ports.
func TestMorePortsThanConnections(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	checktest.Must(t, os.Chmod(dir, 0o700))
	b, err := local.New(t.Context(), &local.Options{StateDir: dir})
	checktest.Must(t, err)
	m, err := session.NewManager(b, nil)
	if err != nil {
		t.Fatal(errors.Join(err, b.Close()))
	}
	t.Cleanup(func() { checktest.Must(t, errors.Join(m.Close(context.Background()), b.Close())) })
	s, _, err := m.Open(t.Context(), session.WorkflowKey(session.NewRunID(), record.DefaultName), session.Request{Image: "host"})
	checktest.Must(t, err)
	f, err := forward.Listen(s.Sandbox, []forward.Port{{Sandbox: 1}, {Sandbox: 2}, {Sandbox: 3}}, &forward.Options{MaxConns: 1})
	checktest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- f.Serve(ctx) }()
	for range 2 {
		for _, addr := range f.Addrs() { // if no program listens inside, the connection is closed at once
			conn, err := net.Dial("tcp", addr.String())
			if errors.Is(err, syscall.ECONNRESET) { // accepted and closed before Dial returned
				continue
			}
			checktest.Must(t, err)
			checktest.Must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
			if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection was not accepted", addr)
			}
			_ = conn.Close() // only read from
		}
	}
	cancel()
	checktest.Must(t, <-served)
}
