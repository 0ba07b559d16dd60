package lib_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A runtime runs programs in one language with the library.
type runtime struct {
	root, address string
	argv          []string // arguments before the program
}

func (r runtime) command(ctx context.Context, program string, env ...string) *exec.Cmd {
	env = append([]string{
		"WORKCELL_TOOLS=" + r.address, "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH=" + filepath.Join(r.root, "lib/python"), "NODE_PATH=" + filepath.Join(r.root, "lib/node"),
	}, env...)
	argv := append(slices.Clone(r.argv), program)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(env, "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"))
	return cmd
}

// run returns the output of the program.
func (r runtime) run(t *testing.T, program string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := r.command(ctx, program, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", r.argv[0], err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}

// prints checks the output of the program.
func (r runtime) prints(t *testing.T, want, program string, env ...string) {
	t.Helper()
	if got := r.run(t, program, env...); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

func python(t *testing.T, h *host) runtime {
	t.Helper()
	return runtime{root: install(t), address: h.address, argv: []string{"python3", "-c"}}
}

func TestPython(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	py := python(t, h)
	for name, tc := range map[string]struct{ program, want string }{
		"data":            {`print(tools.orders.lookup(id="42", n=1.5, deep={"a": [None, True]}))`, `{'deep': {'a': [None, True]}, 'id': '42', 'n': 1.5}`},
		"no arguments":    {`print(tools.orders.lookup())`, `{}`},
		"a dict":          {`print(tools.orders.lookup({"if": 1, "from_": 2}, note="x"))`, `{'from_': 2, 'if': 1, 'note': 'x'}`},
		"a keyword":       {`print(tools.orders.lookup(from_="a", class_="b", mine_="c"))`, `{'class': 'b', 'from': 'a', 'mine_': 'c'}`},
		"by name":         {`print(tools.call("orders.lookup", {"from_": 1}), tools.call("orders_lookup"))`, `{'from_': 1} {}`},
		"dashes":          {`print(tools.call("my-server.get-thing"))`, `{}`},
		"surrogates":      {`print(tools.orders.lookup(id="ä\U0001f600"))`, `{'id': 'ä😀'}`},
		"text":            {`r = tools.orders.text(); print(type(r).__name__, r, r.json()["a"])`, `Text {"a": 1} 1`},
		"saved":           {`r = tools.big.rows(); print(len(r), len(r[0]))`, `1024 511`},
		"saved text":      {`r = tools.big.text(); print(type(r).__name__, len(r))`, `Text 526337`},
		"saved binary":    {`print(tools.big.binary())`, `b'\x00\xff'`},
		"files":           {`files = []; print(tools.orders.picture(_files=files), files[0].load(), files[0].kind)`, `seen b'PNG' image/png`},
		"trace":           {`print(tools.orders.meta()["traceparent"])`, `00-aa-bb-01`},
		"save option":     {`print(tools.orders.meta(_save="x/y.json")["workcell/save"])`, `x/y.json`},
		"not JSON":        {fails(`tools.orders.lookup(id=float("nan"))`, "ValueError") + `; print(tools.orders.lookup(id=1))`, "ValueError\n{'id': 1}"},
		"denied":          {fails(`tools.orders.refund()`, "ToolDenied") + `; print(e.code, e.message, e.remediation, e.retryable)`, "ToolDenied\npermission_denied too much Do something else. False"},
		"capacity":        {fails(`tools.orders.fail(code="capacity")`, "ToolError") + `; print(e.code, e.retryable)`, "ToolError\ncapacity True"},
		"timeout":         {fails(`tools.orders.fail(code="timeout")`, "ToolTimeout"), "ToolTimeout"},
		"unavailable":     {fails(`tools.orders.fail(code="unavailable")`, "ToolUnavailable") + `; print(e.outcome_unknown)`, "ToolUnavailable\nFalse"},
		"plain error":     {fails(`tools.orders.broken()`, "ToolError") + `; print(e)`, "ToolError\ntool_failed: no luck"},
		"no such tool":    {fails(`tools.orders.nothing()`, "ToolError"), "ToolError"},
		"pickled failure": {fails(`tools.orders.refund()`, "ToolDenied") + `; import pickle; print(pickle.loads(pickle.dumps(e)).message)`, "ToolDenied\ntoo much"},
		"awaited": {`import asyncio
async def main():
    a, b = await asyncio.gather(aio.orders.lookup(id=1), aio.call("orders.lookup", {"id": 2}))
    try: await aio.orders.refund()
    except ToolDenied: print(a, b, "denied")
asyncio.run(main())`, `{'id': 1} {'id': 2} denied`},
		"awaited by module": {`import asyncio, threading
from concurrent.futures import ThreadPoolExecutor
from workcell.aio import tools as awaited, ToolError as E
async def main():
    loop, done = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    mine = loop.run_in_executor(None, done.wait)
    print(await awaited.orders.lookup(id=1), E is ToolError)
    done.set(); await mine
asyncio.run(main())`, `{'id': 1} True`},
		"by position":       {fails(`tools.orders.lookup(1, 2)`, "TypeError") + `; print(e)`, "TypeError\norders.lookup takes its arguments by name: orders.lookup(name=value)"},
		"text of a failure": {fails(`tools.orders.refund()`, "ToolDenied") + `; print(e)`, "ToolDenied\npermission_denied: too much. Do something else."},
		"fork": {`import os
tools.orders.lookup()
if os.fork() == 0:
    print(tools.orders.lookup(id=1), flush=True); os._exit(0)
os.wait(); print(tools.orders.lookup(id=2))`, "{'id': 1}\n{'id': 2}"},
		"introspection": {`import copy; print(hasattr(tools, "__len__"), copy.copy(tools.orders).lookup(id=1))`, `False {'id': 1}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			py.prints(t, tc.want, "from workcell import *\n"+tc.program, "TRACEPARENT=00-aa-bb-01")
		})
	}
}

// fails returns Python code to print the class of an expression's exception, and to store the exception as e.
func fails(expression, class string) string {
	return "try: " + expression + "\nexcept " + class + " as x: e = x\nprint(type(e).__name__)"
}

func TestPythonSaved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	py := python(t, h)
	py.prints(t, "[]\n1049601 array 3 ['a'] x 1024 ['rows.json']", `from workcell import tools
tools.big.rows()
import os; print(os.listdir("`+h.dir+`"))
r = tools.big.rows(_save="rows.json")
print(r.bytes, r.kind, r.length, r.keys, r.head, len(r.load()), os.listdir("`+h.dir+`"))`)
}

func TestPythonThreads(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	got := python(t, h).run(t, `
from concurrent.futures import ThreadPoolExecutor
from workcell import _host, tools
class Taken(list): # between a check and pop, another thread may take the last connection
    __bool__ = lambda self: True
_host.idle = Taken()
def work(n):
    return all(tools.orders.lookup(id=[n, i])["id"] == [n, i] for i in range(50))
with ThreadPoolExecutor(24) as pool:
    print(all(pool.map(work, range(24))))`)
	h.mu.Lock()
	defer h.mu.Unlock()
	if calls := h.count("orders_lookup").Load(); got != "True" || calls != 1200 || h.dialled > 8 {
		t.Errorf("printed %s; %d calls over %d connections, want 1200 over at most 8", got, calls, h.dialled)
	}
}

func TestPythonTimeout(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	python(t, h).prints(t, "ToolTimeout\n{'id': 1}", `from workcell import *
tools.orders.lookup() # it is connected
`+fails(`tools.orders.slow(_timeout=2)`, "ToolTimeout")+`
print(tools.orders.lookup(id=1))`)
	await(t, "the end of the tool's context", h.cancelled)
}

// TestPythonBrokenLink verifies that the outcome of a call is unknown if the connection breaks during the call, and the
// library repeats calls if this is safe.
func TestPythonBrokenLink(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	python(t, h).prints(t, "{'id': 1} {'id': 2}\nToolUnavailable\nTrue {'id': 4}", `from workcell import *
print(tools.flaky.read(id=1), tools.flaky.put(id=2))
`+fails(`tools.flaky.write(id=3)`, "ToolUnavailable")+`
print(e.outcome_unknown, tools.flaky.write(id=4))`, "TRACEPARENT=00-aa-bb-01")
	for tool, want := range map[string]int64{"flaky_read": 2, "flaky_put": 2, "flaky_write": 2} {
		if n := h.count(tool).Load(); n != want {
			t.Errorf("%s was called %d times, want %d", tool, n, want)
		}
	}
}

// TestPythonHostGone verifies that the outcome of a call is unknown if the host disconnects during the call and does
// not come back.
func TestPythonHostGone(t *testing.T) {
	t.Parallel()
	python(t, newHost(t)).prints(t, "ToolUnavailable\nTrue False", `from workcell import *
`+fails(`tools.flaky.leave(_timeout=5)`, "ToolUnavailable")+`
print(e.outcome_unknown, e.retryable)`)
}

// TestPythonHostAway verifies that the library waits for a host disconnecting between two calls, and the outcome is
// known.
func TestPythonHostAway(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	cmd := python(t, h).command(context.Background(), `from workcell import *
tools.orders.lookup()
print("gone?", flush=True); input()
print(tools.orders.lookup(id=1))`)
	away(t, h, cmd, "{'id': 1}")
}

// away disconnects the host after the program's first line of output, and reconnects it while the next call waits.
func away(t *testing.T, h *host, cmd *exec.Cmd, want string) {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	lines.Scan()
	h.leave()
	if _, err := io.WriteString(in, "on\n"); err != nil {
		t.Error(err)
	}
	h.listen(t)
	lines.Scan()
	if err := cmd.Wait(); err != nil || lines.Text() != want {
		t.Errorf("printed %q, %v; want %q", lines.Text(), err, want)
	}
}

// TestPythonNoTools verifies that a command without host tools gets an error immediately.
func TestPythonNoTools(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	py := python(t, h)
	py.address = ""
	py.prints(t, "ToolUnavailable\nFalse",
		"from workcell import *\n"+fails("tools.a.b()", "ToolUnavailable")+"; print(e.outcome_unknown)")
}

func TestPythonResult(t *testing.T) {
	t.Parallel()
	py := python(t, newHost(t))
	file := filepath.Join(t.TempDir(), "result")
	py.prints(t, "ValueError\nValueError\nTypeError", `from workcell import result
result(1)
result({"a": [1]})
for v in ["x" * 65536, float("nan"), {1, 2}]:
    try: result(v)
    except (ValueError, TypeError) as e: print(type(e).__name__)`, "WORKCELL_RESULT="+file)
	if left, err := os.ReadFile(file); string(left) != `{"a": [1]}` {
		t.Errorf("left %q, %v", left, err)
	}
}
