//go:build linux

package containerd_test

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// startShim starts a true shim as containerd does, for a container that nobody has, and gives its container and directory.
func startShim(t testing.TB, namespace string) (id, bundle string) {
	t.Helper()
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	id, bundle = hex.EncodeToString(raw), t.TempDir()
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
	return id, bundle
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

// shims gives the processes that are shims for a container.
func shims(t testing.TB, id string) (pids []int) {
	t.Helper()
	for pid, cmdline := range processes(t) {
		if strings.Contains(cmdline, "containerd-shim") && strings.Contains(cmdline, id) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestStrayShims: a shim that containerd forgot, as when a process dies that makes a sandbox, is ended; one that is
// at work or another namespace's is not.
func TestStrayShims(t *testing.T) {
	t.Parallel()
	stray, bundle := startShim(t, containerd.DefaultNamespace)
	works, _ := startShim(t, containerd.DefaultNamespace)
	strangers, theirs := startShim(t, "workcell-others")
	for _, dir := range []string{bundle, theirs} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	b := newBackend(t, nil)
	if _, err := b.List(t.Context(), backend.Filter{Instance: instance}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the stray shim to end", func() bool { return len(shims(t, stray)) == 0 })
	if err := b.Close(); err != nil { // waits for the rest of the look
		t.Error(err)
	}
	for what, id := range map[string]string{"one at work": works, "one of another namespace": strangers} {
		if len(shims(t, id)) == 0 {
			t.Errorf("%s was ended", what)
		}
	}
}
