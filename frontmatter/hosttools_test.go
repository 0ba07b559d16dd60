package frontmatter_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
)

func TestHostTools(t *testing.T) {
	t.Parallel()
	src := `sandbox:
  mode: script
  host_tools:
    allow:
      - orders.lookup
      - github.get_*
      - tool: orders.refund
        when: "args.amount <= 100.0"
        ask: "args.amount > 20.0"
        max_calls: 5
      - {tool: orders.close, ask: true}
    limits: {calls: 10, result_kb: 8}
    index: search`
	doc, err := frontmatter.Parse("x.prompt", []byte("---\n"+src+"\n---\nx"))
	checktest.Must(t, err)
	want := &frontmatter.HostTools{Index: "search", Allow: []frontmatter.HostTool{
		{Tool: "orders.lookup"}, {Tool: "github.get_*"},
		{Tool: "orders.refund", When: "args.amount <= 100.0", Ask: "args.amount > 20.0", MaxCalls: 5}, {Tool: "orders.close", Ask: "true"},
	}}
	want.Limits.Calls, want.Limits.ResultKB = 10, 8
	if diff := cmp.Diff(want, doc.Sandbox.HostTools); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := doc.Problem("sandbox.host_tools.allow[2].when", "", "here").Error(); got != "x.prompt:9:15: here" {
		t.Error(got)
	}
	// Genkit's middleware receives it as JSON.
	data, err := json.Marshal(doc.Sandbox)
	checktest.Must(t, err)
	again, err := frontmatter.ParseConfig("config", data)
	if diff := cmp.Diff(doc.Sandbox, again); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestHostToolsThatAreWrong(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"{mode: compute, host_tools: {allow: [a.b]}}":                     "x.prompt:2:38: host_tools require mode code, script, or executor; in compute mode every call has a fresh sandbox; add mode: script, or remove it",
		"{mode: script, host_tools: {}}":                                  "x.prompt:2:37: host_tools allows no tool; list the tools that code may call, for example allow: [orders.lookup]",
		"{mode: script, host_tools: [a.b]}":                               "x.prompt:2:37: sandbox.host_tools must be a mapping, not a list",
		"{mode: script, host_tools: {alow: [a.b]}}":                       "x.prompt:2:37: host_tools allows no tool; list the tools that code may call, for example allow: [orders.lookup]\nx.prompt:2:38: unknown key \"alow\" in sandbox.host_tools; did you mean \"allow\"?",
		"{mode: script, host_tools: {allow: [ab]}}":                       `x.prompt:2:46: "ab" is not a tool name; use server.tool, such as orders.lookup or github.get_*`,
		"{mode: script, host_tools: {allow: [1]}}":                        "x.prompt:2:46: sandbox.host_tools.allow[0] must be text, not the number 1; put it in quotes: \"1\"",
		"{mode: script, host_tools: {allow: [app.sandbox_exec]}}":         `x.prompt:2:46: tool "sandbox_exec" cannot be called from a sandbox; remove it`,
		"{mode: script, host_tools: {allow: [app.execute_task]}}":         `x.prompt:2:46: tool "execute_task" cannot be called from a sandbox; remove it`,
		"{mode: script, host_tools: {allow: [{tool: a.b, ask: false}]}}":  "x.prompt:2:63: sandbox.host_tools.allow[0].ask must be true or a condition, not false; remove it",
		"{mode: script, host_tools: {allow: [a.b], limits: {calls: -1}}}": "x.prompt:2:68: limits.calls must be 1 to 1000000, not -1",
		"{mode: script, host_tools: {allow: [a.b], index: ful}}":          `x.prompt:2:59: unknown index "ful"; did you mean "full"?`,
		"{mode: skript}":                     `x.prompt:2:17: unknown mode "skript"; did you mean "script"?`,
		"{mode: script, yield_ms: 5}":        "x.prompt:2:35: yield_ms requires code mode; in mode script every call waits for the command; add mode: code, or remove it",
		"{mode: script, timeout_seconds: 5}": "x.prompt:2:42: timeout_seconds requires compute mode; use limits.exec_timeout",
		"script":                             "x.prompt:2:10: the short form takes a runtime, but \"script\" is a mode; write `sandbox: {mode: script, runtime: python}`",
	} {
		_, err := frontmatter.Parse("x.prompt", []byte("---\nsandbox: "+src+"\n---\nx"))
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", src, err, want)
		}
	}
}
