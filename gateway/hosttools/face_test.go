package hosttools_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/sandbox"
)

// TestGrantKeepsTheRequest verifies that a grant adds to the variables and lists of a request and replaces none.
func TestGrantKeepsTheRequest(t *testing.T) {
	t.Parallel()
	given := map[string]string{"PATH": "/mine", "MANPATH": "/man"}
	req := sandbox.ExecRequest{Env: map[string]string{"WORKCELL_TOOLS": "own"}, EnvBefore: given}
	s := set(t, registry(t, nil, hosttools.Static("orders", lookup())), hosttools.Grant{Rules: allow("orders.*")})
	hosttools.NewAttachment(new(sandbox.Sandbox)).Grant(t.Context(), s, &req)
	want := map[string]string{
		"PATH": "/mine:/.workcell/bin", "MANPATH": "/man",
		"PYTHONPATH": "/.workcell/lib/python", "NODE_PATH": "/.workcell/lib/node",
	}
	if diff := cmp.Diff(want, req.EnvBefore); diff != "" || len(given) != 2 || req.Env["WORKCELL_TOOLS"] != "own" || req.Tools != s.Digest() {
		t.Errorf("%v, lists (-want +got):\n%s", req.Env, diff)
	}
}

func TestClientSeesWhatIsGranted(t *testing.T) {
	t.Parallel()
	refund := lookup()
	refund.Name = "refund"
	r := registry(t, nil, hosttools.Static("orders", refund, lookup()), hosttools.Static("other", lookup()))
	s := set(t, r, hosttools.Grant{Rules: allow("orders.lookup")})
	cs := dial(t, s.Access(hosttools.Command{}), trace.SpanContext{})

	list, err := cs.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "orders_lookup" || !list.Tools[0].Annotations.ReadOnlyHint {
		t.Fatalf("ListTools: %+v, %v", list, err)
	}
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "orders_lookup", Arguments: obj{"id": "42"}})
	if err != nil || res.IsError {
		t.Fatalf("CallTool: %+v, %v", res, err)
	}
	if diff := cmp.Diff(obj{"id": "42"}, res.StructuredContent); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	const all, near = "Use the tools that `tools ls` lists.", "Did you mean \"orders.lookup\"? `tools ls` lists the tools."
	for name, told := range map[string][2]string{
		"orders_refund": {"orders.refund", all}, "other_lookup": {"other_lookup", near}, "no_such": {"no_such", all},
	} {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: obj{"id": "42"}})
		if err != nil || !res.IsError {
			t.Fatalf("CallTool %s: %+v, %v", name, res, err)
		}
		want := obj{"code": "not_found", "message": fmt.Sprintf("unknown tool %q", told[0]), "remediation": told[1], "retryable": false}
		if diff := cmp.Diff(want, res.StructuredContent.(obj)["error"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "tools://INDEX.md"})
	if err != nil || !strings.Contains(read.Contents[0].Text, "\norders.lookup(id, amount?)") {
		t.Errorf("ReadResource: %+v, %v", read, err)
	}
	if _, err := cs.ListPrompts(t.Context(), nil); err == nil {
		t.Error("prompts are listed")
	}
}

