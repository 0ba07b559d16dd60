package tools_test

import (
	"context"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/tools"
)

// TestSnapshots verifies that an agent with snapshots can roll back the files, and that other agents do not have the
// tools.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	sh := func(line string) *ai.ToolRequest {
		return &ai.ToolRequest{Name: "sandbox_exec", Input: map[string]any{"command": line}}
	}
	named := func(tool, name string) *ai.ToolRequest {
		return &ai.ToolRequest{Name: tool, Input: map[string]any{"name": name}}
	}
	g, plugin, done, err := newExample(ctx, sh("echo one > f"), named("sandbox_snapshot", "before"), sh("echo two > f; touch more"),
		named("sandbox_rollback", "none"), named("sandbox_rollback", "before"), named("sandbox_snapshot", "../x"), named("sandbox_snapshot", "kept.x"), sh("cat f; ls"), nil)
	checktest.Must(t, err)
	defer done()
	cfg := tools.Sandbox{Mode: "code", Runtime: "bash", Image: "host", Snapshots: true}
	resp, err := genkit.Generate(ctx, g, ai.WithModelName("example/model"), ai.WithPrompt("go"), ai.WithUse(plugin.Use(cfg)), ai.WithMaxTurns(20))
	checktest.Must(t, err)
	if got := resp.Text(); got != "one\nf\n" {
		t.Errorf("after the rollback: %q", got)
	}
	outs := outputsOf(resp.Request)
	if len(outs) != 8 {
		t.Fatalf("%d calls: %v", len(outs), outs)
	}
	if list := items(outs[1]["snapshots"]); outs[1]["ok"] != true || len(list) != 1 || list[0] != "before" {
		t.Errorf("sandbox_snapshot: %v", outs[1])
	}
	if code(outs[3]) != "not_found" || outs[4]["ok"] != true || str(outs[4]["note"]) == "" || code(outs[5]) != "invalid_argument" || code(outs[6]) != "invalid_argument" {
		t.Errorf("%v, %v, %v, %v", outs[3], outs[4], outs[5], outs[6])
	}
	cfg.Snapshots = false
	without, err := plugin.Tools(ctx, cfg)
	checktest.Must(t, err)
	for _, tool := range without {
		if tool.Name() == "sandbox_snapshot" || tool.Name() == "sandbox_rollback" {
			t.Errorf("without snapshots: true there is %s", tool.Name())
		}
	}
}
