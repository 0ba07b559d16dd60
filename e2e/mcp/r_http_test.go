package mcp_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/mcpserver"
)

const (
	aliceToken = "alice-0123456789abcdef"
	bobToken   = "bob-0123456789abcdef"
	oldToken   = "old-0123456789abcdef"
)

// TestR2OversizedOnHTTP verifies R2 over HTTP: an overlong body is refused, with and without an announced length.
func TestR2OversizedOnHTTP(t *testing.T) {
	t.Parallel()
	s := startHTTP(t)
	header := "POST /mcp HTTP/1.1\r\nHost: " + s.addr + "\r\n"
	const most = mcpserver.MaxMessageBytes
	if line := s.raw(header + fmt.Sprintf("Content-Length: %d\r\n\r\n", most+1)); !strings.Contains(line, "413") {
		// Refused without waiting for the body.
		t.Errorf("announced: %q", line)
	}
	chunk := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s", most+1, strings.Repeat(" ", most+1))
	if line := s.raw(header + chunk); !strings.Contains(line, "413") {
		t.Errorf("not announced: %q", line)
	}
	if line := s.raw(header + "X-Long: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"); !strings.Contains(line, "431") {
		t.Errorf("long header: %q", line)
	}
	if status, _, _ := doTo(t, http.MethodGet, "http://"+s.addr+"/healthz", "", nil); status != http.StatusOK {
		t.Errorf("health: %d", status)
	}
}

// TestR3OriginAndHost verifies R3: only the server's own pages and allowed pages may use the server, and only under the
// server's host names. Other hosts need tokens.
func TestR3OriginAndHost(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, "--allow-origin", "https://app.example", "--allow-host", "box.example")
	port := s.addr[strings.LastIndex(s.addr, ":"):]
	for _, tc := range []struct {
		header map[string]string
		want   int
	}{
		{nil, 200},
		{map[string]string{"Origin": "http://" + s.addr}, 200},
		{map[string]string{"Origin": "https://app.example"}, 200},
		{map[string]string{"Host": "localhost" + port}, 200},
		{map[string]string{"Host": "[::1]" + port}, 200},
		{map[string]string{"Host": "box.example"}, 200},
		{map[string]string{"Host": "BOX.example:99"}, 200},
		{map[string]string{"Origin": "null"}, 403},
		{map[string]string{"Origin": "https://evil.example"}, 403},
		{map[string]string{"Origin": "https://app.example.evil.example"}, 403},
		{map[string]string{"Origin": "http://localhost:1"}, 403},
		{map[string]string{"Host": "evil.example"}, 403},
		{map[string]string{"Host": "evil.example" + port}, 403},
		{map[string]string{"Host": "localhost.evil.example"}, 403},
		{map[string]string{"Host": "127.0.0.1.evil.example"}, 403},
	} {
		if status, body, _ := s.do(http.MethodPost, initializeBody, tc.header); status != tc.want {
			t.Errorf("%v: %d %.100s, want %d", tc.header, status, body, tc.want)
		}
	}
	_, _, got := s.do(http.MethodPost, initializeBody, map[string]string{"Origin": "https://app.example"})
	if got.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("headers for the page: %v", got)
	}
	if status, _, _ := s.do(http.MethodOptions, "", map[string]string{"Origin": "https://app.example"}); status != http.StatusNoContent {
		t.Errorf("preflight: %d", status)
	}
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
		if code, stderr := usage(t, nil, "--transport", "http", "--listen", listen); code != 2 || !strings.Contains(stderr, "--token-file") {
			t.Errorf("%s without tokens: %d %s", listen, code, stderr)
		}
	}
}

