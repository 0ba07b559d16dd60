package model_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// TestMeteredTokensAreExact verifies for a thousand answers that the metered usage equals the usage that the model
// server reported.
func TestMeteredTokensAreExact(t *testing.T) {
	t.Parallel()
	rig := newRig(t, func(n int, _ llmtest.Request) llmtest.Answer {
		if n%10 == 9 {
			return llmtest.Answer{Calls: []llmtest.Call{{Name: "f", Input: map[string]any{"usage": n}}, {Name: "g", Input: "usage"}}}
		}
		return llmtest.Answer{Text: strings.Repeat("usage of words ", n%40)}
	})
	leases := map[string]*model.Lease{}
	for _, name := range []string{"anthropic", "openai", "googleai"} {
		leases[name] = rig.issue(model.Grant{Provider: name})
	}
	const each = 125 // of eight kinds
	var wg sync.WaitGroup
	for d, ask := range dialects() {
		for _, stream := range []bool{false, true} {
			wg.Go(func() {
				for i := range each {
					got := rig.do(ask.request(rig, leases[ask.provider].Key(), strings.Repeat("x", 37*i), stream))
					if got.status != http.StatusOK {
						t.Errorf("%s: %d %s", d, got.status, got.body)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	var sum model.Usage
	for _, l := range leases {
		u := l.Usage()
		sum.Requests += u.Requests
		sum.InputTokens += u.InputTokens
		sum.OutputTokens += u.OutputTokens
		sum.CacheReadTokens += u.CacheReadTokens
		sum.CacheWriteTokens += u.CacheWriteTokens
		sum.ReasoningTokens += u.ReasoningTokens
		sum.Estimated += u.Estimated
	}
	used := rig.mock.Used()
	want := model.Usage{
		Requests: used.Requests, InputTokens: used.Input, OutputTokens: used.Output,
		CacheReadTokens: used.CacheRead, CacheWriteTokens: used.CacheWrite, ReasoningTokens: used.Reasoning,
	}
	if diff := cmp.Diff(want, sum); diff != "" || used.Requests != 8*each || used.CacheWrite == 0 || used.Reasoning == 0 {
		t.Errorf("%+v (-want +got):\n%s", used, diff)
	}
}

// TestRoutes verifies that the proxy forwards only requests that run a model, count tokens, or list models.
func TestRoutes(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	leases := map[string]string{}
	for _, name := range []string{"anthropic", "openai", "googleai"} {
		leases[name] = rig.issue(model.Grant{Provider: name}).Key()
	}
	const body = `{"model":"small","messages":[]}`
	for request, want := range map[string]int{
		"POST /anthropic/v1/messages":                                  200,
		"POST /anthropic/v1/messages?beta=true&key=x&x=y":              200,
		"POST /anthropic/v1/messages/count_tokens":                     200,
		"GET /anthropic/v1/models":                                     200,
		"GET /anthropic/v1/models/small":                               200,
		"GET /anthropic/v1/models/claude-x":                            404,
		"GET /anthropic/v1/models/../organizations":                    404,
		"GET /anthropic/v1/models/%2e%2e%2forganizations":              404,
		"POST /anthropic/v1/messages/batches":                          404,
		"POST /anthropic/v1/files":                                     404,
		"POST /anthropic//v1/messages":                                 404,
		"POST /anthropic/v1/messages/":                                 404,
		"GET /anthropic/v1/messages":                                   404,
		"DELETE /anthropic/v1/messages":                                404,
		"PUT /anthropic/v1/messages":                                   404,
		"OPTIONS /anthropic/v1/messages":                               404,
		"POST /anthropic/v1/organizations/api_keys":                    404,
		"POST /openai/v1/responses":                                    200,
		"POST /openai/responses":                                       200,
		"POST /openai/v1/chat/completions":                             200,
		"GET /openai/v1/models":                                        200,
		"GET /openai/v1/responses/resp_1":                              404,
		"POST /openai/v1/v1/responses":                                 404,
		"POST /openai/v1/images/generations":                           404,
		"POST /openai/v1/realtime/sessions":                            404,
		"POST /googleai/v1beta/models/small:generateContent":           200,
		"POST /googleai/v1beta/models/small:streamGenerateContent":     200,
		"POST /googleai/v1beta/models/small:countTokens":               200,
		"GET /googleai/v1beta/models":                                  200,
		"POST /googleai/v1beta/models/large:generateContent":           403,
		"POST /googleai/v1beta/models/small:batchGenerateContent":      404,
		"POST /googleai/v1beta/models/../models/small:generateContent": 404,
		"POST /googleai/v1beta/models/small%3AgenerateContent":         404,
		"POST /googleai/v1beta/cachedContents":                         404,
		"POST /nobody/v1/messages":                                     404,
		"POST /":                                                       404,
		"GET /":                                                        404,
		"GET http://169.254.169.254/anthropic/v1/models":               404,
		"POST http://api.anthropic.com/anthropic/v1/messages":          404,
		"CONNECT api.anthropic.com:443":                                404,
		"GET /metrics":                                                 404,
	} {
		method, target, _ := strings.Cut(request, " ")
		if got := rig.raw(method, target, leases, body); got != want {
			t.Errorf("%s: %d, want %d", request, got, want)
		}
	}
	for _, r := range rig.mock.Requests() {
		if strings.Contains(r.Query, "key") || strings.Contains(r.Query, "x=") {
			t.Errorf("the provider got the query %s", r.Query)
		}
	}
}

// raw sends an unmodified request line and returns the status of the answer.
func (r *rig) raw(method, target string, leases map[string]string, body string) int {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.inside.Listener.Addr().String())
	must(r.t, err)
	defer conn.Close()
	key := leases["anthropic"]
	for name, k := range leases {
		if strings.Contains(target, name) {
			key = k
		}
	}
	if method == "GET" {
		body = ""
	}
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Api-Key: %s\r\nContent-Length: %d\r\n\r\n%s", method, target, key, len(body), body)
	must(r.t, err)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(r.t, err)
	defer res.Body.Close()
	return res.StatusCode
}

// TestKeys verifies that a key is valid only in its sandbox, for its provider, and until its lease is closed.
func TestKeys(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	mine := rig.issue(model.Grant{Provider: "anthropic", SandboxID: sandbox})
	others := rig.issue(model.Grant{Provider: "anthropic", SandboxID: "sbx-2"})
	openai := rig.issue(model.Grant{Provider: "openai"})
	closed := rig.issue(model.Grant{Provider: "anthropic"})
	must(t, closed.Close())
	ask := dialects()[model.Anthropic]
	for name, tt := range map[string]struct {
		key    string
		status int
	}{
		"mine": {mine.Key(), 200}, "another sandbox's": {others.Key(), 401}, "another provider's": {openai.Key(), 401}, "closed": {closed.Key(), 401},
		"none": {"", 401}, "the operator's": {realKey, 401}, "half": {mine.Key()[:20], 401}, "nearly": {mine.Key() + "0", 401},
	} {
		got := rig.do(ask.request(rig, tt.key, "x", false))
		if got.status != tt.status || tt.status != 200 && got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: %d %v", name, got.status, got.header)
		}
	}
	if len(mine.Key()) != 35 || !strings.HasPrefix(mine.Key(), "wc-") || mine.Key() == others.Key() {
		t.Errorf("keys: %s, %s", mine.Key(), others.Key())
	}
	if n := len(rig.mock.Requests()); n != 1 {
		t.Errorf("the provider got %d requests", n)
	}
	req := ask.request(rig, "", "x", false)
	req.Header = http.Header{"X-Goog-Api-Key": {"rubbish"}, "X-Api-Key": {mine.Key()}}
	if got := rig.do(req); got.status != 200 {
		t.Errorf("a valid key and an invalid key: %d", got.status)
	}
}

// TestIssue verifies that Issue rejects invalid grants.
func TestIssue(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	for _, g := range []model.Grant{
		{Provider: "nobody", Models: []string{"small"}}, {Provider: "anthropic"}, {Provider: "anthropic", Models: []string{"small"}, Budget: model.Budget{USD: -1}},
		{Provider: "anthropic", Models: []string{"small", "unpriced"}, Budget: model.Budget{USD: 1}},
	} {
		if l, err := rig.proxy.Issue(g); err == nil {
			t.Errorf("%+v is granted", g)
			must(t, l.Close())
		}
	}
	if u := rig.issue(model.Grant{Provider: "anthropic", Models: []string{"unpriced"}}).Usage(); u.CostKnown {
		t.Error("the cost of a model without a price is known")
	}
}

// TestModels verifies that the provider gets its own key and the allowed request headers, and the sandbox gets only the
// allowed answer headers. Model lists contain only the models of the lease.
func TestModels(t *testing.T) {
	t.Parallel()
	rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"ft:secret"},{"id":"small","size":1}],"models":[{"name":"models/small"},{"name":"models/secret"}],"first_id":"secret"}`)
	}))
	l := rig.issue(model.Grant{Provider: "anthropic", Models: []string{"small"}})
	a := rig.do(rig.request("GET", "/anthropic/v1/models", l.Key(), ""))
	if want := `{"data":[{"id":"small","size":1}],"models":[{"name":"models/small"}]}`; a.body != want {
		t.Errorf("%s, want %s", a.body, want)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	rig := newRig(t, func(int, llmtest.Request) llmtest.Answer {
		return llmtest.Answer{Text: "x", Header: http.Header{
			"Set-Cookie": {"a=b"}, "Openai-Organization": {"org-1"}, "Anthropic-Organization-Id": {"org-2"}, "Server": {"x"},
			"Request-Id": {"req_1"}, "X-Ratelimit-Remaining-Tokens": {"5"}, "Anthropic-Ratelimit-Tokens-Limit": {"6"},
		}}
	})
	l := rig.issue(model.Grant{Provider: "anthropic"})
	req := dialects()[model.Anthropic].request(rig, l.Key(), "x", false)
	for name, v := range map[string]string{
		"X-Api-Key": "mine", "Cookie": "c=d", "X-Forwarded-For": "1.2.3.4", "Forwarded": "for=x", "Proxy-Authorization": "x", "X-Goog-Api-Key": "y", "Openai-Organization": "z",
		"Anthropic-Version": "2023-06-01", "Anthropic-Beta": "b1,b2", "User-Agent": "claude-cli/2", "Connection": "x-api-key, anthropic-version", "Accept-Encoding": "gzip",
		"Transfer-Encoding": "identity", "X-Http-Method-Override": "DELETE", "Content-Type": "text/plain",
	} {
		req.Header.Set(name, v)
	}
	req.Host = "api.anthropic.com"
	got := rig.do(req)
	sent := rig.mock.Requests()[0].Header
	want := http.Header{
		"X-Api-Key": {realKey}, "Anthropic-Version": {"2023-06-01"}, "Anthropic-Beta": {"b1,b2"}, "User-Agent": {"claude-cli/2"}, "Content-Type": {"application/json"},
	}
	sent.Del("Content-Length")
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("to the provider (-want +got):\n%s", diff)
	}
	for _, name := range []string{"Content-Length", "Date", "Content-Type"} {
		got.header.Del(name)
	}
	wantBack := http.Header{"Request-Id": {"req_1"}, "X-Ratelimit-Remaining-Tokens": {"5"}, "Anthropic-Ratelimit-Tokens-Limit": {"6"}}
	if diff := cmp.Diff(wantBack, got.header); diff != "" || got.status != 200 {
		t.Errorf("%d, to the sandbox (-want +got):\n%s", got.status, diff)
	}
}

// TestBodies verifies that unreadable bodies are rejected.
func TestBodies(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	l := rig.issue(model.Grant{Provider: "anthropic"})
	ask := dialects()[model.Anthropic]
	encoded := ask.request(rig, l.Key(), "x", false)
	encoded.Header.Set("Content-Encoding", "gzip")
	for _, tt := range []struct {
		req  *http.Request
		want int
	}{
		{encoded, http.StatusUnsupportedMediaType},
		{ask.request(rig, l.Key(), strings.Repeat("x", 33<<20), false), http.StatusRequestEntityTooLarge},
		{ask.request(rig, l.Key(), strings.Repeat("x", 8<<20), false), http.StatusOK},
	} {
		if got := rig.do(tt.req); got.status != tt.want {
			t.Errorf("%d %s, want %d", got.status, got.said(), tt.want)
		}
	}
	if u := l.Usage(); u.Requests != 1 || u.Refused != 2 {
		t.Errorf("%+v", u)
	}
}

// TestBudget verifies that an exhausted budget is reported in the client's dialect, with an error that clients do not
// retry.
func TestBudget(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	kinds := map[model.Dialect]string{model.Anthropic: `"type":"permission_error"`, model.OpenAIChat: `"code":"permission_denied"`, model.OpenAIResponses: `"type":"request_forbidden"`, model.Gemini: `"status":"PERMISSION_DENIED"`}
	for d, ask := range dialects() {
		l := rig.issue(model.Grant{Provider: ask.provider, Budget: model.Budget{OutputTokens: 1}})
		if got := rig.do(ask.request(rig, l.Key(), "x", true)); got.status != 200 {
			t.Errorf("%s: %d %s", d, got.status, got.body)
		}
		select {
		case <-l.Spent():
			t.Error("spent before anything was refused")
		default:
		}
		for range 2 {
			got := rig.do(ask.request(rig, l.Key(), "x", true))
			if got.status != 403 || got.header.Get("X-Should-Retry") != "false" || !strings.Contains(got.body, kinds[d]) || got.said() != "the budget of this run is used up: 1 output tokens" {
				t.Errorf("%s: %d %v %s", d, got.status, got.header, got.body)
			}
		}
		<-l.Spent()
		if u := l.Usage(); u.Requests != 1 || u.Refused != 2 {
			t.Errorf("%s: %+v", d, u)
		}
	}
	ask := dialects()[model.Anthropic]
	l := rig.issue(model.Grant{Provider: "anthropic", Budget: model.Budget{USD: .001}})
	n, last := 0, 200
	for last == 200 && n < 1000 {
		last = rig.do(ask.request(rig, l.Key(), "x", false)).status
		n++
	}
	u := l.Usage()
	if most := .001 + u.CostUSD/float64(u.Requests); last != 403 || u.CostUSD < .001 || u.CostUSD > most || !u.CostKnown {
		t.Errorf("%d after %d: %+v", last, n, u)
	}
}

// TestBudgetIsReserved verifies that requests are refused if they could exceed the budget together. Budget that a
// request did not use is available to later requests.
func TestBudgetIsReserved(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		provider, path, body string
		budget               model.Budget
	}{
		"input":  {"anthropic", "/v1/messages", `{"model":"small","max_tokens":9,"system":"` + strings.Repeat("x", 60_000) + `"}`, model.Budget{USD: .02}},
		"output": {"openai", "/v1/responses", `{"model":"small","input":"x"}`, model.Budget{OutputTokens: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			first, gate := make(chan struct{}), make(chan struct{})
			rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) == 1 {
					close(first)
					<-gate
				}
				fmt.Fprint(w, `{"usage":{"input_tokens":10,"output_tokens":5}}`)
			}))
			l := rig.issue(model.Grant{Provider: tt.provider, Budget: tt.budget})
			ask := func() int { return rig.do(rig.request("POST", "/"+tt.provider+tt.path, l.Key(), tt.body)).status }
			var wg sync.WaitGroup
			wg.Go(func() {
				if got := ask(); got != 200 {
					t.Errorf("the first: %d", got)
				}
			})
			<-first
			for range 7 {
				if got := ask(); got != 403 {
					t.Errorf("during the first: %d", got)
				}
			}
			close(gate)
			wg.Wait()
			if got := ask(); got != 200 {
				t.Errorf("after the first: %d", got)
			}
			select {
			case <-l.Spent():
				t.Error("the budget is spent")
			default:
			}
			if u := l.Usage(); u.Requests != 2 || u.Refused != 7 || u.InputTokens != 20 || u.OutputTokens != 10 || u.Estimated != 0 {
				t.Errorf("%+v", u)
			}
		})
	}
}

// TestHangUp verifies that a disconnected client frees its slot immediately but keeps its reservation. Its answer
// counts with the maximum length.
func TestHangUp(t *testing.T) {
	t.Parallel()
	asked, canceled := make(chan struct{}), make(chan struct{}, 100)
	rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"data":[]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // the proxy sends the whole body
		asked <- struct{}{}
		<-r.Context().Done()
		canceled <- struct{}{}
	}))
	leave := func(l *model.Lease) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			req := rig.request("POST", "/openai/v1/responses", l.Key(), `{"model":"small","input":"x"}`)
			if res, err := http.DefaultTransport.RoundTrip(req.WithContext(ctx)); err == nil {
				res.Body.Close()
				t.Error("an answer")
			}
		})
		<-asked
		cancel()
		wg.Wait()
	}
	l := rig.issue(model.Grant{Provider: "openai", MaxConcurrent: 1, Budget: model.Budget{OutputTokens: 100}})
	leave(l)
	for method, want := range map[string]int{"GET /openai/v1/models": 200, "POST /openai/v1/responses": 403} {
		method, path, _ := strings.Cut(method, " ")
		if got := rig.do(rig.request(method, path, l.Key(), `{"model":"small","input":"x"}`)).status; got != want {
			t.Errorf("%s %s after hanging up: %d, want %d", method, path, got, want)
		}
	}
	must(t, l.Close())
	<-canceled
	if u := l.Usage(); u.Estimated != 1 || u.InputTokens != 7 || u.OutputTokens != 100 {
		t.Errorf("%+v", u)
	}
	l = rig.issue(model.Grant{Provider: "openai", MaxConcurrent: 1})
	for range 40 {
		leave(l)
	}
	for range 40 - 16 { // the proxy reads the other answers
		<-canceled
	}
}

// TestUnansweredRequests verifies that a request that the provider accepted counts even without an answer, and a
// rejected request does not count.
func TestUnansweredRequests(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		provider http.HandlerFunc // nil for no provider
		status   int
		counted  int64
	}{
		"reset": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}, 502, 1},
		"compressed": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") }, 502, 1},
		"page":       {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/html") }, 502, 0},
		"overloaded": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(529) }, 529, 0},
		"elsewhere":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(302) }, 502, 0},
		"down":       {nil, 502, 0},
	} {
		rig := newRigOn(t, tt.provider)
		if tt.provider == nil {
			rig.beyond.Close()
		}
		l := rig.issue(model.Grant{Provider: "anthropic", Budget: model.Budget{OutputTokens: 100}})
		got := rig.do(dialects()[model.Anthropic].request(rig, l.Key(), "x", false))
		u := l.Usage()
		if got.status != tt.status || u.Requests != 1 || u.Estimated != tt.counted || u.OutputTokens != 9*tt.counted || u.InputTokens != 22*tt.counted {
			t.Errorf("%s: %d, %+v", name, got.status, u)
		}
	}
}

// TestProviderFails verifies that the provider's text about its key stays on the host, and its errors are forwarded as
// errors.
func TestProviderFails(t *testing.T) {
	t.Parallel()
	status, header := atomic.Int64{}, atomic.Pointer[http.Header]{}
	rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, v := range *header.Load() {
			w.Header()[name] = v
		}
		w.Header().Set("Link", r.Header.Get("X-Api-Key"))
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(int(status.Load()))
		key := r.Header.Get("X-Api-Key")
		fmt.Fprintf(w, `{"error":{"message":"account 42 has no key %s`, key[:5]) // in two parts
		_ = http.NewResponseController(w).Flush()
		fmt.Fprintf(w, `%s"}}`, key[5:])
		_ = http.NewResponseController(w).Flush()
		w.Header().Set(http.TrailerPrefix+"X-Account", key)
	}))
	l := rig.issue(model.Grant{Provider: "anthropic"})
	ask := dialects()[model.Anthropic]
	for _, tt := range []struct {
		status, want int
		header       http.Header
		said         string
	}{
		{401, 403, nil, "anthropic refused the operator's key or the request"},
		{403, 403, nil, "anthropic refused the operator's key or the request"},
		{302, 502, http.Header{"Location": {"http://169.254.169.254/"}}, "anthropic is unreachable or sent an invalid response"},
		{200, 502, http.Header{"Content-Encoding": {"", "gzip"}}, "anthropic is unreachable or sent an invalid response"},
		{200, 502, http.Header{"Content-Type": {"text/html; charset=utf-8"}}, "anthropic is unreachable or sent an invalid response"},
		{429, 429, http.Header{"Retry-After": {"7"}, "Request-Id": {realKey}}, "account 42 has no key [key]"},
		{529, 529, http.Header{"X-Ratelimit-Key": {"of " + realKey}}, "account 42 has no key [key]"},
		{200, 200, http.Header{"Content-Type": {"text/event-stream"}}, "account 42 has no key [key]"},
	} {
		status.Store(int64(tt.status))
		header.Store(&tt.header)
		early := http.Header{}
		req := ask.request(rig, l.Key(), "x", false)
		got := rig.do(req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			early = http.Header(h)
			return nil
		}})))
		if len(early) > 0 || strings.Contains(fmt.Sprint(got), realKey) {
			t.Errorf("%d: the key is inside: %v %v", tt.status, early, got)
		}
		if got.status != tt.want || got.said() != tt.said || got.header.Get("Location") != "" || got.header.Get("Retry-After") != tt.header.Get("Retry-After") {
			t.Errorf("%d: %d %v %s", tt.status, got.status, got.header, got.body)
		}
	}
	if u := l.Usage(); u.Estimated != 2 { // the compressed answer and the last answer
		t.Errorf("failures used %+v", u)
	}
	if log := rig.log.String(); !strings.Contains(log, "account 42 has no key [key]") || strings.Contains(log, realKey) {
		t.Errorf("log: %s", log)
	}
}

