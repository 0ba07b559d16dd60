package hosttools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
)

// TestChecksComeInOrder verifies the order of the checks. A call with all faults fails the first check. After each fix,
// it fails the next check.
func TestChecksComeInOrder(t *testing.T) {
	t.Parallel()
	refund := lookup()
	refund.Name = "refund"
	refund.Handle = func(context.Context, hosttools.Call) (hosttools.Result, error) {
		return hosttools.Result{Data: json.RawMessage(`"` + strings.Repeat("x", 70<<20) + `"`)}, nil
	}
	grant := func(rule rules.Tool, limits hosttools.Limits) hosttools.Rules {
		rule.Tool = "orders.refund"
		return hosttools.Rules{Allow: []hosttools.Rule{rule}, Limits: limits}
	}
	for _, tc := range []struct {
		name   string
		policy hosttools.Policy
		rules  hosttools.Rules
		tool   string
		args   string
		want   string
		text   string
	}{
		{"not granted", hosttools.Policy{Deny: []string{"orders.*"}}, grant(rules.Tool{When: "false", Ask: "true"}, hosttools.Limits{ArgKB: 1}), "orders_other", strings.Repeat("x", 4000), "not_found", "unknown tool"},
		{"too large", hosttools.Policy{Deny: []string{"orders.*"}}, grant(rules.Tool{When: "false", Ask: "true"}, hosttools.Limits{ArgKB: 1}), "orders_refund", strings.Repeat("x", 4000), "too_large", "4000 bytes"},
		{"no JSON", hosttools.Policy{Deny: []string{"orders.*"}}, grant(rules.Tool{When: "false", Ask: "true"}, hosttools.Limits{ArgKB: 1}), "orders_refund", "xxx", "invalid_argument", "JSON"},
		{"schema", hosttools.Policy{Deny: []string{"orders.*"}}, grant(rules.Tool{When: "false", Ask: "true"}, hosttools.Limits{}), "orders_refund", `{"amount":"x","more":1}`, "invalid_argument", `id is missing; amount: type: x has type "string", want "number"; unknown argument "more"`},
		{"denied", hosttools.Policy{Deny: []string{"orders.*"}}, grant(rules.Tool{When: "false", Ask: "true"}, hosttools.Limits{}), "orders_refund", `{"id":"1"}`, "permission_denied", "policy denies"},
		{"when", hosttools.Policy{}, grant(rules.Tool{When: "args.amount < 10", Ask: "true"}, hosttools.Limits{}), "orders_refund", `{"id":"1","amount":10}`, "permission_denied", "not allowed with these"},
		{"when without its argument", hosttools.Policy{}, grant(rules.Tool{When: "args.amount < 10"}, hosttools.Limits{}), "orders_refund", `{"id":"1"}`, "permission_denied", "cannot evaluate the condition"},
		{"ask", hosttools.Policy{}, grant(rules.Tool{When: "args.amount < 11", Ask: "args.amount > 9"}, hosttools.Limits{}), "orders_refund", `{"id":"1","amount":10}`, "permission_denied", "no approver is available"},
		{"the operator asks", hosttools.Policy{Ask: []string{"*.refund"}}, grant(rules.Tool{}, hosttools.Limits{}), "orders_refund", `{"id":"1"}`, "permission_denied", "no approver is available"},
		{"result", hosttools.Policy{}, grant(rules.Tool{}, hosttools.Limits{}), "orders_refund", `{"id":"1"}`, "too_large", "the limit is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := registry(t, &hosttools.Options{Policy: tc.policy}, hosttools.Static("orders", lookup(), refund))
			a := set(t, r, hosttools.Grant{Rules: tc.rules}).Access(hosttools.Command{})
			got := call(t, a, tc.tool, tc.args)
			if code(got) != tc.want || !strings.Contains(got.Error.Message, tc.text) {
				t.Errorf("%v, want %s with %q", got.Error, tc.want, tc.text)
			}
		})
	}
}