// TestHostileLines verifies lines that no MCP library would send.
func TestHostileLines(t *testing.T) {
	t.Parallel()
	r := registry(t, nil, hosttools.Static("orders", lookup()))
	s := set(t, r, hosttools.Grant{Rules: allow("orders.*")})
	const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}` + "\n" +
		`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
	for name, tc := range map[string]struct{ send, want string }{
		"deep arguments":         {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"orders_lookup","arguments":` + strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200) + `}}`, "invalid_argument"},
		"a list of arguments":    {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"orders_lookup","arguments":[1]}}`, "invalid_argument"},
		"more values than bytes": {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"orders_lookup","arguments":{"x":[` + strings.Repeat(`{},`, 300_000) + `{}]}}}`, "too_large"},
		"an empty line":          {"\r\n\n" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `"id":1`},
		"keys twice":             {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"orders_lookup","arguments":{"id":"1","id":"2"}}}`, "invalid_argument"},
		"an answer to nothing":   {`{"jsonrpc":"2.0","id":77,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `"id":1`},
		"a forged cancel":        {`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":991}}` + "\n" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `"id":1`},
		"sampling":               {`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`, "-32601"},
		"a parked subscription":  {`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{}}`, "error"},
		"no parameters":          {`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
			lines := bufio.NewScanner(c)
			lines.Buffer(nil, 1<<20)
			go func() { _, _ = c.Write([]byte(hello + tc.send + "\n")) }() // ends with the connection
			if !lines.Scan() || !strings.Contains(lines.Text(), "protocolVersion") {
				t.Fatalf("initialize: %s, %v", lines.Text(), lines.Err())
			}
			if !lines.Scan() || !strings.Contains(lines.Text(), tc.want) {
				t.Errorf("answer %s, %v, want %s", lines.Text(), lines.Err(), tc.want)
			}
		})
	}
	for name, send := range map[string]string{
		"nesting of a bomb": strings.Repeat("[", 1<<20),
		"a line too long":   `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 3<<20),
		"an id twice": hello + `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"orders_wait"}}` + "\n" +
			`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"orders_wait"}}` + "\n",
		"no JSON":                   "hello\n",
		"a client with much to say": line(1, "initialize", `,"capabilities":{"experimental":{"x":[`+strings.Repeat("{},", 30_000)+`{}]}}`),
		"a call with much besides":  line(1, "tools/call", `,"name":"orders_wait","arguments":{},"requestState":"`+strings.Repeat("x", 100_000)+`"`),
		"many requests in a line":   `[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"tools/list"}]` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wait := tool("wait", func(ctx context.Context, _ hosttools.Call) (hosttools.Result, error) {
				<-ctx.Done()
				return hosttools.Result{}, ctx.Err()
			})
			s := set(t, registry(t, nil, hosttools.Static("orders", wait)), hosttools.Grant{Rules: allow("orders.wait")})
			c := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
			go func() { _, _ = c.Write([]byte(send)) }() // ends with the connection
			for lines := bufio.NewScanner(c); lines.Scan(); {
			}
			// The host has hung up.
		})
	}
}

// TestRequestsInFlightAreBounded verifies that a client that sends endlessly and reads nothing uses only its run's
// share of requests.
func TestRequestsInFlightAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := tool("wait", func(ctx context.Context, _ hosttools.Call) (hosttools.Result, error) {
			<-ctx.Done()
			return hosttools.Result{}, ctx.Err()
		})
		rules := allow("app.wait")
		rules.Limits.Concurrent, rules.Limits.PerSecond = 8, 10_000
		s := set(t, registry(t, nil, hosttools.Static("app", wait)), hosttools.Grant{Rules: rules})
		var sent atomic.Int64
		for range 4 {
			c := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
			go func() { // ends with the connection
				for i := 0; ; i++ { // each line is longer than the host's buffer
					if _, err := io.WriteString(c, line(i, "tools/call", `,"name":"app_wait","arguments":{"x":"`+strings.Repeat("x", 8<<10)+`"}`)); err != nil {
						return
					}
					sent.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := sent.Load(); n < 16 || n > 16+2*4 {
			// Two for each concurrent call, and the requests that connections have already read.
			t.Errorf("%d requests are in flight", n)
		}
	})
}

// line returns a request that needs no handshake. params begins with a comma or is empty.
func line(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}%s}}`+"\n", id, method, params)
}

// TestUnreadAnswersAreBounded verifies that unread answers are bounded over all connections of a run. Calls wait for
// capacity, and continue after the host hung up on clients that do not read.
func TestUnreadAnswersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var made atomic.Int64
		page := tool("page", func(context.Context, hosttools.Call) (hosttools.Result, error) {
			made.Add(1)
			return hosttools.Result{Text: strings.Repeat("<", 64<<10)}, nil
		})
		rules := allow("app.page")
		rules.Limits.Calls, rules.Limits.PerSecond = 10_000, 10_000
		s := set(t, registry(t, nil, hosttools.Static("app", page)), hosttools.Grant{Rules: rules})
		for range 16 {
			c := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
			go func() { // ends with the connection
				for i := range 60 {
					_, _ = io.WriteString(c, line(i, "tools/call", `,"name":"app_page"`))
				}
			}()
		}
		synctest.Wait()
		if n := made.Load(); n < 16 || n > 32 {
			t.Errorf("%d results of 64 KiB are held", n)
		}
		time.Sleep(31 * time.Second) // write timeout of all connections with a started answer
		reader := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
		// Ends when written or with the connection.
		go func() { _, _ = io.WriteString(reader, line(1, "tools/call", `,"name":"app_page"`)) }()
		answer, err := bufio.NewReaderSize(reader, 1<<20).ReadString('\n')
		if err != nil || !strings.Contains(answer, `"text":"\u003c`) {
			t.Errorf("afterwards a call is answered %.200q, %v", answer, err)
		}
	})
}

