package memory_test

import (
	"context"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/memory"
)

// TestLifecycle verifies that a sandbox has the same lifecycle as on a real engine. A script answers the commands of
// the suite from the suite's files.
func TestLifecycle(t *testing.T) {
	b, err := memory.New(&memory.Options{Images: []string{image}})
	must(t, err)
	b.Script(func(c memory.Command) (memory.Answer, bool) {
		switch line := c.Line(); {
		case strings.HasPrefix(line, "echo kept > /workspace/f"):
			return memory.Answer{Files: map[string]string{"/workspace/f": "kept\n"}}, true
		case line == "echo still here":
			return memory.Answer{Stdout: "still here\n"}, true
		case strings.HasPrefix(line, "cat /workspace/f"):
			text, _ := c.File("/workspace/f")
			if strings.Contains(line, "stat -c %u /workspace") {
				text += "1000\n"
			}
			return memory.Answer{Stdout: text}, true
		}
		return memory.Answer{}, false
	})
	backendtest.RunGroups(t, backendtest.Harness{
		Name: "memory", Debian: image, Python: image, Images: &backendtest.Images{},
		New: func(testing.TB) backend.SandboxBackend { return b.Reopen() },
		Leftovers: func(ctx context.Context, instance string) ([]string, error) {
			list, err := b.List(ctx, backend.Filter{Instance: instance})
			var ids []string
			for _, i := range list {
				ids = append(ids, i.ID)
			}
			return ids, err
		},
		Vanish: func(ctx context.Context, id string) error {
			return b.Remove(ctx, id, backend.RemoveOptions{})
		},
		Describe: func(context.Context, string) (string, error) { return "", nil },
		Foreign:  func(testing.TB, map[string]string) []string { return nil },
	}, "lifecycle")
}
