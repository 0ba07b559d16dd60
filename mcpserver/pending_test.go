package mcpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
)

// slowWork is a server with tasks and programs that run until they receive from release.
type slowWork struct {
	server  *mcpserver.Server
	release chan struct{}
	ended   chan error // error of each task's context
}

// newSlowWork returns a slowWork whose server has the specified maxWait, keepAfter, and idle timeout.
func newSlowWork(t *testing.T, wait, keep, idle time.Duration) slowWork {
	t.Helper()
	w := slowWork{release: make(chan struct{}), ended: make(chan error, 100)}
	engine, err := memory.New(nil) // the test does not depend on the engine
	checktest.Must(t, err)
	engine.Script(func(memory.Command) (memory.Answer, bool) {
		<-w.release
		return memory.Answer{Stdout: "done"}, true
	})
	m, err := session.NewManager(engine, nil)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, errors.Join(m.Close(context.Background()), engine.Close())) })
	w.server = newServer(t, m, &mcpserver.Options{
		IdleTimeout: idle, Tasks: []mcpserver.Task{{Name: "slow", Kind: "agent"}},
		RunTask: func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			req.Report("step 1 of 2")
			select {
			case <-w.release:
			case <-ctx.Done():
			}
			w.ended <- ctx.Err()
			return mcpserver.TaskResult{Outcome: "succeeded", Text: "done" + strings.Repeat(".", len(req.Text)<<10)}, ctx.Err()
		},
	})
	w.server.SetWaits(wait, keep)
	return w
}

// withoutStream is HTTP without the event stream of the session.
const withoutStream = "HTTP without a stream"

// connectSession connects a client over pipes with the newest revision, or over HTTP with an older revision.
func connectSession(t *testing.T, s *mcpserver.Server, over string, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	if over == "stdio" {
		return connectPipes(t, s, opts)
	}
	transport := &mcp.StreamableClientTransport{Endpoint: serveHTTP(t, s), DisableStandaloneSSE: over == withoutStream}
	return client(t, transport, "2025-11-25", opts, ignored)
}

// connectOwners serves s over HTTP. The returned function connects a client with a session of owner "a" or "b".
func connectOwners(t *testing.T, s *mcpserver.Server) func(owner string) *mcp.ClientSession {
	t.Helper()
	a, b := strings.Repeat("a", 16), strings.Repeat("b", 16)
	url := serveHTTP(t, s, mcpserver.Token{Name: "a", Secret: a}, mcpserver.Token{Name: "b", Secret: b})
	return func(owner string) *mcp.ClientSession {
		t.Helper()
		authorized := &http.Client{Transport: byTurns(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+strings.Repeat(owner, 16))
			return http.DefaultTransport.RoundTrip(r)
		})}
		transport := &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: authorized, DisableStandaloneSSE: true}
		return client(t, transport, "2025-11-25", nil, ignored)
	}
}

// taskID returns the task_id of a pending call, or an empty string if the call is done.
func (r result) taskID() string {
	p, _ := r.fields["pending"].(map[string]any)
	id, _ := p["task_id"].(string)
	return id
}

// states returns tool and state of a client's tasks, and the id of the newest task.
func states(t *testing.T, cs *mcp.ClientSession) (list []string, newest string) {
	t.Helper()
	var out struct {
		Tasks []struct {
			TaskID   string `json:"task_id"`
			Tool     string
			State    string
			Progress string
		}
	}
	must(t, cs, "task_status", nil).into(t, &out)
	for i, task := range out.Tasks {
		if list = append(list, task.Tool+" "+task.State+" "+task.Progress); i == 0 {
			newest = task.TaskID
		}
	}
	return list, newest
}

// slowCalls are the calls of a slowWork by tool. field is the result field with the value "done".
var slowCalls = map[string]struct {
	args  map[string]any
	field string
}{
	"execute_task": {map[string]any{"task": "slow"}, "text"},
	"sandbox_run":  {map[string]any{"code": "print(1)"}, "stdout"},
}