func TestArgumentsThatParsersDisagreeOn(t *testing.T) {
	t.Parallel()
	echo := tool("echo", func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
		return hosttools.Result{Data: c.Args}, nil
	})
	a := set(t, registry(t, nil, hosttools.Static("app", echo, lookup())), hosttools.Grant{Rules: allow("app.*")}).Access(hosttools.Command{})
	for args, want := range map[string]string{
		``:                            `{}`,
		`null`:                        `{}`,
		`{"b":1.0,"a":[{"c":"<&>"}]}`: `{"a":[{"c":"<&>"}],"b":1}`,
		`{"n":9007199254740993}`:      `{"n":9007199254740993}`,
		`{"n":-0.5e-3}`:               `{"n":-0.0005}`,
		`{"a":1,"a":2}`:               "",
		`{"a":1,"A":2}`:               "",
		`{"s":1,"ſ":2}`:               "",
		`{"n":18446744073709551617}`:  "",
		`{"n":1e999}`:                 "",
		`{"a":1}{"a":2}`:              "",
		`{"a":1`:                      "",
		`[]`:                          "",
		`"x"`:                         "",
		"{\"a\":\"\xff\"}":            "",
		strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65): "",
	} {
		got := call(t, a, "app_echo", args)
		if string(got.Data) != want || (want == "") != (code(got) == "invalid_argument") {
			t.Errorf("%s: %s %v, want %s", args, got.Data, got.Error, want)
		}
	}
	if got := call(t, a, "app.lookup", `{"id":"1","ID":"2"}`); code(got) != "invalid_argument" {
		t.Errorf("an argument in another spelling: %v", got.Error)
	}
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.*"}, {Tool: "app.lookup", MaxCalls: 2}}, Limits: hosttools.Limits{Calls: 100}}
	r := registry(t, &hosttools.Options{Policy: hosttools.Policy{Limits: hosttools.Limits{Calls: 4}}}, hosttools.Static("app", lookup(), tool("echo", lookup().Handle)))
	s := set(t, r, hosttools.Grant{Rules: rules})
	a := s.Access(hosttools.Command{})
	var got []string
	for _, name := range []string{"app_lookup", "app_lookup", "app_lookup", "app_echo", "app_echo", "app_echo"} {
		got = append(got, code(call(t, a, name, `{"id":"1"}`)))
	}
	if diff := cmp.Diff([]string{"", "", "quota_exceeded", "", "", "quota_exceeded"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	counts := a.Counts()
	counts.WaitedMS = 0 // TestRateAndSlots checks it
	want := hosttools.Counts{Total: 6, Failed: 2, ByTool: map[string]int64{"app.lookup": 3, "app.echo": 3}}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

// TestQuotasOfAWorkflow verifies that the sets of an agent share their limits in a workflow run, including nested
// workflows. Another agent, and a file with the same name in another place, have separate quotas.
func TestQuotasOfAWorkflow(t *testing.T) {
	t.Parallel()
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup", MaxCalls: 2, When: `run.workflow != "inner" || run.step == "s"`}}}
	r := registry(t, nil, hosttools.Static("app", lookup()))
	ctx := hosttools.WithWorkflow(t.Context(), "outer")
	inner := hosttools.WithWorkflow(ctx, "inner")
	for i, tt := range []struct {
		ctx               context.Context
		agent, file, want string
	}{
		{inner, "a", "x/a.prompt", "permission_denied"}, {ctx, "a", "x/a.prompt", ""}, {hosttools.WithStep(inner, "s", 1), "a", "x/a.prompt", ""},
		{ctx, "a", "x/a.prompt", "quota_exceeded"}, {ctx, "a", "y/a.prompt", ""}, {ctx, "b", "", ""}, {t.Context(), "a", "x/a.prompt", ""},
	} {
		s, err := r.Set(tt.ctx, hosttools.Grant{Rules: rules, Caller: hosttools.Caller{Agent: tt.agent}, File: tt.file})
		checktest.Must(t, err)
		if got := code(call(t, s.Access(hosttools.Command{}), "app_lookup", `{"id":"1"}`)); got != tt.want {
			t.Errorf("call %d: %q, want %q", i, got, tt.want)
		}
		checktest.Must(t, s.Close(t.Context()))
	}
}

// TestRateAndSlots verifies that the sets of an agent in a workflow run share the rate and the slots.
func TestRateAndSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		wait := tool("wait", func(context.Context, hosttools.Call) (hosttools.Result, error) {
			<-hold
			return hosttools.Result{}, nil
		})
		rules := allow("app.*")
		rules.Limits.Concurrent, rules.Limits.PerSecond, rules.Limits.Seconds = 1, 10, 2
		r, ctx := registry(t, nil, hosttools.Static("app", wait, lookup())), hosttools.WithWorkflow(t.Context(), "w")
		var sets [2]*hosttools.Set
		for i := range sets {
			var err error
			sets[i], err = r.Set(ctx, hosttools.Grant{Rules: rules})
			checktest.Must(t, err)
			defer func() { checktest.Must(t, sets[i].Close(ctx)) }()
		}
		a := sets[1].Access(hosttools.Command{})
		if got := call(t, sets[0].Access(hosttools.Command{}), "app_wait", ""); code(got) != "timeout" {
			t.Fatalf("a slow tool: %v", got.Error)
		}
		began := time.Now()
		got := call(t, a, "app_lookup", `{"id":"1"}`) // the handler has not returned, so its slot is in use
		if code(got) != "capacity" || got.RetryAfter < time.Second || time.Since(began) != 5*time.Second {
			t.Errorf("without a slot: %+v after %s", got, time.Since(began))
		}
		close(hold)
		synctest.Wait()
		began = time.Now()
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				if got := call(t, a, "app_lookup", `{"id":"1"}`); got.Error != nil {
					t.Errorf("%v", got.Error)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took < 1900*time.Millisecond {
			t.Errorf("30 calls at 10 a second took %s", took)
		}
		if got := a.Counts().WaitedMS; got < 5000+20*1900/2 {
			// Five seconds for a slot, and the rate limit for the last 20 calls.
			t.Errorf("%d ms are counted as waited", got)
		}
	})
}

