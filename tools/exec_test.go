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

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/wish"
)

func TestExec(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"cmd": []string{"sh", "-c", `printf '%s|' "$@" "$A"; cat; echo err >&2; exit 3`, "x", "a b", "$(id)", "-n"}, "env": obj{"A": "1 \n2"}, "stdin": "in"})
	if keys(out) != "backend duration_ms exec_id exit_code isolation policy status stderr stderr_bytes stdout stdout_bytes truncated" {
		t.Errorf("fields: %s", keys(out))
	}
	if out["isolation"] != "container" || out["backend"] != "processes" || len(out["policy"].(string)) != 12 {
		t.Errorf("evidence: %v", out)
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
	for _, tt := range []struct {
		tool  string
		input obj
		want  string
	}{
		{"sandbox_exec", obj{}, "cmd or command is required"},
		{"sandbox_exec", obj{"cmd": []string{"a"}, "command": "b"}, "cmd and command cannot be combined"},
		{"sandbox_exec", obj{"command": `["ls", "-l"]`}, "Pass the list itself as cmd"},
		{"sandbox_exec", obj{"cmd": []string{""}}, "cmd[0], the program, is empty"},
		{"sandbox_exec", obj{"command": "x", "timeout": 1e12}, "timeout_seconds must be 1 to 3600, not 1000000000000"},
		{"sandbox_exec", obj{"command": "x", "yield_ms": 3600001}, "must be 0 to 3600000"},
		{"sandbox_exec_write", obj{"exec_id": "x"}, "nothing to write"},
		{"sandbox_exec_write", obj{"exec_id": "x", "data_b64": "!"}, "data_b64 is not valid base64"},
		{"sandbox_exec_write", obj{"exec_id": "x", "text": "a", "data_b64": "YQ"}, "text and data_b64 cannot be combined"},
		{"sandbox_exec_read", obj{"exec_id": ""}, "exec_id is empty"},
		{"sandbox_exec_read", obj{"exec_id": "x", "wait_ms": 60001}, "wait_ms must be 0 to 60000, not 60001"},
		{"sandbox_exec_read", obj{"exec_id": "x", "since_seq": -1}, "since_seq is -1, must not be negative"},
		{"sandbox_exec_wait", obj{"exec_id": "x", "timeout_seconds": -1}, "timeout_seconds must be 1 to 3600, not -1"},
	} {
		if out := set.fails(toolspec.CodeInvalid, tt.tool, tt.input); !strings.Contains(message(out), tt.want) {
			t.Errorf("%s %v: %s, want %q", tt.tool, tt.input, message(out), tt.want)
		}
	}
	if n := r.engine.created(); n != 0 {
		t.Errorf("%d sandboxes for calls that could not succeed", n)
	}
	for _, input := range []obj{
		{"cmd": []string{"a\x00b"}}, {"command": "x", "env": obj{"A": "b\x00"}}, {"command": "x", "env": obj{"A=B": "c"}}, {"command": "x", "cwd": "a\x00"},
	} {
		if out := set.fails(toolspec.CodeInvalid, "sandbox_exec", input); strings.ContainsRune(message(out), 0) {
			t.Errorf("%q: %q", input, message(out))
		}
	}
	out := set.fails(toolspec.CodeNotFound, "sandbox_exec", obj{"cmd": []string{"no-such-program"}})
	if !strings.Contains(message(out), "not in the image") {
		t.Errorf("missing program: %s", message(out))
	}
	out = set.fails(toolspec.CodeInvalid, "sandbox_exec", obj{"command": "x", "cwd": "/no/such/dir"})
	if !strings.Contains(message(out), "Create the directory first") {
		t.Errorf("missing directory: %s", message(out))
	}
	for _, name := range []string{"sandbox_exec_read", "sandbox_exec_wait", "sandbox_exec_kill"} {
		for _, id := range []string{"exe_nothing", "../x", "a b"} {
			set.fails(toolspec.CodeNotFound, name, obj{"exec_id": id})
		}
	}
}

func TestExecTimeout(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": "echo before; sleep 60 & wait", "timeout_seconds": 4})
	if out["status"] != "timed_out" || out["stdout"] != "before\n" || !strings.Contains(str(out["stderr"]), "after its timeout of 4s") {
		t.Errorf("%v", out)
	}
}