// TestMalformedAnswer verifies that the log does not contain the key from an answer that is not HTTP.
func TestMalformedAnswer(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"HTTP/1.1 KEY", "no KEY", "HTTP/1.1 200 OK\r\nKEY", "HTTP/1.1 200 OK\r\nContent-Length: KEY"} {
		rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			c, _, err := w.(http.Hijacker).Hijack()
			must(t, err)
			_, _ = io.WriteString(c, strings.ReplaceAll(answer, "KEY", realKey)+"\r\n\r\n")
			_ = c.Close()
		}))
		got := rig.do(dialects()[model.Anthropic].request(rig, rig.issue(model.Grant{Provider: "anthropic"}).Key(), "x", false))
		if log := rig.log.String(); got.status != 502 || strings.Contains(log, realKey) || !strings.Contains(log, "[key]") {
			t.Errorf("%q: %d, log: %s", answer, got.status, log)
		}
	}
}

// TestShortKey verifies that a short key is not removed from answers. Servers without keys are often configured with
// such a word.
func TestShortKey(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	ask := dialects()[model.Anthropic]
	ask.provider = "keyless"
	got := rig.do(ask.request(rig, rig.issue(model.Grant{Provider: "keyless"}).Key(), "x", false))
	if got.status != 200 || !strings.Contains(got.body, `"text":"it is as you say"`) {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// TestNothingIsHeldBack verifies that each part of a stream arrives before the provider sends the next part.
func TestNothingIsHeldBack(t *testing.T) {
	t.Parallel()
	for d, ask := range dialects() {
		read := make(chan struct{}, 100)
		rig := newRig(t, func(int, llmtest.Request) llmtest.Answer {
			return llmtest.Answer{Text: "one two three", Gate: func() { <-read }}
		})
		l := rig.issue(model.Grant{Provider: ask.provider})
		res, err := http.DefaultTransport.RoundTrip(ask.request(rig, l.Key(), "x", true))
		must(t, err)
		parts := 0
		for s := bufio.NewScanner(res.Body); s.Scan(); {
			if strings.HasPrefix(s.Text(), "data:") {
				parts++
				read <- struct{}{}
			}
		}
		res.Body.Close()
		if parts < 3 {
			t.Errorf("%s: %d parts", d, parts)
		}
	}
}

// TestAbandonedAnswer verifies that an answer is metered to its end after its client disconnected.
func TestAbandonedAnswer(t *testing.T) {
	t.Parallel()
	begun, gate := make(chan struct{}, 100), make(chan struct{})
	rig := newRig(t, func(int, llmtest.Request) llmtest.Answer {
		return llmtest.Answer{Text: "one two three", Gate: func() { begun <- struct{}{}; <-gate }}
	})
	for d, ask := range dialects() {
		before := rig.mock.Used()
		l := rig.issue(model.Grant{Provider: ask.provider, MaxConcurrent: 1})
		ctx, leave := context.WithCancel(t.Context())
		res, err := http.DefaultTransport.RoundTrip(ask.request(rig, l.Key(), "x", true).WithContext(ctx))
		must(t, err)
		<-begun
		leave()
		res.Body.Close()
		for used := rig.mock.Used().Output - before.Output; l.Usage().OutputTokens != used; {
			select {
			case gate <- struct{}{}:
			case <-begun:
			case <-time.After(time.Millisecond): // the rest is still being sent
			}
			if t.Context().Err() != nil {
				t.Fatal(d)
			}
		}
		if u := l.Usage(); u.Estimated != 0 {
			t.Errorf("%s: %+v", d, u)
		}
	}
}

// TestCloseEndsRequests verifies that closing a lease ends its requests, and their usage is estimated.
func TestCloseEndsRequests(t *testing.T) {
	t.Parallel()
	begun, gate := make(chan struct{}, 100), make(chan struct{})
	rig := newRig(t, func(int, llmtest.Request) llmtest.Answer {
		return llmtest.Answer{Text: "one two three", Gate: func() { begun <- struct{}{}; <-gate }}
	})
	defer close(gate)
	l := rig.issue(model.Grant{Provider: "anthropic"})
	res, err := http.DefaultTransport.RoundTrip(dialects()[model.Anthropic].request(rig, l.Key(), "x", true))
	must(t, err)
	defer res.Body.Close()
	<-begun
	must(t, l.Close())
	must(t, l.Close())
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the answer came to its end")
	}
	if u := l.Usage(); u.Estimated != 1 || u.InputTokens == 0 || u.OutputTokens == 0 {
		t.Errorf("%+v", u)
	}
}

// TestCloseIsNotKeptWaiting verifies that Close does not wait for programs that do not read their answers or do not
// send their whole body.
func TestCloseIsNotKeptWaiting(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	for name, end := range map[string]int{"reads a byte": 0, "sends half": 40} {
		l := rig.issue(model.Grant{Provider: "anthropic"})
		ours, theirs := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			model.ServeConn(t.Context(), theirs, rig.proxy.Handler(sandbox))
		}()
		req := dialects()[model.Anthropic].request(rig, l.Key(), "x", true)
		req.Header.Set("Expect", "100-continue")
		var request strings.Builder
		must(t, req.Write(&request))
		head, body, _ := strings.Cut(request.String(), "\r\n\r\n")
		_, err := io.WriteString(ours, head+"\r\n\r\n")
		must(t, err)
		_, err = io.ReadFull(ours, make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))) // the proxy is reading the body
		must(t, err)
		_, err = io.WriteString(ours, body[:len(body)-end])
		must(t, err)
		if end == 0 {
			_, err = io.ReadFull(ours, make([]byte, 1)) // the proxy is writing the rest
			must(t, err)
		}
		must(t, l.Close())
		must(t, ours.Close())
		<-ended
		if u := l.Usage(); end > 0 && u.Requests != 0 {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

// TestCutAnswer verifies that the usage of an interrupted answer is estimated, and the client can detect the
// interruption.
func TestCutAnswer(t *testing.T) {
	t.Parallel()
	rig := newRig(t, func(int, llmtest.Request) llmtest.Answer {
		return llmtest.Answer{Text: "one two three four five", Cut: true}
	})
	for d, ask := range dialects() {
		for _, stream := range []bool{false, true} {
			if d == model.Gemini && stream {
				continue // each event has the sums
			}
			l := rig.issue(model.Grant{Provider: ask.provider})
			res, err := http.DefaultTransport.RoundTrip(ask.request(rig, l.Key(), "x", stream))
			must(t, err)
			if _, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("%s: the answer came to its end", d)
			}
			res.Body.Close()
			must(t, l.Close()) // waits for the request
			if u := l.Usage(); u.Estimated != 1 || u.InputTokens == 0 {
				t.Errorf("%s, stream %v: %+v", d, stream, u)
			}
		}
	}
}

