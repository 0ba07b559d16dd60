package local_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/local"
)

func TestWritableRoot(t *testing.T) {
	t.Parallel()
	b := newBackend(t, stateDir(t))
	if !b.Capabilities().WritableRoot {
		t.Fatal("a writable root cannot be made here")
	}
	spec := newSpec()
	spec.User, spec.Root = "0:0", backend.RootWritable
	conn := backendtest.Dial(t, b, backendtest.Create(t, b, spec).ID)
	const changes = "touch /x /etc/x /usr/x /usr/bin/x /usr/local/bin/x && rm /usr/bin/env && umask"
	backendtest.Prints(t, conn, changes, "0022\n")
	other := backendtest.Dial(t, b, backendtest.Create(t, b, newSpec()).ID)
	backendtest.Prints(t, other, "test -x /usr/bin/env && echo whole", "whole\n")
}

// TestJavaSettings verifies that a sandbox sees the settings of Debian's Java, which Java needs to start, but no
// passwords.
func TestJavaSettings(t *testing.T) {
	t.Parallel()
	b := newBackend(t, stateDir(t))
	conn := backendtest.Dial(t, b, backendtest.Create(t, b, newSpec()).ID)
	files, err := filepath.Glob("/etc/java-*-openjdk/security/java.security")
	must(t, err)
	for _, file := range files {
		management := filepath.Join(file, "../../management")
		backendtest.Prints(t, conn, "test -r "+file+" && echo there; test -e "+management+" || echo hidden", "there\nhidden\n")
	}
}

// TestStateInView verifies that New rejects a state directory readable in sandboxes. Such a directory would expose
// workspaces and sockets to other sandboxes.
func TestStateInView(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/usr/local", "workcell-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	for _, state := range []string{filepath.Join(dir, "state"), filepath.Join(link, "state")} {
		backendtest.Fails(t, "New", second(local.New(t.Context(), &local.Options{StateDir: state})), backend.ErrInvalid)
	}
}

// TestHostSocketsBelowUsr verifies that sandboxes cannot connect to services of the host through sockets in shared
// read-only directories.
func TestHostSocketsBelowUsr(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/usr/local", "workcell-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	socket := filepath.Join(dir, "service.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	must(t, os.Chmod(socket, 0o777))
	b := newBackend(t, stateDir(t))
	conn := backendtest.Dial(t, b, backendtest.Create(t, b, newSpec()).ID)
	backendtest.Prints(t, conn, "test -S "+socket+" && echo socket; test -e "+socket+" && echo there; true", "there\n")
}

// TestRecordWithoutGroup verifies that leftovers of a creation killed at the very beginning are removed, and no other
// files. The record may have no control group. An empty group name would refer to the root group.
func TestRecordWithoutGroup(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	for _, group := range []string{"", ".", "..", "../..", "workcell-x"} {
		spec := newSpec()
		sandbox := filepath.Join(dir, "sandboxes", spec.ID)
		must(t, os.Mkdir(sandbox, 0o700))
		record := fmt.Sprintf(`{"nonce":"0123456789abcdef","labels":{"dev.workcell.id":%q,"dev.workcell.instance":%q},"group":%q}`, spec.ID, spec.Instance, group)
		must(t, os.WriteFile(filepath.Join(sandbox, "record.json"), []byte(record), 0o600))
		if got := backendtest.Sh(t, backendtest.Dial(t, b, backendtest.Create(t, b, spec).ID), "echo made again"); got != "made again\n" {
			t.Errorf("group %q: %q", group, got)
		}
	}
}

// TestSettings verifies that a control group without a limit stays unlimited. Its sandbox would have only the memory of
// the guest agent.
func TestSettings(t *testing.T) {
	t.Parallel()
	names := func(l backend.Limits) (out []string) {
		for _, s := range local.Settings(l) {
			out = append(out, filepath.Base(s[0]))
		}
		return out
	}
	if got := names(backend.Limits{PIDs: 1}); !slices.Equal(got, []string{"pids.max"}) {
		t.Errorf("without limits: %q", got)
	}
	if got := names(backend.Limits{PIDs: 1, MemoryBytes: 1, CPUMillis: 1}); len(got) != 3 {
		t.Errorf("with limits: %q", got)
	}
}
