package app

import (
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/session"
)

// TestFindSandbox verifies which names select a sandbox, and which are too short or ambiguous.
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
		"sbx_ddddeeee": "sbx_aaaacccc", // a name takes precedence over a prefix
		"sbx_aaaa":     "matches 2", "run_twothree": "matches 2", "run_twot": "matches 2",
		"sbx_ggg": "not found", "sbx_": "not found", "": "not found", "sbx_gggghhhhi": "not found", "bo": "not found", "user:box": "not found",
		"0123456789ab": "not found", "SBX_GGGG": "not found",
	} {
		got, err := FindSandbox(list, name)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.ID != want {
			t.Errorf("%q is %q, %v, want %q", name, got.ID, err, want)
		}
	}
}
