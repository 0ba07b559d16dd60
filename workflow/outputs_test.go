package workflow_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/workflow"
)

// TestOutputsAndPatch verifies that the result of a run contains the outputs and patch, whether the run succeeded or
// failed, and that no files stay on the host.
func TestOutputsAndPatch(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	dir := t.TempDir()
	for name, content := range map[string]string{"a.txt": "old\n", "gone": "x\n"} {
		checktest.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	for _, c := range []struct{ end, outcome, where, message string }{
		{"exit 0", "succeeded", "", ""},
		{"exit 3", "failed", "", "the command exited with code 3"},
		{"head -c 3000000 /dev/zero > .gitignore", "failed", "", "cannot list the changes in the workspace: "},
		{"echo e > .gitignore; mkdir e; cd e; seq 10001 | xargs touch", "failed", "", "cannot collect output e: too large"},
		{"rm r.csv", "failed", "test.yaml:2:11", "missing outputs: r.csv not found in the workspace"},
	} {
		wf := parse(t, `id: w
outputs: [r.csv, "d/**", "none?", "e/*.png?"]
sandbox: {image: "`+image+`"}
steps:
  - {id: make, type: exec, command: "echo new > a.txt; rm gone; mkdir d; echo csv > r.csv; echo y > d/f"}
  - {id: other, type: exec, command: "echo other > r.csv", sandbox: other}
  - {id: end, type: exec, command: "`+c.end+`"}
`)
		results := t.TempDir()
		res, err := workflow.NewEngine(m, nil, &workflow.Options{Workspace: dir, Results: results}).Run(t.Context(), wf, nil)
		if res == nil || string(res.Outcome) != c.outcome || (err == nil) != (c.outcome == "succeeded") {
			t.Fatalf("%s: %+v, %v", c.end, res, err)
		}
		var we *workflow.Error
		if errors.As(err, &we) && (we.Where != c.where || !strings.HasPrefix(we.Message, c.message)) {
			t.Errorf("%s: %v", c.end, err)
		}
		want := patch.Tree{"r.csv": {Mode: 0o644, Content: []byte("csv\n")}, "d/f": {Mode: 0o644, Content: []byte("y\n")}}
		changed := "4 files changed, 3 insertions(+), 2 deletions(-)"
		if c.end == "rm r.csv" {
			delete(want, "r.csv")
		}
		if diff := cmp.Diff(want, res.Outputs); diff != "" {
			t.Errorf("%s: outputs (-want +got):\n%s", c.end, diff)
		}
		if !slices.Equal(res.Missing, []string{"none", "e/*.png"}) || res.Patch != nil && res.Workspace != dir {
			t.Errorf("%s: missing %v, of %s", c.end, res.Missing, res.Workspace)
		}
		if c.outcome == "succeeded" && res.Patch.Stat().String() != changed {
			t.Errorf("%s: %s", c.end, res.Patch.Stat())
		}
		raw, err := json.Marshal(res)
		if err != nil || c.outcome == "succeeded" && !strings.Contains(string(raw), `"outputs":["d/f","r.csv"],"patch":{"files":`) {
			t.Errorf("%s, %v", raw, err)
		}
		kept, err := filepath.Glob(filepath.Join(results, res.RunID, "*"))
		if err != nil || len(kept) != 1 || filepath.Base(kept[0]) != "made.zip" {
			t.Errorf("%s: kept is %v, %v", c.end, kept, err)
		}
	}
}
