package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// ownedSandbox opens a sandbox named "box" in this process, like the process of a run.
func ownedSandbox(t *testing.T, environ []string) (*app.Manager, *session.Session) {
	t.Helper()
	env := func(name string) (string, bool) {
		for _, e := range environ {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}
	ctx := context.WithoutCancel(t.Context())
	m, err := app.New(app.Options{Env: env, Stderr: io.Discard}).OpenManager(ctx, app.Use{})
	checktest.Must(t, err)
	t.Cleanup(func() {
		checktest.Must(t, m.Close(ctx))
		m.Done()
	})
	s, _, err := m.Open(ctx, session.UserKey("box"), session.Request{Image: "debian:bookworm-slim"})
	checktest.Must(t, err)
	return m, s
}

// logs returns the commands of the sandbox "box".
func (b user) logs() []app.ExecView {
	b.t.Helper()
	out, _ := b.run(0, "sandbox", "logs", "box", "-o", "json")
	var list []app.ExecView
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		b.t.Fatal(err)
	}
	return list
}

// TestSessionsLogs verifies that another process can list, follow, and kill the commands of a sandbox without adopting
// the sandbox.
func TestSessionsLogs(t *testing.T) {
	t.Parallel()
	b := newUser(t, "local")
	m, s := ownedSandbox(t, b.environ)
	start := func(command string) string {
		t.Helper()
		res, err := s.Exec(t.Context(), sandbox.ExecRequest{Background: true, Command: command})
		checktest.Must(t, err)
		return res.ExecID
	}
	const waits = "echo one; echo two >&2; until [ -e go ]; do sleep 0.05; done; echo three; echo four >&2; exit 3"
	testLogsOfRunning(t, b, s, start(waits))
	testKill(t, b, s, start)

	// Without --follow, the output ends even if the command never stops writing and wrote more than is recorded.
	endless := start("head -c 4194304 /dev/zero | tr '\\0' x; touch full; while :; do echo x; sleep 0.001; done")
	b.run(0, "sandbox", "exec", "box", "--", "sh", "-c", "until [ -e full ]; do sleep 0.05; done")
	if stdout, _ := b.run(0, "sandbox", "logs", "box", endless); !strings.HasPrefix(stdout, "x") {
		t.Errorf("output of the endless command: %.100q", stdout)
	}
	b.run(0, "sandbox", "kill", "box", endless)

	// If the output exceeds the kept size, a file contains the whole output.
	const size = 12 << 20
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: `head -c 12582912 /dev/zero | tr '\0' x`})
	checktest.Must(t, err)
	stdout, stderr := b.run(0, "sandbox", "logs", "box", res.ExecID)
	const hint = "workcell: the beginning of the output was discarded; for all of it, run `workcell "
	_, whole, ok := strings.Cut(strings.TrimSpace(stderr), hint)
	if len(stdout) == 0 || len(stdout) >= size || !ok {
		t.Fatalf("%d bytes of %d, standard error %q", len(stdout), size, stderr)
	}
	if whole, _ = b.run(0, strings.Fields(strings.TrimSuffix(whole, "`"))...); len(whole) != size {
		t.Errorf("the file has %d bytes of %d", len(whole), size)
	}

	b.run(7, "sandbox", "exec", "box", "--", "sh", "-c", "exit 7") // not recorded
	list := b.logs()
	last := list[len(list)-1].ExecID
	for _, c := range []struct {
		code int
		args []string
	}{
		{app.ExitFailed, []string{"logs", "box", last}}, {app.ExitFailed, []string{"logs", "box", "exec_unknown"}},
		{app.ExitNotFound, []string{"logs", "missing"}}, {app.ExitUsage, []string{"logs", "box", "-f"}},
		{app.ExitUsage, []string{"logs", "box", last, "-o", "json"}},
		{app.ExitFailed, []string{"kill", "box", "exec_aaaaaaaaaaaaaaaaaaaaaaaaaa"}},
		{app.ExitUsage, []string{"kill", "--signal", "NONE", "box", last}},
		{app.ExitUsage, []string{"kill", "--all", "box", last}},
	} {
		stdout, stderr := b.run(c.code, append([]string{"sandbox"}, c.args...)...)
		hinted := strings.Contains(stderr, "hint: to list the commands, run `workcell sandbox logs SANDBOX`")
		if stdout != "" || c.code == app.ExitFailed && !hinted {
			t.Errorf("%q: %q, %q", c.args, stdout, stderr)
		}
	}
	again, created, err := m.Open(t.Context(), s.Key(), session.Request{Image: "debian:bookworm-slim"})
	if err != nil || created || again != s {
		t.Errorf("Open did not return the owner's sandbox: created %t, %v", created, err)
	}
}

