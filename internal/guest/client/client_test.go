//go:build linux

package client_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// binary is the path of the guest agent, built from the sources under test.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binary, err = guesttest.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if err := leaktest.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// start starts a guest agent and connects to it.
func start(t testing.TB) (*guesttest.Guest, *client.Conn) {
	t.Helper()
	g := guesttest.Start(t, &guesttest.Options{Binary: binary})
	return g, dial(t, g)
}

// dial connects to a guest agent.
func dial(t testing.TB, g *guesttest.Guest) *client.Conn {
	t.Helper()
	c, err := client.New(context.Background(), g.Dial())
	if err != nil {
		t.Fatalf("New: %v\n%s", err, g.Log())
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var must = checktest.Must

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// sh returns a recorded run of a shell script, with a wait for the end.
func sh(script string) wire.RunRequest {
	return wire.RunRequest{ExecID: newID(), YieldMillis: -1, HeadBytes: 4 << 10, TailBytes: 4 << 10,
		Spawn: wire.Spawn{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// brief formats a response. For a RunResult, it omits most of the output.
func brief(answer any) string {
	r, ok := answer.(wire.RunResult)
	if !ok {
		return fmt.Sprintf("%+v", answer)
	}
	return fmt.Sprintf("%+v, stdout %d of %d bytes %.80q, stderr %d of %d bytes %.80q", r.ExecStatus,
		len(r.Stdout.Head)+len(r.Stdout.Tail), r.Stdout.Total, r.Stdout.Head,
		len(r.Stderr.Head)+len(r.Stderr.Tail), r.Stderr.Total, r.Stderr.Head)
}
