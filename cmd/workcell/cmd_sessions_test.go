package main

import (
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/session"
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
		"sbx_aaaa":     "could be 2", "run_twothree": "could be 2", "run_twot": "could be 2",
		"sbx_ggg": "no sandbox", "sbx_": "no sandbox", "": "no sandbox", "sbx_gggghhhhi": "no sandbox", "bo": "no sandbox", "user:box": "no sandbox",
		"0123456789ab": "no sandbox", "SBX_GGGG": "no sandbox",
	} {
		got, err := findSandbox(list, name)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.ID != want {
			t.Errorf("%q is %q, %v, want %q", name, got.ID, err, want)
		}
	}
}
