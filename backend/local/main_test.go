//go:build linux

package local_test

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const instance = "local-test"

// stateDir makes a state directory that the test's end removes.
func stateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newBackend(t testing.TB, dir string) *local.Backend {
	t.Helper()
	b, err := local.New(t.Context(), &local.Options{StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func newSpec() backend.Spec {
	id := "sbx_" + strings.ToLower(rand.Text())
	return backend.Spec{ID: id, Instance: instance, Key: "user:" + id, Run: "run_" + id, Hash: "hash", Image: "host"}
}

// create makes a sandbox that the test's end removes.
func create(t testing.TB, b *local.Backend, spec backend.Spec) backend.Info {
	t.Helper()
	info, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { remove(t, b, info.ID) })
	return info
}

func remove(t testing.TB, b *local.Backend, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.Remove(ctx, id, backend.RemoveOptions{Volumes: true}); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

func dial(t testing.TB, b *local.Backend, id string) *client.Conn {
	t.Helper()
	rw, err := b.Dial(t.Context(), id)
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	conn, err := client.New(t.Context(), rw, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// run runs a command to its end.
func run(t testing.TB, conn *client.Conn, argv ...string) wire.RunResult {
	t.Helper()
	res, err := conn.Run(t.Context(), wire.RunRequest{
		Spawn:  wire.Spawn{Argv: argv, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, TimeoutMillis: 120_000},
		ExecID: rand.Text(), YieldMillis: -1, HeadBytes: 256 << 10, TailBytes: 64 << 10,
	})
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return res
}

// sh runs a script that must succeed, and gives its output.
func sh(t testing.TB, conn *client.Conn, script string) string {
	t.Helper()
	res := run(t, conn, "/bin/sh", "-c", script)
	if res.ExitCode != 0 || res.State != wire.ExecCompleted {
		t.Fatalf("%q: %+v\n%s%s", script, res.ExecStatus, res.Stdout.Head, res.Stderr.Head)
	}
	return string(res.Stdout.Head) + string(res.Stdout.Tail)
}
