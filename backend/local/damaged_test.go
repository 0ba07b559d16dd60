//go:build linux

package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

func ownerOf(dir, id string) string {
	session, _, _ := strings.Cut(id, "@")
	return filepath.Join(dir, "workspaces", session, "owner.json")
}

// listed returns the sandboxes of a session as List describes them.
func listed(t *testing.T, b *local.Backend, spec backend.Spec) []backend.Info {
	t.Helper()
	list, err := b.List(t.Context(), backend.Filter{Instance: spec.Instance, SessionID: spec.ID})
	must(t, err)
	return list
}

// TestDirectoryRemoved verifies the behavior after the directory of a running sandbox was removed. The next sandbox of
// the session gets exclusive use of the workspace. Removing the workspace kills the processes of the old sandbox.
func TestDirectoryRemoved(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	if !b.Capabilities().Memory {
		return // without control groups, running processes cannot be found
	}
	spec := newSpec()
	disowned := func() *client.Conn {
		info := backendtest.Create(t, b, spec)
		conn := backendtest.Dial(t, b, info.ID)
		must(t, os.RemoveAll(boxDir(dir, info.ID)))
		return conn
	}
	first := disowned()
	backendtest.Sh(t, first, "echo kept > f")
	next := disowned()
	<-first.Done()
	backendtest.Prints(t, next, "cat f", "kept\n")
	must(t, b.RemoveWorkspace(t.Context(), spec.Instance, spec.ID))
	<-next.Done()
}

// TestDamagedRecord verifies that a sandbox with a damaged record is neither listed nor changed, and that the name
// stays taken.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	for _, text := range []string{"", "{", "null", `{"session":"other"}`, strings.Repeat("x", 2<<20)} {
		spec := newSpec()
		info := backendtest.Create(t, b, spec)
		file := filepath.Join(boxDir(dir, info.ID), "record.json")
		whole, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(text), 0o600)
		}
		must(t, err)
		if list := listed(t, b, spec); len(list) != 0 {
			t.Errorf("%.20q: List: %+v", text, list)
		}
		backendtest.Fails(t, fmt.Sprintf("Start with %.20q", text), b.Start(t.Context(), info.ID), backend.ErrNotFound)
		_, err = b.Create(t.Context(), spec)
		if !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%.20q: Create: %v, want ErrExists about a damaged sandbox", text, err)
		}
		must(t, os.WriteFile(file, whole, 0o600))
		backendtest.Remove(t, b, info.ID)
	}
}

// TestLateRemove verifies that a late Remove does not remove the workspace of a sandbox during the creation.
func TestLateRemove(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	spec := newSpec()
	old := backendtest.Create(t, b, spec)
	backendtest.Sh(t, backendtest.Dial(t, b, old.ID), "echo kept > f")
	must(t, b.Remove(t.Context(), old.ID, backend.RemoveOptions{}))
	unlock := beginCreation(t, dir, spec)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := b.Remove(ctx, old.ID, backend.RemoveOptions{Volumes: true})
	backendtest.Fails(t, "Remove during a creation", err, context.DeadlineExceeded)
	unlock()
	// The creator has died. The next creation finds the files and owns them when it is complete.
	fresh := backendtest.Create(t, b, spec)
	backendtest.Remove(t, b, old.ID)
	backendtest.Prints(t, backendtest.Dial(t, b, fresh.ID), "cat f", "kept\n")
	backendtest.Remove(t, b, fresh.ID)
}

// beginCreation creates the first objects of a session's creation and holds the lock until unlock, like a running
// creation.
func beginCreation(t *testing.T, dir string, spec backend.Spec) (unlock func()) {
	t.Helper()
	sandbox := filepath.Join(dir, "sandboxes", spec.ID)
	must(t, os.Mkdir(sandbox, 0o700))
	must(t, os.Symlink("0123456789abcdef@"+spec.Instance, filepath.Join(sandbox, "identity")))
	return lock(t, filepath.Join(sandbox, "lock"))
}

// TestRemoveBesideDeadCreation verifies that leftovers of a dead creation do not prevent a late Remove.
func TestRemoveBesideDeadCreation(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	spec := newSpec()
	old := backendtest.Create(t, b, spec)
	must(t, b.Remove(t.Context(), old.ID, backend.RemoveOptions{}))
	beginCreation(t, dir, spec)()
	backendtest.Remove(t, b, old.ID)
	backendtest.Fails(t, "the workspace", second(os.Stat(ownerOf(dir, old.ID))), os.ErrNotExist)
	if list := listed(t, b, spec); len(list) != 0 {
		t.Errorf("List: %+v", list)
	}
}

// TestDeepEnvironment verifies that an environment can have paths that are too long for one system call, and names that
// are not UTF-8.
func TestDeepEnvironment(t *testing.T) {
	t.Parallel()
	dir, deep := t.TempDir(), strings.Repeat(strings.Repeat("d", 250)+"/", 20)+"\xff"
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	must(t, root.MkdirAll(deep, 0o700))
	_, err = local.ShareTree(dir)
	must(t, err)
	if st, err := root.Stat(deep); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
}