// TestMaxConcurrent verifies that requests above the granted number wait.
func TestMaxConcurrent(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	two := make(chan struct{})
	both := sync.OnceFunc(func() { close(two) })
	rig := newRig(t, func(int, llmtest.Request) llmtest.Answer {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == 2 {
			both()
		}
		<-two
		time.Sleep(time.Millisecond) // gives a third request time to arrive
		return llmtest.Answer{Text: "x"}
	})
	l := rig.issue(model.Grant{Provider: "anthropic", MaxConcurrent: 2})
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if got := rig.do(dialects()[model.Anthropic].request(rig, l.Key(), "x", false)); got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	wg.Wait()
	if most.Load() != 2 {
		t.Errorf("%d at once", most.Load())
	}
}

// TestLargeBodies verifies that concurrent large bodies wait for each other, so that they cannot fill the host's
// memory.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := now.Add(r.ContentLength)
		defer now.Add(-r.ContentLength)
		for m := most.Load(); size > m && !most.CompareAndSwap(m, size); m = most.Load() {
		}
		_, _ = io.Copy(io.Discard, r.Body) // the proxy sends the whole body
		time.Sleep(time.Millisecond)       // gives the other requests time to arrive
		fmt.Fprint(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
	}))
	l := rig.issue(model.Grant{Provider: "anthropic"})
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			req := dialects()[model.Anthropic].request(rig, l.Key(), strings.Repeat("x", 15<<20), false)
			if got := rig.do(req); got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	wg.Wait()
	if got := most.Load(); got < 15<<20 || got > 64<<20 {
		t.Errorf("%d MiB at once", got>>20)
	}
}