// TestR4Owners verifies R4: a missing, wrong, or expired token is refused. A session belongs to the creator, and an
// ended session is gone.
func TestR4Owners(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, "--token-file", tokenFile(t, "# clients", "alice "+aliceToken, "bob "+bobToken+" 2199-01-01T00:00:00Z", "old "+oldToken+" 2001-01-01T00:00:00Z"))
	for name, header := range map[string]map[string]string{
		"absent": nil, "wrong": bearer("nobody-0123456789abcdef"), "empty": {"Authorization": "Bearer "}, "expired": bearer(oldToken),
		"basic": {"Authorization": "Basic " + aliceToken}, "prefix": bearer(aliceToken[:len(aliceToken)-1]),
	} {
		status, body, got := s.do(http.MethodPost, initializeBody, header)
		if status != http.StatusUnauthorized || !strings.HasPrefix(got.Get("WWW-Authenticate"), "Bearer") || strings.Contains(body, aliceToken) {
			t.Errorf("%s: %d %s %v", name, status, body, got)
		}
	}
	if status, _, _ := doTo(t, http.MethodGet, "http://"+s.addr+"/healthz", "", nil); status != http.StatusOK {
		t.Errorf("health needs a token: %d", status)
	}
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	id := s.begin(bearer(aliceToken))
	own := with(bearer(aliceToken), "Mcp-Session-Id", id)
	if status, _, _ := s.do(http.MethodPost, ping, own); status != http.StatusOK {
		t.Errorf("own session: %d", status)
	}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		if status, _, _ := s.do(method, ping, with(bearer(bobToken), "Mcp-Session-Id", id)); status != http.StatusForbidden {
			t.Errorf("%s in another's session: %d", method, status)
		}
	}
	if status, _, _ := s.do(http.MethodPost, ping, with(bearer(aliceToken), "Mcp-Session-Id", "forged")); status != http.StatusNotFound {
		t.Errorf("forged session: %d", status)
	}
	if status, _, _ := s.do(http.MethodDelete, "", own); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	if status, _, _ := s.do(http.MethodPost, ping, own); status != http.StatusNotFound {
		t.Errorf("session after its end: %d", status)
	}
}

