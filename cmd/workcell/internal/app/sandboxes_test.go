package app

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestByBackend verifies that arguments are grouped by the backends of their sandboxes, even if they contain a path.
func TestByBackend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := state.Place{Dir: state.Dir(dir)}.OpenRecords(t.Context())
	checktest.Must(t, err)
	for name, engine := range map[string]string{"a": "docker-1", "b": "local-1"} {
		checktest.Must(t, store.Insert(t.Context(), record.Record{
			ID: "sbx_" + name, Key: session.UserKey(name), Engine: engine, EngineID: name, Owner: "x",
			State: record.Ready,
		}))
	}
	checktest.Must(t, store.Close())
	names := func(arg string) []string { return []string{arg, strings.Split(arg, ":")[0]} }
	a := New(Options{Env: environ.Of(nil), StateDir: dir, Config: os.DevNull})
	groups, err := a.ByBackend(t.Context(), StateNeeded, []string{"a:f", "b:g", "a"}, names)
	if diff := cmp.Diff([][]string{{"a:f", "a"}, {"b:g"}}, groups); err != nil || diff != "" {
		t.Errorf("%v, groups (-want +got):\n%s", err, diff)
	}
}

// TestFindSandbox verifies which names select a sandbox, and which are too short or ambiguous.
func TestFindSandbox(t *testing.T) {
	t.Parallel()
	info := func(id string, key session.Key) session.Info {
		return session.Info{ID: id, Key: key, Run: key.Run(), EngineID: "0123456789abcdef"}
	}
	list := []session.Info{
		info("sbx_aaaabbbb", session.UserKey("box")), info("sbx_aaaacccc", session.UserKey("sbx_ddddeeee")),
		info("sbx_ddddeeeeffff", session.WorkflowKey("run_onetwo", "default")),
		info("sbx_gggghhhh", session.WorkflowKey("run_twothree", "default")),
		info("sbx_iiiijjjj", session.WorkflowKey("run_twothree", "other")),
		info("sbx_kkkkllll", session.WorkflowKey("run_x`id`", "default")), // would run a command in a hint
	}
	for name, want := range map[string]string{
		"sbx_aaaabbbb": "sbx_aaaabbbb", "user:box:default": "sbx_aaaabbbb", "box": "sbx_aaaabbbb", "run_onetwo": "sbx_ddddeeeeffff",
		"sbx_aaaab": "sbx_aaaabbbb", "sbx_gggg": "sbx_gggghhhh", "run_onet": "sbx_ddddeeeeffff",
		"sbx_ddddeeee": "sbx_aaaacccc", // a name takes precedence over a prefix
		"sbx_aaaa":     "matches 2", "run_twothree": "matches 2", "run_twot": "matches 2",
		"sbx_ggg": "not found", "sbx_": "not found", "": "not found", "sbx_gggghhhhi": "not found", "bo": "not found", "user:box": "not found",
		"0123456789ab": "not found", "SBX_GGGG": "not found", "run_x`id": "not found",
	} {
		got, err := FindSandbox(list, name)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && got.ID != want {
			t.Errorf("%q is %q, %v, want %q", name, got.ID, err, want)
		}
	}
}
