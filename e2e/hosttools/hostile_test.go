package hosttools

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// numbers are measurements printed as JSON by a program in a sandbox.
type numbers map[string]float64

// attackHead is the common beginning of all attacks.
const attackHead = `
import ctypes, json, os, select, signal, socket, struct, sys, threading, time
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0" + os.environ["WORKCELL_TOOLS"][1:])
    s.settimeout(60)
    return s
def request(n, method, **params):
    if method not in ("ping", "initialize"): params["_meta"] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}}
    return json.dumps({"jsonrpc": "2.0", "id": n, "method": method, "params": params}).encode() + b"\n"
rest = {}
def answer(s):
    got = rest.pop(s, b"")
    while b"\n" not in got:
        chunk = s.recv(1 << 16)
        if not chunk: raise OSError("hung up")
        got += chunk
    line, _, more = got.partition(b"\n")
    if more: rest[s] = more
    return json.loads(line)
def pings(s):
    try:
        s.sendall(request(0, "ping"))
        return "result" in answer(s)
    except OSError: return False
def code(a):
    return a["result"].get("structuredContent", {}).get("error", {}).get("code") or a["result"]["content"][0]["text"]
def call(s, name, **args):
    s.sendall(request(1, "tools/call", name=name, arguments=args))
    return code(answer(s))
def show(**n): print(json.dumps({k: int(v) for k, v in n.items()}))
`

// ledger is a source `orders` with a count of calls by command.
type ledger struct {
	mu    sync.Mutex
	calls map[string]map[string]int // by tool and exec id
}

func newLedger() *ledger { return &ledger{calls: map[string]map[string]int{}} }

func (l *ledger) source() hosttools.Source {
	tool := func(name, text string) hosttools.Tool {
		return hosttools.Tool{
			Definition: hosttools.Definition{Name: name, Description: "Works.", ReadOnly: true, Input: obj{"type": "object"}},
			Handle: func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
				l.mu.Lock()
				defer l.mu.Unlock()
				if l.calls[name] == nil {
					l.calls[name] = map[string]int{}
				}
				l.calls[name][c.Caller.ExecID]++
				return hosttools.Result{Text: text}, nil
			},
		}
	}
	lookup := tool("lookup", "")
	lookup.Input = obj{"type": "object", "properties": obj{"id": obj{"type": "string"}}, "required": []any{"id"}}
	count := lookup.Handle
	lookup.Handle = func(ctx context.Context, c hosttools.Call) (hosttools.Result, error) {
		_, err := count(ctx, c)
		return hosttools.Result{Data: []byte(`{"total":12.5}`)}, err
	}
	return hosttools.Static("orders", lookup, tool("refund", "refunded"))
}

// of returns the number of calls of a tool by command.
func (l *ledger) of(tool string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.calls[tool])
}

// begin starts a program with the tools of set, and returns the exec id.
func (d *desk) begin(set *hosttools.Set, code string, env map[string]string) string {
	d.t.Helper()
	req := sandbox.ExecRequest{Argv: []string{"python3", "-c", attackHead + code}, Background: true, Env: env}
	if set != nil {
		d.at.Grant(d.t.Context(), set, &req)
	}
	res, err := d.s.Exec(d.t.Context(), req)
	must(d.t, err)
	return res.ExecID
}

// numbers waits for the end of a program and returns the measurements.
func (d *desk) numbers(exec string) (n numbers) {
	d.t.Helper()
	res, err := d.s.Command(exec).Wait(d.t.Context(), patience)
	must(d.t, err)
	if err := json.Unmarshal(res.Stdout.Bytes(), &n); err != nil || !res.Done() {
		d.t.Fatalf("%s %q %s: %v", res.Status, res.Stdout.Bytes(), res.Stderr.Bytes(), err)
	}
	return n
}

// TestNotGranted: a command without a grant cannot call tools, even if it claims to be another command. The same
// program with a grant gets answers.
func TestNotGranted(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		d := newDesk(t, m, allow("orders.lookup"), nil, orders(nil))
		granted := d.begin(d.set, `time.sleep(600)`, nil)
		const program = `
env = dict(os.environ)
if "FORGED" in env and env.get("WORKCELL_EXEC") != env["FORGED"]:
    os.execve("/proc/self/exe", ["python3", "-c", open("/proc/self/cmdline").read().split("\0")[2]], dict(env, WORKCELL_EXEC=env["FORGED"]))
os.environ.setdefault("WORKCELL_TOOLS", "@workcell-tools")
show(forged=env.get("WORKCELL_EXEC") == env.get("FORGED", ""), answered=sum(pings(connect()) for _ in range(3)))`
		forged := map[string]string{"FORGED": granted}
		for _, tt := range []struct {
			name string
			set  *hosttools.Set
			env  map[string]string
			want numbers
		}{
			{"no grant", nil, nil, numbers{"forged": 0, "answered": 0}},
			{"no grant, forged exec", nil, forged, numbers{"forged": 1, "answered": 0}},
			{"granted", d.set, nil, numbers{"forged": 0, "answered": 3}},
			{"granted, forged exec", d.set, forged, numbers{"forged": 1, "answered": 3}},
		} {
			if got := d.numbers(d.begin(tt.set, program, tt.env)); !maps.Equal(got, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
			}
		}
		d.works()
	})
}