// TestUnreadListsAreBounded verifies that lists count like the answers of calls.
func TestUnreadListsAreBounded(t *testing.T) { // not parallel, because it measures the heap
	synctest.Test(t, func(t *testing.T) {
		long := lookup()
		long.Input["properties"].(obj)["x"] = obj{"type": "string", "enum": []any{strings.Repeat("x", 60<<10)}}
		s := set(t, registry(t, nil, hosttools.Static("app", long)), hosttools.Grant{Rules: allow("app.*")})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 16 {
			c := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
			go func() { // ends with the connection
				for i := range 30 {
					_, _ = io.WriteString(c, line(i, "tools/list", ""))
				}
			}()
		}
		synctest.Wait()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown < 2<<20 || grown > 8<<20 {
			t.Errorf("%d bytes of lists are held", grown)
		}
	})
}

// TestRequestRate verifies the rate limit of requests other than calls, over all connections of a run.
func TestRequestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: allow("app.*")})
		var answered atomic.Int64
		for range 4 {
			c := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
			go func() { // ends with the connection
				for lines := bufio.NewScanner(c); lines.Scan(); {
					answered.Add(1)
				}
			}()
			go func() { // ends with the connection
				for i := 0; ; i++ {
					if _, err := fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%d,"method":"ping"}`+"\n", i); err != nil {
						return
					}
				}
			}()
		}
		time.Sleep(10 * time.Second)
		if n := answered.Load(); n < 5000 || n > 7000 { // 550 per second, with a burst of one second
			t.Errorf("%d requests were answered in 10 seconds", n)
		}
	})
}

// TestLargeRequestsTakeTurns verifies that only one large request is received at a time, and only for a limited time.
func TestLargeRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: allow("app.*")})
		slow := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
		if _, err := io.WriteString(slow, `{"jsonrpc":"2.0","id":1,"method":"`+strings.Repeat("x", 200<<10)); err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]time.Duration{"1": 0, strings.Repeat("x", 200<<10): 30 * time.Second} {
			began := time.Now()
			c := serve(t, s.Access(hosttools.Command{}), trace.SpanContext{})
			go func() {
				_, _ = io.WriteString(c, line(1, "tools/call", fmt.Sprintf(`,"name":"app_lookup","arguments":{"id":%q}`, text)))
			}() // ends when written or with the connection
			answer, err := bufio.NewReaderSize(c, 1<<20).ReadString('\n')
			if err != nil || !strings.Contains(answer, "content") {
				t.Errorf("%d bytes: %.200q, %v", len(text), answer, err)
			}
			if took := time.Since(began); len(text) == 1 && took != want || took > want {
				t.Errorf("%d bytes took %s", len(text), took)
			}
		}
	})
}

// FuzzServe verifies for any input that the host answers or hangs up.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"app_lookup","arguments":{"id":"1"},"_meta":{"workcell/save":1,"traceparent":[]}}}` + "\n"))
	f.Add([]byte(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"}]` + "\n"))
	f.Add([]byte(`{"jsonrpc":"2.0","id":{},"method":"initialize","params":null}` + "\n" + `{"jsonrpc":"2.0","id":1.5,"result":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: allow("app.*")})
		inside, host := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			// The error depends on the peer.
			_ = s.Access(hosttools.Command{}).Serve(t.Context(), host, "ex1", trace.SpanContext{})
		}()
		go func() { _, _ = io.Copy(io.Discard, inside) }() // ends with the connection
		_, _ = inside.Write(sent)                          // the host may have hung up
		inside.Close()
		<-ended
	})
}

// TestSlowReader verifies that the host hangs up on a client that does not read its answers.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: allow("app.*")})
		inside, host := net.Pipe()
		defer inside.Close()
		go fmt.Fprintln(inside, `{"jsonrpc":"2.0","id":1,"method":"ping"}`) // ends with the connection
		began := time.Now()
		// The error depends on the peer.
		_ = s.Access(hosttools.Command{}).Serve(t.Context(), host, "ex1", trace.SpanContext{})
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("it is waited for for %s", took)
		}
	})
}
