package promises

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// oddArguments are arguments that shells and option parsers would make something else of.
func oddArguments() []string {
	return []string{
		"; touch pwned", "$(touch pwned)", "`touch pwned`", "${HOME}", "$HOME", "a\nb", "\t", "*", "?", "[a-z]*", "~", "-rf", "--", "-", "'", `"`, `\`,
		`\n`, "", " ", "a b", "&& touch pwned", "| touch pwned", "> pwned", "#", "!!", "%s", "日本語", "\u202e", "\x1b[31m", strings.Repeat("x", 100<<10),
	}
}

// TestE1Argv: arguments arrive as they are, one by one.
func TestE1Argv(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		const tell = "import json, sys; json.dump(sys.argv[1:], open('args', 'w'))"
		b.ok(t, toolspec.ToolExec, obj{"cmd": append([]string{"python3", "-c", tell}, oddArguments()...), "cwd": dir})
		var got []string
		must(t, json.Unmarshal(contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": dir + "/args"})), &got))
		if diff := cmp.Diff(oddArguments(), got); diff != "" {
			t.Errorf("arguments (-want +got):\n%.2000s", diff)
		}
		// Bytes that are no UTF-8 arrive through the session too, and a program's name is never split.
		if got := b.exec(t, session.ExecRequest{Argv: []string{"printf", "%s", "\xff\xfe|\x01"}}); got != "\xff\xfe|\x01" {
			t.Errorf("printed %q", got)
		}
		out := b.call(t, toolspec.ToolExec, obj{"cmd": []string{"echo hello; touch pwned"}, "cwd": dir})
		fails(t, "a line in place of a program", out, toolspec.CodeNotFound)
		// Only the shell mode interprets.
		if out := b.ok(t, toolspec.ToolExec, obj{"command": "echo $((6*7)) $(echo sub)", "cwd": dir}); out["stdout"] != "42 sub\n" {
			t.Errorf("shell mode: %v", out)
		}
		if got := b.sh(t, "find / -xdev -name pwned 2>/dev/null; true"); got != "" {
			t.Errorf("something was interpreted: %s", got)
		}
	})
}

// TestE1CommandLine: the command line passes arguments on as they are too.
func TestE1CommandLine(t *testing.T) {
	t.Parallel()
	args := slices.DeleteFunc(oddArguments(), func(a string) bool { return len(a) > 1000 })
	res := workcell(t, w.stateDir(t, w.instance), nil, append([]string{"sessions", "exec", w.user.s.ID(), "--", "python3", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"}, args...)...)
	var got []string
	if err := json.Unmarshal([]byte(res.stdout), &got); err != nil || res.code != 0 {
		t.Fatalf("%+v: %v", res, err)
	}
	if diff := cmp.Diff(args, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

// envOf gives the environment that a command got.
func envOf(t *testing.T, s *session.Session, req session.ExecRequest) map[string]string {
	t.Helper()
	req.Argv = []string{"cat", "/proc/self/environ"}
	res, err := s.Exec(t.Context(), req)
	must(t, err)
	env := map[string]string{}
	for _, entry := range strings.Split(strings.TrimSuffix(string(res.Stdout.Bytes()), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		if _, twice := env[name]; twice {
			t.Errorf("%s is set twice", name)
		}
		env[name] = value
	}
	if env["WORKCELL_EXEC"] != res.ExecID {
		t.Errorf("WORKCELL_EXEC=%s, want %s", env["WORKCELL_EXEC"], res.ExecID)
	}
	delete(env, "WORKCELL_EXEC")
	return env
}

// TestE2EnvValues: values arrive as they are; names that are none are refused. What changes how programs are loaded is
// the sandbox's own business and passes.
func TestE2EnvValues(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"NEWLINE": "a\nb", "EQUALS": "a=b=c", "QUOTES": `'"` + "`", "UNICODE": "日本語 🚀", "EMPTY": "", "DOLLAR": "$HOME ${PATH} $(id)", "TAB": "\t ",
		"lower.case-odd name": "odd", "LD_PRELOAD": "", "PATH": "/usr/bin:/bin", "ESC": "\x1b[31m", "LONG": strings.Repeat("v", 64<<10),
	}
	each(t, func(t *testing.T, b *box) {
		got := envOf(t, b.s, session.ExecRequest{Env: values, HeadBytes: 200 << 10})
		maps.DeleteFunc(got, func(name, _ string) bool { _, ours := values[name]; return !ours })
		if diff := cmp.Diff(values, got); diff != "" {
			t.Errorf("values (-want +got):\n%.2000s", diff)
		}
		for _, name := range []string{"", "=", "A=B", "A=", "A\x00B", "\x00", "WORKCELL_EXEC"} {
			fails(t, "env name "+name, b.call(t, toolspec.ToolExec, obj{"cmd": []string{"env"}, "env": obj{name: "x"}}), toolspec.CodeInvalid)
		}
	})
	for _, name := range []string{"A=B", "A\x00"} {
		if _, _, err := w.manager.Open(t.Context(), session.UserKey("never"), session.Request{Image: debianImage, Env: map[string]string{name: "x"}}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("a sandbox with the variable %q: %v", name, err)
		}
	}
}

