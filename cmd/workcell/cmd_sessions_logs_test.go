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

	"github.com/workcell-dev/workcell/session"
)

// ownedSandbox opens a sandbox called "box" in this process, as the process of a run has it.
func ownedSandbox(t *testing.T, environ []string) (*session.Manager, *session.Session) {
	t.Helper()
	a := newApp(strings.NewReader(""), io.Discard, io.Discard)
	a.env = func(name string) (string, bool) {
		for _, e := range environ {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v, true
			}
		}
		return "", false
	}
	ctx := context.WithoutCancel(t.Context())
	m, done, err := a.openManager(ctx, "", stateNeeded)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(ctx); err != nil {
			t.Error(err)
		}
		done()
	})
	s, _, err := m.Open(ctx, session.UserKey("box"), session.Request{Image: "debian:bookworm-slim"})
	if err != nil {
		t.Fatal(err)
	}
	return m, s
}

// logs returns the list of commands of the sandbox "box".
func (b user) logs() []execOutput {
	b.t.Helper()
	out, _ := b.run(0, "sessions", "logs", "box", "-o", "json")
	var list []execOutput
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		b.t.Fatal(err)
	}
	return list
}

func TestSessionsLogs(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"docker", "local"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newUser(t, backend)
			m, s := ownedSandbox(t, b.environ)
			if list := b.logs(); len(list) != 0 {
				t.Errorf("a new sandbox has %+v", list)
			}
			testLogsOfRunning(t, b, s)
			testKill(t, b, s)
			testLogsOfLong(t, b, s)
			testLogsOfNone(t, b)
			// The one who looked on took nothing over and removed nothing.
			if again, created, err := m.Open(t.Context(), s.Key(), session.Request{Image: "debian:bookworm-slim"}); err != nil || created || again != s {
				t.Errorf("the owner's sandbox is another one: created %t, %v", created, err)
			}
			if st := s.Info().State; st != session.StateReady {
				t.Errorf("the owner's sandbox is %s", st)
			}
		})
	}
}

// testLogsOfRunning looks at a command of the owner before, while and after it ends.
func testLogsOfRunning(t *testing.T, b user, s *session.Session) {
	t.Helper()
	ctx := t.Context()
	res, err := s.Exec(ctx, session.ExecRequest{Background: true, Command: `
		echo one; echo two >&2; until [ -e go ]; do sleep 0.05; done; echo three; echo four >&2; exit 3`})
	if err != nil {
		t.Fatal(err)
	}
	for {
		st, err := s.WaitExec(ctx, res.ExecID, 0)
		if err != nil {
			t.Fatal(err)
		}
		if st.StdoutBytes == 4 && st.StderrBytes == 4 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	list := b.logs()
	if len(list) != 1 || list[0].ExecID != res.ExecID || list[0].Status != session.ExecRunning || list[0].ExitCode != nil {
		t.Fatalf("while it runs: %+v", list)
	}
	stdout, stderr := b.run(0, "sessions", "logs", "box", res.ExecID)
	if stdout != "one\n" || stderr != "two\n" {
		t.Errorf("while it runs: %q, %q", stdout, stderr)
	}

	follow := b.command("sessions", "logs", "-f", "user:box:default", res.ExecID)
	pipe, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	follow.Stderr = &errs
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = follow.Process.Kill() }) // ended long ago, unless the test failed
	out := bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); line != "one\n" {
		t.Fatalf("followed: %q, %v", line, err)
	}
	if _, err := s.WriteFile(ctx, "go", strings.NewReader(""), session.WriteFileOptions{}); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if werr := follow.Wait(); err != nil || werr != nil || string(rest) != "three\n" || errs.String() != "two\nfour\n" {
		t.Errorf("followed: %q, %q, %v, %v", rest, errs.String(), err, werr)
	}
	three := 3
	want := []execOutput{{ExecID: res.ExecID, Status: session.ExecCompleted, ExitCode: &three, StdoutBytes: 10, StderrBytes: 9}}
	list = b.logs()
	for i := range list {
		if list[i].AgeMS < list[i].DurationMS {
			t.Errorf("a command that ran %d ms was started %d ms ago", list[i].DurationMS, list[i].AgeMS)
		}
		list[i].DurationMS, list[i].AgeMS = 0, 0
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("when it has ended (-want +got):\n%s", diff)
	}
	table, _ := b.run(0, "sessions", "logs", "box")
	if !strings.HasPrefix(table, "EXEC ID ") || !strings.Contains(table, res.ExecID+"  completed  3 ") {
		t.Errorf("table:\n%s", table)
	}
}

