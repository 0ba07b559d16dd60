package mcpserver_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
)

// TestIDs verifies that only the complete, unchanged id of the caller's own sandbox selects a sandbox, and no id opens
// a new sandbox.
func TestIDs(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	cs := connect(t, newServer(t, m, nil), nil)
	sandbox := must(t, cs, "sandbox_open", nil).text("sandbox_id")
	list, err := m.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("sandboxes %v, %v", list, err)
	}
	engine := list[0].EngineID
	for _, id := range []string{
		engine, engine[:12], "workcell-" + sandbox, sandbox[:len(sandbox)-1], sandbox + "x", strings.ToUpper(sandbox), " " + sandbox, sandbox + "\x00", sandbox + "/..", "../" + sandbox,
		list[0].Key.String(), "mcp:" + sandbox, strings.Repeat("a", 10<<10), "sbx_" + strings.Repeat("\n", 26), "*",
	} {
		for tool, args := range map[string]map[string]any{
			"sandbox_exec": {"sandbox_id": id, "command": "true"}, "sandbox_fs_list": {"sandbox_id": id}, "sandbox_close": {"sandbox_id": id},
			"get_files": {"session_id": id}, "session_status": {"session_id": id}, "cleanup_session": {"session_id": id},
		} {
			if code, message := do(t, cs, tool, args).failure(); code != "not_found" || strings.Contains(message, engine[:12]) {
				t.Errorf("%s %.40q: %s %s", tool, id, code, message)
			}
		}
	}
	for _, name := range []string{"a:b", "../x", "a/b", "a\x00b", "a\nb", strings.Repeat("a", 10<<10), "é"} {
		if code, _ := do(t, cs, "sandbox_open", map[string]any{"session_key": name}).failure(); code != "invalid_argument" {
			t.Errorf("session_key %.40q: %s", name, code)
		}
	}
	must(t, cs, "cleanup_session", map[string]any{"session_id": sandbox})
	for tool, args := range map[string]map[string]any{
		"sandbox_exec": {"sandbox_id": sandbox, "command": "true"}, "get_files": {"session_id": sandbox}, "session_status": {"session_id": sandbox},
	} {
		if code, _ := do(t, cs, tool, args).failure(); code != "closed" {
			t.Errorf("%s of a sandbox that is closed: %s", tool, code)
		}
	}
	if n := sandboxes(t, m); n != 0 {
		t.Errorf("%d sandboxes", n)
	}
}

// TestRefusedIDsAreLogged verifies that requests for foreign sandboxes are logged, and requests for the caller's own
// sandboxes are not.
func TestRefusedIDsAreLogged(t *testing.T) {
	t.Parallel()
	var log lines
	m := newManagerWith(t, &session.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s := newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m)})
	mine, others := connect(t, s, nil), connect(t, s, nil)
	must(t, mine, "execute_task", map[string]any{"task": "shell", "input": "true", "session_id": "work"})
	list, err := m.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("sandboxes %v, %v", list, err)
	}
	sandbox := list[0].ID
	must(t, mine, "session_status", map[string]any{"session_id": sandbox})
	must(t, mine, "get_files", map[string]any{"session_id": sandbox})
	if got := log.with("refused a sandbox ID"); got != 0 {
		t.Errorf("%d lines on what is the caller's own", got)
	}
	for i, tool := range []string{"session_status", "get_files", "cleanup_session"} {
		if code, _ := do(t, others, tool, map[string]any{"session_id": sandbox}).failure(); code != "not_found" {
			t.Errorf("%s: %s", tool, code)
		}
		if got := log.with(sandbox); got != i+1 {
			t.Errorf("%s: %d lines in the log, want %d", tool, got, i+1)
		}
	}
}

// lines is a log that counts refusals.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// with returns the number of refusals with a text.
func (l *lines) with(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, "refused a sandbox ID of another scope") && strings.Contains(line, text) {
			n++
		}
	}
	return n
}
