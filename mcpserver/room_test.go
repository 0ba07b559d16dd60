package mcpserver_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
)

// callStateless calls a tool in a request without a session.
func callStateless(t *testing.T, url, tool, args string) result {
	t.Helper()
	raw, err := poster{t: t, url: url}.call(1, tool, args)
	checktest.Must(t, err)
	text := raw[max(strings.Index(raw, "{"), 0):] // JSON, or an event with JSON
	var answer struct {
		Result struct{ StructuredContent map[string]any }
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Result.StructuredContent == nil {
		t.Fatalf("%s: %s %v", tool, raw, err)
	}
	return result{fields: answer.Result.StructuredContent}
}

// TestIdleSandboxIsReplaced verifies that the oldest idle sandbox of a client without a session is closed if the
// sandbox limit is reached. Sandboxes with a running command are not closed. If no sandbox is idle, the error suggests
// a remedy.
func TestIdleSandboxIsReplaced(t *testing.T) {
	t.Parallel()
	m := newManagerWith(t, &session.Options{MaxSandboxes: 2})
	s := newServer(t, m, nil)
	s.SetSpareAfter(0)
	url := serveHTTP(t, s)
	busy := callStateless(t, url, "sandbox_open", `{}`).text("sandbox_id")
	if code, text := callStateless(t, url, "sandbox_exec", `{"sandbox_id":"`+busy+`","command":"sleep 250","stream":true}`).failure(); code != "" {
		t.Fatal(code, text)
	}
	left := callStateless(t, url, "sandbox_open", `{}`).text("sandbox_id")
	if code, text := callStateless(t, url, "sandbox_open", `{}`).failure(); code != "" {
		t.Fatalf("a new client: %s %s", code, text)
	}
	for id, want := range map[string]string{busy: "", left: "closed"} {
		if code, text := callStateless(t, url, "sandbox_fs_list", `{"sandbox_id":"`+id+`"}`).failure(); code != want {
			t.Errorf("%s: %s %s, want %q", id, code, text, want)
		}
	}
	s.SetSpareAfter(time.Hour)
	full := callStateless(t, url, "sandbox_open", `{}`)
	if code, _ := full.failure(); code != "capacity" || !strings.Contains(fmt.Sprint(full.fields["error"]), "sandbox_close") {
		t.Errorf("with none to spare: %v", full.fields)
	}
}

// TestAnswerSizes verifies that a result is not longer than the size that clients pass to their models, and it includes
// the position to continue reading.
func TestAnswerSizes(t *testing.T) {
	t.Parallel()
	cs := connect(t, newServer(t, newManager(t), &mcpserver.Options{}), nil)
	r := must(t, cs, "sandbox_exec", map[string]any{"command": "seq 1 10000 | tee f"})
	if n := len(r.text("stdout")); n > 10_000 || n < 5_000 || r.fields["truncated"] != true {
		t.Errorf("%d characters of output, truncated %v", n, r.fields["truncated"])
	}
	r = must(t, cs, "sandbox_run", map[string]any{"code": "print('x\\n' * 20000)"})
	if n := len(r.text("stdout")); n > 10_000 || n < 5_000 {
		t.Errorf("%d characters of a program's output", n)
	}
	r = must(t, cs, "sandbox_fs_read", map[string]any{"path": "f"})
	if n := len(r.text("contents")); n != 10_000 || r.fields["next_offset"] != 10_000.0 {
		t.Errorf("%d characters of a file, next_offset %v", n, r.fields["next_offset"])
	}
	if n := len(must(t, cs, "sandbox_fs_read", map[string]any{"path": "f", "max_bytes": 20_000}).text("contents")); n != 20_000 {
		t.Errorf("%d characters, requested 20000", n)
	}
}
