package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

func TestSplitSandboxPath(t *testing.T) {
	t.Parallel()
	list := []session.Info{
		{ID: "sbx_1", Key: session.UserKey("box")},
		{ID: "sbx_2", Key: session.UserKey("user")},
		{ID: "sbx_3", Key: session.WorkflowKey("run_1", "default"), Run: "run_1"},
	}
	for arg, want := range map[string]string{
		"box:a":              "sbx_1 a",
		"box:":               "sbx_1 ",
		"box:a:b":            "sbx_1 a:b",
		"user:box:default:a": "sbx_1 a",
		"user:box:a":         "sbx_2 box:a",
		"sbx_2:/workspace/x": "sbx_2 /workspace/x",
		"run_1:x":            "sbx_3 x",
	} {
		info, path, err := splitSandboxPath(list, arg)
		if got := info.ID + " " + path; err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", arg, got, err, want)
		}
	}
	for arg, want := range map[string]bool{
		"box:a": true, "box:": true, "./a:b": false, "../a:b": false, "-": false, "a": false, ".": false,
	} {
		if inSandbox(arg) != want {
			t.Errorf("inSandbox(%q) = %t", arg, !want)
		}
	}
}

// TestCopyOfGrownFile: what a file of a sandbox has more than it had when it was listed is copied, too.
func TestCopyOfGrownFile(t *testing.T) {
	t.Parallel()
	_, s := ownedSandbox(t, append(testEnviron(t), "WORKCELL_BACKEND=local"))
	write := func(contents string) {
		if _, err := s.WriteFile(t.Context(), "dir/log", strings.NewReader(contents), session.WriteFileOptions{Overwrite: true}); err != nil {
			t.Error(err)
		}
	}
	write("less")
	long := strings.Repeat("more than it was\n", 1000)
	dst := filepath.Join(t.TempDir(), "dst")
	if err := transfer.Out(t.Context(), s, "box:dir", "dir", dst, io.Discard, transfer.Observer{
		Progress: func(transfer.Event) { write(long) }, // it was listed, and is read next
		Failed:   func(path string, reason error) { t.Errorf("%s: %v", path, reason) },
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dst, "log")); err != nil || string(got) != long {
		t.Errorf("copied %d of %d bytes, %v", len(got), len(long), err)
	}
}
