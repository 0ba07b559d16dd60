//go:build linux

package promises

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// oddArguments returns arguments that shells and option parsers would make something else of.
func oddArguments() []string {
	return []string{
		"; touch pwned", "$(touch pwned)", "`touch pwned`", "${HOME}", "$HOME", "a\nb", "\t", "*", "?", "[a-z]*", "~", "-rf", "--", "-", "'", `"`, `\`,
		`\n`, "", " ", "a b", "&& touch pwned", "| touch pwned", "> pwned", "#", "!!", "%s", "日本語", "\u202e", "\x1b[31m", strings.Repeat("x", 100<<10),
	}
}

// TestE1Argv: arguments arrive as they are, one by one, from the tool and from the command line.
func TestE1Argv(t *testing.T) {
	t.Parallel()
	const print = "import json, sys; json.dump(sys.argv[1:], open('args', 'w'))"
	got := func(t *testing.T, b *sandbox, dir string) (args []string) {
		t.Helper()
		must(t, json.Unmarshal(contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": dir + "/args"})), &args))
		return args
	}
	each(t, func(t *testing.T, b *sandbox) {
		dir := b.dir(t)
		b.ok(t, toolspec.ToolExec, obj{"cmd": append([]string{"python3", "-c", print}, oddArguments()...), "cwd": dir})
		if diff := cmp.Diff(oddArguments(), got(t, b, dir)); diff != "" {
			t.Errorf("arguments (-want +got):\n%.2000s", diff)
		}
		out := b.call(t, toolspec.ToolExec, obj{"cmd": []string{"echo hello; touch pwned"}, "cwd": dir})
		fails(t, "a line as a program", out, toolspec.CodeNotFound)
		if got := b.sh(t, "find / -xdev -name pwned 2>/dev/null; true"); got != "" {
			t.Errorf("something was interpreted: %s", got)
		}
	})
	t.Run("command line", func(t *testing.T) {
		t.Parallel()
		dir := w.user.dir(t)
		args := slices.DeleteFunc(oddArguments(), func(a string) bool { return len(a) > 1000 })
		res := workcell(t, w.stateDir(t, w.instance), nil, append([]string{"sessions", "exec", "-w", dir, w.user.s.ID(), "--", "python3", "-c", print}, args...)...)
		if res.code != 0 {
			t.Fatalf("%+v", res)
		}
		if diff := cmp.Diff(args, got(t, w.user, dir)); diff != "" {
			t.Errorf("arguments (-want +got):\n%s", diff)
		}
	})
}

// envOf returns the environment that a command got.
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
	each(t, func(t *testing.T, b *sandbox) {
		got := envOf(t, b.s, session.ExecRequest{Env: values, HeadBytes: 200 << 10})
		maps.DeleteFunc(got, func(name, _ string) bool { _, ours := values[name]; return !ours })
		if diff := cmp.Diff(values, got); diff != "" {
			t.Errorf("values (-want +got):\n%.2000s", diff)
		}
		for _, name := range []string{"", "=", "A=B", "A=", "A\x00B", "\x00", "WORKCELL_EXEC"} {
			fails(t, "env name "+name, b.call(t, toolspec.ToolExec, obj{"cmd": []string{"env"}, "env": obj{name: "x"}}), toolspec.CodeInvalid)
		}
	})
}

// TestE3EnvSet: a command has the variables of request, sandbox and image, in this order, and nothing of the host's.
func TestE3EnvSet(t *testing.T) {
	t.Parallel()
	image, ofImage := debianImage, "" // empty where there are no images
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

// TestE3CommandLineEnv: the command line passes on the variables it is asked to, and no others.
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

// TestE7Stdin: commands get input of all kinds at once and in parts, and none is an end at once.
func TestE7Stdin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *sandbox) {
		const text = "line\n日本語\r\n\x00no newline at the end"
		for _, stdin := range []string{"", text} {
			if out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"cat"}, "stdin": stdin}); out["status"] != "completed" || out["stdout"] != stdin {
				t.Errorf("cat: %v", out)
			}
		}
		if res, err := b.s.Stream(t.Context(), session.ExecRequest{Argv: []string{"cat"}}, session.Streams{}); err != nil || res.ExitCode != 0 {
			t.Errorf("streamed: %+v, %v", res, err)
		}
		id := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"sha256sum"}, "stream": true})["exec_id"]
		var all []byte
		for i := range 20 {
			data := noise(uint64(i), 10_000)
			all = append(all, data...)
			b.ok(t, toolspec.ToolExecWrite, obj{"exec_id": id, "data_b64": b64(data), "eof": i == 19})
		}
		b.ok(t, toolspec.ToolExecWait, obj{"exec_id": id, "timeout_seconds": 60})
		if got := replay(t, b, id); got != hash(all)+"  -\n" {
			t.Errorf("hash of what arrived: %v", got)
		}
	})
}