// TestE3EnvSet: a command sees what request, sandbox and image say, in this order, and nothing of the host.
func TestE3EnvSet(t *testing.T) {
	t.Parallel()
	image, ofImage := debianImage, "" // where there are no images, none says anything
	if e, ok := w.engine.(imaged); ok {
		image, ofImage = e.derive(t, change{env: map[string]string{"A": "image", "B": "image", "C": "image", "HOME": "/root"}}), "image"
	}
	m := newManager(t, w.driver, session.Options{})
	req := session.Request{Image: image, Env: map[string]string{"B": "sandbox", "C": "sandbox", "D": "sandbox"}}
	s, _, err := m.Open(t.Context(), session.UserKey("env"), req)
	must(t, err)
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	want := map[string]string{"A": ofImage, "B": "sandbox", "C": "request", "D": "request", "E": "request", "HOME": "/workspace", "LANG": "C.UTF-8", "PATH": path, "PYTHONPYCACHEPREFIX": "/tmp/.pycache"}
	got := envOf(t, s, session.ExecRequest{Env: map[string]string{"C": "request", "D": "request", "E": "request"}})
	if !strings.HasPrefix(got["TRACEPARENT"], "00-") {
		t.Errorf("TRACEPARENT=%q", got["TRACEPARENT"])
	}
	delete(got, "TRACEPARENT")
	maps.DeleteFunc(want, func(_, value string) bool { return value == "" })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	// What one command was given is not there for the next.
	if got := envOf(t, s, session.ExecRequest{}); got["E"] != "" || got["C"] != "sandbox" {
		t.Errorf("the next command sees %v", got)
	}
}

// TestE3CommandLineEnv: the command line hands over what it is told to and no more.
func TestE3CommandLineEnv(t *testing.T) {
	t.Parallel()
	state := w.stateDir(t, w.instance)
	env := []string{"SECRET_TOKEN=canary", "WANTED=yes"}
	res := workcell(t, state, env, "sessions", "exec", "-e", "WANTED", "-e", "GIVEN=too", w.user.s.ID(), "--", "env")
	if res.code != 0 || strings.Contains(res.stdout, "canary") || strings.Contains(res.stdout, hostCanary) ||
		!strings.Contains(res.stdout, "WANTED=yes\n") || !strings.Contains(res.stdout, "GIVEN=too\n") {
		t.Errorf("%+v", res)
	}
	if got := w.user.ok(t, toolspec.ToolExec, obj{"cmd": []string{"env"}})["stdout"].(string); strings.Contains(got, hostCanary) {
		t.Errorf("a command sees the host's environment:\n%s", got)
	}
}

