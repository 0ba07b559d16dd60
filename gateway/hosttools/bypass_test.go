package hosttools_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/workcell-dev/workcell/gateway/hosttools"
)

// TestConditionsAboutCallsAtOnce verifies that concurrent calls are decided one after the other. If a condition allows
// only one call, exactly one call is made.
func TestConditionsAboutCallsAtOnce(t *testing.T) {
	t.Parallel()
	var made atomic.Int64
	refund := tool("refund", func(context.Context, hosttools.Call) (hosttools.Result, error) {
		made.Add(1)
		return hosttools.Result{}, nil
	})
	r := registry(t, nil, hosttools.Static("app", refund))
	// The first part takes a while, so that other calls arrive during its evaluation.
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.refund", When: "args.items.all(a, args.items.all(b, a + b >= 0)) && calls.tool < 1"}}}
	args := `{"items":[1` + strings.Repeat(",1", 60) + `]}`
	for range 20 {
		a := set(t, r, hosttools.Grant{Rules: rules}).Access(hosttools.Command{})
		made.Store(0)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if got := call(t, a, "app_refund", args); got.Error != nil && code(got) != "permission_denied" {
					t.Error(got.Error)
				}
			})
		}
		wg.Wait()
		if n := made.Load(); n != 1 {
			t.Errorf("%d calls were made, want 1", n)
		}
	}
}

// TestAskKnowsTheCallsBefore verifies that ask conditions see the number of earlier calls, like when conditions.
func TestAskKnowsTheCallsBefore(t *testing.T) {
	t.Parallel()
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup", When: "calls.tool < 3", Ask: "calls.tool >= 2 || calls.total >= 2"}}}
	a := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: rules}).Access(hosttools.Command{})
	for i, want := range []string{"", "", "permission_denied"} {
		if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != want {
			t.Errorf("call %d: %v, want %q", i+1, got.Error, want)
		}
	}
}

// TestConditionsAreBounded verifies that the evaluation of any condition ends.
func TestConditionsAreBounded(t *testing.T) {
	t.Parallel()
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.any", When: "args.items.all(a, args.items.all(b, args.items.all(c, a + b + c >= 0)))"}}}
	a := set(t, registry(t, nil, hosttools.Static("app", tool("any", lookup().Handle))), hosttools.Grant{Rules: rules}).Access(hosttools.Command{})
	args := `{"items":[1` + strings.Repeat(",1", 1000) + `]}`
	if got := call(t, a, "app_any", args); code(got) != "permission_denied" || !strings.Contains(got.Error.Message, "cannot evaluate") {
		t.Errorf("10^9 steps: %v", got.Error)
	}
}

// TestNoCapacityCostsNoQuota verifies that a call refused for lack of capacity does not count against the quota,
// because the answer asks the caller to repeat it.
func TestNoCapacityCostsNoQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		wait := tool("wait", func(context.Context, hosttools.Call) (hosttools.Result, error) {
			<-hold
			return hosttools.Result{}, nil
		})
		rules := hosttools.Rules{
			Allow:  []hosttools.Rule{{Tool: "app.wait"}, {Tool: "app.lookup", MaxCalls: 1}},
			Limits: hosttools.Limits{Concurrent: 1, Seconds: 60, Calls: 2},
		}
		a := set(t, registry(t, nil, hosttools.Static("app", wait, lookup())), hosttools.Grant{Rules: rules}).Access(hosttools.Command{})
		var wg sync.WaitGroup
		wg.Go(func() { call(t, a, "app_wait", "") })
		synctest.Wait()
		if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != "capacity" {
			t.Errorf("without a slot: %v", got.Error)
		}
		close(hold)
		wg.Wait()
		for _, want := range []string{"", "quota_exceeded"} {
			if got := call(t, a, "app_lookup", `{"id":"1"}`); code(got) != want {
				t.Errorf("%v, want %q", got.Error, want)
			}
		}
	})
}

// TestMisspeltArguments verifies that names with another spelling are refused, except in the value of a property
// without named properties.
func TestMisspeltArguments(t *testing.T) {
	t.Parallel()
	refund := obj{"type": "object", "properties": obj{"amount": obj{"type": "number"}, "to": obj{"type": "object"}}}
	transfer := tool("transfer", lookup().Handle)
	transfer.Input = obj{
		"type": "object", "$defs": obj{"refund": refund},
		"properties": obj{
			"refund": obj{"$ref": "#/$defs/refund"}, "list": obj{"type": "array", "items": refund}, "pair": obj{"prefixItems": []any{obj{}, refund}},
			"either": obj{"anyOf": []any{obj{"type": "string"}, refund}}, "env": obj{"type": "object", "additionalProperties": obj{"type": "string"}},
			"any": obj{},
		},
	}
	// The condition does not refuse a call without its argument, but a Go handler would still see the misspelled argument.
	rules := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.transfer", When: "!has(args.refund) || !has(args.refund.amount) || args.refund.amount <= 100.0"}}}
	a := set(t, registry(t, nil, hosttools.Static("app", transfer)), hosttools.Grant{Rules: rules}).Access(hosttools.Command{})
	for args, want := range map[string]string{
		`{"refund":{"amount":100}}`:                   "",
		`{"refund":{"amount":101}}`:                   "permission_denied",
		`{"refund":{"Amount":101}}`:                   "invalid_argument",
		`{"list":[{"amount":1},{"AMOUNT":101}]}`:      "invalid_argument",
		`{"pair":[{"Amount":1},{"Amount":101}]}`:      "invalid_argument",
		`{"pair":[{"Amount":1}]}`:                     "invalid_argument",
		`{"either":{"Amount":101}}`:                   "invalid_argument",
		`{"env":{"AMOUNT":"1","Refund":"2"}}`:         "",
		`{"any":{"Refund":{"Amount":101}}}`:           "",
		`{"refund":{"to":{"Amount":1}}}`:              "",
		`{"Refund":{"amount":101}}`:                   "invalid_argument",
		`{"refund":{"amount":1,"note":{"Refund":1}}}`: "invalid_argument",
	} {
		if got := call(t, a, "app_transfer", args); code(got) != want {
			t.Errorf("%s: %v, want %q", args, got.Error, want)
		}
	}
	// In a map, a caller can choose the name of a property that has no named properties.
	transfer.Input = obj{"properties": obj{"env": obj{"type": "object"}, "map": obj{"additionalProperties": refund}}}
	a = set(t, registry(t, nil, hosttools.Static("app", transfer)), hosttools.Grant{Rules: allow("app.*")}).Access(hosttools.Command{})
	for _, args := range []string{`{"map":{"x":{"Amount":101}}}`, `{"map":{"env":{"Amount":101}}}`} {
		if got := call(t, a, "app_transfer", args); code(got) != "invalid_argument" {
			t.Errorf("%s: %v", args, got.Error)
		}
	}
}

// TestReadBehindClose verifies that a request frees the run's limits if its connection is closed while it is read.
func TestReadBehindClose(t *testing.T) {
	t.Parallel()
	a := set(t, registry(t, nil, hosttools.Static("app", lookup())), hosttools.Grant{Rules: allow("app.*")}).Access(hosttools.Command{})
	for _, size := range []int{1, 1 << 20} {
		line := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"app_lookup","arguments":{"id":"` + strings.Repeat("x", size) + `"}}}`
		if err := a.ReadBehindClose(line); err != nil {
			t.Errorf("of %d bytes: %v", size, err)
		}
	}
}