// TestConfusedDeputy verifies two agents in one sandbox with concurrent tool calls. The tools of a command come from
// the command's grant, and every call is attributed to the calling command.
func TestConfusedDeputy(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		book := newLedger()
		rules := func(tool string) hosttools.Rules {
			r := allow(tool)
			r.Limits.PerSecond = 1000
			return r
		}
		d := newDesk(t, m, rules("orders.lookup"), nil, book.source())
		other := newSet(t, rules("orders.refund"), nil, book.source())
		const program = `
seen, links = {}, [connect() for _ in range(4)]
def calls(s):
    for n in range(50):
        for name in ("orders_lookup", "orders_refund"):
            c = name + "_" + ("not_found" if call(s, name, id="1") == "not_found" else "answered")
            seen[c] = seen.get(c, 0) + 1
for s in links: calls(s)
show(**seen)`
		first, second := d.begin(d.set, program, nil), d.begin(other, program, nil)
		if got, want := d.numbers(first), (numbers{"orders_lookup_answered": 200, "orders_refund_not_found": 200}); !maps.Equal(got, want) {
			t.Errorf("the first agent's calls: %v, want %v", got, want)
		}
		if got, want := d.numbers(second), (numbers{"orders_refund_answered": 200, "orders_lookup_not_found": 200}); !maps.Equal(got, want) {
			t.Errorf("the second agent's calls: %v, want %v", got, want)
		}
		if got, want := book.of("lookup"), map[string]int{first: 200}; !maps.Equal(got, want) {
			t.Errorf("lookups by command: %v, want %v", got, want)
		}
		if got, want := book.of("refund"), map[string]int{second: 200}; !maps.Equal(got, want) {
			t.Errorf("refunds by command: %v, want %v", got, want)
		}
	})
}

// victim is a command with an open connection, which calls tools until it is stopped. It writes the PID to a file.
const victim = `
s = connect()
calls = 0
while not os.path.exists("/workspace/stop"):
    calls += call(s, "orders_lookup", id="1") != "not_found"
    if not os.path.exists("/workspace/victim"): # who is attacked has called
        with open("/workspace/victim", "w") as f: f.write("%d %d\n" % (os.getpid(), s.fileno()))
    time.sleep(.01)
show(calls=calls)`

// attackVictim is the common beginning of attacks by one command on another.
const attackVictim = `
while True:
    try:
        victim, fd = map(int, open("/workspace/victim").read().split())
        break
    except (OSError, ValueError): time.sleep(.01)
libc = ctypes.CDLL(None, use_errno=True)
`

// TestForgedTag: a command cannot assume the mark of another command, which identifies connections.
func TestForgedTag(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		book := newLedger()
		d := newDesk(t, m, allow("orders.refund"), nil, book.source())
		mine := newSet(t, allow("orders.lookup"), nil, book.source())
		// The attacker starts first, because marks can only be lowered, and later commands have lower marks.
		attacker := d.begin(mine, attackVictim+`
import resource
def mark(pid, limit): return resource.prlimit(pid, limit)[1]
# The limit of file locks, or of resident memory if the limit of file locks is not available.
MARK = next(limit for limit in (10, resource.RLIMIT_RSS) if mark(os.getpid(), limit) != mark(victim, limit))
own, wanted = mark(os.getpid(), MARK), mark(victim, MARK)
before = call(connect(), "orders_lookup", id="1") != "not_found"
limit = struct.pack("QQ", wanted, wanted)
def by_hand(number, *args): return libc.syscall(number, *[ctypes.c_void_p(a) if isinstance(a, int) else a for a in args])
setrlimit, prlimit = (160, 302) if os.uname().machine == "x86_64" else (164, 261)
for attempt in (lambda: resource.setrlimit(MARK, (wanted, wanted)), lambda: by_hand(setrlimit, MARK, limit), lambda: by_hand(prlimit, 0, MARK, limit, None),
    lambda: by_hand(prlimit, os.getpid(), MARK, limit, None), lambda: resource.setrlimit(MARK, (0, own))):
    try: attempt()
    except (OSError, ValueError): pass
stayed = mark(os.getpid(), MARK) == own
try: refunded = call(connect(), "orders_refund") == "refunded"
except OSError: refunded = False
try: after = call(connect(), "orders_lookup", id="1") != "not_found"
except OSError: after = False
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)) # other limits are its own
open("/workspace/stop", "w")
show(lower=wanted < own, before=before, stayed=stayed, refunded=refunded, after=after)`, nil)
		later := d.begin(d.set, strings.Replace(victim, `"orders_lookup", id="1"`, `"orders_refund"`, 1), nil)
		got, want := d.numbers(attacker), numbers{"lower": 1, "before": 1, "stayed": 1, "refunded": 0, "after": 1}
		if !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if calls := int(d.numbers(later)["calls"]); calls == 0 || !maps.Equal(book.of("refund"), map[string]int{later: calls}) {
			t.Errorf("the victim made %d calls, refunds by command: %v", calls, book.of("refund"))
		}
	})
}

