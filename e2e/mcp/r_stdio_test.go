package mcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestR1DuplicateID verifies R1: a request with an id in use is refused, and the call with this id continues.
func TestR1DuplicateID(t *testing.T) {
	t.Parallel()
	p := startPeer(t)
	p.initialize()
	p.must("sandbox_open", nil)
	const call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"sandbox_exec","arguments":{"yield_ms":300000,"command":"until [ -e go ]; do sleep 0.05; done; echo first"}}}`
	p.sendRaw(call)
	p.sendRaw(call)
	m := p.next()
	if m.Error == nil || m.Error.Code != -32600 || string(m.ID) != "null" {
		t.Fatalf("second use of the id: %+v to %s", m.Error, m.ID)
	}
	p.must("sandbox_fs_write", map[string]any{"path": "go", "contents": ""})
	if got := decodeResult(t, p.answer("7")).text(t, "stdout"); got != "first\n" {
		t.Errorf("stdout = %q", got)
	}
}

// TestR2Oversized verifies R2: size, depth, and number of parts are limited, and the server's memory is limited too.
func TestR2Oversized(t *testing.T) {
	t.Parallel()
	p := startPeer(t)
	p.initialize()
	const mib = 1 << 20
	long := strings.Repeat("a", 17*mib)
	for name, line := range map[string]string{
		"frame":   `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + long + `"}}`,
		"endless": strings.Repeat("x", 64*mib),
		"nesting": `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat(`{"a":`, 1_000_000),
		"arrays":  `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat(`[`, 1_000_000) + strings.Repeat(`]`, 1_000_000) + `}`,
		"keys":    `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sandbox_exec","arguments":{` + manyKeys(1_000_000) + `}}}`,
		"utf8":    "\xc3\x28" + strings.Repeat("\xff", mib),
	} {
		p.sendRaw(line)
		m := p.next()
		if m.Error == nil || m.Error.Code != -32600 && m.Error.Code != -32700 {
			t.Errorf("%s: %+v", name, m)
		}
		p.alive()
	}
	if peak := peakMemory(t, p.cmd.Process.Pid); peak > 400*mib {
		t.Errorf("the server had %d MiB of memory", peak/mib)
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"k%d":1`, i)
	}
	return b.String()
}

// peakMemory returns the maximum resident memory of a process.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			must(t, err)
			return kb << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// TestR8Cancel verifies R8: a canceled call ends with all processes of the call. Canceling an unknown or finished call
// has no effect.
func TestR8Cancel(t *testing.T) {
	t.Parallel()
	p := startPeer(t)
	p.initialize()
	p.must("sandbox_open", nil)
	p.notify("notifications/cancelled", map[string]any{"requestId": 424242})
	p.alive()
	id := p.request("tools/call", map[string]any{
		"name": "sandbox_exec", "_meta": map[string]any{"progressToken": "tok"},
		"arguments": map[string]any{"command": "(" + waitsForGo + ") & wait", "yield_ms": 3_000_000},
	})
	m := p.next()
	var note struct {
		ProgressToken string
		Progress      float64
	}
	if m.Method != "notifications/progress" || json.Unmarshal(m.Params, &note) != nil || note.ProgressToken != "tok" || note.Progress <= 0 {
		t.Fatalf("no progress: %+v", m)
	}
	eventually(t, "the command runs", func() bool { return !p.tool("sandbox_fs_read", map[string]any{"path": "on"}).IsError })
	cancelled := map[string]any{"requestId": json.RawMessage(id), "reason": "enough"}
	p.notify("notifications/cancelled", cancelled)
	eventually(t, "the command ends", func() bool {
		return strings.Contains(string(p.must("session_status", nil).Structured["sessions"]), `"running_commands":0`)
	})
	p.notify("notifications/cancelled", cancelled)
	r := p.must("sandbox_exec", map[string]any{"command": "touch go; sleep 0.5; ! [ -e well ]"})
	if string(r.Structured["exit_code"]) != "0" {
		t.Error("what the cancelled command started still runs")
	}
	delete(p.early, id) // it may have been answered, once
}

// TestR9NothingButMessages verifies R9: standard output contains only messages, even with all logs enabled and commands
// with arbitrary output. The peer checks every line.
func TestR9NothingButMessages(t *testing.T) {
	t.Parallel()
	p := startPeerEnv(t, []string{"WORKCELL_DEBUG=1", "GODEBUG=gctrace=1"})
	p.initialize()
	r := p.must("sandbox_exec", map[string]any{"command": `printf 'not json\n{"jsonrpc":"2.0"}\n\033[2J'; printf 'x\n' >&2; exit 3`})
	if !bytes.Contains(r.Structured["exit_code"], []byte("3")) {
		t.Errorf("exit code %s", r.Structured["exit_code"])
	}
	p.sendRaw("garbage")
	if m := p.next(); m.Error == nil {
		t.Error("garbage was taken")
	}
	p.alive()
	if !strings.Contains(p.stderr.String(), "gc 1 @") {
		t.Error("the runtime's own output is not on standard error, so this test shows nothing")
	}
}

// TestR10ClientDies verifies R10: the server ends with the client, and the sandboxes end as configured.
func TestR10ClientDies(t *testing.T) {
	t.Parallel()
	t.Run("hangs up", func(t *testing.T) {
		t.Parallel()
		p := startPeer(t)
		p.initialize()
		p.must("sandbox_open", nil)
		p.request("tools/call", map[string]any{"name": "sandbox_exec", "arguments": map[string]any{"command": "sleep 1000", "yield_ms": 1_000_000}})
		if listContainers(t, instance(t, p.state)) == "" {
			t.Fatal("no sandbox was made")
		}
		p.in.Close()
		if code := p.wait(); code != 0 {
			t.Errorf("exit code %d: %s", code, p.stderr.String())
		}
	})
	t.Run("terminal goes", func(t *testing.T) {
		t.Parallel()
		p := startPeer(t)
		p.initialize()
		p.must("sandbox_exec", map[string]any{"command": "sleep 1000", "yield_ms": 0})
		sig, want := syscall.SIGHUP, 129
		if signal.Ignored(sig) {
			sig, want = syscall.SIGTERM, 143 // under nohup, the server correctly ignores it too
		}
		must(t, p.cmd.Process.Signal(sig))
		if code := p.wait(); code != want {
			t.Errorf("exit code %d: %s", code, p.stderr.String())
		}
	})
	t.Run("sandboxes are kept", func(t *testing.T) {
		t.Parallel()
		p := startPeer(t, "--on-exit", "keep")
		p.initialize()
		id := p.must("sandbox_open", nil).text(t, "sandbox_id")
		p.in.Close()
		if code := p.wait(); code != 0 {
			t.Errorf("exit code %d: %s", code, p.stderr.String())
		}
		if listContainers(t, instance(t, p.state)) == "" {
			t.Error("the sandbox is gone")
		}
		cli(t, p.state, "sandbox", "rm", id)
	})
}

// TestR11VersionsOnStdio verifies R11: with a handshake, an unknown version is answered with a known version. Without a
// handshake, the error lists the known versions.
func TestR11VersionsOnStdio(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25", "2024-11-05": "2024-11-05", "1999-01-01": "2025-11-25", "2099-01-01": "2025-11-25",
	} {
		t.Run(asked, func(t *testing.T) {
			t.Parallel()
			p := startPeer(t)
			m := p.call("initialize", map[string]any{"protocolVersion": asked, "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "x", "version": "1"}})
			var r struct{ ProtocolVersion string }
			if m.Error != nil || json.Unmarshal(m.Result, &r) != nil || r.ProtocolVersion != want {
				t.Errorf("answer %s %+v, want %s", m.Result, m.Error, want)
			}
		})
	}
	t.Run("without handshake", func(t *testing.T) {
		t.Parallel()
		p := startPeer(t)
		meta := func(version string) map[string]any {
			return map[string]any{"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": map[string]any{}}
		}
		if m := p.call("server/discover", map[string]any{"_meta": meta("2026-07-28")}); m.Error != nil || !bytes.Contains(m.Result, []byte("2026-07-28")) {
			t.Errorf("discover: %s %+v", m.Result, m.Error)
		}
		if m := p.call("tools/list", map[string]any{"_meta": meta("2099-01-01")}); m.Error == nil || !bytes.Contains(m.Error.Data, []byte("2026-07-28")) {
			t.Errorf("unknown version: %+v", m.Error)
		}
		m := p.call("tools/call", map[string]any{"_meta": meta("2026-07-28"), "name": "sandbox_run", "arguments": map[string]any{"code": "print(6*7)"}})
		if got := decodeResult(t, m).text(t, "stdout"); got != "42\n" {
			t.Errorf("stdout = %q", got)
		}
	})
}