// TestPendingCalls verifies that a long call is answered as pending and continues, and its result can be fetched more
// than once.
func TestPendingCalls(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"stdio", "HTTP"} {
		w := newSlowWork(t, 10*time.Millisecond, time.Hour, 0)
		cs, other := connectSession(t, w.server, over, nil), connect(t, w.server, nil)
		schemas := outputSchemas(t, cs)
		for tool, call := range slowCalls {
			r := must(t, cs, tool, call.args)
			id := r.taskID()
			if id == "" {
				t.Fatalf("%s %s: %v", over, tool, r.fields)
			}
			checkResult(t, tool, schemas[tool], r)
			if again := must(t, cs, "task_result", map[string]any{"task_id": id}).taskID(); again != id {
				t.Errorf("%s %s: waiting for %s gives %q", over, tool, id, again)
			}
			if code, _ := do(t, other, "task_result", map[string]any{"task_id": id}).failure(); code != "not_found" {
				t.Errorf("%s %s: another client's: %q", over, tool, code)
			}
			w.release <- struct{}{}
			for range 2 {
				var r result
				checktest.Eventually(t, "the result", func() bool {
					r = must(t, cs, "task_result", map[string]any{"task_id": id})
					return r.taskID() == ""
				})
				if r.text(call.field) != "done" {
					t.Errorf("%s %s: %v", over, tool, r.fields)
				}
			}
		}
		<-w.ended
		id := must(t, cs, "execute_task", map[string]any{"task": "slow"}).taskID()
		r := must(t, cs, "task_cancel", map[string]any{"task_id": id})
		got, err := fmt.Sprint(r.fields["tasks"]), <-w.ended
		if !strings.Contains(got, "cancelled") || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: cancelled: %s, %v", over, got, err)
		}
		if code, _ := do(t, cs, "task_result", map[string]any{"task_id": id}).failure(); code != "closed" {
			t.Errorf("%s: the result of a task that was cancelled: %q", over, code)
		}
	}
}

// hangsUp is a context that ends with err when now is closed.
type hangsUp struct {
	context.Context
	now chan struct{}
	err error
}

func (h hangsUp) Done() <-chan struct{} { return h.now }

// Err returns err after now is closed.
func (h hangsUp) Err() error {
	select {
	case <-h.now:
		return h.err
	default:
		return nil
	}
}

// TestClientGivesUp verifies that the work of a call continues after the client's timeout, and ends if the user cancels
// the call.
func TestClientGivesUp(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"stdio", "HTTP"} {
		w := newSlowWork(t, time.Hour, time.Millisecond, 0)
		cs := connectSession(t, w.server, over, nil)
		// stop makes a call, ends its context with an error while the call runs, and returns the call's task_id.
		stop := func(tool string, with error) (id string) {
			t.Helper()
			ctx, done := hangsUp{t.Context(), make(chan struct{}), with}, make(chan error, 1)
			go func() {
				_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: slowCalls[tool].args})
				done <- err
			}()
			checktest.Eventually(t, "the call runs", func() bool {
				list, newest := states(t, cs)
				id = newest
				return len(list) > 0 && strings.HasPrefix(list[0], tool+" running")
			})
			close(ctx.now)
			if err := <-done; !errors.Is(err, with) {
				t.Fatalf("%s %s: %v, want %v", over, tool, err, with)
			}
			return id
		}
		for tool, call := range slowCalls {
			id := stop(tool, context.DeadlineExceeded)
			checktest.Must(t, cs.Ping(t.Context(), nil)) // ensures that the server has read earlier messages
			w.release <- struct{}{}
			if r := must(t, cs, "task_result", map[string]any{"task_id": id}); r.text(call.field) != "done" {
				t.Errorf("%s %s: %v", over, tool, r.fields)
			}
		}
		if err := <-w.ended; err != nil {
			t.Errorf("%s: the task's context: %v", over, err)
		}
		stop("execute_task", context.Canceled)
		if err := <-w.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: a cancelled call continues: %v", over, err)
		}
		if list, _ := states(t, cs); !slices.Contains(list, "execute_task cancelled step 1 of 2") {
			t.Errorf("%s: %q", over, list)
		}
	}
}