func TestHandlersThatMisbehave(t *testing.T) {
	t.Parallel()
	handlers := map[string]hosttools.Handler{
		"internal": func(context.Context, hosttools.Call) (hosttools.Result, error) { panic("secret") },
		"tool_failed": func(context.Context, hosttools.Call) (hosttools.Result, error) {
			return hosttools.Result{}, errors.New("secret /etc")
		},
		"permission_denied": func(context.Context, hosttools.Call) (hosttools.Result, error) {
			return hosttools.Result{}, &hosttools.Error{Code: "permission_denied"}
		},
	}
	var tools []hosttools.Tool
	for name, h := range handlers {
		tools = append(tools, tool(name, h))
	}
	tools = append(tools, tool("says", func(context.Context, hosttools.Call) (hosttools.Result, error) {
		return hosttools.Result{Failed: true, Text: "no such order"}, nil
	}), tool("garbage", func(context.Context, hosttools.Call) (hosttools.Result, error) {
		return hosttools.Result{Data: json.RawMessage("{")}, nil
	}))
	a := set(t, registry(t, nil, hosttools.Static("app", tools...)), hosttools.Grant{Rules: allow("app.*")}).Access(hosttools.Command{})
	for want := range handlers {
		if got := call(t, a, "app_"+want, ""); code(got) != want || strings.Contains(got.Error.Message, "secret") {
			t.Errorf("%s: %v", want, got.Error)
		}
	}
	if got := call(t, a, "app_says", ""); code(got) != "tool_failed" || !strings.Contains(got.Error.Message, "no such order") {
		t.Errorf("%v", got.Error)
	}
	if got := call(t, a, "app_garbage", ""); code(got) != "tool_failed" {
		t.Errorf("%v", got.Error)
	}
}

