package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/transfer"
)

// TestCopyOfGrownFile verifies that a file growing after the listing is copied completely.
func TestCopyOfGrownFile(t *testing.T) {
	t.Parallel()
	_, s := ownedSandbox(t, append(testEnviron(t), "WORKCELL_BACKEND=local"))
	write := func(contents string) {
		if _, err := s.WriteFile(t.Context(), "dir/log", strings.NewReader(contents), sandbox.WriteFileOptions{Overwrite: true}); err != nil {
			t.Error(err)
		}
	}
	write("less")
	long := strings.Repeat("more than it was\n", 1000)
	dst := filepath.Join(t.TempDir(), "dst")
	if err := transfer.Out(t.Context(), s, "box:dir", "dir", dst, io.Discard, transfer.Observer{
		Progress: func(transfer.Event) { write(long) }, // called after the file was listed and before it is read
		Failed:   func(path string, reason error) { t.Errorf("%s: %v", path, reason) },
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dst, "log")); err != nil || string(got) != long {
		t.Errorf("copied %d of %d bytes, %v", len(got), len(long), err)
	}
}