// TestKeptSession verifies that an idle HTTP session ends after its calls and their results, not before.
func TestKeptSession(t *testing.T) {
	t.Parallel()
	const idle = time.Second
	w := newSlowWork(t, 10*time.Millisecond, time.Hour, idle)
	cs := connectSession(t, w.server, withoutStream, nil)
	must(t, cs, "execute_task", map[string]any{"task": "slow"})
	select {
	case err := <-w.ended:
		t.Fatalf("the call ended with its session: %v", err)
	case <-time.After(4 * idle):
	}
	if list, _ := states(t, cs); len(list) != 1 {
		t.Errorf("calls of the session: %q", list)
	}
	w.release <- struct{}{}
	if err := <-w.ended; err != nil {
		t.Errorf("the call's context: %v", err)
	}
	checktest.Eventually(t, "the session ends", func() bool {
		w.server.Sweep(time.Now().Add(time.Hour))
		return cs.Ping(t.Context(), nil) != nil
	})
}

// TestOpenStream verifies that a session does not end while its event stream is open.
func TestOpenStream(t *testing.T) {
	t.Parallel()
	s := newServer(t, newMemoryManager(t), nil)
	p := poster{t: t, url: serveHTTP(t, s)}.begin()
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	res, err := p.do(ctx, http.MethodGet, "", nil)
	checktest.Must(t, err)
	defer res.Body.Close() // hangUp ended the stream
	later := time.Now().Add(time.Hour)
	if n := s.Unused(later); n != 0 || res.StatusCode != http.StatusOK {
		t.Errorf("status %d, %d unused sessions", res.StatusCode, n)
	}
	hangUp()
	checktest.Eventually(t, "the session is unused", func() bool { return s.Unused(later) == 1 })
}

