package tools_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/tools"
)

func TestExec(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"cmd": []string{"sh", "-c", `printf '%s|' "$@" "$A"; cat; echo err >&2; exit 3`, "x", "a b", "$(id)", "-n"}, "env": obj{"A": "1 \n2"}, "stdin": "in"})
	want := "exec_id exit_code status stdout stderr truncated stdout_bytes stderr_bytes duration_ms"
	for _, k := range strings.Fields(want) {
		if _, ok := out[k]; !ok {
			t.Errorf("no %s in %v", k, out)
		}
	}
	if out["stdout"] != "a b|$(id)|-n|1 \n2|in" || out["stderr"] != "err\n" || out["exit_code"] != 3.0 || out["status"] != "completed" || out["truncated"] != false {
		t.Errorf("%v", out)
	}
	if out := set.ok("sandbox_exec", obj{"command": "echo $((6*7)); cat"}); out["stdout"] != "42\n" {
		t.Errorf("without stdin: %v", out)
	}
	if out := set.ok("sandbox_exec", obj{"command": "kill -SEGV $$"}); out["signal"] != "SIGSEGV" || out["exit_code"] != 139.0 || out["status"] != "completed" {
		t.Errorf("signal: %v", out)
	}
}

func TestExecArguments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(codeMode())
	tests := []struct {
		name  string
		input any
		want  string
	}{
		{"neither", obj{}, "neither cmd nor command is given"},
		{"both", obj{"cmd": []string{"a"}, "command": "b"}, "both cmd and command are given"},
		{"cmd as text", obj{"cmd": "ls"}, "pass one line for the shell as command"},
		{"command as a list in text", obj{"command": `["ls", "-l"]`}, "Pass the list itself as cmd"},
		{"empty program", obj{"cmd": []string{""}}, "cmd[0], the program, is empty"},
		{"timeout too long", obj{"command": "x", "timeout_seconds": 3601}, "timeout_seconds is 3601, it must be 1 to 3600"},
		{"negative timeout", obj{"command": "x", "timeout_seconds": -1}, "it must be 1 to 3600"},
		{"alias out of range", obj{"command": "x", "timeout": 1e12}, "timeout_seconds is 1000000000000"},
		{"negative yield", obj{"command": "x", "yield_ms": -5}, "yield_ms is -5, it must be 0 to 3600000"},
		{"long yield", obj{"command": "x", "yield_ms": 3600001}, "it must be 0 to 3600000"},
		{"unknown", obj{"command": "x", "comand": "y"}, `unknown argument "comand", did you mean "command"?`},
		{"not an object", []int{1}, "the arguments must be a JSON object"},
	}
	for _, tt := range tests {
		if out := set.fails(tools.CodeInvalid, "sandbox_exec", tt.input); !strings.Contains(message(out), tt.want) {
			t.Errorf("%s: %s, want %q", tt.name, message(out), tt.want)
		}
	}
	if n := r.engine.created(); n != 0 {
		t.Errorf("%d sandboxes for calls that could not succeed", n)
	}
	for name, input := range map[string]obj{
		"nul in an argument": {"cmd": []string{"a\x00b"}},
		"nul in the env":     {"command": "x", "env": obj{"A": "b\x00"}},
		"name of the env":    {"command": "x", "env": obj{"A=B": "c"}},
		"nul in cwd":         {"command": "x", "cwd": "a\x00"},
	} {
		out := set.fails(tools.CodeInvalid, "sandbox_exec", input)
		if strings.ContainsRune(message(out), 0) {
			t.Errorf("%s: %q", name, message(out))
		}
	}
	out := set.fails(tools.CodeNotFound, "sandbox_exec", obj{"cmd": []string{"no-such-program"}})
	if !strings.Contains(message(out), "not in the image") {
		t.Errorf("missing program: %s", message(out))
	}
	out = set.fails(tools.CodeInvalid, "sandbox_exec", obj{"command": "x", "cwd": "/no/such/dir"})
	if !strings.Contains(message(out), "Make the directory first") {
		t.Errorf("missing directory: %s", message(out))
	}
}

