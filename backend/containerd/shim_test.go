//go:build linux

package containerd_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// unusedName returns a sandbox's id that no sandbox has.
func unusedName() string { return containerd.SessionName(rand.Text()) + "." + rand.Text() }

// startShim starts a true shim as containerd does, for a container's id, and returns its directory.
func startShim(t testing.TB, namespace, id string) (bundle string) {
	t.Helper()
	bundle = t.TempDir()
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion":"1.0.2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(bundle, "log")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	containerdPath, err := exec.LookPath("containerd")
	if err != nil {
		t.Fatal(err)
	}
	start := exec.Command("containerd-shim-runc-v2", "-namespace", namespace, "-address", engineAddress(),
		"-publish-binary", containerdPath, "-id", id, "start")
	start.Dir = bundle
	out, err := start.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		for _, pid := range shims(t, id) {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Signal(unix.SIGTERM) // it may have ended
			}
		}
		waitFor(t, "the test's shim to end", func() bool { return len(shims(t, id)) == 0 })
		_ = log.Close()
	})
	awaitShim(t, string(out))
	if len(shims(t, id)) == 0 {
		t.Fatal("no shim")
	}
	return bundle
}

// awaitShim waits until a shim answers, if only that it knows no such call: before, it needs its directory.
func awaitShim(t testing.TB, started string) {
	t.Helper()
	conn, err := net.Dial("unix", strings.TrimPrefix(regexp.MustCompile(`unix://[^\s"]+`).FindString(started), "unix://"))
	if err != nil {
		t.Fatalf("%q: %v", started, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	empty := []byte{0, 0, 0, 0, 0, 0, 0, 1, 1, 0} // ttrpc: nothing as the request of stream 1
	if _, err := conn.Write(empty); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(empty); err != nil {
		t.Fatal(err)
	}
}

// shims returns the processes that are shims for a container.
func shims(t testing.TB, id string) (pids []int) {
	t.Helper()
	for pid, cmdline := range processes(t) {
		if strings.Contains(cmdline, "containerd-shim") && strings.Contains(cmdline, id) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestStrayShims: a shim that containerd forgot, as when a process dies that makes a sandbox, is ended; one that is at work,
// or may be somebody else's, is not.
func TestStrayShims(t *testing.T) {
	t.Parallel()
	b, same := newBackend(t, nil), newBackend(t, nil)
	other := newBackend(t, func(o *containerd.Options) { o.StateDir = t.TempDir() })
	stopped := func(b *containerd.Backend) string { // has a record and no task
		info := backendtest.Create(t, b, newSpec())
		if err := b.Stop(t.Context(), info.ID); err != nil {
			t.Fatal(err)
		}
		return containerd.ContainerOf(info.ID)
	}
	const ours = containerd.DefaultNamespace
	shimsOf := map[string]struct {
		namespace, container string
		begins, ends         bool
	}{
		"one whose sandbox is gone":          {namespace: ours, container: containerd.ContainerOf(unusedName()), ends: true},
		"one of this installation":           {namespace: ours, container: stopped(same), ends: true},
		"one that begins":                    {namespace: ours, container: containerd.ContainerOf(unusedName()), begins: true},
		"one that begins, of a stopped one":  {namespace: ours, container: stopped(same), begins: true},
		"one of another installation":        {namespace: ours, container: stopped(other)},
		"one of another program, or unknown": {namespace: ours, container: containerd.SessionName(rand.Text())},
		"one of another namespace":           {namespace: "workcell-others", container: containerd.ContainerOf(unusedName())},
	}
	for _, s := range shimsOf {
		bundle := startShim(t, s.namespace, s.container)
		if s.begins {
			continue
		}
		if err := os.RemoveAll(bundle); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.List(t.Context(), backend.Filter{Instance: instance}); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil { // waits for the look, which List leaves to the background
		t.Error(err)
	}
	for what, s := range shimsOf {
		if s.ends {
			waitFor(t, what+" to end", func() bool { return len(shims(t, s.container)) == 0 })
		} else if len(shims(t, s.container)) == 0 {
			t.Errorf("%s was ended", what)
		}
	}
}

// TestSweepSparesCreations: one installation looks for stray shims all the time, while others in the same namespace, of
// another state directory and of its own, make sandboxes, start and stop them.
func TestSweepSparesCreations(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	var sweeping, making sync.WaitGroup
	sweeping.Go(func() {
		for ctx.Err() == nil {
			containerd.SweepShims(ctx, b)
			time.Sleep(5 * time.Millisecond) // not the whole processor
		}
	})
	for _, maker := range []*containerd.Backend{newBackend(t, nil), newBackend(t, func(o *containerd.Options) { o.StateDir = t.TempDir() })} {
		making.Go(func() { useSandboxes(t, maker) })
	}
	making.Wait()
	stop()
	sweeping.Wait()
}

// useSandboxes makes some sandboxes, one after the other, and fails the test where one does not live.
func useSandboxes(t *testing.T, b *containerd.Backend) {
	for range 4 {
		info, err := b.Create(t.Context(), newSpec())
		if err != nil {
			t.Errorf("Create: %v", err)
			return
		}
		for range 2 {
			rw, err := b.Dial(t.Context(), info.ID)
			if err := tryCommand(t.Context(), rw, err); err != nil {
				t.Errorf("a command: %v", err)
			}
			if err := errors.Join(b.Stop(t.Context(), info.ID), b.Start(t.Context(), info.ID)); err != nil {
				t.Errorf("Stop and Start: %v", err)
			}
		}
		backendtest.Remove(t, b, info.ID)
	}
}

// tryCommand runs a command over a stream and closes it.
func tryCommand(ctx context.Context, rw io.ReadWriteCloser, err error) error {
	if err != nil {
		return err
	}
	conn, err := client.New(ctx, rw, nil)
	if err != nil {
		return err
	}
	_, err = conn.Run(ctx, wire.RunRequest{
		Spawn: wire.Spawn{Argv: []string{"/bin/true"}, TimeoutMillis: 60_000}, ExecID: rand.Text(), YieldMillis: -1,
	})
	return errors.Join(err, conn.Close())
}