// TestStreamComments verifies that event streams have comments, and that these never split an event.
func TestStreamComments(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	s := newServer(t, newMemoryManager(t), &mcpserver.Options{
		Tasks: []mcpserver.Task{{Name: "long", Kind: "agent"}},
		RunTask: func(ctx context.Context, _ mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			select {
			case <-done:
			case <-ctx.Done():
			}
			return mcpserver.TaskResult{Outcome: "succeeded", Text: strings.Repeat("x", 4<<20)}, nil
		},
	})
	s.SetCommentEvery(time.Millisecond)
	p := poster{t: t, url: serveHTTP(t, s)}.begin()
	for method, body := range map[string]string{
		http.MethodGet: "",
		http.MethodPost: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1},` +
			`"name":"execute_task","arguments":{"task":"long"}}}`,
	} {
		res, err := p.do(t.Context(), method, body, nil)
		checktest.Must(t, err)
		lines, comments, events := bufio.NewScanner(res.Body), 0, 0
		lines.Buffer(nil, 16<<20)
		for lines.Scan() && (method == http.MethodPost || comments < 3) {
			switch line := lines.Text(); {
			case line == ":":
				if comments++; comments == 3 && method == http.MethodPost {
					close(done)
				}
			case strings.HasPrefix(line, "data: "):
				if events++; !json.Valid([]byte(line[len("data: "):])) {
					t.Errorf("event %.80s", line)
				}
			case line != "" && line != ": ok" && line != "event: message":
				t.Errorf("line %.80s", line)
			}
		}
		if err := lines.Err(); err != nil || comments < 3 || method == http.MethodPost && events < 2 {
			t.Errorf("%s: %d comments, %d events, %v", method, comments, events, err)
		}
		res.Body.Close()
	}
}

// TestKeptResults verifies that results are kept for the idle timeout, within the limits of number and size of one
// client and of all clients, and not beyond the end of a session. A client cannot displace the results of others.
func TestKeptResults(t *testing.T) {
	t.Parallel()
	w := newSlowWork(t, time.Nanosecond, time.Hour, 0)
	cs, other := connect(t, w.server, nil), connect(t, w.server, nil)
	finish := func(cs *mcp.ClientSession, n, size int) (ids []string) {
		for range n {
			id := must(t, cs, "execute_task", map[string]any{"task": "slow", "input": strings.Repeat("x", size)}).taskID()
			w.release <- struct{}{}
			checktest.Eventually(t, "it is completed", func() bool {
				status := must(t, cs, "task_status", map[string]any{"task_id": id})
				return strings.Contains(fmt.Sprint(status.fields["tasks"]), "completed")
			})
			ids = append(ids, id)
		}
		return ids
	}
	kept := func(at time.Time) string {
		w.server.Sweep(at)
		list, _ := states(t, cs)
		return fmt.Sprintf("%d %s", len(list), strings.Join(slices.Compact(list), ","))
	}
	finish(other, 1, 0)
	finish(cs, 66, 0)
	large := finish(cs, 3, 3<<10) // 6 MiB each
	if list, _ := states(t, other); len(list) != 1 {
		t.Errorf("another client has %q", list)
	}
	if got := kept(time.Now()); got != "64 execute_task completed step 1 of 2" {
		t.Errorf("of 69 results: %s", got)
	}
	for i, id := range large {
		code, _ := do(t, cs, "task_status", map[string]any{"task_id": id}).failure()
		if code != []string{"not_found", "", ""}[i] {
			t.Errorf("large result %d: %q", i, code)
		}
	}
	if got := kept(time.Now().Add(31 * time.Minute)); got != "0 " {
		t.Errorf("after 31 minutes: %s", got)
	}
	if n, err := w.server.KeepAfterEnd(t.Context()); n != 0 || err != nil {
		t.Errorf("kept after the end of its session: %d, %v", n, err)
	}
	connect := connectOwners(t, w.server)
	small := connect("b")
	id := finish(small, 1, 3<<10)[0] // 6 MiB
	for range 20 {
		finish(connect("a"), 1, 7<<10) // 14 MiB each
	}
	if n, size := w.server.KeptBytes(); n != 1+17 || size > 256<<20 {
		t.Errorf("of 20 large results and a small one: %d, %d bytes", n, size)
	}
	must(t, small, "task_result", map[string]any{"task_id": id})
}

// TestApprovalOfAPendingCall verifies that a pending call can still ask the client's user, also while the client waits
// for the result and has no other event stream.
func TestApprovalOfAPendingCall(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"stdio", "HTTP", withoutStream} {
		pending := make(chan struct{})
		s := newServer(t, newMemoryManager(t), &mcpserver.Options{
			Tasks: []mcpserver.Task{{Name: "desk", Kind: "agent"}},
			RunTask: func(ctx context.Context, _ mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
				<-pending
				ask := hosttools.ApprovalRequest{ID: "a", Server: "orders", Tool: "refund", Args: []byte(`{}`)}
				by := hosttools.ApproverFromContext(ctx)
				d, err := by.Approve(ctx, ask)
				for range 100 { // until task_result waits
					if err == nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
					d, err = by.Approve(ctx, ask)
				}
				return mcpserver.TaskResult{Text: fmt.Sprint(d.Allow)}, err
			},
		})
		s.SetWaits(100*time.Millisecond, time.Hour)
		cs := connectSession(t, s, over, &mcp.ClientOptions{
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"allow": true}}, nil
			},
		})
		id := must(t, cs, "execute_task", map[string]any{"task": "desk"}).taskID()
		close(pending)
		var r result
		checktest.Eventually(t, "the result", func() bool {
			r = must(t, cs, "task_result", map[string]any{"task_id": id})
			return r.taskID() == ""
		})
		if r.text("text") != "true" {
			t.Errorf("%s: %v", over, r.fields)
		}
	}
}