// TestTracedSibling documents the use of another command's connections in the same sandbox, with the same user, by
// tracing it or by taking a descriptor from it. These calls count as calls of the other command, and its own calls
// remain its own. The sandbox is the security boundary.
func TestTracedSibling(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		book := newLedger()
		d := newDesk(t, m, allow("orders.lookup"), nil, book.source())
		mine := newSet(t, allow("orders.refund"), nil, book.source())
		sibling := d.begin(d.set, victim, nil)
		attacker := d.begin(mine, attackVictim+`
ATTACH, DETACH = 16, 17
stolen = 0
pid = libc.syscall(434, victim, 0)
got = libc.syscall(438, pid, fd, 0) if pid >= 0 else -1
traced = libc.ptrace(ATTACH, victim, None, None) == 0
if traced: os.waitpid(victim, 0)
own = {call(connect(), "orders_refund"), call(connect(), "orders_lookup", id="1")} == {"refunded", "not_found"}
if got >= 0:
    s = socket.socket(fileno=got)
    s.settimeout(60)
    if traced: # no other process reads
        try: stolen = call(s, "orders_lookup", id="1") != "not_found"
        except OSError: pass
if traced: libc.ptrace(DETACH, victim, None, None)
open("/workspace/stop", "w")
show(traced=traced, taken=got >= 0, stolen=stolen, own=own)`, nil)
		got := d.numbers(attacker)
		t.Logf("%v", got)
		if got["own"] != 1 {
			t.Errorf("its own calls had another grant: %v", got)
		}
		if by := book.of("refund"); !maps.Equal(by, map[string]int{attacker: 1}) {
			t.Errorf("refunds by command: %v", by)
		}
		if by := book.of("lookup"); len(by) != 1 || by[sibling] == 0 {
			t.Errorf("lookups by command: %v", by)
		}
	})
}

// TestConnectionGivenAway: a connection passed to another process ends with the last process of the command.
func TestConnectionGivenAway(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		book := newLedger()
		d := newDesk(t, m, allow("orders.refund"), nil, book.source())
		mine := newSet(t, allow("orders.lookup"), nil, book.source())
		heir := d.begin(mine, `
door = socket.socket(socket.AF_UNIX)
door.bind("\0door")
door.listen()
giver, _ = door.accept()
s = socket.socket(fileno=struct.unpack("i", giver.recvmsg(1, 64)[1][0][2])[0])
s.settimeout(60)
alive = sum(call(s, "orders_refund") == "refunded" for _ in range(5))
giver.send(b"x") # it ends now
end = time.monotonic() + 60
try:
    while time.monotonic() < end:
        call(s, "orders_refund")
        time.sleep(.05)
    hung = False
except OSError: hung = True
show(alive=alive, hung=hung, own=call(connect(), "orders_lookup", id="1") != "not_found")`, nil)
		giver := d.begin(d.set, `
s, door = connect(), socket.socket(socket.AF_UNIX)
while door.connect_ex("\0door"): time.sleep(.01)
door.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", s.fileno()))])
door.recv(1)
show(given=1)`, nil)
		if got, want := d.numbers(heir), (numbers{"alive": 5, "hung": 1, "own": 1}); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if by := book.of("refund"); len(by) != 1 || by[giver] < 5 {
			t.Errorf("refunds by command: %v", by)
		}
	})
}

// TestConnectionLeftBehind: a leftover process of a command calls tools as the command, until the run ends.
func TestConnectionLeftBehind(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		book := newLedger()
		d := newDesk(t, m, allow("orders.lookup"), nil, book.source())
		exec := d.begin(d.set, `
s = connect()
first = call(s, "orders_lookup", id="1") != "not_found"
if not os.fork():
    os.setsid()
    for n in range(3): os.close(n)
    calls = 0
    try:
        while True:
            call(s, "orders_lookup", id="1")
            calls += 1
            with open("/workspace/calls", "w") as f: f.write(str(calls))
            time.sleep(.01)
    except OSError: pass
    with open("/workspace/ended", "w") as f: f.write(str(sum(pings(connect()) for _ in range(3))))
    os._exit(0)
show(first=first)`, nil)
		if got := d.numbers(exec); got["first"] != 1 {
			t.Fatal(got)
		}
		ended := book.of("lookup")[exec]
		eventually(t, "calls are made behind the end", func() bool { return book.of("lookup")[exec] > ended+5 })
		must(t, d.set.Close(t.Context()))
		closed := book.of("lookup")[exec]
		var left string
		eventually(t, "the connection ends with the run", func() bool {
			data, _, err := d.s.ReadFileBytes(t.Context(), "/workspace/ended", sandbox.ReadFileOptions{})
			left = string(data)
			return err == nil && left != ""
		})
		if left != "0" || book.of("lookup")[exec] != closed || len(book.of("lookup")) != 1 {
			t.Errorf("behind the run's end %s connections were answered; calls by command: %v", left, book.of("lookup"))
		}
	})
}