// TestUnknownSizes verifies that a received body does not wait for others because its size was unknown.
func TestUnknownSizes(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	all := make(chan struct{})
	rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 3 {
			close(all)
		}
		<-all
		fmt.Fprint(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
	}))
	l := rig.issue(model.Grant{Provider: "anthropic"})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			req := dialects()[model.Anthropic].request(rig, l.Key(), "x", false)
			req.ContentLength = -1
			if got := rig.do(req); got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	wg.Wait()
}

// TestSpans verifies that each request that runs a model has a span below the lease's span, without contents.
func TestSpans(t *testing.T) {
	t.Parallel()
	rig := newRig(t, func(int, llmtest.Request) llmtest.Answer { return llmtest.Answer{Text: "the contents"} })
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	l := rig.issue(model.Grant{Provider: "anthropic", Run: "run-1", Agent: "coder", SandboxID: sandbox, Span: parent, Budget: model.Budget{OutputTokens: 1}})
	ask := dialects()[model.Anthropic]
	rig.do(ask.request(rig, l.Key(), "the question", true))
	rig.do(ask.request(rig, l.Key(), "the question", true))
	rig.do(rig.request("GET", "/anthropic/v1/models", l.Key(), ""))
	must(t, l.Close())
	spans := rig.spans.GetSpans()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	u := l.Usage()
	got := map[string]string{}
	for _, kv := range spans[0].Attributes {
		got[string(kv.Key)] = kv.Value.String()
	}
	if got["workcell.model.ttft_ms"] == "" {
		t.Error("no time of the first byte")
	}
	delete(got, "workcell.model.ttft_ms")
	want := map[string]string{
		"gen_ai.operation.name": "chat", "gen_ai.request.model": "small", "gen_ai.provider.name": "anthropic", "gen_ai.agent.name": "coder", "gen_ai.conversation.id": "run-1",
		"workcell.sandbox.id": sandbox, "http.response.status_code": "200", "gen_ai.usage.input_tokens": fmt.Sprint(u.InputTokens), "gen_ai.usage.output_tokens": fmt.Sprint(u.OutputTokens),
		"gen_ai.usage.cache_read.input_tokens": fmt.Sprint(u.CacheReadTokens), "gen_ai.usage.reasoning.output_tokens": "0", "workcell.model.cost_usd": fmt.Sprint(u.CostUSD),
	}
	if diff := cmp.Diff(want, got); diff != "" || spans[0].Name != "chat small" || spans[0].Parent.SpanID() != parent.SpanID() || spans[0].SpanContext.TraceID() != parent.TraceID() {
		t.Errorf("%s (-want +got):\n%s", spans[0].Name, diff)
	}
	if spans[1].Name != "chat" || spans[1].Status.Code != codes.Error || spans[1].Status.Description != "permission_error" {
		t.Errorf("the span of a refusal: %+v", spans[1])
	}
	if all := fmt.Sprintf("%+v %s", spans, rig.log.String()); strings.Contains(all, "the question") || strings.Contains(all, "the contents") || strings.Contains(all, realKey) || strings.Contains(all, l.Key()) {
		t.Error("a span or the log has contents or a key")
	}
}

