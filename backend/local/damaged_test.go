//go:build linux

package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
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

// Of a sandbox's record and its workspace's, one makes up for the loss of the other.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	for _, file := range []func(dir, id string) string{recordOf, ownerOf} {
		for _, text := range damages() {
			spec := newSpec()
			info := create(t, b, spec)
			before := listed(t, b, spec)
			overwrite(t, file(dir, info.ID), text)
			if diff := cmp.Diff(before, listed(t, b, spec)); diff != "" {
				t.Errorf("%.20q: List (-before +after):\n%s", text, diff)
			}
			if diff := cmp.Diff(info, must(b.Get(t.Context(), info.ID))(t)); diff != "" {
				t.Errorf("%.20q: Get (-before +after):\n%s", text, diff)
			}
			if _, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrExists) {
				t.Errorf("%.20q: Create: %v", text, err)
			}
			sh(t, dial(t, b, info.ID), "echo kept > f")
			if err := errors.Join(b.Stop(t.Context(), info.ID), b.Start(t.Context(), info.ID)); err != nil {
				t.Errorf("%.20q: %v", text, err)
			}
			if got := sh(t, dial(t, b, info.ID), "cat f"); got != "kept\n" {
				t.Errorf("%.20q: afterwards: %q", text, got)
			}
			remove(t, b, info.ID)
		}
	}
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
		info := create(t, b, spec)
		conn := dial(t, b, info.ID)
		if err := os.RemoveAll(boxDir(dir, info.ID)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	first := disowned()
	sh(t, first, "echo kept > f")
	next := disowned()
	<-first.Done()
	if got := sh(t, next, "cat f"); got != "kept\n" {
		t.Errorf("f holds %q", got)
	}
	if err := b.RemoveWorkspace(t.Context(), spec.Instance, spec.ID); err != nil {
		t.Error(err)
	}
	<-next.Done()
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Where nothing tells any more what a sandbox was made of, one that runs is left alone until it is removed, and one that
// does not makes room.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	for _, text := range damages() {
		spec := newSpec()
		info := create(t, b, spec)
		conn := dial(t, b, info.ID)
		overwrite(t, recordOf(dir, info.ID), text)
		overwrite(t, ownerOf(dir, info.ID), text)
		if list := listed(t, b, spec); len(list) != 1 || list[0].ID != info.ID || list[0].State != backend.StateRunning {
			t.Errorf("%.20q: List: %+v", text, list)
		}
		if list, err := b.List(t.Context(), backend.Filter{Instance: "another", SessionID: spec.ID}); err != nil || len(list) != 0 {
			t.Errorf("%.20q: List of another instance: %v, %v", text, list, err)
		}
		if _, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%.20q: Create beside it: %v", text, err)
		}
		if got := sh(t, conn, "echo alive"); got != "alive\n" {
			t.Errorf("%.20q: it was touched: %q", text, got)
		}
		if err := b.Stop(t.Context(), info.ID); err != nil {
			t.Errorf("%.20q: Stop: %v", text, err)
		}
		if err := b.Start(t.Context(), info.ID); !errors.Is(err, backend.ErrLost) {
			t.Errorf("%.20q: Start: %v", text, err)
		}
		// Its files are somebody's, and nobody knows whose.
		if _, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%.20q: Create in its place: %v", text, err)
		}
		remove(t, b, info.ID)
		if got := sh(t, dial(t, b, create(t, b, spec).ID), "ls -A"); got != "" {
			t.Errorf("%.20q: Create after Remove: %q", text, got)
		}
	}
}

// A running sandbox of which nothing but its process is known is removed like any other.
func TestRemoveLostRecord(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	info := create(t, b, newSpec())
	conn := dial(t, b, info.ID)
	overwrite(t, recordOf(dir, info.ID), "")
	overwrite(t, ownerOf(dir, info.ID), "")
	remove(t, b, info.ID)
	select {
	case <-conn.Done():
	case <-time.After(time.Minute):
		t.Error("the sandbox runs on")
	}
}

// A lost sandbox whose workspace is known to be of the same instance is made again, with its files.
func TestReclaimedSession(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	spec := newSpec()
	info := create(t, b, spec)
	sh(t, dial(t, b, info.ID), "echo kept > f")
	if err := b.Stop(t.Context(), info.ID); err != nil {
		t.Fatal(err)
	}
	var owner map[string]any
	if err := json.Unmarshal(must(os.ReadFile(ownerOf(dir, info.ID)))(t), &owner); err != nil {
		t.Fatal(err)
	}
	delete(owner, "record")
	overwrite(t, ownerOf(dir, info.ID), string(must(json.Marshal(owner))(t)))
	overwrite(t, recordOf(dir, info.ID), "")
	other := spec
	other.Instance = "another"
	if _, err := b.Create(t.Context(), other); !errors.Is(err, backend.ErrExists) {
		t.Errorf("Create by another instance: %v", err)
	}
	if got := sh(t, dial(t, b, create(t, b, spec).ID), "cat f"); got != "kept\n" {
		t.Errorf("its files: %q", got)
	}
}

// A late Remove never takes a workspace from under a sandbox that is being made.
func TestLateRemove(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	b := newBackend(t, dir)
	spec := newSpec()
	old := create(t, b, spec)
	sh(t, dial(t, b, old.ID), "echo kept > f")
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
	fresh := create(t, b, spec)
	remove(t, b, old.ID)
	if got := sh(t, dial(t, b, fresh.ID), "cat f"); got != "kept\n" {
		t.Errorf("the files of the new sandbox: %q", got)
	}
	remove(t, b, fresh.ID)
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
	old := create(t, b, spec)
	if err := b.Remove(t.Context(), old.ID, backend.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	beginCreation(t, dir, spec)()
	remove(t, b, old.ID)
	if _, err := os.Stat(ownerOf(dir, old.ID)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the workspace: %v", err)
	}
	if list := listed(t, b, spec); len(list) != 0 {
		t.Errorf("List: %+v", list)
	}
}
