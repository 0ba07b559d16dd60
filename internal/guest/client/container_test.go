//go:build linux

package client_test

import (
	"context"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// startContainer starts a sandbox and connects to it.
func startContainer(t testing.TB, docker ...string) (*guesttest.Container, *client.Conn) {
	t.Helper()
	box := guesttest.StartContainer(t, guesttest.ContainerOptions{Binary: binary,
		Docker: append([]string{"--pids-limit", "96", "--memory", "256m", "--memory-swap", "256m"}, docker...)})
	return box, dialBox(t, box)
}

func dialBox(t testing.TB, box *guesttest.Container) *client.Conn {
	t.Helper()
	c, err := client.New(context.Background(), box.Dial(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestContainerPosture(t *testing.T) {
	t.Parallel()
	_, c := startContainer(t)
	res, err := c.Run(testContext(t), sh("id -u; ls /proc/self/fd | tr '\\n' ' '; ulimit -c; cat /proc/self/oom_score_adj"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s%s %+v", res.Stdout.Head, res.Stderr.Head, c.Hello())
}

func BenchmarkContainerTrue(b *testing.B) {
	_, c := startContainer(b)
	ctx := context.Background()
	for b.Loop() {
		req := sh("")
		req.Argv = []string{"/bin/true"}
		if _, err := c.Run(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
	h, err := c.Health(ctx)
	b.Logf("%+v %v", h, err)
	_ = wire.Hello{}
}
