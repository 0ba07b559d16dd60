package mcpsource_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// site is an HTTP server of revision 2025-11-25 with one tool, and with sessions that it can end. It does not answer
// GET requests.
type site struct {
	mu       sync.Mutex
	lost     string // body of the answer to a request in an ended session
	sessions int
	live     bool
	calls    int
	lists    int
	hold     chan struct{} // if not nil, lists wait until it is closed
	tool     string
	cursor   string
	answer   http.HandlerFunc // if not nil, it answers calls
	refusal  int              // if not 0, the code of the errors for calls
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		<-r.Context().Done()
		return
	}
	var req struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.NewDecoder(r.Body).Decode(&req) // DELETE requests have no body
	s.mu.Lock()
	defer s.mu.Unlock()
	var result string
	switch id := r.Header.Get("Mcp-Session-Id"); {
	case id != "" && (id != fmt.Sprint(s.sessions) || !s.live):
		switch { // answers of several servers
		case strings.Contains(s.lost, "Bad Request"):
			w.WriteHeader(http.StatusBadRequest)
		case s.lost == "Gone":
			w.WriteHeader(http.StatusGone)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, s.lost)
		return
	case req.Method == "initialize":
		s.sessions, s.live = s.sessions+1, true
		w.Header().Set("Mcp-Session-Id", fmt.Sprint(s.sessions))
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"site","version":"1"}}`
	case req.Method == "tools/list":
		if s.lists++; s.hold != nil {
			hold := s.hold
			s.mu.Unlock()
			<-hold
			s.mu.Lock()
		}
		result = fmt.Sprintf(`{"tools":[{"name":%q,"inputSchema":{"type":"object"}}],"nextCursor":%q}`, s.tool, s.cursor)
	case req.Method == "tools/call":
		if s.calls++; s.answer != nil {
			s.answer(w, r)
			return
		}
		if s.refusal != 0 {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"no access"}}`, req.ID, s.refusal)
			return
		}
		result = `{"content":[{"type":"text","text":"called"}]}`
	case req.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	default:
		http.Error(w, "unknown method", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result)
}

