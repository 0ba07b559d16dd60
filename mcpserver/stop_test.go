package mcpserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
)

// poster sends messages to an HTTP server.
type poster struct {
	t       *testing.T
	url     string
	session string // for revisions with sessions
}

// send returns the answer and the id of a started session.
func (p poster) send(message string) (answer, session string, err error) {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.url, strings.NewReader(message))
	if err != nil {
		return "", "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if p.session != "" {
		req.Header.Set("Mcp-Session-Id", p.session)
	}
	if p.session == "" && strings.Contains(message, "tools/call") {
		req.Header.Set("Mcp-Protocol-Version", "2026-07-28")
		req.Header.Set("Mcp-Method", "tools/call")
		req.Header.Set("Mcp-Name", regexp.MustCompile(`"name":"(\w+)"`).FindStringSubmatch(message)[1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return "", "", err
	}
	defer res.Body.Close() // the answer was already read
	raw, err := io.ReadAll(res.Body)
	return string(raw), res.Header.Get("Mcp-Session-Id"), err
}

// call calls a tool.
func (p poster) call(id int, tool, args string) (string, error) {
	meta := ""
	if p.session == "" {
		meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},`
	}
	answer, _, err := p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s"name":%q,"arguments":%s}}`, id, meta, tool, args))
	return answer, err
}

// sandbox opens a sandbox and returns its id.
func (p poster) sandbox() string {
	p.t.Helper()
	answer, err := p.call(1, "sandbox_open", "{}")
	id := regexp.MustCompile("sbx_[a-z0-9]+").FindString(answer)
	if err != nil || id == "" {
		p.t.Fatalf("sandbox_open: %s %v", answer, err)
	}
	return id
}

// TestStopAnswersCalls verifies that a stopping server does not wait for commands, and it answers waiting clients, with
// and without sessions.
func TestStopAnswersCalls(t *testing.T) {
	t.Parallel()
	s := newServer(t, newManager(t), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	checktest.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() { served <- s.ServeHTTP(ctx, l, &mcpserver.HTTPOptions{StopTimeout: patience}) }()
	clients := map[string]poster{"without a session": {t: t, url: "http://" + l.Addr().String() + "/mcp"}}
	clients["in a session"] = clients["without a session"].begin()
	answers := map[string]chan string{}
	for name, c := range clients {
		sandbox, answer := c.sandbox(), make(chan string, 1)
		answers[name] = answer
		go func() {
			got, err := c.call(2, "sandbox_exec", fmt.Sprintf(`{"sandbox_id":%q,"command":"touch on; sleep 1000","yield_ms":1000000}`, sandbox))
			answer <- fmt.Sprint(got, err)
		}()
		checktest.Eventually(t, "the command runs", func() bool {
			got, err := c.call(3, "sandbox_fs_read", fmt.Sprintf(`{"sandbox_id":%q,"path":"on"}`, sandbox))
			return err == nil && !strings.Contains(got, `"isError":true`)
		})
	}
	stop()
	for name, answer := range answers {
		if got := <-answer; !strings.Contains(got, "the call was cancelled") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if err := <-served; err != nil {
		t.Errorf("serving: %v", err)
	}
}

// begin starts a session.
func (p poster) begin() poster {
	p.t.Helper()
	answer, id, err := p.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	if err != nil || id == "" {
		p.t.Fatalf("initialize: %s %v", answer, err)
	}
	p.session = id
	if answer, _, err := p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil || answer != "" {
		p.t.Fatalf("initialized: %s %v", answer, err)
	}
	return p
}

// TestCancelledRequest verifies that a client on stdio gets no answer to a canceled request.
func TestCancelledRequest(t *testing.T) {
	t.Parallel()
	started, ended := make(chan struct{}), make(chan struct{})
	engine, err := memory.New(nil) // the test opens no sandbox
	checktest.Must(t, err)
	m, err := session.NewManager(engine, nil)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, errors.Join(m.Close(context.Background()), engine.Close())) })
	s := newServer(t, m, &mcpserver.Options{
		Tasks: []mcpserver.Task{{Name: "slow", Kind: "agent"}},
		RunTask: func(ctx context.Context, _ mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			close(started)
			<-ctx.Done()
			close(ended)
			return mcpserver.TaskResult{}, ctx.Err()
		},
	})
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	served, answers := make(chan error, 1), make(chan string, 1)
	go func() {
		served <- s.ServeStdio(t.Context(), toServer, fromServer)
		fromServer.Close()
	}()
	lines := bufio.NewScanner(toClient)
	say := func(message string) {
		if _, err := io.WriteString(fromClient, `{"jsonrpc":"2.0",`+message+"}\n"); err != nil {
			t.Error(err)
		}
	}
	say(`"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`)
	lines.Scan()
	go func() { // ends with the server's output
		var all strings.Builder
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
		}
		answers <- all.String()
	}()
	say(`"method":"notifications/initialized"`)
	say(`"id":"two","method":"tools/call","params":{"name":"execute_task","arguments":{"task":"slow"}}`)
	<-started
	say(`"id":3,"method":"ping"`)
	say(`"method":"notifications/cancelled","params":{"requestId":"two","reason":"user"}`)
	<-ended
	say(`"id":4,"method":"ping"`)
	fromClient.Close()
	if err := <-served; err != nil {
		t.Errorf("serving: %v", err)
	}
	if got := <-answers; strings.Contains(got, `"two"`) || !strings.Contains(got, `"id":3`) {
		t.Errorf("answers:\n%s", got)
	}
}
