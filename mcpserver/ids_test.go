package mcpserver_test

import (
	"strings"
	"testing"
)

// TestIDs: only an id that the caller's own sandbox has, whole and as it was given out, leads to a sandbox, and none leads
// to a new one.
func TestIDs(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	cs := connect(t, newServer(t, m, nil), nil)
	box := must(t, cs, "sandbox_open", nil).text("sandbox_id")
	list, err := m.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("sandboxes %v, %v", list, err)
	}
	engine := list[0].EngineID
	for _, id := range []string{
		engine, engine[:12], "workcell-" + box, box[:len(box)-1], box + "x", strings.ToUpper(box), " " + box, box + "\x00", box + "/..", "../" + box,
		list[0].Key.String(), "mcp:" + box, strings.Repeat("a", 10<<10), "sbx_" + strings.Repeat("\n", 26), "*",
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
	must(t, cs, "cleanup_session", map[string]any{"session_id": box})
	for tool, args := range map[string]map[string]any{
		"sandbox_exec": {"sandbox_id": box, "command": "true"}, "get_files": {"session_id": box}, "session_status": {"session_id": box},
	} {
		if code, _ := do(t, cs, tool, args).failure(); code != "closed" {
			t.Errorf("%s of a sandbox that is closed: %s", tool, code)
		}
	}
	if n := sandboxes(t, m); n != 0 {
		t.Errorf("%d sandboxes", n)
	}
}