// TestR4SandboxesOfOthers verifies R4: a client cannot access sandboxes of another owner or session, with any protocol
// revision. The error for such an id is the same as for an unknown id.
func TestR4SandboxesOfOthers(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, "--token-file", tokenFile(t, "alice "+aliceToken, "bob "+bobToken))
	alice, bob := s.connect(aliceToken), s.connect(bobToken)
	if v := alice.InitializeResult().ProtocolVersion; v != "2026-07-28" {
		t.Fatalf("the client speaks %s", v)
	}
	sandbox := field(t, callTool(t, alice, "sandbox_open", nil), "sandbox_id")
	callTool(t, alice, "sandbox_fs_write", map[string]any{"sandbox_id": sandbox, "path": "secret", "contents": "x"})
	unknown := callTool(t, bob, "sandbox_fs_read", map[string]any{"sandbox_id": "sbx_" + strings.Repeat("a", 26), "path": "secret"})
	others := callTool(t, bob, "sandbox_fs_read", map[string]any{"sandbox_id": sandbox, "path": "secret"})
	if !others.IsError || text(t, others) != text(t, unknown) {
		t.Errorf("another's sandbox: %s\nunknown: %s", text(t, others), text(t, unknown))
	}
	for _, tool := range []string{"get_files", "session_status", "cleanup_session"} {
		if res := callTool(t, bob, tool, map[string]any{"session_id": sandbox}); !res.IsError || !strings.Contains(text(t, res), "not_found") {
			t.Errorf("%s: %s", tool, text(t, res))
		}
	}
	if _, err := bob.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://" + sandbox + "/secret"}); err == nil {
		t.Error("another's file was read as a resource")
	}
	if list, err := bob.ListResources(t.Context(), nil); err != nil || len(list.Resources) != 0 {
		t.Errorf("resources of another: %v %v", list, err)
	}
	res := callTool(t, alice, "sandbox_exec", map[string]any{"command": "true"})
	if !res.IsError || !strings.Contains(text(t, res), "sandbox_id is required") {
		t.Errorf("without a handle: %s", text(t, res))
	}
	second := field(t, callTool(t, alice, "sandbox_open", nil), "sandbox_id")
	if second == sandbox {
		t.Error("two conversations got one sandbox")
	}
	named := map[string]any{"session_key": "shared"}
	if a, b := field(t, callTool(t, alice, "sandbox_open", named), "sandbox_id"), field(t, callTool(t, alice, "sandbox_open", named), "sandbox_id"); a != b {
		t.Errorf("the name gave %s and %s", a, b)
	}
	if a, b := field(t, callTool(t, alice, "sandbox_open", named), "sandbox_id"), field(t, callTool(t, bob, "sandbox_open", named), "sandbox_id"); a == b {
		t.Error("the name of one owner led to the sandbox of another")
	}
	// Two sessions of one owner with an older revision.
	sandboxOf := func(id string) string {
		body := `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"sandbox_open","arguments":{}}}`
		status, answer, _ := s.do(http.MethodPost, body, with(bearer(aliceToken), "Mcp-Session-Id", id))
		if status != http.StatusOK {
			t.Fatalf("sandbox_open: %d %s", status, answer)
		}
		return sseResult(t, answer).text(t, "sandbox_id")
	}
	one, two := s.begin(bearer(aliceToken)), s.begin(bearer(aliceToken))
	boxOne, boxTwo := sandboxOf(one), sandboxOf(two)
	if boxOne == boxTwo || boxOne != sandboxOf(one) {
		t.Errorf("sandboxes of two sessions: %s, %s", boxOne, boxTwo)
	}
	if status, _, _ := s.do(http.MethodDelete, "", with(bearer(aliceToken), "Mcp-Session-Id", one)); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"sandbox_exec","arguments":{"sandbox_id":%q,"command":"true"}}}`, boxOne)
	if _, answer, _ := s.do(http.MethodPost, body, with(bearer(aliceToken), "Mcp-Session-Id", two)); sseResult(t, answer).errorCode() != "not_found" {
		t.Errorf("a sandbox of a session that is over: %s", answer)
	}
}

// TestR4HandlesWithoutTokens: without tokens, only sandbox ids give access. Names are refused, and nothing is listed.
func TestR4HandlesWithoutTokens(t *testing.T) {
	t.Parallel()
	s := startHTTP(t)
	one, two := s.connect(""), s.connect("")
	sandbox := field(t, callTool(t, one, "sandbox_open", nil), "sandbox_id")
	if res := callTool(t, one, "sandbox_exec", map[string]any{"sandbox_id": sandbox, "command": "echo hi"}); field(t, res, "stdout") != "hi\n" {
		t.Errorf("own sandbox: %s", text(t, res))
	}
	if other := field(t, callTool(t, two, "sandbox_open", nil), "sandbox_id"); other == sandbox {
		t.Error("two clients got one sandbox")
	}
	for tool, args := range map[string]map[string]any{
		"sandbox_open": {"session_key": "mine"}, "session_status": nil, "get_files": nil, "sandbox_fs_list": nil, "sandbox_close": nil,
	} {
		if res := callTool(t, two, tool, args); !res.IsError || !strings.Contains(text(t, res), "invalid_argument") {
			t.Errorf("%s: %s", tool, text(t, res))
		}
	}
	if list, err := two.ListResources(t.Context(), nil); err != nil || len(list.Resources) != 0 {
		t.Errorf("resources: %v %v", list, err)
	}
}

// TestR12OddRequests verifies R12: all requests except plain requests for one of the two paths are refused.
func TestR12OddRequests(t *testing.T) {
	t.Parallel()
	s := startHTTP(t)
	host := "Host: " + s.addr + "\r\n"
	for _, tc := range []struct{ name, request string }{
		{"double slash", "POST //mcp HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n"},
		{"dots", "GET /x/../healthz HTTP/1.1\r\n" + host + "\r\n"},
		{"encoded slash", "GET /%2fhealthz HTTP/1.1\r\n" + host + "\r\n"},
		{"encoded dots", "GET /mcp/%2e%2e/healthz HTTP/1.1\r\n" + host + "\r\n"},
		{"other path", "GET / HTTP/1.1\r\n" + host + "\r\n"},
		{"below", "POST /mcp/x HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n"},
		{"TRACE", "TRACE /mcp HTTP/1.1\r\n" + host + "\r\n"},
		{"PUT", "PUT /mcp HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n"},
		{"CONNECT", "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n"},
		{"proxy", "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n"},
		{"proxy to itself", "GET http://" + s.addr + "/healthz HTTP/1.1\r\n" + host + "\r\n"},
		{"HTTP/1.0", "GET /healthz HTTP/1.0\r\n\r\n"},
		{"two hosts", "GET /healthz HTTP/1.1\r\n" + host + host + "\r\n"},
		{"no host", "GET /healthz HTTP/1.1\r\n\r\n"},
		{"two lengths", "POST /mcp HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"},
		{"odd encoding", "POST /mcp HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n"},
		{"odd chunk", "POST /mcp HTTP/1.1\r\n" + host + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"},
		{"h2c", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
		{"blank in header", "GET /healthz HTTP/1.1\r\nHost : " + s.addr + "\r\n\r\n"},
	} {
		line := s.raw(tc.request)
		if !strings.HasPrefix(line, "HTTP/1.1 4") && !strings.HasPrefix(line, "HTTP/1.0 4") && !strings.HasPrefix(line, "HTTP/1.1 5") {
			t.Errorf("%s: %q", tc.name, line)
		}
	}
	// An unsupported upgrade is ignored, as the protocol requires.
	if line := s.raw("GET /healthz HTTP/1.1\r\n" + host + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"); line != "HTTP/1.1 200 OK" {
		t.Errorf("h2c upgrade: %q", line)
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	must(t, z.Close())
	if status, _, _ := s.do(http.MethodPost, bomb.String(), map[string]string{"Content-Encoding": "gzip"}); status != http.StatusUnsupportedMediaType {
		t.Errorf("gzip: %d", status)
	}
	if status, _, _ := s.do(http.MethodPost, initializeBody, map[string]string{"Content-Type": "text/plain"}); status != http.StatusUnsupportedMediaType {
		t.Errorf("text/plain, which a web page may send unasked: %d", status)
	}
	if status, _, _ := s.do(http.MethodPost, "", nil); status != http.StatusBadRequest {
		t.Errorf("no body: %d", status)
	}
}

// callTool calls a tool with an SDK client.
func callTool(t *testing.T, cs *mcp.ClientSession, name string, args map[string]any) *mcp.CallToolResult {
	t.Helper()
	if args == nil {
		args = map[string]any{}
	}
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return res
}

func text(t *testing.T, res *mcp.CallToolResult) string {
	t.Helper()
	if len(res.Content) != 1 {
		t.Fatalf("%d contents", len(res.Content))
	}
	c, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("content of type %T", res.Content[0])
	}
	return c.Text
}

// field returns a field of a successful result.
func field(t *testing.T, res *mcp.CallToolResult, name string) string {
	t.Helper()
	m, _ := res.StructuredContent.(map[string]any)
	s, ok := m[name].(string)
	if res.IsError || !ok {
		t.Fatalf("no %s in %s", name, text(t, res))
	}
	return s
}

// sseResult returns the result in an answer of server-sent events.
func sseResult(t *testing.T, answer string) toolResult {
	t.Helper()
	for line := range strings.Lines(answer) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		var m message
		if json.Unmarshal([]byte(data), &m) == nil && m.Result != nil {
			return decodeResult(t, m)
		}
	}
	t.Fatalf("no result in %s", answer)
	return toolResult{}
}
