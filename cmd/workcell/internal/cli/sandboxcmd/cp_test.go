package sandboxcmd

import (
	"testing"

	"github.com/workcell-dev/workcell/session"
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
