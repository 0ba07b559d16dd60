package workflow_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
)

// TestDocumentation verifies that the examples of docs/reference/workflow-file.md are complete workflows that behave as
// documented.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	src, err := os.ReadFile("../docs/reference/workflow-file.md")
	checktest.Must(t, err)
	dir := t.TempDir()
	checktest.Must(t, os.Mkdir(filepath.Join(dir, "project"), 0o755))
	inputs := map[string]map[string]any{
		"review-and-fix": {"goal": "x"}, "ask": {"task": "t"}, "build": {"dir": "src"},
		"choose": {"files": 0, "strict": false}, "each": {"files": []any{"a", "bcd"}},
		"refuse": {"branch": "dev"}, "early": {"files": []any{}},
	}
	outputs := map[string]any{
		"review-and-fix": map[string]any{"all_passed": true}, "ask": map[string]any{"all_passed": true},
		"build":    map[string]any{"files": int64(1), "text": "made for user\n"},
		"attempts": "1\n", "choose": "none", "count": int64(3), "refuse": "went", "early": map[string]any{"done": int64(0)},
		"checks": map[string]any{"lint": "fine\n", "audit": int64(3), "failed": []any{"broken"}},
		"each":   []any{map[string]any{"file": "a", "bytes": int64(1)}, map[string]any{"file": "bcd", "bytes": int64(3)}},
	}
	agent := agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
		return workflow.AgentOutput{Output: map[string]any{"all_passed": true}}, nil
	})
	found := 0
	for _, block := range strings.Split(string(src), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		// The test engine has special images and no services.
		text = strings.NewReplacer("runtime: bash", `image: "`+image+`"`,
			`image: "python:3.11-slim"`, `image: "workcell/python:3.11"`, "services: [github]", "").Replace(text)
		wf, err := workflow.Parse(filepath.Join(dir, "docs.yaml"), []byte(text), nil)
		if err != nil {
			t.Errorf("%v\nin\n%s", err, text)
			continue
		}
		found++
		t.Run(wf.ID, func(t *testing.T) {
			t.Parallel()
			res, err := workflow.NewEngine(m, agent, nil).Run(t.Context(), wf, inputs[wf.ID])
			checktest.Must(t, err)
			if wf.ID == "where" {
				if out, _ := res.Output.(map[string]any)["stdout"].(string); !strings.HasPrefix(out, "Python 3") {
					t.Errorf("output %v", res.Output)
				}
				return
			}
			want, ok := outputs[wf.ID]
			if diff := cmp.Diff(want, res.Output); diff != "" || !ok {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	if found < 10 {
		t.Errorf("%d examples", found)
	}
}
