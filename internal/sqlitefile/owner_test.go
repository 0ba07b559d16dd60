package sqlitefile_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/sqlitefile"
)

// ownerProcess is the environment variable that makes the test binary join the file in the value, print the id, and
// wait.
const ownerProcess = "SQLITEFILE_TEST_OWNER"

func ownForever(path string) error {
	f, err := sqlitefile.Open(context.Background(), path, notes())
	if err != nil {
		return err
	}
	id, _, err := f.Join()
	if err != nil {
		return err
	}
	fmt.Println(id)
	_, err = io.Copy(io.Discard, os.Stdin) // until it is killed
	return err
}

func lives(t *testing.T, f *sqlitefile.File, id string) bool {
	t.Helper()
	ok, err := f.Lives(id)
	if err != nil {
		t.Fatalf("Lives(%q): %v", id, err)
	}
	return ok
}

// owners returns the files of owners.
func owners(t *testing.T, path string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(path + "-owners")
	must(t, err)
	return entries
}

func TestOwners(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	a, b := open(t, path, notes()), open(t, path, notes())
	id, leave, err := a.Join()
	must(t, err)
	if !lives(t, a, id) || !lives(t, b, id) {
		t.Error("an owner that joined does not live")
	}
	if lives(t, a, "") || lives(t, a, "abcdefghijklmnop") {
		t.Error("nobody lives")
	}
	for range 2 {
		if err := leave(); err != nil {
			t.Error(err)
		}
	}
	if lives(t, a, id) || lives(t, b, id) || len(owners(t, path)) != 0 {
		t.Errorf("an owner that left lives, or left %v", owners(t, path))
	}
	if _, err := a.Lives("../state.db"); !errors.Is(err, sqlitefile.ErrCorrupt) {
		t.Errorf("Lives of an invalid id: %v, want ErrCorrupt", err)
	}
}

// TestKilledOwner: an owner lives exactly as long as the process.
func TestKilledOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	f := open(t, path, notes())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerProcess+"="+path)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line := bufio.NewScanner(out)
	if !line.Scan() {
		t.Fatal("it did not join")
	}
	id := line.Text()
	if !lives(t, f, id) {
		t.Error("an owner in another process does not live")
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	if lives(t, f, id) || len(owners(t, path)) != 0 {
		t.Errorf("a killed owner lives, or its file exists: %v", owners(t, path))
	}
}

// TestOwnersElsewhere: the owners of a file with a relative path are found after a change of the process's directory.
func TestOwnersElsewhere(t *testing.T) { // not parallel, because the directory belongs to the whole process
	t.Chdir(t.TempDir())
	f := open(t, "state.db", notes())
	id, leave, err := f.Join()
	must(t, err)
	elsewhere := t.TempDir()
	t.Chdir(elsewhere)
	if !lives(t, f, id) {
		t.Error("an owner that joined does not live")
	}
	must(t, leave())
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) != 0 {
		t.Errorf("in the other directory: %v, %v", entries, err)
	}
}

// TestOwnersTogether verifies concurrent calls of Join, Lives, and leave.
func TestOwnersTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	var wg sync.WaitGroup
	for range 8 {
		f := open(t, path, notes())
		wg.Go(func() {
			for range 20 {
				id, leave, err := f.Join()
				if err != nil {
					t.Error(err)
					return
				}
				if ok, err := f.Lives(id); !ok || err != nil {
					t.Errorf("Lives = %v, %v", ok, err)
				}
				if err := leave(); err != nil {
					t.Error(err)
				}
				if ok, err := f.Lives(id); ok || err != nil {
					t.Errorf("Lives after leave = %v, %v", ok, err)
				}
			}
		})
	}
	wg.Wait()
	if left := owners(t, path); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAwaitEnd: AwaitEnd notices every kind of end of an owner, and returns at once if the owner has ended.
func TestAwaitEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	f := open(t, path, notes())
	id, leave, err := f.Join()
	must(t, err)
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() { ended <- sqlitefile.AwaitEnd(t.Context(), path, id) }()
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sqlitefile.AwaitEnd(short, path, id); !errors.Is(err, context.Canceled) {
		t.Errorf("AwaitEnd of a living owner: %v", err)
	}
	if !lives(t, f, id) {
		t.Error("who is waited for does not live")
	}
	must(t, leave())
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(sqlitefile.AwaitEnd(t.Context(), path, id), sqlitefile.AwaitEnd(t.Context(), filepath.Join(t.TempDir(), "nothing"), id)); err != nil {
		t.Errorf("AwaitEnd of a dead owner: %v", err)
	}
}

// TestClaim: only one owner has a name at a time, and a dead owner loses the name.
func TestClaim(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	if _, _, err := sqlitefile.Claim(filepath.Join(t.TempDir(), "none", "state.db"), "me"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a claim where there is no directory: %v", err)
	}
	for range 2 {
		leave, held, err := sqlitefile.Claim(path, "me")
		if err != nil || held {
			t.Fatalf("held %v, %v", held, err)
		}
		if _, held, err := sqlitefile.Claim(path, "me"); !held || err != nil {
			t.Errorf("a second claim: held %v, %v", held, err)
		}
		if err := errors.Join(leave(), leave()); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(filepath.Join(path+"-owners", "me"), nil, 0o600); err != nil { // file of a dead owner
		t.Fatal(err)
	}
	leave, held, err := sqlitefile.Claim(path, "me")
	if err != nil || held {
		t.Fatalf("held %v, %v", held, err)
	}
	if err := leave(); err != nil || len(owners(t, path)) != 0 {
		t.Errorf("left: %v, %v", owners(t, path), err)
	}
}