// TestE7Stdin gives commands input of all kinds, and commands that do not want it.
func TestE7Stdin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		t.Run("none", func(t *testing.T) {
			for _, in := range []obj{{"cmd": []string{"cat"}}, {"cmd": []string{"cat"}, "stdin": ""}} {
				if out := b.ok(t, toolspec.ToolExec, in); out["status"] != "completed" || out["stdout"] != "" {
					t.Errorf("cat: %v", out)
				}
			}
			res, err := b.s.Stream(t.Context(), session.ExecRequest{Argv: []string{"cat"}}, session.Streams{})
			if err != nil || res.ExitCode != 0 {
				t.Errorf("streamed: %+v, %v", res, err)
			}
		})
		t.Run("text and bytes", func(t *testing.T) {
			const text = "line\n日本語\r\n\x00no newline at the end"
			if out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"cat"}, "stdin": text}); out["stdout"] != text {
				t.Errorf("cat: %v", out)
			}
			every := make([]byte, 256)
			for i := range every {
				every[i] = byte(i)
			}
			if got := b.exec(t, session.ExecRequest{Argv: []string{"cat"}, Stdin: every}); got != string(every) {
				t.Errorf("bytes came back as %q", got)
			}
		})
		t.Run("by and by", func(t *testing.T) {
			id := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"sha256sum"}, "stream": true})["exec_id"]
			sum := sha256.New()
			for i := range 20 {
				data := noise(uint64(i), 10_000)
				sum.Write(data)
				b.ok(t, toolspec.ToolExecWrite, obj{"exec_id": id, "data_b64": b64(data), "eof": i == 19})
			}
			b.ok(t, toolspec.ToolExecWait, obj{"exec_id": id, "timeout_seconds": 60})
			chunk := b.ok(t, toolspec.ToolExecRead, obj{"exec_id": id})["chunks"].([]any)[0].(obj)
			if got := chunk["text"]; got != hex.EncodeToString(sum.Sum(nil))+"  -\n" {
				t.Errorf("hash of what arrived: %v", got)
			}
		})
	})
}

// TestE7BigStdin sends 50 MiB to commands that read all, some or none of it.
func TestE7BigStdin(t *testing.T) {
	t.Parallel()
	data := noise(50, 50<<20)
	want := hash(data) + "  -\n"
	b := newBox(t, pythonBox())
	cases := []struct {
		command, stdout string
		code            int
	}{
		{"sha256sum", want, 0},
		{"head -c 10 >/dev/null; echo some; exit 7", "some\n", 7},
		{"sleep 0.5; echo none; exit 3", "none\n", 3},
		{"exec 0<&-; sleep 0.2; exit 4", "", 4},
		{"exit 5", "", 5},
	}
	for i, c := range cases {
		if i == 2 { // enough to fill every buffer on the way
			data = data[:8<<20]
		}
		res, err := b.s.Exec(t.Context(), session.ExecRequest{Command: c.command, Stdin: data, Timeout: 2 * time.Minute})
		if err != nil || res.Status != session.ExecCompleted || res.ExitCode != c.code || string(res.Stdout.Bytes()) != c.stdout {
			t.Errorf("%s: %+v %q, %v", c.command, res.ExecStatus, res.Stdout.Bytes(), err)
		}
		var out bytes.Buffer
		res, err = b.s.Stream(t.Context(), session.ExecRequest{Command: c.command, Timeout: 2 * time.Minute},
			session.Streams{Stdin: bytes.NewReader(data), Stdout: &out, Stderr: io.Discard})
		if err != nil || res.Status != session.ExecCompleted || res.ExitCode != c.code || out.String() != c.stdout {
			t.Errorf("streamed, %s: %+v %q, %v", c.command, res.ExecStatus, out.String(), err)
		}
	}
	if _, err := b.s.Exec(t.Context(), session.ExecRequest{Argv: []string{"cat"}, Stdin: make([]byte, session.MaxStdinBytes+1)}); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("more than the limit: %v", err)
	}
	b.alive(t)
}
