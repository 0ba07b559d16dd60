//go:build linux

package client_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial connects to a guest's own stream.
func dial(t testing.TB, g *guesttest.Guest) *client.Conn {
	t.Helper()
	c, err := client.New(context.Background(), g.Dial(), nil)
	if err != nil {
		t.Fatalf("New: %v\n%s", err, g.Log())
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// sh is a recorded run of a shell script that waits for its end.
func sh(script string) wire.RunRequest {
	return wire.RunRequest{ExecID: newID(), YieldMillis: -1, HeadBytes: 4 << 10, TailBytes: 4 << 10,
		Spawn: wire.Spawn{Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}}}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRun(t *testing.T) {
	t.Parallel()
	c := dial(t, guesttest.Start(t, nil))
	res, err := c.Run(testContext(t), sh("echo out; echo err >&2; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if res.State != wire.ExecCompleted || res.ExitCode != 3 || string(res.Stdout.Head) != "out\n" || string(res.Stderr.Head) != "err\n" {
		t.Errorf("got %+v", res)
	}
}

func BenchmarkRunTrue(b *testing.B) {
	c := dial(b, guesttest.Start(b, nil))
	ctx := context.Background()
	for b.Loop() {
		req := sh("")
		req.Argv = []string{"/bin/true"}
		if _, err := c.Run(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}