// testKill ends commands of the owner.
func testKill(t *testing.T, b user, s *session.Session) {
	t.Helper()
	ctx := t.Context()
	start := func(command string) string {
		t.Helper()
		res, err := s.Exec(ctx, session.ExecRequest{Background: true, Command: command})
		if err != nil {
			t.Fatal(err)
		}
		return res.ExecID
	}
	ended := func(id string, want session.ExecState) {
		t.Helper()
		if st, err := s.WaitExec(ctx, id, 3*time.Minute); err != nil || st.Status != want {
			t.Errorf("%s: %+v, %v; want %s", id, st, err, want)
		}
	}
	one, two := start("sleep 1000"), start("sleep 1000 & wait")
	if stdout, _ := b.run(0, "sessions", "kill", "box", one); stdout != one+"\n" {
		t.Errorf("kill says %q", stdout)
	}
	ended(one, session.ExecKilled)
	b.run(0, "sessions", "kill", "box", one) // has ended
	patient := start("trap 'echo got it; exit 3' INT; echo ready; while :; do sleep 0.05; done")
	for stdout := ""; stdout != "ready\n"; { // until it has its trap
		stdout, _ = b.run(0, "sessions", "logs", "box", patient)
	}
	b.run(0, "sessions", "kill", "--signal", "INT", "box", patient)
	if st, err := s.WaitExec(ctx, patient, 3*time.Minute); err != nil || st.ExitCode != 3 || st.Signal != "" {
		t.Errorf("after a signal: %+v, %v", st, err)
	}
	if _, err := s.Exec(ctx, session.ExecRequest{Command: "setsid sleep 1234 >/dev/null 2>&1 & echo $! > left"}); err != nil {
		t.Fatal(err)
	}
	if stdout, _ := b.run(0, "sessions", "kill", "--all", "box", "-o", "json"); !strings.Contains(stdout, two) || strings.Contains(stdout, one) {
		t.Errorf("kill --all says %s", stdout)
	}
	ended(two, session.ExecKilled)
	if res, err := s.Exec(ctx, session.ExecRequest{Command: "kill -0 $(cat left)"}); err != nil || res.ExitCode == 0 {
		t.Errorf("what an ended command left runs on: %+v, %v", res, err)
	}
	b.run(exitFailed, "sessions", "kill", "box", "exec_aaaaaaaaaaaaaaaaaaaaaaaaaa")
	b.run(exitUsage, "sessions", "kill", "--signal", "NONE", "box", one)
	b.run(exitUsage, "sessions", "kill", "box")
	b.run(exitUsage, "sessions", "kill", "--all", "box", one)
}

// testLogsOfLong looks at more output than is kept, and copies the whole of it.
func testLogsOfLong(t *testing.T, b user, s *session.Session) {
	t.Helper()
	const size = 12 << 20
	res, err := s.Exec(t.Context(), session.ExecRequest{Command: `head -c 12582912 /dev/zero | tr '\0' x`})
	if err != nil || res.ExitCode != 0 {
		t.Fatal(res, err)
	}
	stdout, stderr := b.run(0, "sessions", "logs", "box", res.ExecID)
	if len(stdout) == 0 || len(stdout) >= size || strings.Trim(stdout, "x") != "" {
		t.Errorf("%d bytes of %d", len(stdout), size)
	}
	said, whole, ok := strings.Cut(strings.TrimSpace(stderr), "; for all of it, run `workcell ")
	if said != "workcell: the beginning of the output was discarded" || !ok {
		t.Fatalf("standard error = %q", stderr)
	}
	whole, _ = b.run(0, strings.Fields(strings.TrimSuffix(whole, "`"))...)
	if len(whole) != size {
		t.Errorf("the file has %d bytes of %d", len(whole), size)
	}
}

// testLogsOfNone asks for what is not there.
func testLogsOfNone(t *testing.T, b user) {
	t.Helper()
	b.run(7, "sessions", "exec", "box", "--", "sh", "-c", "exit 7")
	list := b.logs()
	last := list[len(list)-1]
	if last.ExitCode == nil || *last.ExitCode != 7 {
		t.Fatalf("last of %+v", list)
	}
	for _, id := range []string{last.ExecID, "exec_unknown", "../x"} {
		stdout, stderr := b.run(exitFailed, "sessions", "logs", "box", id)
		if stdout != "" || !strings.Contains(stderr, "hint: to list the commands, run `workcell sessions logs SANDBOX`") {
			t.Errorf("%s: %q, %q", id, stdout, stderr)
		}
	}
	b.run(exitNotFound, "sessions", "logs", "nobody")
	b.run(exitUsage, "sessions", "logs", "box", "-f")
	b.run(exitUsage, "sessions", "logs", "box", last.ExecID, "-o", "json")
	b.run(exitUsage, "sessions", "logs")
}
