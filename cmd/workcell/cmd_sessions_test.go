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

// TestFindSandbox: what a person may call a sandbox, and what is too little or too much.
func TestFindSandbox(t *testing.T) {
	t.Parallel()
	info := func(id string, key session.Key) session.Info {
		return session.Info{ID: id, Key: key, Run: key.Run(), EngineID: "0123456789abcdef"}
	}
	list := []session.Info{
		info("sbx_aaaabbbb", session.UserKey("box")),
		info("sbx_aaaacccc", session.UserKey("sbx_ddddeeee")),
		info("sbx_ddddeeeeffff", session.WorkflowKey("run_onetwo", "default")),
		info("sbx_gggghhhh", session.WorkflowKey("run_twothree", "default")),
		info("sbx_iiiijjjj", session.WorkflowKey("run_twothree", "other")),
	}
	for name, want := range map[string]string{
		"sbx_aaaabbbb": "sbx_aaaabbbb", "user:box:default": "sbx_aaaabbbb", "box": "sbx_aaaabbbb", "run_onetwo": "sbx_ddddeeeeffff",
		"sbx_aaaab": "sbx_aaaabbbb", "sbx_gggg": "sbx_gggghhhh", "run_onet": "sbx_ddddeeeeffff",
		"sbx_ddddeeee": "sbx_aaaacccc", // a name goes before a beginning
		"sbx_aaaa":     "matches 2", "run_twothree": "matches 2", "run_twot": "matches 2",
		"sbx_ggg": "not found", "sbx_": "not found", "": "not found", "sbx_gggghhhhi": "not found", "bo": "not found", "user:box": "not found",
		"0123456789ab": "not found", "SBX_GGGG": "not found",
	} {
		got, err := findSandbox(list, name)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.ID != want {
			t.Errorf("%q is %q, %v, want %q", name, got.ID, err, want)
		}
	}
}

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
