package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/workflow"
)

// TestTakeStdout: after it, what is written to the old file, by this process or a child that inherits it, goes elsewhere,
// and the client's stream carries only what is written to the new one.
func TestTakeStdout(t *testing.T) {
	t.Parallel()
	client, stdout := osPipe(t)
	elsewhere, stderr := osPipe(t)
	own, err := takeStdout(stdout, stderr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stdout, "stray print\n"); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", "echo stray child; ls -l /proc/self/fd | wc -l >/dev/null")
	child.Stdout = stdout
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(own, "message\n"); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{own, stdout, stderr} {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := io.ReadAll(client); err != nil || string(got) != "message\n" {
		t.Errorf("the client got %q, %v", got, err)
	}
	if got, err := io.ReadAll(elsewhere); err != nil || string(got) != "stray print\nstray child\n" {
		t.Errorf("standard error got %q, %v", got, err)
	}
}

func osPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range []io.Closer{r, w} {
			_ = c.Close() // the test closes some
		}
	})
	return r, w
}

func TestMCPTokens(t *testing.T) {
	t.Parallel()
	write := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := environ.Of(nil)
	f := &mcpHTTPFlags{tokenFile: write("# mine\n\nalice s3cret-s3cret-s3cret\nbob other-other-other 2030-01-02T03:04:05Z\n", 0o600)}
	got, err := f.tokens(none)
	if err != nil {
		t.Fatal(err)
	}
	want := []mcpserver.Token{
		{Name: "alice", Secret: "s3cret-s3cret-s3cret"},
		{Name: "bob", Secret: "other-other-other", Expires: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	for name, path := range map[string]string{
		"readable by all": write("a bbbbbbbbbbbbbbbbbbbb\n", 0o644), "empty": write("#\n", 0o600), "no token": write("alice\n", 0o600),
		"bad expiry": write("alice bbbbbbbbbbbbbbbbbbbb tomorrow\n", 0o600), "missing": filepath.Join(t.TempDir(), "none"),
	} {
		if _, err := (&mcpHTTPFlags{tokenFile: path}).tokens(none); err == nil || strings.Contains(err.Error(), "bbbb") {
			t.Errorf("%s: %v", name, err)
		}
	}
	fromEnv := environ.Lookup(func(name string) (string, bool) { return "from-the-environment", name == mcpTokenEnv })
	if got, err := (&mcpHTTPFlags{}).tokens(fromEnv); err != nil || len(got) != 1 || got[0].Secret != "from-the-environment" {
		t.Errorf("from the environment: %v %v", got, err)
	}
}

// TestMCPLeavesBadFilesOut: a file that is wrong keeps the server from none of the others.
func TestMCPLeavesBadFilesOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good.prompt": "---\nmodel: x/y\n---\nWork.", "bad.prompt": "---\nmodel: x/y\nsandbox: {mode: cod}\n---\nWork.",
		"fine.yaml": "id: fine\nsteps: [{id: a, type: end}]\n", "wrong.yaml": "id: wrong\nsteps:\n  - {id: a, type: endd}\n  - {id: b}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stderr strings.Builder
	r, err := newApp(Options{Stderr: &stderr}).taskRunner(nil, nil, dir, dir, codingTasks{})
	if err != nil {
		t.Fatal(err)
	}
	tasks := r.list()
	if len(tasks) != 2 || tasks[0].Name != "fine" || tasks[1].Name != "good" {
		t.Errorf("tasks %v", tasks)
	}
	for _, want := range []string{"bad.prompt:3:17: ", "wrong.yaml:3:19: ", "wrong.yaml:4:5: "} {
		if !strings.Contains(stderr.String(), "workcell: warning: skipped: "+filepath.Join(dir, want)) {
			t.Errorf("%s is missing in:\n%s", want, stderr.String())
		}
	}
}

// TestMCPUsage: what cannot work is refused before an engine is asked for anything.
func TestMCPUsage(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close() // nobody connects
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--transport", "carrier-pigeon"}, exitUsage, "transport"},
		{[]string{"--on-exit", "explode"}, exitUsage, "--on-exit"},
		{[]string{"--network", "host"}, exitUsage, "--network"},
		{[]string{"--runtime", "cobol"}, exitUsage, "--runtime"},
		{[]string{"--listen", "127.0.0.1:1"}, exitUsage, "--transport http"},
		{[]string{"--transport", "http", "--listen", "nonsense"}, exitUsage, "--listen"},
		{[]string{"--transport", "http", "--listen", "0.0.0.0:0"}, exitUsage, "tokens"},
		{[]string{"--transport", "http", "--listen", busy.Addr().String()}, exitFailed, "address already in use"},
		{[]string{"--transport", "http", "--tls-cert", "x"}, exitUsage, "--tls-key"},
		{[]string{"--policy", "no-such-file"}, exitInvalid, "no-such-file"},
		{[]string{"--policy", "main.go"}, exitInvalid, "main.go:"},
		{[]string{"--transport", "http", "--max-connections", "-1"}, exitUsage, "--max-connections"},
		{[]string{"--transport", "http", "--max-connections", "0"}, exitUsage, "at least 1"},
		{[]string{"--transport", "http", "--max-rate", "-1"}, exitUsage, "--max-rate"},
		{[]string{"--idle-timeout", "1ms"}, exitUsage, "--idle-timeout"},
		{[]string{"extra"}, exitUsage, "unknown command"},
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), append([]string{"mcp", "--state-dir", t.TempDir()}, tc.args...), newCommand(strings.NewReader(""), &stdout, &stderr, ""), commands()...)
		if code != tc.code || !strings.Contains(stderr.String(), tc.want) || stdout.Len() != 0 {
			t.Errorf("%q: exit code %d, standard error %q, standard output %q; want %d, %q", tc.args, code, stderr.String(), stdout.String(), tc.code, tc.want)
		}
	}
}

// TestTaskError verifies that clients see the class of a failure and no path of the server.
func TestTaskError(t *testing.T) {
	t.Parallel()
	secret := errors.New("open /srv/secret/plan.yaml: no such file")
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"unknown":   {secret, "internal: the task failed"},
		"class":     {fmt.Errorf("%w: %w", backend.ErrNoRoom, secret), "quota_exceeded: the task failed"},
		"step":      {&workflow.Error{Step: "fix", Where: "/srv/secret/a.yaml:1:2", Code: "expression", Message: secret.Error()}, "internal: step fix failed: expression"},
		"fail step": {&workflow.Error{Step: "stop", Code: "failed", Message: "nothing to do"}, "internal: nothing to do"},
		"budget":    {fmt.Errorf("%w: %w", executor.ErrBudget, secret), "quota_exceeded: the task's budget is used up"},
	} {
		if got := taskError(tc.err); got.Error() != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
	}
}