// TestNamesWithDashes verifies that the identifier of a name with dashes reaches the tool with one call, if it is the
// only such tool.
func TestNamesWithDashes(t *testing.T) {
	t.Parallel()
	named := func(name string) hosttools.Tool {
		return tool(name, func(context.Context, hosttools.Call) (hosttools.Result, error) {
			return hosttools.Result{Text: name}, nil
		})
	}
	r := registry(t, nil, hosttools.Static("my-server", named("get-thing"), named("a-b"), named("a_b")))
	a := set(t, r, hosttools.Grant{Rules: allow("my-server.*")}).Access(hosttools.Command{})
	for name, want := range map[string]string{
		"my_server_get_thing": "get-thing", "my-server_get-thing": "get-thing", "my-server.get-thing": "get-thing", "my-server_a_b": "a_b", "my-server_a-b": "a-b",
	} {
		if got := call(t, a, name, ""); got.Text != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if counts := a.Counts(); counts.Total != 5 || counts.Failed != 0 {
		t.Errorf("%+v", counts)
	}
	if got := call(t, a, "my_server_a_b", ""); code(got) != "not_found" {
		t.Errorf("a name of two tools: %+v", got)
	}
	if got := call(t, a, "my_server_get_thin", ""); code(got) != "not_found" || !strings.Contains(got.Error.Remediation, "Did you mean") {
		t.Errorf("a near name: %+v", got.Error)
	}
}

// TestDepth verifies that a tool may run an agent whose code calls tools, up to a maximum depth, also with one slot.
func TestDepth(t *testing.T) {
	t.Parallel()
	var r *hosttools.Registry
	var deepest int
	rules := allow("app.nested")
	rules.Limits.Concurrent = 1
	nested := tool("nested", func(ctx context.Context, c hosttools.Call) (hosttools.Result, error) {
		deepest = max(deepest, c.Caller.Depth)
		s, err := r.Set(hosttools.WithWorkflow(ctx, "inner"), hosttools.Grant{Rules: rules})
		if err != nil {
			return hosttools.Result{}, err
		}
		defer s.Close(context.WithoutCancel(ctx)) // its handlers have returned
		reply := s.Access(hosttools.Command{}).Call(ctx, "ex2", trace.SpanContext{}, hosttools.Request{Tool: "app.nested"})
		if reply.Error != nil {
			return hosttools.Result{}, reply.Error
		}
		return hosttools.Result{}, nil
	})
	r = registry(t, nil, hosttools.Static("app", nested))
	s, err := r.Set(hosttools.WithWorkflow(t.Context(), "outer"), hosttools.Grant{Rules: rules})
	checktest.Must(t, err)
	defer func() { checktest.Must(t, s.Close(t.Context())) }()
	a := s.Access(hosttools.Command{})
	if got := call(t, a, "app_nested", ""); code(got) != "permission_denied" || deepest != 3 {
		t.Errorf("%v at depth %d", got.Error, deepest)
	}
}

func TestLargeResultsAreFiles(t *testing.T) {
	t.Parallel()
	results := map[string]hosttools.Result{
		"small": {Data: json.RawMessage(`{"a":1}`)},
		"large": {Data: json.RawMessage(`{"rows":[` + strings.Repeat("1,", 60<<10) + `1],"more":2}`)},
		"text":  {Text: strings.Repeat("é", 70<<10)},
		"image": {Files: []hosttools.File{{MIME: "image/png", Bytes: []byte("png")}}},
		"false": {Data: json.RawMessage(`{"\u0024saved":{"path":"/etc/passwd"}}`)},
	}
	var tools []hosttools.Tool
	for name, res := range results {
		tools = append(tools, tool(name, func(context.Context, hosttools.Call) (hosttools.Result, error) { return res, nil }))
	}
	f := &files{}
	s := set(t, registry(t, nil, hosttools.Static("app", tools...)), hosttools.Grant{Rules: allow("app.*")})
	a := s.Access(hosttools.Command{Files: f})
	saved := func(r hosttools.Reply) (about hosttools.Saved) {
		t.Helper()
		var in struct {
			Saved hosttools.Saved `json:"$saved"`
		}
		if err := json.Unmarshal(r.Data, &in); err != nil || r.Error != nil {
			t.Fatalf("%s, %v, %v", r.Data, r.Error, err)
		}
		return in.Saved
	}
	about := saved(call(t, a, "app_large", ""))
	if f.data[about.Path] != string(results["large"].Data) || about.Kind != "object" || about.Length != 2 || !slices.Equal(about.Keys, []string{"rows", "more"}) ||
		len(about.Head) != 400 || !strings.HasPrefix(about.Path, "/workspace/.workcell/results/") || !strings.HasSuffix(about.Path, ".json") {
		t.Errorf("large: %+v", about)
	}
	if about = saved(call(t, a, "app_text", "")); about.Kind != "text" || about.Length != 70<<10 || about.Bytes != 140<<10 {
		t.Errorf("text: %+v", about)
	}
	if about = saved(call(t, a, "app_image", "")); about.Kind != "image/png" || f.data[about.Path] != "png" {
		t.Errorf("image: %+v", about)
	}
	if about = saved(call(t, a, "app_false", "")); f.data[about.Path] != string(results["false"].Data) {
		t.Errorf("data that says it is in a file: %+v", about)
	}
	save := func(name, to string) hosttools.Reply {
		return a.Call(t.Context(), "ex1", trace.SpanContext{}, hosttools.Request{Tool: name, Save: to})
	}
	if about = saved(save("app_small", "out/rows.json")); about.Path != "/workspace/out/rows.json" || f.data[about.Path] != `{"a":1}` {
		t.Errorf("saved: %+v", about)
	}
	for _, to := range []string{"/etc/passwd", "../x", "/workspace/../etc/x", "a/../../x", "/tmp/x", "dir/", "."} {
		if got := save("app_small", to); code(got) != "invalid_argument" {
			t.Errorf("saved as %s: %v", to, got.Error)
		}
	}
	if got := call(t, s.Access(hosttools.Command{}), "app_large", ""); code(got) != "too_large" {
		t.Errorf("without files: %v", got.Error)
	}
	if got := call(t, s.Access(hosttools.Command{}), "app_small", ""); string(got.Data) != `{"a":1}` {
		t.Errorf("small: %+v", got)
	}
}

// approver returns its answers in order.
type approver struct {
	mu    sync.Mutex
	asked []hosttools.ApprovalRequest
	say   func(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error)
}

func (a *approver) Approve(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error) {
	a.mu.Lock()
	a.asked = append(a.asked, r)
	a.mu.Unlock()
	for i := range r.Args { // modifying it must not change the call
		r.Args[i] = 'x'
	}
	return a.say(ctx, r)
}

func TestApprovals(t *testing.T) {
	t.Parallel()
	for about, want := range map[string]int{hosttools.ForOnce: 4, "": 4, hosttools.ForSame: 2, hosttools.ForTool: 1} {
		ap := &approver{say: func(context.Context, hosttools.ApprovalRequest) (hosttools.Decision, error) {
			return hosttools.Decision{Allow: true, For: about}, nil
		}}
		rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup", Ask: "true"}}}
		s := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: rules, Approver: ap})
		a := s.Access(hosttools.Command{})
		for _, args := range []string{`{"id":"1"}`, `{ "id": "1" }`, `{"id":"2"}`, `{"id":"2"}`} {
			if got := call(t, a, "app_lookup", args); got.Error != nil || string(got.Data) != strings.ReplaceAll(args, " ", "") {
				t.Errorf("%s: %s %v", args, got.Data, got.Error)
			}
		}
		if len(ap.asked) != want {
			t.Errorf("for %q: asked %d times, want %d", about, len(ap.asked), want)
		}
	}
}

func TestApprovalThatTakesTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan hosttools.Decision)
		ap := &approver{say: func(ctx context.Context, _ hosttools.ApprovalRequest) (hosttools.Decision, error) {
			select {
			case d := <-answer:
				return d, nil
			case <-ctx.Done():
				return hosttools.Decision{}, ctx.Err()
			}
		}}
		var mu sync.Mutex
		var extended, program time.Duration
		failed := map[string]bool{} // the first extension of each command fails
		rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup", Ask: "true"}}}
		all := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: rules, Approver: ap})
		a := all.Access(hosttools.Command{
			Extend: func(_ context.Context, execID string, by time.Duration) error {
				mu.Lock()
				defer mu.Unlock()
				if !failed[execID] {
					failed[execID] = true
					return backend.ErrNotFound
				}
				switch execID {
				case "ex1":
					extended += by
				case "program":
					program += by
				default:
					t.Errorf("exec %q", execID)
				}
				return nil
			},
		})
		go func() {
			time.Sleep(4 * time.Minute)
			answer <- hosttools.Decision{Note: "not today"}
		}()
		if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != "permission_denied" || !strings.Contains(got.Error.Message, "not today") {
			t.Errorf("rejected: %v", got.Error)
		}
		mu.Lock()
		if got := a.Counts().Asking; got != 4*time.Minute {
			t.Errorf("waited %s", got)
		}
		if extended < 4*time.Minute || extended > 4*time.Minute+15*time.Second {
			// A dead host would leave the excess to the command.
			t.Errorf("the command got %s more", extended)
		}
		mu.Unlock()
		a.Program("python", "earlier")()
		later := &approver{say: ap.Approve}
		ended := all.Access(hosttools.Command{Approver: later}).Program("python", "program")
		all.Access(hosttools.Command{Approver: &approver{}}).Program("node", "other")()
		for range 100 { // each approval is answered immediately
			go func() { answer <- hosttools.Decision{Allow: true} }()
			call(t, a, "app_lookup", `{"id":"1"}`)
		}
		if len(later.asked) != 100 {
			t.Errorf("the approver of the later program decided %d times", len(later.asked))
		}
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() { call(t, a, "app_lookup", `{"id":"1"}`) })
		}
		time.Sleep(time.Minute)
		for range 8 {
			answer <- hosttools.Decision{Allow: true}
		}
		calls.Wait()
		mu.Lock()
		if extended < 5*time.Minute || extended > 5*time.Minute+15*time.Second {
			t.Errorf("after many questions, some at once, the command got %s more", extended)
		}
		if ended(); program < time.Minute || program > time.Minute+15*time.Second {
			t.Errorf("the program in the interpreter got %s more", program)
		}
		mu.Unlock()
		began := time.Now()
		if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != "timeout" || time.Since(began) != 15*time.Minute {
			t.Errorf("without an answer: %v after %s", got.Error, time.Since(began))
		}
		ap.say = func(context.Context, hosttools.ApprovalRequest) (hosttools.Decision, error) { panic("x") }
		if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != "permission_denied" {
			t.Errorf("an approver that panics: %v", got.Error)
		}
		want := hosttools.Counts{Total: 111, Denied: 3, ByTool: map[string]int64{"app.lookup": 111}}
		got := a.Counts()
		want.WaitedMS, want.Asking = got.WaitedMS, got.Asking // for the rate limit and for approvals
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestApprovalsNeedNoSlot verifies that a call waiting for an approval delays no other call, and waits for a slot
// afterwards, with more time for the command. Later calls with the same approval wait for a slot like any other call.
func TestApprovalsNeedNoSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ap := &approver{say: func(context.Context, hosttools.ApprovalRequest) (hosttools.Decision, error) {
			time.Sleep(time.Minute)
			return hosttools.Decision{Allow: true, For: hosttools.ForTool}, nil
		}}
		var extended time.Duration
		extend := func(_ context.Context, _ string, by time.Duration) error {
			extended += by
			return nil
		}
		slow := tool("slow", func(context.Context, hosttools.Call) (hosttools.Result, error) {
			time.Sleep(50 * time.Second)
			return hosttools.Result{}, nil
		})
		rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup", Ask: "true"}, {Tool: "app.slow"}}}
		rules.Limits.Concurrent = 1
		r := registry(t, nil, hosttools.Static("app", slow, lookup()))
		a := set(t, r, hosttools.Grant{Rules: rules, Approver: ap}).Access(hosttools.Command{Extend: extend})
		began := time.Now()
		var asking sync.WaitGroup
		asking.Go(func() {
			got := call(t, a, "app_lookup", `{"id":"1"}`)
			if took := time.Since(began); got.Error != nil || took != 100*time.Second {
				t.Errorf("the approved call: %v after %s", got.Error, took)
			}
		})
		synctest.Wait()
		for range 2 {
			if got := call(t, a, "app_slow", ""); got.Error != nil {
				t.Errorf("during the approval: %v", got.Error)
			}
		}
		asking.Wait()
		if extended < 100*time.Second || extended > 115*time.Second {
			t.Errorf("the command got %s more", extended)
		}
		began = time.Now()
		asking.Go(func() { call(t, a, "app_slow", "") })
		synctest.Wait()
		if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != "capacity" || time.Since(began) != 5*time.Second {
			t.Errorf("approved earlier: %v after %s", got.Error, time.Since(began))
		}
		asking.Wait()
	})
}

