package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// pending is an unanswered call over HTTP.
type pending struct {
	hangUp context.CancelFunc
	done   chan struct{} // closed at the end of the call
	body   string        // answer, after the end of the call
	err    error
}

// start sends a call without waiting for the answer.
func (s *httpServer) start(body string, header map[string]string) *pending {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	req := newRequest(s.t, ctx, http.MethodPost, s.url(), body, header)
	p := &pending{hangUp: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		res, err := oneConnection(nil).Do(req)
		if err != nil {
			p.err = err
			return
		}
		defer res.Body.Close() // the answer was already read
		raw, err := io.ReadAll(res.Body)
		p.body, p.err = string(raw), err
	}()
	return p
}

func (p *pending) wait(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatal("the call does not end")
	}
}

// waitsForGo is a shell line that signals its start, and succeeds when the file go exists.
const waitsForGo = "touch on; until [ -e go ]; do sleep 0.05; done; touch well"

func toolCall(id int, meta, name string, args map[string]any) string {
	raw, err := json.Marshal(args)
	if err != nil {
		panic(err) // plain data
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s"name":%q,"arguments":%s}}`, id, meta, name, raw)
}

// TestR8HangUp verifies R8 over HTTP without sessions: a disconnect cancels the call.
func TestR8HangUp(t *testing.T) {
	t.Parallel()
	s := startHTTP(t)
	client := s.connect("")
	sandbox := field(t, callTool(t, client, "sandbox_open", nil), "sandbox_id")
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},`
	call := s.start(toolCall(1, meta, "sandbox_exec", map[string]any{"sandbox_id": sandbox, "command": waitsForGo, "yield_ms": 3_000_000}),
		map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "sandbox_exec"})
	has := func(name string) bool {
		return !callTool(t, client, "sandbox_fs_read", map[string]any{"sandbox_id": sandbox, "path": name}).IsError
	}
	eventually(t, "the command runs", func() bool { return has("on") })
	call.hangUp()
	call.wait(t)
	eventually(t, "the command ends", func() bool {
		return strings.Contains(text(t, callTool(t, client, "session_status", map[string]any{"session_id": sandbox})), `"running_commands":0`)
	})
	if has("well") {
		t.Error("the command was not killed")
	}
}

// TestR8CancelInASession verifies R8 over HTTP in a session: a call continues if the connection breaks, as the protocol
// requires, and ends if it is canceled.
func TestR8CancelInASession(t *testing.T) {
	t.Parallel()
	s := startHTTP(t)
	session := map[string]string{"Mcp-Session-Id": s.begin(nil)}
	id := 10
	tool := func(name string, args map[string]any) toolResult {
		t.Helper()
		id++
		status, answer, _ := s.do(http.MethodPost, toolCall(id, "", name, args), session)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", name, status, answer)
		}
		return sseResult(t, answer)
	}
	has := func(name string) bool { return !tool("sandbox_fs_read", map[string]any{"path": name}).IsError }
	tool("sandbox_open", nil)
	call := s.start(toolCall(1, "", "sandbox_exec", map[string]any{"command": waitsForGo, "yield_ms": 3_000_000}), session)
	eventually(t, "the command runs", func() bool { return has("on") })
	call.hangUp()
	call.wait(t)
	tool("sandbox_fs_write", map[string]any{"path": "go", "contents": ""})
	eventually(t, "the command ends well", func() bool { return has("well") })

	tool("sandbox_exec", map[string]any{"command": "rm on go well"})
	call = s.start(toolCall(2, "", "sandbox_exec", map[string]any{"command": waitsForGo, "yield_ms": 3_000_000}), session)
	eventually(t, "the command runs again", func() bool { return has("on") })
	status, answer, _ := s.do(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`, session)
	if status != http.StatusAccepted {
		t.Errorf("cancelling: %d %s", status, answer)
	}
	eventually(t, "the cancelled command ends", func() bool {
		return strings.Contains(string(tool("session_status", nil).Structured["sessions"]), `"running_commands":0`)
	})
	call.hangUp()
	call.wait(t)
	if has("well") {
		t.Error("the command was not killed")
	}
}
