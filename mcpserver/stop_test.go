package mcpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
)

// poster sends messages to an HTTP server.
type poster struct {
	t       *testing.T
	url     string
	session string // for revisions with sessions
}

// do sends a request with further headers.
func (p poster) do(ctx context.Context, method, body string, further http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}}
	if p.session != "" {
		req.Header.Set("Mcp-Session-Id", p.session)
	}
	maps.Copy(req.Header, further)
	return (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
}

// send returns the answer and the id of a started session.
func (p poster) send(message string) (answer, session string, err error) {
	further := http.Header{}
	if p.session == "" && strings.Contains(message, "tools/call") {
		name := regexp.MustCompile(`"name":"(\w+)"`).FindStringSubmatch(message)[1]
		further = http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {name}}
	}
	res, err := p.do(p.t.Context(), http.MethodPost, message, further)
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
		if got := <-answer; !strings.Contains(got, "the call was canceled") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if err := <-served; err != nil {
		t.Errorf("serving: %v", err)
	}
}

// initialize starts a session of an older revision.
const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` +
	`"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

// begin starts a session.
func (p poster) begin() poster {
	p.t.Helper()
	answer, id, err := p.send(initialize)
	if err != nil || id == "" {
		p.t.Fatalf("initialize: %s %v", answer, err)
	}
	p.session = id
	if answer, _, err := p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); err != nil || answer != "" {
		p.t.Fatalf("initialized: %s %v", answer, err)
	}
	return p
}

// TestCancelledRequest verifies that a client on stdio gets neither an answer to a canceled request nor progress. The
// work ends if the user canceled it, and continues after the client's timeout.
func TestCancelledRequest(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{"user": "cancelled", "Request timed out": "completed"} {
		started, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		s := newServer(t, newMemoryManager(t), &mcpserver.Options{
			Tasks: []mcpserver.Task{{Name: "slow", Kind: "agent"}},
			RunTask: func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
				close(started)
				select {
				case <-ctx.Done():
				case <-release:
				}
				req.Report("late")
				close(ended)
				return mcpserver.TaskResult{Outcome: "succeeded"}, ctx.Err()
			},
		})
		s.SetWaits(patience, time.Nanosecond)
		toServer, fromClient := io.Pipe()
		toClient, fromServer := io.Pipe()
		served := make(chan error, 1)
		go func() {
			served <- s.ServeStdio(t.Context(), toServer, fromServer)
			fromServer.Close()
		}()
		lines := bufio.NewScanner(toClient)
		say := func(message string) {
			_, err := io.WriteString(fromClient, `{"jsonrpc":"2.0",`+message+"}\n")
			checktest.Must(t, err)
		}
		// hear returns the lines up to one with a text.
		hear := func(text string) (all string) {
			for lines.Scan() {
				if all += lines.Text() + "\n"; strings.Contains(lines.Text(), text) {
					break
				}
			}
			return all
		}
		say(`"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`)
		hear(`"id":1`)
		say(`"method":"notifications/initialized"`)
		say(`"id":"two","method":"tools/call","params":{"name":"execute_task","arguments":{"task":"slow"},"_meta":{"progressToken":"token"}}`)
		<-started
		// status asks for the tasks until an answer has a text. It returns all lines it read.
		status := func(text string) (all string) {
			end := time.Now().Add(patience)
			for !strings.Contains(all, text) && time.Now().Before(end) {
				time.Sleep(10 * time.Millisecond)
				say(`"id":4,"method":"tools/call","params":{"name":"task_status","arguments":{}}`)
				all += hear(`"id":4`)
			}
			return all
		}
		status("running") // only then the call is kept
		say(`"method":"notifications/cancelled","params":{"requestId":"two","reason":"` + reason + `"}`)
		say(`"id":3,"method":"ping"`)
		hear(`"id":3`)
		if want == "completed" {
			close(release)
		}
		<-ended
		got := status(want)
		fromClient.Close()
		got += hear("the end")
		unwanted := strings.Contains(got, `"two"`) || strings.Contains(got, `"token"`)
		if err := <-served; err != nil || unwanted || !strings.Contains(got, want) {
			t.Errorf("%s: %v, answers:\n%s", reason, err, got)
		}
	}
}

