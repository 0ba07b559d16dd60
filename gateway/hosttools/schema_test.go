package hosttools_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
)

// problems returns the problems of rules, one per line.
func problems(t *testing.T, r *hosttools.Registry, rules hosttools.Rules) string {
	t.Helper()
	_, err := r.Set(t.Context(), hosttools.Grant{Rules: rules})
	var wrong *hosttools.RulesError
	if err != nil && !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestSchemaBombs verifies that expensive schemas are excluded at a bounded cost, and other tools remain.
func TestSchemaBombs(t *testing.T) {
	t.Parallel()
	fetched := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a schema is fetched") }))
	t.Cleanup(fetched.Close)
	deep := obj{}
	for range 100_000 {
		deep = obj{"properties": obj{"a": deep}}
	}
	endless := obj{"type": "object"}
	endless["properties"] = obj{"a": endless} // possible only in memory, not in JSON
	wide, doubling := obj{}, obj{"d0": obj{"type": "string"}}
	for i := range 100_000 {
		wide["p"+strconv.Itoa(i)] = obj{}
	}
	for i := range 30 {
		ref := obj{"$ref": "#/$defs/d" + strconv.Itoa(i)}
		doubling["d"+strconv.Itoa(i+1)] = obj{"allOf": []any{ref, ref}}
	}
	bombs := map[string]obj{
		"deep":     deep,
		"endless":  endless,
		"large":    {"description": strings.Repeat("x", 100<<20)},
		"wide":     {"properties": wide},
		"long":     {"enum": make([]any, 10_000_000)},
		"doubling": {"$defs": doubling, "$ref": "#/$defs/d30"},
		"remote":   {"$ref": fetched.URL + "/schema.json"},
		"outside":  {"$ref": "#/properties/a"},
		"dangling": {"$ref": "#/$defs/none"},
		"dynamic":  {"properties": obj{"a": obj{"$dynamicRef": "#x"}}},
		"regexp":   {"properties": obj{"a": obj{"pattern": "((a{500}){500}){500}"}}},
		"backref":  {"properties": obj{"a": obj{"pattern": `(a)\1`}}},
		"list":     {"type": "array"},
		"function": {"properties": obj{"a": func() {}}},
	}
	var tools []hosttools.Tool
	for name, schema := range bombs {
		bomb := lookup()
		bomb.Name, bomb.Input = name, schema
		tools = append(tools, bomb)
	}
	var log bytes.Buffer
	r := registry(t, &hosttools.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, hosttools.Static("app", append(tools, lookup())...))
	s := set(t, r, hosttools.Grant{Rules: allow("app.*")})
	if got := s.Tools(); len(got) != 1 || got[0].Name != "lookup" {
		t.Errorf("%d tools are offered", len(got))
	}
	if n := strings.Count(log.String(), "skipping a host tool"); n != len(bombs) {
		t.Errorf("%d lines in the log for %d bombs", n, len(bombs))
	}
	if log.Len() > 10_000 {
		t.Errorf("the log has %d bytes", log.Len())
	}
	if got := problems(t, r, allow("app.deep")); !strings.Contains(got, "tool app.deep is not available: input: the schema is nested more than 32 levels deep") {
		t.Errorf("named exactly: %s", got)
	}
}

func TestSchemasAreCleaned(t *testing.T) {
	t.Parallel()
	tree := lookup()
	tree.Name, tree.Description = "tree", "a\u202eb\x1b[31m\x00c"+strings.Repeat("é", 2000)
	tree.Input = obj{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://x.example/", "type": "object", "default": obj{"a": 1}, "examples": []any{1},
		"properties": obj{
			"default": obj{"type": "string", "description": "x\u200by", "x-mcp-header": "a b"},
			"root":    obj{"$ref": "#/$defs/node"},
		},
		"$defs": obj{"node": obj{"type": "object", "properties": obj{"next": obj{"$ref": "#/$defs/node"}, "v": obj{"type": "integer"}}}},
	}
	s := set(t, registry(t, nil, hosttools.Static("app", tree)), hosttools.Grant{Rules: allow("app.tree")})
	got := s.Tools()[0]
	want := obj{
		"type":       "object",
		"properties": obj{"default": obj{"type": "string", "description": "xy"}, "root": obj{"$ref": "#/$defs/node"}},
		"$defs":      obj{"node": obj{"type": "object", "properties": obj{"next": obj{}, "v": obj{"type": "integer"}}}},
	}
	if diff := cmp.Diff(want, got.Input); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(got.Description, "ab[31mc") || len(got.Description) > 2<<10 {
		t.Errorf("description of %d bytes: %.20q", len(got.Description), got.Description)
	}
	a := s.Access(hosttools.Command{})
	if got := call(t, a, "app_tree", `{"root":{"v":1,"next":{"v":"anything"}}}`); got.Error != nil {
		t.Errorf("%v", got.Error)
	}
	if got := call(t, a, "app_tree", `{"root":{"v":"x"}}`); code(got) != "invalid_argument" {
		t.Errorf("%v", got.Error)
	}
}

func TestRulesThatDoNotFitTheTools(t *testing.T) {
	t.Parallel()
	recursive := tool("sandbox_exec", lookup().Handle)
	twin := tool("a_b", lookup().Handle)
	r := registry(t, nil, hosttools.Static("orders", lookup(), tool("refund", lookup().Handle), recursive, tool("a.b", lookup().Handle), twin), hosttools.Static("github"))
	for pattern, want := range map[string]string{
		"orders.lookup": "", "*.lookup": "", "orders.re*": "",
		"order.lookup":  `host_tools.allow[0].tool: unknown server "order"; did you mean "orders"?`,
		"orders.lokup":  `host_tools.allow[0].tool: no tool matches "orders.lokup"; did you mean "orders.lookup"?`,
		"github.*":      `host_tools.allow[0].tool: no tool matches "github.*"`,
		"orders.a*":     `host_tools.allow[0].tool: orders.a.b and orders.a_b have the same name in the sandbox, orders_a_b; allow one of the two`,
		"orders.sand*":  `host_tools.allow[0].tool: no tool matches "orders.sand*"`,
		"app.sandbox_x": `host_tools.allow[0].tool: tool "sandbox_x" cannot be called from a sandbox; remove it`,
	} {
		if got := problems(t, r, allow(pattern)); got != want {
			t.Errorf("%s: %s, want %s", pattern, got, want)
		}
	}
	bad := hosttools.Rules{Allow: []hosttools.Rule{{Tool: "orders.lookup", When: "arg.x", Ask: "1"}}}
	want := `host_tools.allow[0].when: when: unknown name "arg" (did you mean "args"?)` +
		"\nhost_tools.allow[0].ask: ask: the condition must be true or false, not an int"
	if got := problems(t, r, bad); got != want {
		t.Errorf("conditions: %s", got)
	}
}

// TestDefinitionsAreBounded verifies that the size of a whole tool list is bounded, because code in a sandbox can
// request it repeatedly.
func TestDefinitionsAreBounded(t *testing.T) {
	t.Parallel()
	var tools []hosttools.Tool
	for i := range 80 {
		long := lookup()
		long.Name = "t" + strconv.Itoa(i)
		long.Input["properties"].(obj)["x"] = obj{"enum": []any{strings.Repeat("x", 60<<10)}}
		tools = append(tools, long)
	}
	r := registry(t, nil, hosttools.Static("app", tools...))
	if got := problems(t, r, allow("app.*")); !strings.Contains(got, "host_tools.allow: the definitions of the allowed tools have 49") {
		t.Errorf("80 tools of 60 KiB: %q", got)
	}
	if got := problems(t, r, allow("app.t1*")); got != "" {
		t.Errorf("11 tools of 60 KiB: %q", got)
	}
}

// TestSetIsFrozen verifies that the tools of a run do not change, and the digest does not depend on the order of the
// tools.
func TestSetIsFrozen(t *testing.T) {
	t.Parallel()
	source := &changing{tools: []hosttools.Tool{lookup(), tool("b", lookup().Handle)}}
	r := registry(t, nil, source)
	before := set(t, r, hosttools.Grant{Rules: allow("app.*")})
	source.tools = []hosttools.Tool{source.tools[1], source.tools[0]}
	if same := set(t, r, hosttools.Grant{Rules: allow("app.*")}); same.Digest() != before.Digest() {
		t.Error("the order of the tools changes the digest")
	}
	source.tools = source.tools[:1]
	after := set(t, r, hosttools.Grant{Rules: allow("app.*")})
	if len(before.Tools()) != 2 || len(after.Tools()) != 1 || before.Digest() == after.Digest() {
		t.Errorf("%d tools before, %d after", len(before.Tools()), len(after.Tools()))
	}
}

// changing is a source whose tools change.
type changing struct{ tools []hosttools.Tool }

func (c *changing) Name() string                                    { return "app" }
func (c *changing) Tools(context.Context) ([]hosttools.Tool, error) { return c.tools, nil }
func (c *changing) Close() error                                    { return nil }

// late is a source that calls change while it lists its tools.
type late struct {
	hosttools.Source
	change func()
}

func (l late) Tools(ctx context.Context) ([]hosttools.Tool, error) {
	l.change()
	return l.Source.Tools(ctx)
}

// TestLateCondition verifies that a rule keeps its condition if the caller changes the rules while the servers list
// their tools.
func TestLateCondition(t *testing.T) {
	t.Parallel()
	rules := allow("app.lookup")
	rules.Allow[0].When = "false"
	r := registry(t, nil, late{hosttools.Static("app", lookup()), func() { rules.Allow[0].When = "" }})
	s, err := r.Set(t.Context(), hosttools.Grant{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	if got := call(t, s.Access(hosttools.Command{}), "app_lookup", "{}"); got.Error == nil {
		t.Errorf("the rule has no condition: %s", got.Data)
	}
}

func FuzzSchema(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"anyOf":[{"$ref":"#/$defs/x"},{"type":"string"}]}}}`, `{"a":"b"}`)
	f.Add(`{"properties":{"properties":{"default":1}},"definitions":{"a/b":true}}`, `{"A":1}`)
	f.Fuzz(func(t *testing.T, schema, args string) {
		var input obj
		if json.Unmarshal([]byte(schema), &input) != nil {
			return
		}
		fuzzed := tool("fuzzed", func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
			return hosttools.Result{Data: c.Args}, nil
		})
		fuzzed.Input = input
		r := registry(t, nil, hosttools.Static("app", fuzzed))
		s, err := r.Set(t.Context(), hosttools.Grant{Rules: allow("app.fuzzed")})
		if err != nil {
			return
		}
		defer s.Close(t.Context())
		// The handler must receive the arguments that were sent.
		if got := call(t, s.Access(hosttools.Command{}), "app_fuzzed", args); got.Error == nil && args != "" {
			var sent, received any
			if json.Unmarshal([]byte(args), &sent) != nil || json.Unmarshal(got.Data, &received) != nil {
				t.Fatalf("%q became %q", args, got.Data)
			}
			if sent == nil {
				sent = obj{}
			}
			if diff := cmp.Diff(sent, received); diff != "" {
				t.Errorf("(-sent +received):\n%s", diff)
			}
		}
	})
}