// set changes the site.
func (s *site) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func newSite(t *testing.T, s *site) (hosttools.Source, *buffertest.Buffer) {
	t.Helper()
	s.tool = "first"
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	log := &buffertest.Buffer{}
	source := mcpsource.New(mcpsource.Server{Name: "site", URL: web.URL, Timeout: 20 * time.Second},
		&mcpsource.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	t.Cleanup(func() { source.Close() })
	return source, log
}

// TestEndedSession verifies that a call in an ended session is executed once in a new session, and that an ended session
// is not counted as an exit of the server.
func TestEndedSession(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{
		"session not found",
		"Gone",
		"Bad Request: No valid session ID provided",
		`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}`,
	} {
		web := &site{lost: lost}
		s, _ := newSite(t, web)
		tools, err := s.Tools(t.Context())
		checktest.Must(t, err)
		for range 6 {
			web.set(func() { web.live = false })
			res, err := tools[0].Handle(t.Context(), hosttools.Call{Args: json.RawMessage("{}")})
			if err != nil || res.Text != "called" {
				t.Fatalf("%+v, %v, after the answer %q", res, err, lost)
			}
		}
		web.set(func() {
			if web.live = false; web.calls != 6 {
				t.Errorf("%d calls were executed, want 6", web.calls)
			}
		})
		if _, err := s.Tools(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestListOfHTTPServer verifies that each run gets the current list of a server, which cannot report a change.
func TestListOfHTTPServer(t *testing.T) {
	t.Parallel()
	web := &site{}
	s, _ := newSite(t, web)
	for _, name := range []string{"first", "second"} {
		web.set(func() { web.tool = name })
		if _, err := call(t, s, name); err != nil {
			t.Error(err)
		}
	}
}

// TestSlowList verifies that concurrent runs share a list, even after the server ended the session, and that calls do
// not wait for it.
func TestSlowList(t *testing.T) {
	t.Parallel()
	web := &site{}
	s, _ := newSite(t, web)
	tools, err := s.Tools(t.Context())
	checktest.Must(t, err)
	for _, live := range []bool{true, false} {
		hold := make(chan struct{})
		web.set(func() { web.live, web.hold, web.lists = live, hold, 0 })
		var runs sync.WaitGroup
		for range 10 {
			runs.Go(func() {
				if list, err := s.Tools(t.Context()); len(list) != 1 || err != nil {
					t.Errorf("live %t: %d tools, %v", live, len(list), err)
				}
			})
		}
		checktest.Eventually(t, "the list is requested", func() (ok bool) {
			web.set(func() { ok = web.lists > 0 })
			return ok
		})
		if _, err := tools[0].Handle(t.Context(), hosttools.Call{Args: json.RawMessage("{}")}); err != nil {
			t.Error(err)
		}
		web.set(func() {
			if live && web.lists != 1 {
				t.Errorf("%d concurrent lists", web.lists)
			}
		})
		close(hold)
		runs.Wait()
	}
}

// TestFailedRequest verifies that a failed HTTP request is not taken for an answer of the tool and does not end the
// session, and that an error of the tool with any code is one.
func TestFailedRequest(t *testing.T) {
	t.Parallel()
	web := &site{}
	s, log := newSite(t, web)
	for _, refusal := range []int{-32001, -32003, -32004, -32005} {
		web.set(func() { web.refusal = refusal })
		if res, err := call(t, s, "first"); err != nil || !res.Failed || res.Text != "no access" {
			t.Errorf("%d: %+v, %v", refusal, res, err)
		}
	}
	for _, status := range []int{400, 403, 413, 422, 429, 500, 503, 520, 0} {
		web.set(func() {
			web.answer = func(w http.ResponseWriter, r *http.Request) {
				if status == 0 {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				fmt.Fprint(w, `{"message":"refused","args":{"session":"a"}}`)
			}
		})
		_, err := call(t, s, "first")
		if fail := toolspec.ErrorOf(err); fail.Code != toolspec.CodeUnavailable || fail.Retryable {
			t.Errorf("%d: %+v", status, fail)
		}
	}
	if text := log.String(); !strings.Contains(text, "Service Unavailable") || strings.Contains(text, "exited") {
		t.Errorf("log:\n%s", text)
	}
}

// TestEndlessAnswer verifies that answers are not read beyond a limit, even if they are not JSON objects.
func TestEndlessAnswer(t *testing.T) {
	t.Parallel()
	for status, mime := range map[int]string{200: "application/json", 400: "text/event-stream"} {
		web, sent := &site{}, 0
		s, _ := newSite(t, web)
		web.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mime)
			w.WriteHeader(status)
			for n := 1; n > 0 && sent < 64<<20; sent += n {
				n, _ = w.Write(bytes.Repeat([]byte(" "), 1<<20))
			}
		}
		_, err := call(t, s, "first")
		web.set(func() {
			if err == nil || sent == 64<<20 {
				t.Errorf("%d: %d bytes were sent, %v", status, sent, err)
			}
		})
	}
}

// TestStoppedServer verifies that a call that cannot reach the server can be repeated.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	web := httptest.NewUnstartedServer(&site{tool: "first"})
	web.Config.SetKeepAlivesEnabled(false) // each call dials
	web.Start()
	s := mcpsource.New(mcpsource.Server{Name: "site", URL: web.URL}, nil)
	defer s.Close()
	tools, err := s.Tools(t.Context())
	checktest.Must(t, err)
	web.Close()
	for range 2 { // the first call may use an open connection, which could have reached the server
		_, err = tools[0].Handle(t.Context(), hosttools.Call{Args: json.RawMessage("{}")})
	}
	if fail := toolspec.ErrorOf(err); !fail.Retryable || strings.Contains(fail.Remediation, "sandbox") {
		t.Errorf("%+v", fail)
	}
}

// TestHungServer verifies that calls do not wait one after the other for a server that does not answer.
func TestHungServer(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // otherwise, the end of the connection is not noticed
		<-r.Context().Done()
	}))
	t.Cleanup(web.Close)
	s := mcpsource.New(mcpsource.Server{Name: "site", URL: web.URL, Timeout: 200 * time.Millisecond}, nil)
	t.Cleanup(func() { s.Close() })
	for range 3 {
		if _, err := s.Tools(t.Context()); toolspec.ErrorOf(err).Code != toolspec.CodeUnavailable {
			t.Error(err)
		}
	}
	if n := requests.Load(); n > 1 {
		t.Errorf("%d requests", n)
	}
}

// TestConstantCursor verifies that a server that ignores the cursor has each tool once.
func TestConstantCursor(t *testing.T) {
	t.Parallel()
	web := &site{cursor: "next"}
	s, log := newSite(t, web)
	tools, err := s.Tools(t.Context())
	web.mu.Lock()
	defer web.mu.Unlock()
	if len(tools) != 1 || err != nil || web.lists != 2 || !strings.Contains(log.String(), "incomplete") {
		t.Errorf("%d tools of %d pages, %v, %s", len(tools), web.lists, err, log)
	}
}

// TestServerOfFirstRevision verifies that the error for a server with the first transport names the cause, and that the
// server is used after an update, although it failed many times.
func TestServerOfFirstRevision(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		updated, current := atomic.Bool{}, &site{tool: "first"}
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if updated.Load() {
				current.ServeHTTP(w, r)
			} else {
				w.WriteHeader(status)
			}
		}))
		t.Cleanup(web.Close)
		s := mcpsource.New(mcpsource.Server{Name: "site", URL: web.URL}, nil)
		t.Cleanup(func() { s.Close() })
		for range 6 {
			if _, err := s.Tools(t.Context()); err == nil || !strings.Contains(err.Error(), "2024-11-05 is not supported") {
				t.Fatalf("%d: %v", status, err)
			}
		}
		updated.Store(true)
		_, err := s.Tools(t.Context())
		checktest.Must(t, err)
	}
}
