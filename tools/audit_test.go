package tools_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// decisions returns the tool calls in the audit log at path: decision and error class.
func decisions(t *testing.T, path string) (list []string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	checktest.Must(t, err)
	for line := range strings.Lines(string(raw)) {
		var r audit.Record
		checktest.Must(t, json.Unmarshal([]byte(line), &r))
		if r.Event == audit.EventTool {
			list = append(list, strings.TrimSpace(r.Decision+" "+r.Error))
		}
	}
	return list
}

// TestRefusalsAreRecorded verifies that the audit log records each refused call, no matter when it was refused, and
// even if it had been allowed to start. Other failed calls are not recorded as refused.
func TestRefusalsAreRecorded(t *testing.T) {
	t.Parallel()
	alone := codeMode()
	alone.Session = "isolated"
	for name, c := range map[string]struct {
		sandbox tools.Sandbox
		tool    string
		input   obj
		want    string
	}{
		"allowed":           {codeMode(), "sandbox_exec", obj{"command": "exit 1"}, "allowed"},
		"no such file":      {codeMode(), "sandbox_fs_read", obj{"path": "none"}, "allowed"},
		"no arguments":      {codeMode(), "sandbox_exec", obj{"command": obj{}}, "refused invalid_argument"},
		"out of its bounds": {codeMode(), "sandbox_exec", obj{"command": "true", "timeout_seconds": 1 << 40}, "refused invalid_argument"},
		"out of reach":      {alone, "sandbox_open", obj{"session_key": "other"}, "allowed, refused permission_denied"},
		"no room":           {codeMode(), "sandbox_open", obj{}, "allowed, refused capacity"},
		"too large":         {codeMode(), "sandbox_fs_write", obj{"path": "x", "contents": strings.Repeat("x", 300_001)}, "allowed, refused too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rigOf(t, session.Options{MaxSandboxes: 1, MaxFileBytes: 300_000}, fstest.MapFS{})
			if name == "no room" {
				r.tools(codeMode()).ok("sandbox_open", nil)
			}
			path := filepath.Join(t.TempDir(), "audit")
			log, err := audit.Open(path, audit.Options{})
			checktest.Must(t, err)
			r.tools(c.sandbox).call(audit.NewContext(t.Context(), log), c.tool, c.input)
			checktest.Must(t, log.Close())
			if got := strings.Join(decisions(t, path), ", "); got != c.want {
				t.Errorf("on record: %s, want %s", got, c.want)
			}
		})
	}
}
