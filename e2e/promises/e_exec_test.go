//go:build linux

package promises

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// envOf returns the environment of a command.
func envOf(t *testing.T, s *session.Session, req sandbox.ExecRequest) map[string]string {
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

// TestE3EnvSet: a command has the variables of request, sandbox, and image, in this order of precedence, and no
// variables of the host.
func TestE3EnvSet(t *testing.T) {
	t.Parallel()
	image, ofImage := debianImage, "" // empty if the engine has no images
	if e, ok := w.engine.(imaged); ok {
		image, ofImage = e.derive(t, change{env: map[string]string{"A": "image", "B": "image", "C": "image", "HOME": "/root"}}), "image"
	}
	m := newManager(t, w.driver, session.Options{})
	req := session.Request{Image: image, Env: map[string]string{"B": "sandbox", "C": "sandbox", "D": "sandbox"}}
	s, _, err := m.Open(t.Context(), session.UserKey("env"), req)
	must(t, err)
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	want := map[string]string{"A": ofImage, "B": "sandbox", "C": "request", "D": "request", "E": "request", "HOME": "/workspace/.workcell/home", "USER": "user", "LOGNAME": "user", "GIT_CONFIG_SYSTEM": "/.workcell/lib/gitconfig",
		"LANG": "C.UTF-8", "PATH": path, "PYTHONPYCACHEPREFIX": "/tmp/.pycache"}
	got := envOf(t, s, sandbox.ExecRequest{Env: map[string]string{"C": "request", "D": "request", "E": "request"}})
	if !strings.HasPrefix(got["TRACEPARENT"], "00-") {
		t.Errorf("TRACEPARENT=%q", got["TRACEPARENT"])
	}
	delete(got, "TRACEPARENT")
	maps.DeleteFunc(want, func(_, value string) bool { return value == "" })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	// The variables of one command are not set for the next command.
	if got := envOf(t, s, sandbox.ExecRequest{}); got["E"] != "" || got["C"] != "sandbox" {
		t.Errorf("the next command sees %v", got)
	}
}

// TestE3CommandLineEnv: the command line passes on only the requested variables.
func TestE3CommandLineEnv(t *testing.T) {
	t.Parallel()
	state := w.stateDir(t, w.instance)
	env := []string{"SECRET_TOKEN=canary", "WANTED=yes"}
	res := workcell(t, state, env, "sandbox", "exec", "-e", "WANTED", "-e", "GIVEN=too", w.user.s.ID(), "--", "env")
	if res.Code != 0 || strings.Contains(res.Stdout, "canary") || strings.Contains(res.Stdout, hostCanary) ||
		!strings.Contains(res.Stdout, "WANTED=yes\n") || !strings.Contains(res.Stdout, "GIVEN=too\n") {
		t.Errorf("%+v", res)
	}
	if got := w.user.ok(t, toolspec.ToolExec, obj{"cmd": []string{"env"}})["stdout"].(string); strings.Contains(got, hostCanary) {
		t.Errorf("a command sees the host's environment:\n%s", got)
	}
}