// TestServeConn verifies that any kind of connection is served until it ends.
func TestServeConn(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	l := rig.issue(model.Grant{Provider: "anthropic"})
	ours, theirs := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		model.ServeConn(t.Context(), theirs, rig.proxy.Handler(sandbox))
	}()
	in := bufio.NewReader(ours)
	for range 3 { // the connection is reused
		req := dialects()[model.Anthropic].request(rig, l.Key(), "x", true)
		must(t, req.Write(ours))
		res, err := http.ReadResponse(in, req)
		must(t, err)
		if _, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
			t.Errorf("%d, %v", res.StatusCode, err)
		}
		res.Body.Close()
	}
	must(t, ours.Close())
	<-ended
}

// TestErrorShapes verifies that refusals have the format that the provider's SDK expects.
func TestErrorShapes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d      model.Dialect
		status int
		want   string
	}{
		{model.Anthropic, 400, `{"error":{"message":"m","type":"invalid_request_error"},"type":"error"}`},
		{model.Anthropic, 429, `{"error":{"message":"m","type":"rate_limit_error"},"type":"error"}`},
		{model.OpenAIChat, 400, `{"error":{"code":null,"message":"m","param":null,"type":"invalid_request_error"}}`},
		{model.OpenAIChat, 401, `{"error":{"code":"invalid_api_key","message":"m","param":null,"type":"invalid_request_error"}}`},
		{model.OpenAIResponses, 429, `{"error":{"code":"rate_limit_exceeded","message":"m","param":null,"type":"requests"}}`},
		{model.OpenAIResponses, 502, `{"error":{"code":"server_error","message":"m","param":null,"type":"server_error"}}`},
		{model.Gemini, 400, `{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}`},
		{model.Gemini, 429, `{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED"}}`},
	} {
		w := httptest.NewRecorder()
		tt.d.Refuse(w, tt.status, "m")
		again := w.Header().Get("Retry-After") != "" || w.Header().Get("X-Should-Retry") == ""
		if got := strings.TrimSpace(w.Body.String()); got != tt.want || w.Code != tt.status || again != (tt.status == 429 || tt.status >= 500) {
			t.Errorf("%s: %d %v %s, want %s", tt.d, w.Code, w.Header(), got, tt.want)
		}
	}
}