func TestSpans(t *testing.T) {
	t.Parallel()
	exported := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exported))
	r := registry(t, &hosttools.Options{TracerProvider: tp}, hosttools.Static("orders", lookup()))
	a := set(t, r, hosttools.Grant{Rules: allow("orders.lookup"), Caller: hosttools.Caller{Run: "r1", Agent: "desk"}}).Access(hosttools.Command{SandboxID: "sb1"})
	command := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
	for _, tc := range []struct{ parent, want, link string }{
		{"", "0100000000000000", ""},
		{"00-01000000000000000000000000000000-0200000000000000-01", "0200000000000000", ""},
		{"00-09000000000000000000000000000000-0300000000000000-01", "0100000000000000", "0300000000000000"},
		{"forged", "0100000000000000", ""},
	} {
		exported.Reset()
		a.Call(t.Context(), "ex1", command, hosttools.Request{Tool: "orders_lookup", Args: json.RawMessage(`{"id":"sesame"}`), TraceParent: tc.parent})
		spans := exported.GetSpans()
		if len(spans) != 1 || spans[0].Name != "execute_tool orders_lookup" || spans[0].Parent.SpanID().String() != tc.want || spans[0].SpanContext.TraceID() != command.TraceID() {
			t.Fatalf("%q: %+v", tc.parent, spans)
		}
		if tc.link != "" && (len(spans[0].Links) != 1 || spans[0].Links[0].SpanContext.SpanID().String() != tc.link) {
			t.Errorf("%q: links %+v", tc.parent, spans[0].Links)
		}
		got := map[string]string{}
		for _, kv := range spans[0].Attributes {
			if got[string(kv.Key)] = kv.Value.String(); strings.Contains(kv.Value.String(), "sesame") {
				t.Errorf("%s holds an argument", kv.Key)
			}
		}
		delete(got, "workcell.tool.set")
		want := map[string]string{
			"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "orders_lookup", "mcp.method.name": "tools/call", "workcell.tool.server": "orders",
			"workcell.tool.args_bytes": "15", "workcell.tool.result_bytes": "15", "workcell.tool.decision": "allowed", "workcell.exec.id": "ex1",
			"workcell.sandbox.id": "sb1", "gen_ai.conversation.id": "r1", "gen_ai.agent.name": "desk",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestCallsWhileTheSetIsClosed verifies that calls of many commands can run concurrently with Close.
func TestCallsWhileTheSetIsClosed(t *testing.T) {
	t.Parallel()
	rules := allow("app.*")
	rules.Limits.PerSecond, rules.Limits.Concurrent, rules.Limits.Calls = 10_000, 8, 1_000_000
	s := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: rules})
	var wg sync.WaitGroup
	for range 8 {
		a := s.Access(hosttools.Command{})
		wg.Go(func() {
			for range 50 {
				if c := code(call(t, a, "app_lookup", `{"id":"1"}`)); c != "" && c != "closed" {
					t.Errorf("code %q", c)
				}
				a.Counts()
			}
		})
	}
	checktest.Must(t, s.Close(t.Context()))
	wg.Wait()
	got := call(t, s.Access(hosttools.Command{}), "app_lookup", `{"id":"1"}`)
	if code(got) != "closed" || got.Error.Remediation != "Stop calling host tools." {
		t.Errorf("after Close: %v", got.Error)
	}
}

