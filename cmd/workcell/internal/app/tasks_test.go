package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/workflow"
)

// TestMCPLeavesBadFilesOut: a file that is wrong keeps the server from none of the others.
func TestMCPLeavesBadFilesOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good.prompt": "---\nmodel: x/y\n---\nWork.", "bad.prompt": "---\nmodel: x/y\nsandbox: {mode: cod}\n---\nWork.",
		"fine.yaml": "id: fine\nsteps: [{id: a, type: end}]\n", "wrong.yaml": "id: wrong\nsteps:\n  - {id: a, type: endd}\n  - {id: b}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stderr strings.Builder
	r, err := New(Options{Stderr: &stderr}).TaskRunner(nil, nil, dir, dir, CodingTasks{})
	if err != nil {
		t.Fatal(err)
	}
	tasks := r.List()
	if len(tasks) != 2 || tasks[0].Name != "fine" || tasks[1].Name != "good" {
		t.Errorf("tasks %v", tasks)
	}
	for _, want := range []string{"bad.prompt:3:17: ", "wrong.yaml:3:19: ", "wrong.yaml:4:5: "} {
		if !strings.Contains(stderr.String(), "workcell: warning: skipped: "+filepath.Join(dir, want)) {
			t.Errorf("%s is missing in:\n%s", want, stderr.String())
		}
	}
}

// TestTaskError verifies that clients see the class of a failure and no path of the server.
func TestTaskError(t *testing.T) {
	t.Parallel()
	secret := errors.New("open /srv/secret/plan.yaml: no such file")
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"unknown":   {secret, "internal: the task failed"},
		"class":     {fmt.Errorf("%w: %w", backend.ErrNoRoom, secret), "quota_exceeded: the task failed"},
		"step":      {&workflow.Error{Step: "fix", Where: "/srv/secret/a.yaml:1:2", Code: "expression", Message: secret.Error()}, "internal: step fix failed: expression"},
		"fail step": {&workflow.Error{Step: "stop", Code: "failed", Message: "nothing to do"}, "internal: nothing to do"},
		"budget":    {fmt.Errorf("%w: %w", executor.ErrBudget, secret), "quota_exceeded: the task's budget is used up"},
	} {
		if got := taskError(tc.err); got.Error() != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
}
