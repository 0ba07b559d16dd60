package lib_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func node(t *testing.T, h *host) runtime {
	t.Helper()
	return runtime{root: install(t), address: h.address, argv: []string{"node", "-e"}}
}

// inMain returns a program with these statements, which may use await.
func inMain(statements string) string {
	return `const {tools, result, Saved, ToolError, ToolDenied, ToolTimeout, ToolUnavailable} = require("workcell");
const fails = f => f().then(() => "no failure", e => [e.name, e instanceof ToolError, e.code, e.message, e.remediation, e.retryable, e.outcomeUnknown].join());
(async () => {` + statements + `})()`
}

func TestNode(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	js := node(t, h)
	for name, tc := range map[string]struct{ program, want string }{
		"data":           {`console.log(JSON.stringify(await tools.orders.lookup({id: "42", n: 1.5, deep: {a: [null, true]}})))`, `{"deep":{"a":[null,true]},"id":"42","n":1.5}`},
		"no arguments":   {`console.log(await tools.orders.lookup())`, `{}`},
		"by name":        {`console.log(await tools.call("orders.lookup", {from: 1}), await tools.call("orders_lookup"))`, `{ from: 1 } {}`},
		"dashes":         {`console.log(await tools["my-server"]["get-thing"]())`, `{}`},
		"characters":     {`console.log(await tools.orders.lookup({id: "ä\u{1f600}"}))`, `{ id: 'ä😀' }`},
		"text":           {`const r = await tools.orders.text(); console.log(typeof r, JSON.parse(r).a)`, `string 1`},
		"saved":          {`const r = await tools.big.rows(); console.log(r.length, r[0].length)`, `1024 511`},
		"saved text":     {`console.log((await tools.big.text()).length)`, `526337`},
		"saved binary":   {`console.log(await tools.big.binary())`, `<Buffer 00 ff>`},
		"files":          {`const files = []; console.log(await tools.orders.picture({}, {files}), await files[0].load(), files[0].kind)`, `seen <Buffer 50 4e 47> image/png`},
		"trace and save": {`const r = await tools.orders.meta({}, {save: "x/y.json"}); console.log(r.traceparent, r["workcell/save"])`, `00-aa-bb-01 x/y.json`},
		"not JSON":       {`console.log(await tools.orders.lookup({id: 1n}).catch(e => e.name), await tools.orders.lookup({id: 1}))`, `TypeError { id: 1 }`},
		"denied":         {`console.log(await fails(() => tools.orders.refund()))`, `ToolDenied,true,permission_denied,too much,Do something else.,false,false`},
		"capacity":       {`console.log(await fails(() => tools.orders.fail({code: "capacity"})))`, `ToolError,true,capacity,as asked,Do something else.,true,false`},
		"timeout":        {`console.log(await fails(() => tools.orders.fail({code: "timeout"})))`, `ToolTimeout,true,timeout,as asked,Do something else.,false,false`},
		"unavailable":    {`console.log(await fails(() => tools.orders.fail({code: "unavailable"})))`, `ToolUnavailable,true,unavailable,as asked,Do something else.,false,false`},
		"plain error":    {`console.log(await fails(() => tools.orders.broken()))`, `ToolError,true,tool_failed,no luck,,false,false`},
		"no such tool":   {`console.log(await tools.orders.nothing().catch(e => e.name))`, `ToolError`},
		"at once": {`const r = await Promise.all([...Array(200).keys()].map(i => tools.orders.lookup({id: i})));
console.log(r.every((v, i) => v.id === i))`, `true`},
		"a module": {`const {tools: same} = await import(require("path").join(process.env.NODE_PATH, "workcell/index.mjs")); console.log(same === tools)`, `true`},
		"global":   {`require("workcell/global"); console.log(await globalThis.tools.orders.lookup({id: 1}), typeof globalThis.result)`, `{ id: 1 } function`},
		"awaited":  {`console.log(String(await Promise.resolve(tools)).length > 0)`, `true`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js.prints(t, tc.want, inMain(tc.program), "TRACEPARENT=00-aa-bb-01")
		})
	}
}

func TestNodeSaved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	want := "0\ntrue 1049601 array 3 [ 'a' ] x 1024 [ 'rows.json' ]"
	node(t, h).prints(t, want, inMain(`const dir = `+"`"+h.dir+"`"+`, {readdirSync} = require("fs");
await tools.big.rows();
console.log(readdirSync(dir).length);
const r = await tools.big.rows({}, {save: "rows.json"});
console.log(r instanceof Saved, r.bytes, r.kind, r.length, r.keys, r.head, (await r.load()).length, readdirSync(dir));`))
}

func TestNodeTimeout(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	want := "ToolTimeout,true,timeout,no answer within timeout," +
		"Pass a larger timeout, or do less in a call.,false,false { id: 1 }"
	node(t, h).prints(t, want, inMain(`await tools.orders.lookup(); // it is connected
console.log(await fails(() => tools.orders.slow({}, {timeout: 2})), await tools.orders.lookup({id: 1}))`))
	await(t, "the end of the tool's context", h.cancelled)
	if h.mu.Lock(); h.dialled != 1 {
		t.Errorf("%d connections, want one, because the other calls continue", h.dialled)
	}
	h.mu.Unlock()
}

func TestNodeBrokenLink(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	node(t, h).prints(t, "{ id: 1 } { id: 2 }\nToolUnavailable,true { id: 4 }", inMain(`
console.log(await tools.flaky.read({id: 1}), await tools.flaky.put({id: 2}));
console.log(await tools.flaky.write({id: 3}).catch(e => [e.name, e.outcomeUnknown].join()), await tools.flaky.write({id: 4}))`))
	for _, tool := range []string{"flaky_read", "flaky_put", "flaky_write"} {
		if n := h.count(tool).Load(); n != 2 {
			t.Errorf("%s was called %d times, want 2", tool, n)
		}
	}
}

func TestNodeHostGone(t *testing.T) {
	t.Parallel()
	node(t, newHost(t)).prints(t, "ToolUnavailable,true,false", inMain(
		`console.log(await tools.flaky.leave({}, {timeout: 5}).catch(e => [e.name, e.outcomeUnknown, e.retryable].join()))`))
}

func TestNodeHostAway(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	away(t, h, node(t, h).command(context.Background(), inMain(`await tools.orders.lookup();
console.log("gone?");
await new Promise(go => process.stdin.once("data", go));
console.log(await tools.orders.lookup({id: 1}));
process.stdin.destroy()`)), "{ id: 1 }")
}

func TestNodeNoTools(t *testing.T) {
	t.Parallel()
	js := node(t, newHost(t))
	js.address = ""
	js.prints(t, "ToolUnavailable,false", inMain(
		`console.log(await tools.a.b().catch(e => [e.name, e.outcomeUnknown].join()))`))
}

func TestNodeResult(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "result")
	node(t, newHost(t)).prints(t, "RangeError\nTypeError", inMain(`result(1); result({a: [1]});
for (const v of ["x".repeat(65536), undefined]) try { result(v) } catch (e) { console.log(e.name) }`), "WORKCELL_RESULT="+file)
	if left, err := os.ReadFile(file); string(left) != `{"a":[1]}` {
		t.Errorf("left %q, %v", left, err)
	}
}