// TestRefusalsAreBounded verifies that code that repeats refused calls cannot fill the audit log or the disk.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit")
	record, err := audit.Open(file, audit.Options{})
	checktest.Must(t, err)
	var log bytes.Buffer
	r := registry(t, &hosttools.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, hosttools.Static("app", lookup()))
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup", When: "args.there_is_none > 1"}}}
	s, err := r.Set(audit.NewContext(t.Context(), record), hosttools.Grant{Rules: rules})
	checktest.Must(t, err)
	defer s.Close(context.Background()) // its handlers have returned
	a := s.Access(hosttools.Command{})
	for i := range 10_000 {
		name, want := "no_such", "not_found"
		if i%2 == 0 {
			name, want = "app_lookup", "permission_denied"
		}
		if got := call(t, a, name, `{"id":"1"}`); code(got) != want {
			t.Fatalf("%s: %v", name, got.Error)
		}
	}
	for range 100 {
		if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != "quota_exceeded" {
			t.Fatalf("%v", got.Error)
		}
	}
	checktest.Must(t, record.Close())
	written, err := os.ReadFile(file)
	if n := bytes.Count(written, []byte("\n")); err != nil || n != 5000 {
		t.Errorf("%d lines of audit, %v", n, err)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines of log: %.500s", n, log.String())
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(file, audit.Options{})
	checktest.Must(t, err)
	ran := false
	hit := tool("hit", func(context.Context, hosttools.Call) (hosttools.Result, error) {
		ran = true
		return hosttools.Result{}, nil
	})
	r := registry(t, &hosttools.Options{Policy: hosttools.Policy{Deny: []string{"app.lookup"}}}, hosttools.Static("app", lookup(), hit))
	s, err := r.Set(audit.NewContext(t.Context(), log), hosttools.Grant{Rules: allow("app.*"), Caller: hosttools.Caller{Run: "r1", Step: "fix", Agent: "desk"}})
	checktest.Must(t, err)
	defer s.Close(context.Background()) // its handlers have returned
	settings := sandbox.Settings{Backend: "docker", Isolation: "kernel", Tools: s.Digest()}
	a := s.Access(hosttools.Command{SandboxID: "sb1", Settings: settings})
	do := func(name string) hosttools.Reply {
		return a.Call(t.Context(), "ex1", trace.SpanContext{}, hosttools.Request{Tool: name, Args: json.RawMessage(`{"id":"sesame"}`)})
	}
	do("app_hit")
	do("app_lookup")
	checktest.Must(t, log.Close())
	if ran = false; code(do("app_hit")) != "internal" || ran {
		t.Error("a call that cannot be put on record is made")
	}
	text, err := os.ReadFile(file)
	checktest.Must(t, err)
	var got []obj
	for line := range strings.Lines(string(text)) {
		var record obj
		checktest.Must(t, json.Unmarshal([]byte(line), &record))
		delete(record, "time")
		delete(record, "settings")
		got = append(got, record)
	}
	common := func(more obj) obj {
		maps.Copy(more, obj{"event": "tool", "run": "r1", "step": "fix", "agent": "desk", "sandbox": "sb1", "exec": "ex1"})
		maps.Copy(more, obj{"isolation": "kernel", "backend": "docker", "policy": settings.Digest()})
		return more
	}
	want := []obj{
		common(obj{"tool": "app.hit", "decision": "allowed"}),
		common(obj{"tool": "app.lookup", "decision": "refused", "rule": "policy.deny"}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPolicyIsChecked verifies that a policy that can never apply is rejected, even without an operator's file.
func TestPolicyIsChecked(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]hosttools.Policy{
		"deny": {Deny: []string{"delete_*"}}, "ask": {Ask: []string{"app.b", "merge"}}, "empty": {Deny: []string{""}},
		"misspelt server": {Deny: []string{"ap.delete_*"}}, "no such servers": {Ask: []string{"b*.merge"}},
		"negative": {Limits: hosttools.Limits{Calls: -1}}, "large": {Limits: hosttools.Limits{Calls: 1 << 40}},
	} {
		_, err := hosttools.New(&hosttools.Options{Policy: p}, hosttools.Static("app", lookup()))
		if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "policy") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := hosttools.New(nil, hosttools.Static("a"), hosttools.Static("a")); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("duplicate server: %v", err)
	}
}