func TestExecTimeout(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": "echo before; sleep 60 & wait", "timeout_seconds": 1})
	if out["status"] != "timed_out" || out["stdout"] != "before\n" || !strings.Contains(str(out["stderr"]), "after 1 seconds, its timeout") {
		t.Errorf("%v", out)
	}
}

func TestExecOutputIsCut(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": `i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done; echo short >&2`})
	text := str(out["stdout"])
	if out["truncated"] != true || utf8.RuneCountInString(text) > 30_000 || out["stderr"] != "short\n" {
		t.Fatalf("truncated %v, %d characters", out["truncated"], len(text))
	}
	if !strings.HasPrefix(text, "line 0\n") || !strings.HasSuffix(text, "line 19999\n") {
		t.Errorf("ends: %q … %q", text[:20], text[len(text)-20:])
	}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		var n int
		if _, err := fmt.Sscanf(line, "line %d", &n); err != nil && !strings.HasPrefix(line, "[workcell: ") {
			t.Errorf("a line was cut: %q", line)
		}
	}
	path := str(out["output_path"])
	if out["stdout_bytes"] != 208890.0 || !strings.Contains(text, "of 208890 bytes of stdout are left out here; all of it is in "+path) {
		t.Errorf("bytes %v, path %s", out["stdout_bytes"], path)
	}
	whole := set.ok("sandbox_exec", obj{"cmd": []string{"wc", "-l", path}})
	if !strings.HasPrefix(str(whole["stdout"]), "20000 ") {
		t.Errorf("the whole output: %v", whole["stdout"])
	}
}

func TestExecInvalidUTF8(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": `printf 'a\377b\303'`})
	if got := str(out["stdout"]); !strings.HasPrefix(got, "a\uFFFDb\uFFFD\n[workcell: 2 bytes that are not UTF-8") || out["stdout_bytes"] != 4.0 {
		t.Errorf("%q", got)
	}
	read := set.ok("sandbox_exec_read", obj{"exec_id": out["exec_id"]})
	var raw []byte
	for _, c := range items(read["chunks"]) {
		chunk := sub(c)
		b, err := base64.StdEncoding.DecodeString(fmt.Sprint(chunk["data_b64"]))
		if err != nil {
			t.Fatalf("%v: %v", chunk, err)
		}
		raw = append(raw, b...)
	}
	if string(raw) != "a\xffb\xc3" {
		t.Errorf("exact bytes: %q", raw)
	}
}

func TestBackgroundExec(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": `while read line; do echo "got $line"; done; echo end; exit 4`, "stream": true})
	id := out["exec_id"]
	if _, there := out["exit_code"]; out["status"] != "running" || there {
		t.Fatalf("%v", out)
	}
	set.ok("sandbox_exec_write", obj{"exec_id": id, "text": "one\n"})
	first := set.ok("sandbox_exec_read", obj{"exec_id": id, "wait_ms": 10000})
	chunk := sub(items(first["chunks"])[0])
	if chunk["seq"] != 1.0 || chunk["stream"] != "stdout" || chunk["text"] != "got one\n" || first["done"] != false {
		t.Errorf("%v", first)
	}
	if again := set.ok("sandbox_exec_read", obj{"exec_id": id}); cmp.Diff(first["chunks"], again["chunks"]) != "" {
		t.Errorf("the same read gave %v", again)
	}
	set.ok("sandbox_exec_write", obj{"exec_id": id, "data_b64": base64.StdEncoding.EncodeToString([]byte("two\n")), "eof": true})
	done := set.ok("sandbox_exec_wait", obj{"exec_id": id, "timeout_seconds": 20})
	if done["done"] != true || done["exit_code"] != 4.0 || done["status"] != "completed" {
		t.Errorf("%v", done)
	}
	rest := set.ok("sandbox_exec_read", obj{"exec_id": id, "since_seq": first["next_seq"]})
	var text strings.Builder
	for _, c := range items(rest["chunks"]) {
		text.WriteString(str(sub(c)["text"]))
	}
	if text.String() != "got two\nend\n" || rest["done"] != true || rest["dropped"] != 0.0 {
		t.Errorf("%v", rest)
	}
	out = set.fails(tools.CodeInvalid, "sandbox_exec_write", obj{"exec_id": id, "text": "late"})
	if !strings.Contains(message(out), "started with stream: true") {
		t.Errorf("write after the end: %s", message(out))
	}
	set.fails(tools.CodeInvalid, "sandbox_exec_write", obj{"exec_id": id})
	set.fails(tools.CodeInvalid, "sandbox_exec_write", obj{"exec_id": id, "data_b64": "!"})
	for _, name := range []string{"sandbox_exec_read", "sandbox_exec_wait", "sandbox_exec_kill"} {
		for _, id := range []string{"exe_nothing", "../x", "a b"} {
			set.fails(tools.CodeNotFound, name, obj{"exec_id": id})
		}
		set.fails(tools.CodeInvalid, name, obj{"exec_id": ""})
		set.fails(tools.CodeInvalid, name, obj{})
	}
	set.fails(tools.CodeInvalid, "sandbox_exec_read", obj{"exec_id": id, "wait_ms": 60001})
	set.fails(tools.CodeInvalid, "sandbox_exec_read", obj{"exec_id": id, "since_seq": -1})
	set.fails(tools.CodeInvalid, "sandbox_exec_wait", obj{"exec_id": id, "timeout_seconds": -1})
}

