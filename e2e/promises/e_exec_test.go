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
		`\n`, "", " ", "a b", "&& touch pwned", "| touch pwned", "> pwned", "#", "!!", "%s", "日本語", "\u202e", "\x1b[31m",
	}
}

// TestE1CommandLine: arguments arrive as they are, one by one, from the command line.
func TestE1CommandLine(t *testing.T) {
	t.Parallel()
	dir, args := w.user.dir(t), oddArguments()
	res := workcell(t, w.stateDir(t, w.instance), nil, append([]string{"sessions", "exec", "-w", dir, w.user.s.ID(), "--", "python3", "-c",
		"import json, sys; json.dump(sys.argv[1:], sys.stdout)"}, args...)...)
	var got []string
	if res.code != 0 || json.Unmarshal([]byte(res.stdout), &got) != nil || !slices.Equal(got, args) {
		t.Errorf("arguments %q, %+v", got, res)
	}
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