// TestExecOutputIsCut verifies that one result is small enough for a model, and that several calls return the whole
// output.
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
	if out["stdout_bytes"] != 208890.0 || !strings.Contains(text, "of 208890 bytes of stdout omitted here; the full output is in "+path) {
		t.Errorf("bytes %v, path %s", out["stdout_bytes"], path)
	}
	whole := set.ok("sandbox_exec", obj{"cmd": []string{"wc", "-l", path}})
	if !strings.HasPrefix(str(whole["stdout"]), "20000 ") {
		t.Errorf("the whole output: %v", whole["stdout"])
	}
	var all strings.Builder
	for since, done := 0.0, false; !done; {
		read := set.ok("sandbox_exec_read", obj{"exec_id": out["exec_id"], "since_seq": since, "max_chunks": 1000})
		before := all.Len()
		for _, c := range items(read["chunks"]) {
			if chunk := sub(c); chunk["stream"] == "stdout" {
				all.WriteString(str(chunk["text"]))
			}
		}
		// An answer may contain only the chunk of stderr, because the next chunk of stdout does not fit.
		if size, n := all.Len()-before, len(items(read["chunks"])); size > 100_000 || n == 0 && read["done"] == false {
			t.Fatalf("%d bytes, %d chunks in one answer", size, n)
		}
		since, done = num(read["next_seq"]), read["done"] == true
	}
	if all.Len() != 208890 || !strings.HasSuffix(all.String(), "line 19999\n") {
		t.Errorf("%d bytes in chunks", all.Len())
	}
}

func TestBackgroundExec(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": `while read line; do echo "got $line"; done; printf 'a\377b'; exit 4`, "stream": true})
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
	var raw []byte
	for _, c := range items(rest["chunks"]) {
		b, err := base64.StdEncoding.DecodeString(str(sub(c)["data_b64"]))
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		raw = append(append(raw, str(sub(c)["text"])...), b...)
	}
	if string(raw) != "got two\na\xffb" || rest["done"] != true || rest["dropped"] != 0.0 {
		t.Errorf("%q: %v", raw, rest)
	}
	out = set.fails(toolspec.CodeInvalid, "sandbox_exec_write", obj{"exec_id": id, "text": "late"})
	if !strings.Contains(message(out), "started with stream: true") {
		t.Errorf("write after the end: %s", message(out))
	}
}

func TestYieldAndKill(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	out := set.ok("sandbox_exec", obj{"command": "echo up; sleep 100", "yield_ms": 3000})
	if out["status"] != "running" || out["stdout"] != "up\n" {
		t.Fatalf("%v", out)
	}
	if killed := set.ok("sandbox_exec_kill", obj{"exec_id": out["exec_id"]}); killed["ok"] != true {
		t.Errorf("%v", killed)
	}
	if done := set.ok("sandbox_exec_wait", obj{"exec_id": out["exec_id"]}); done["status"] != "killed" || done["done"] != true {
		t.Errorf("%v", done)
	}
	if again := set.ok("sandbox_exec_kill", obj{"exec_id": out["exec_id"]}); again["status"] != "killed" {
		t.Errorf("a second kill: %v", again)
	}
	const deaf = `trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done`
	for signal, code := range map[string]float64{"int": 7, " 2 ": 7, "9": 137, "31": 159} {
		id := set.ok("sandbox_exec", obj{"command": deaf, "yield_ms": 1})["exec_id"]
		eventually(t, "it has its trap", func() bool { return len(items(set.ok("sandbox_exec_read", obj{"exec_id": id})["chunks"])) > 0 })
		for _, bad := range []string{"BANANA", "0", "32", "-9"} {
			set.fails(toolspec.CodeInvalid, "sandbox_exec_kill", obj{"exec_id": id, "signal": bad})
		}
		set.ok("sandbox_exec_kill", obj{"exec_id": id, "signal": signal})
		if done := set.ok("sandbox_exec_wait", obj{"exec_id": id}); done["exit_code"] != code {
			t.Errorf("signal %q: %v", signal, done)
		}
	}
}

// TestWaitReturnsTheOutput verifies that sandbox_exec_wait returns the same result as sandbox_exec for a command
// returned as running after the agent file's time.
func TestWaitReturnsTheOutput(t *testing.T) {
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
	got := set.ok("sandbox_exec_wait", obj{"exec_id": begun["exec_id"], "timeout_seconds": 300})
	if got["done"] != true || got["exit_code"] != 3.0 || !strings.HasSuffix(str(got["stdout"]), "line 20000\nthe end\n") || got["output_path"] == nil {
		t.Fatalf("%v", got)
	}
	if diff := cmp.Diff(comparable(want), comparable(got)); diff != "" {
		t.Errorf("(-sandbox_exec +sandbox_exec_wait):\n%s", diff)
	}
	slow := set.ok("sandbox_exec", obj{"command": "echo begun; sleep 1000", "timeout_seconds": 1000})
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