// TestRefusalsDoNotFloodTheTrace verifies that a program in a loop of refused requests does not fill the trace.
func TestRefusalsDoNotFloodTheTrace(t *testing.T) {
	t.Parallel()
	rig := newRig(t, nil)
	l := rig.issue(model.Grant{Provider: "anthropic", Models: []string{"other"}})
	for range 200 {
		if got := rig.do(dialects()[model.Anthropic].request(rig, l.Key(), "x", false)); got.status != http.StatusForbidden {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if n := len(rig.spans.GetSpans()); n != 32 || l.Usage().Refused != 200 {
		t.Errorf("%d spans, %+v", n, l.Usage())
	}
}

// TestCutShort verifies that an answer that the budget shortened marks the budget as spent, even without a refused
// request. A naturally short answer does not.
func TestCutShort(t *testing.T) {
	t.Parallel()
	rig := newRigOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Longest int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"usage":{"input_tokens":1,"output_tokens":%d}}`, min(asked.Longest, 400))
	}))
	l := rig.issue(model.Grant{Provider: "anthropic", Budget: model.Budget{OutputTokens: 1000}})
	for i, spent := range []bool{false, false, true} { // 400, 400 of 600, 200 of 200
		if got := rig.do(rig.request("POST", "/anthropic/v1/messages", l.Key(), `{"model":"small","max_tokens":32000}`)); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		is := false
		select {
		case <-l.Spent():
			is = true
		default:
		}
		if is != spent {
			t.Errorf("after answer %d: spent %v", i, is)
		}
	}
	if u := l.Usage(); u.OutputTokens != 1000 || u.Refused != 0 {
		t.Errorf("%+v", u)
	}
}
