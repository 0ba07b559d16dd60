//go:build linux

package local_test

import (
	"context"
	"errors"
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

// damages are what may be in a state file after a crash, or after somebody's hand.
func damages() []string {
	return []string{"", "{", "null", `{"session":"other"}`, strings.Repeat("x", 2<<20)}
}

func recordOf(dir, id string) string { return filepath.Join(boxDir(dir, id), "record.json") }

func ownerOf(dir, id string) string {
	session, _, _ := strings.Cut(id, "@")
	return filepath.Join(dir, "workspaces", session, "owner.json")
}

func overwrite(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// listed describes the sandbox of a session, as List does.
func listed(t *testing.T, b *local.Backend, spec backend.Spec) []backend.Info {
	t.Helper()
	list, err := b.List(t.Context(), backend.Filter{Instance: spec.Instance, SessionID: spec.ID})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Of a sandbox whose directory somebody removed while it ran, the next one of the session has the workspace for itself;
// with the workspace goes what still runs.
func TestDirectoryRemoved(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	if !b.Capabilities().Memory {
		return // without control groups nothing tells what still runs
	}
	spec := newSpec()
	disowned := func() *client.Conn {
		info := backendtest.Create(t, b, spec)
		conn := backendtest.Dial(t, b, info.ID)
		if err := os.RemoveAll(boxDir(dir, info.ID)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	first := disowned()
	backendtest.Sh(t, first, "echo kept > f")
	next := disowned()
	<-first.Done()
	if got := backendtest.Sh(t, next, "cat f"); got != "kept\n" {
		t.Errorf("f holds %q", got)
	}
	if err := b.RemoveWorkspace(t.Context(), spec.Instance, spec.ID); err != nil {
		t.Error(err)
	}
	<-next.Done()
}

// A sandbox whose record is lost is left alone as long as it runs, and makes room for another one of its instance then, which
// has its files. Of files of which nobody knows whose they are, that is only to be had by removing them.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	refused := func(spec backend.Spec, about string) {
		t.Helper()
		if _, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), about) {
			t.Errorf("Create: %v, want ErrExists about %s", err, about)
		}
	}
	for _, text := range damages() {
		spec := newSpec()
		info := backendtest.Create(t, b, spec)
		conn := backendtest.Dial(t, b, info.ID)
		overwrite(t, recordOf(dir, info.ID), text)
		if list := listed(t, b, spec); len(list) != 1 || list[0].ID != info.ID || list[0].State != backend.StateRunning {
			t.Errorf("%.20q: List: %+v", text, list)
		}
		other := spec
		other.Instance = "another"
		if list := listed(t, b, other); len(list) != 0 {
			t.Errorf("%.20q: List of another instance: %v", text, list)
		}
		refused(spec, "damaged")
		backendtest.Sh(t, conn, "echo kept > f")
		if err := b.Stop(t.Context(), info.ID); err != nil {
			t.Errorf("%.20q: Stop: %v", text, err)
		}
		if err := b.Start(t.Context(), info.ID); !errors.Is(err, backend.ErrLost) {
			t.Errorf("%.20q: Start: %v", text, err)
		}
		refused(other, "session")
		next := backendtest.Create(t, b, spec)
		if got := backendtest.Sh(t, backendtest.Dial(t, b, next.ID), "cat f"); got != "kept\n" {
			t.Errorf("%.20q: its files: %q", text, got)
		}
		overwrite(t, ownerOf(dir, next.ID), text)
		if err := b.Remove(t.Context(), next.ID, backend.RemoveOptions{}); err != nil {
			t.Errorf("%.20q: Remove: %v", text, err)
		}
		refused(spec, "damaged")
		backendtest.Remove(t, b, next.ID)
		if got := backendtest.Sh(t, backendtest.Dial(t, b, backendtest.Create(t, b, spec).ID), "ls -A"); got != "" {
			t.Errorf("%.20q: Create after Remove: %q", text, got)
		}
	}
}

// A running sandbox of which nothing but its process is known is removed like any other.
func TestRemoveLostRecord(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	info := backendtest.Create(t, b, newSpec())
	conn := backendtest.Dial(t, b, info.ID)
	overwrite(t, recordOf(dir, info.ID), "")
	overwrite(t, ownerOf(dir, info.ID), "")
	backendtest.Remove(t, b, info.ID)
	select {
	case <-conn.Done():
	case <-time.After(3 * time.Minute):
		t.Error("the sandbox runs on")
	}
}

// A late Remove never takes a workspace from under a sandbox that is being made.
func TestLateRemove(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	spec := newSpec()
	old := backendtest.Create(t, b, spec)
	backendtest.Sh(t, backendtest.Dial(t, b, old.ID), "echo kept > f")
	if err := b.Remove(t.Context(), old.ID, backend.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	unlock := beginCreation(t, dir, spec)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := b.Remove(ctx, old.ID, backend.RemoveOptions{Volumes: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Remove did not wait: %v", err)
	}
	unlock()
	// It died: now the next creation finds the files, and once it is done they are its own.
	fresh := backendtest.Create(t, b, spec)
	backendtest.Remove(t, b, old.ID)
	if got := backendtest.Sh(t, backendtest.Dial(t, b, fresh.ID), "cat f"); got != "kept\n" {
		t.Errorf("the files of the new sandbox: %q", got)
	}
	backendtest.Remove(t, b, fresh.ID)
}

// beginCreation makes what a creation of the session begins with, as long as it lives: until unlock.
func beginCreation(t *testing.T, dir string, spec backend.Spec) (unlock func()) {
	t.Helper()
	sandbox := filepath.Join(dir, "sandboxes", spec.ID)
	err := os.Mkdir(sandbox, 0o700)
	if err == nil {
		err = os.Symlink("0123456789abcdef@"+spec.Instance, filepath.Join(sandbox, "identity"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return lock(t, filepath.Join(sandbox, "lock"))
}

// What a creation that died left does not keep a late Remove from its work.
func TestRemoveBesideDeadCreation(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	spec := newSpec()
	old := backendtest.Create(t, b, spec)
	if err := b.Remove(t.Context(), old.ID, backend.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	beginCreation(t, dir, spec)()
	backendtest.Remove(t, b, old.ID)
	if _, err := os.Stat(ownerOf(dir, old.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace: %v", err)
	}
	if list := listed(t, b, spec); len(list) != 0 {
		t.Errorf("List: %+v", list)
	}
}