// testLogsOfRunning follows a command until it ends. The command ends when the file "go" exists.
func testLogsOfRunning(t *testing.T, b user, s *session.Session, id string) {
	t.Helper()
	follow := b.command("sandbox", "logs", "-f", "user:box:default", id)
	pipe, err := follow.StdoutPipe()
	checktest.Must(t, err)
	var errs bytes.Buffer
	follow.Stderr = &errs
	checktest.Must(t, follow.Start())
	t.Cleanup(func() { _ = follow.Process.Kill() }) // already ended, unless the test failed
	out := bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); line != "one\n" {
		t.Fatalf("followed: %q, %v", line, err)
	}
	list := b.logs()
	if len(list) != 1 || list[0].ExecID != id || list[0].Status != sandbox.ExecRunning || list[0].ExitCode != nil {
		t.Fatalf("while it runs: %+v", list)
	}
	if _, err := s.WriteFile(t.Context(), "go", strings.NewReader(""), sandbox.WriteFileOptions{}); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if werr := follow.Wait(); err != nil || werr != nil || string(rest) != "three\n" || errs.String() != "two\nfour\n" {
		t.Errorf("followed: %q, %q, %v, %v", rest, errs.String(), err, werr)
	}
	three := 3
	want := []app.ExecView{{ExecID: id, Status: sandbox.ExecCompleted, ExitCode: &three, StdoutBytes: 10, StderrBytes: 9}}
	list = b.logs()
	for i := range list {
		list[i].DurationMS, list[i].AgeMS = 0, 0
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("when it has ended (-want +got):\n%s", diff)
	}
	if table, _ := b.run(0, "sandbox", "logs", "box"); !strings.Contains(table, id+"  completed  3 ") {
		t.Errorf("table:\n%s", table)
	}
}

// testKill kills one command, sends a signal to another, and kills all.
func testKill(t *testing.T, b user, s *session.Session, start func(command string) string) {
	t.Helper()
	one, two := start("sleep 1000"), start("sleep 1000 & wait")
	if stdout, _ := b.run(0, "sandbox", "kill", "box", one); stdout != one+"\n" {
		t.Errorf("kill says %q", stdout)
	}
	patient := start("trap 'exit 3' INT; echo ready; while :; do sleep 0.05; done")
	for stdout := ""; stdout != "ready\n"; { // wait for the trap
		stdout, _ = b.run(0, "sandbox", "logs", "box", patient)
	}
	b.run(0, "sandbox", "kill", "--signal", "INT", "box", patient)
	if st, err := s.Command(patient).Wait(t.Context(), 3*time.Minute); err != nil || st.ExitCode != 3 {
		t.Errorf("after a signal: %+v, %v", st, err)
	}
	if stdout, _ := b.run(0, "sandbox", "kill", "--all", "box", "-o", "json"); !strings.Contains(stdout, two) || strings.Contains(stdout, one) {
		t.Errorf("kill --all says %s", stdout)
	}
	for _, id := range []string{one, two} {
		if st, err := s.Command(id).Wait(t.Context(), 3*time.Minute); err != nil || st.Status != sandbox.ExecKilled {
			t.Errorf("%s: %+v, %v", id, st, err)
		}
	}
}
