//go:build linux

package client_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"go.uber.org/goleak"
)

// binary is the guest, built from the sources that are tested.
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
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// start starts a guest and connects to it.
func start(t testing.TB) (*guesttest.Guest, *client.Conn) {
	t.Helper()
	g := guesttest.Start(t, &guesttest.Options{Binary: binary})
	return g, dial(t, g)
}

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
	_, c := start(t)
	res, err := c.Run(testContext(t), sh("echo out; echo err >&2; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if res.State != wire.ExecCompleted || res.ExitCode != 3 || string(res.Stdout.Head) != "out\n" || string(res.Stderr.Head) != "err\n" {
		t.Errorf("got %+v", res)
	}
}

func BenchmarkRunTrue(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	for b.Loop() {
		req := sh("")
		req.Argv = []string{"/bin/true"}
		if _, err := c.Run(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHostTrue(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRunTrue16(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req := sh("")
			req.Argv = []string{"/bin/true"}
			if _, err := c.Run(ctx, req); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkHealth(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	for b.Loop() {
		if _, err := c.Wait(ctx, wire.WaitRequest{ExecID: "nope"}); err == nil {
			b.Fatal("no error")
		}
	}
}
func BenchmarkFile1K(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	data := make([]byte, 1024)
	for b.Loop() {
		if _, err := c.PutFile(ctx, wire.FilePutRequest{Path: "x", Size: 1024, Overwrite: true}, bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
		if _, err := c.GetFile(ctx, wire.FileGetRequest{Path: "x", Length: -1}, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
func BenchmarkFile100MPut(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	data := make([]byte, 100<<20)
	b.SetBytes(100 << 20)
	for b.Loop() {
		if _, err := c.PutFile(ctx, wire.FilePutRequest{Path: "x", Size: 100 << 20, Overwrite: true}, bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
	h, err := c.Health(ctx)
	b.Logf("%+v %v", h, err)
}
func BenchmarkFile100MGet(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	data := make([]byte, 100<<20)
	if _, err := c.PutFile(ctx, wire.FilePutRequest{Path: "x", Size: 100 << 20, Overwrite: true}, bytes.NewReader(data)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100 << 20)
	for b.Loop() {
		if _, err := c.GetFile(ctx, wire.FileGetRequest{Path: "x", Length: -1}, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
	h, err := c.Health(ctx)
	b.Logf("%+v %v", h, err)
}