// TestOneShotClient verifies that a client on stdio gets all answers although it closes its output before, and no
// answer to an invalid notification.
func TestOneShotClient(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	s := newServer(t, newMemoryManager(t), &mcpserver.Options{
		Tasks: []mcpserver.Task{{Name: "slow", Kind: "agent"}},
		RunTask: func(ctx context.Context, _ mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			<-end
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			return mcpserver.TaskResult{Text: "done"}, ctx.Err()
		},
	})
	in := initialize + `
{"jsonrpc":"2.0","method":"notifications/initialized","params":null}
{"jsonrpc":"2.0","method":"notifications/x","params":[]}
{"jsonrpc":"2.0","id":2,"method":"tools/list","params":null}
{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"execute_task","arguments":{"task":"slow"}}}
`
	var out bytes.Buffer
	err := s.ServeStdio(t.Context(), io.MultiReader(strings.NewReader(in), endReader(end)), &out)
	if got := out.String(); err != nil || strings.Count(got, "\n") != 3 || !strings.Contains(got, `"text":"done"`) {
		t.Errorf("%v, answers:\n%s", err, got)
	}
}

// endReader is an empty reader that closes the channel at the first Read.
type endReader chan struct{}

func (r endReader) Read([]byte) (int, error) {
	close(r)
	return 0, io.EOF
}

// TestMissingSession verifies that a request of an older revision needs a session, except the requests before one.
func TestMissingSession(t *testing.T) {
	t.Parallel()
	p := poster{t: t, url: serveHTTP(t, newServer(t, newMemoryManager(t), nil))}
	for method, want := range map[string]int{
		"tools/list": http.StatusBadRequest, "tools/call": http.StatusBadRequest, "ping": http.StatusOK,
	} {
		message := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{}}`, method)
		res, err := p.do(t.Context(), http.MethodPost, message, nil)
		checktest.Must(t, err)
		answer, err := io.ReadAll(res.Body)
		checktest.Must(t, errors.Join(err, res.Body.Close()))
		if res.StatusCode != want || !strings.Contains(string(answer), `"id":7`) {
			t.Errorf("%s: %d %s", method, res.StatusCode, answer)
		}
	}
}

// TestRefusedEnd verifies that the calls of a session continue if the server refuses the request to end it.
func TestRefusedEnd(t *testing.T) {
	t.Parallel()
	w := newSlowWork(t, 100*time.Millisecond, time.Hour, 0)
	p := poster{t: t, url: serveHTTP(t, w.server)}.begin()
	res, err := p.do(t.Context(), http.MethodDelete, "", http.Header{"Mcp-Protocol-Version": {"2020-01-01"}})
	checktest.Must(t, err)
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("%d %v", res.StatusCode, err)
	}
	if got, err := p.call(2, "execute_task", `{"task":"slow"}`); err != nil || !strings.Contains(got, `"pending"`) {
		t.Errorf("the next call: %s %v", got, err)
	}
}

// TestFailedListener verifies that open connections and sessions end if the listener fails.
func TestFailedListener(t *testing.T) {
	t.Parallel()
	s := newServer(t, newMemoryManager(t), nil)
	for name, serve := range map[string]func(context.Context, net.Listener, *mcpserver.HTTPOptions) error{
		"ServeHTTP": s.ServeHTTP, "ServeUnready": mcpserver.ServeUnready,
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		checktest.Must(t, err)
		open, err := net.Dial("tcp", l.Addr().String())
		checktest.Must(t, err)
		served := make(chan error, 1)
		go func() { served <- serve(t.Context(), l, &mcpserver.HTTPOptions{StopTimeout: time.Second}) }()
		_, _, err = poster{t: t, url: "http://" + l.Addr().String() + "/mcp"}.send(initialize)
		checktest.Must(t, errors.Join(err, l.Close()))
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
		checktest.Must(t, open.SetReadDeadline(time.Now().Add(time.Second)))
		if _, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is open: %v", name, err)
		}
		checktest.Must(t, open.Close())
	}
	checktest.Eventually(t, "the session ends", func() bool { return s.Unused(time.Now().Add(time.Hour)) == 0 })
}