func TestYieldAndKill(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": "echo up; sleep 100", "yield_ms": 300})
	if out["status"] != "running" || out["stdout"] != "up\n" {
		t.Fatalf("%v", out)
	}
	killed := set.ok("sandbox_exec_kill", obj{"exec_id": out["exec_id"]})
	if killed["ok"] != true {
		t.Errorf("%v", killed)
	}
	done := set.ok("sandbox_exec_wait", obj{"exec_id": out["exec_id"]})
	if done["status"] != "killed" || done["done"] != true {
		t.Errorf("%v", done)
	}
	if again := set.ok("sandbox_exec_kill", obj{"exec_id": out["exec_id"]}); again["status"] != "killed" {
		t.Errorf("a second kill: %v", again)
	}
	out = set.ok("sandbox_exec", obj{"command": `trap 'echo int; exit 7' INT; while :; do sleep 0.05; done`, "yield_ms": 300})
	set.fails(tools.CodeInvalid, "sandbox_exec_kill", obj{"exec_id": out["exec_id"], "signal": "BANANA"})
	set.ok("sandbox_exec_kill", obj{"exec_id": out["exec_id"], "signal": "int"})
	if done := set.ok("sandbox_exec_wait", obj{"exec_id": out["exec_id"]}); done["exit_code"] != 7.0 {
		t.Errorf("SIGINT: %v", done)
	}
}

// TestExecReadIsBounded reads a large output in answers that a model can take.
func TestExecReadIsBounded(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": `i=0; while [ $i -lt 3000 ]; do echo "0123456789012345678901234567890123456789 $i"; i=$((i+1)); done`})
	var all strings.Builder
	since := 0.0
	for range 1000 {
		read := set.ok("sandbox_exec_read", obj{"exec_id": out["exec_id"], "since_seq": since, "max_chunks": 1000})
		size := 0
		for _, c := range items(read["chunks"]) {
			text := str(sub(c)["text"])
			size += len(text)
			all.WriteString(text)
		}
		if size > 100_000 {
			t.Fatalf("%d bytes in one answer", size)
		}
		since = num(read["next_seq"])
		if read["done"] == true {
			break
		}
	}
	if int64(all.Len()) != int64(num(out["stdout_bytes"])) || !strings.HasSuffix(all.String(), " 2999\n") {
		t.Errorf("%d of %v bytes", all.Len(), out["stdout_bytes"])
	}
}

func TestZeroTimeoutIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const want = "timeout_seconds is 0, it must be 1 to 3600"
	for name, input := range map[string]obj{
		"sandbox_run":       {"code": "true", "timeout_seconds": 0},
		"sandbox_exec":      {"command": "true", "timeout": "0"},
		"sandbox_exec_wait": {"exec_id": "x", "timeout_seconds": 0},
	} {
		s := bash()
		if name != "sandbox_run" {
			s = codeMode()
		}
		if out := r.tools(s).fails(tools.CodeInvalid, name, input); !strings.Contains(message(out), want) {
			t.Errorf("%s: %s", name, message(out))
		}
	}
}

func TestClosingTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(codeMode())
	id := set.ok("sandbox_open", nil)["sandbox_id"]
	for _, input := range []obj{
		{"sandbox_id": id}, {"sandbox_id": id}, {"sandbox_id": id, "delete_workspace": true},
		{"sandbox_id": id, "delete_workspace": true}, {"sandbox_id": id},
	} {
		if out := set.ok("sandbox_close", input); out["ok"] != true {
			t.Errorf("%v: %v", input, out)
		}
	}
	if r.engine.open() != 0 {
		t.Error("delete_workspace after a close left the sandbox")
	}
}

func TestKillByNumber(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := r.tools(codeMode())
	for number, name := range map[string]string{"9": "SIGKILL", " 2 ": "SIGINT", "31": "SIGSYS"} {
		id := set.ok("sandbox_exec", obj{"cmd": []string{"sleep", "60"}, "yield_ms": 0})["exec_id"]
		set.ok("sandbox_exec_kill", obj{"exec_id": id, "signal": number})
		if out := set.ok("sandbox_exec_wait", obj{"exec_id": id}); out["done"] != true {
			t.Errorf("%s, %s: %v", number, name, out)
		}
	}
	for _, number := range []string{"0", "32", "-9"} {
		set.fails(tools.CodeInvalid, "sandbox_exec_kill", obj{"exec_id": set.ok("sandbox_exec", obj{"command": "true"})["exec_id"], "signal": number})
	}
	set.ok("sandbox_close", obj{"delete_workspace": true})
}

// TestWaitGivesTheOutput: a command that was handed back as running, after the time that the agent's file says, is waited
// for with the answer that sandbox_exec would have given.
func TestWaitGivesTheOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := codeMode()
	s.YieldMS = 1
	set := r.tools(s)
	const loud = "for i in $(seq 20000); do echo line $i; done; echo oops >&2; read x; echo $x; exit 3"
	begun := set.ok("sandbox_exec", obj{"command": loud, "stream": true})
	set.ok("sandbox_exec_write", obj{"exec_id": begun["exec_id"], "text": "the end\n"})
	want := set.ok("sandbox_exec", obj{"command": loud, "stdin": "the end\n", "yield_ms": 60000})
	comparable := func(m obj) obj {
		m = maps.Clone(m)
		m["stdout"] = strings.ReplaceAll(str(m["stdout"]), str(m["output_path"]), "PATH")
		for _, key := range []string{"done", "exec_id", "duration_ms", "output_path"} {
			delete(m, key)
		}
		return m
	}
	for range 2 {
		got := set.ok("sandbox_exec_wait", obj{"exec_id": begun["exec_id"], "timeout_seconds": 60})
		if got["done"] != true || got["exit_code"] != 3.0 || got["stderr"] != "oops\n" || !strings.HasPrefix(str(got["stdout"]), "line 1\n") ||
			!strings.HasSuffix(str(got["stdout"]), "line 20000\nthe end\n") || got["output_path"] == nil {
			t.Fatalf("%v", got)
		}
		if diff := cmp.Diff(comparable(want), comparable(got)); diff != "" {
			t.Errorf("(-sandbox_exec +sandbox_exec_wait):\n%s", diff)
		}
	}
	slow := set.ok("sandbox_exec", obj{"command": "echo begun; sleep 60"})
	if slow["status"] != "running" {
		t.Errorf("the agent's yield_ms: %v", slow)
	}
	eventually(t, "the output so far", func() bool {
		out := set.ok("sandbox_exec_wait", obj{"exec_id": slow["exec_id"], "timeout_seconds": 1})
		return out["done"] == false && out["status"] == "running" && out["stdout"] == "begun\n"
	})
	set.ok("sandbox_exec_kill", obj{"exec_id": slow["exec_id"]})
	run := wish.WithYield(t.Context(), time.Millisecond)
	if out := r.tools(codeMode()).call(run, "sandbox_exec", obj{"command": "sleep 60"}); out["status"] != "running" {
		t.Errorf("the workflow's yield_ms: %v", out)
	}
}
