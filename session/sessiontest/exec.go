package sessiontest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// ExecRequest returns the request for a session for Exec.
func ExecRequest(image string) session.Request {
	return session.Request{Image: image, Env: map[string]string{"FROM_SESSION": "session", "BOTH": "session"}}
}

// Exec verifies commands in a session from ExecRequest. The tests run in parallel.
func Exec(t *testing.T, s *session.Session) {
	t.Helper()
	runCases(t, s, []sessionCase{
		{"Arguments", arguments},
		{"Environment", environment},
		{"Stdin", stdin},
		{"Outcomes", outcomes},
		{"LaunchErrors", launchErrors},
		{"YieldAndBackground", yielding},
		{"WriteToStdin", writeStdin},
		{"Kill", killing},
		{"LargeOutput", largeOutput},
		{"Stream", streaming},
		{"StreamFailures", streamFailures},
		{"Terminal", terminals},
	})
}

func arguments(t *testing.T, s *session.Session) {
	odd := []string{"", " a\nb ", `'"$(x)` + "`y`" + `\`, "ü\xff", "-n", "*"}
	res := Run(t, s, sandbox.ExecRequest{Argv: append([]string{"/usr/bin/printf", "%s|"}, odd...)})
	if got, want := string(res.Stdout.Bytes()), strings.Join(odd, "|")+"|"; got != want {
		t.Errorf("arguments %q, want %q", got, want)
	}
}

func environment(t *testing.T, s *session.Session) {
	value := "a\nb=c 'd' \"e\" ü \xff"
	res := Run(t, s, sandbox.ExecRequest{Argv: []string{"/usr/bin/env", "-0"}, Env: map[string]string{"BOTH": "request", "ODD": value}})
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(res.Stdout.Bytes()), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		got[name] = value
	}
	want := map[string]string{
		"BOTH": "request", "ODD": value, "FROM_SESSION": "session", "HOME": s.Home(), "USER": got["LOGNAME"], "LOGNAME": got["USER"],
		"GIT_CONFIG_SYSTEM": "/.workcell/lib/gitconfig", "LANG": "C.UTF-8", "PYTHONPYCACHEPREFIX": "/tmp/.pycache",
		"PATH": got["PATH"], "WORKCELL_EXEC": res.ExecID,
	}
	if v, ok := got["FROM_IMAGE"]; ok {
		want["FROM_IMAGE"] = v
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got["PATH"] == "" || got["USER"] == "" || got["HOME"] == s.Info().Workdir {
		t.Errorf("PATH=%s USER=%s HOME=%s", got["PATH"], got["USER"], got["HOME"])
	}
}

func stdin(t *testing.T, s *session.Session) {
	res := Run(t, s, sandbox.ExecRequest{Command: "cat; exit 5", Stdin: []byte("\x00\xff\r\n\x1b")})
	if string(res.Stdout.Bytes()) != "\x00\xff\r\n\x1b" || res.ExitCode != 5 || res.Status != sandbox.ExecCompleted {
		t.Errorf("stdout %.60q, %+v", res.Stdout.Bytes(), res.ExecStatus)
	}
	if res := Run(t, s, sandbox.ExecRequest{Argv: []string{"cat"}}); res.StdoutBytes != 0 {
		t.Errorf("no input: %+v", res.ExecStatus)
	}
	if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"cat"}, Stdin: make([]byte, sandbox.MaxStdinBytes+1)}); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("too much input: %v", err)
	}
}

func outcomes(t *testing.T, s *session.Session) {
	for _, code := range []int{0, 42} {
		res := Run(t, s, sandbox.ExecRequest{Command: fmt.Sprintf("printf out; printf err >&2; exit %d", code)})
		if res.ExitCode != code || res.Status != sandbox.ExecCompleted || res.Signal != "" || res.Timeout != sandbox.DefaultExecTimeout || res.Duration <= 0 {
			t.Errorf("exit %d: %+v, timeout %v", code, res.ExecStatus, res.Timeout)
		}
		if string(res.Stdout.Bytes()) != "out" || string(res.Stderr.Bytes()) != "err" || res.StdoutBytes != 3 || res.StderrBytes != 3 {
			t.Errorf("exit %d: streams %q and %q, %+v", code, res.Stdout.Bytes(), res.Stderr.Bytes(), res.ExecStatus)
		}
	}
	if res := Run(t, s, sandbox.ExecRequest{Command: "kill -SEGV $$; sleep 5"}); res.Status != sandbox.ExecCompleted || res.Signal != "SIGSEGV" {
		t.Errorf("a signal sent by the command: %+v", res.ExecStatus)
	}
	if res := Run(t, s, sandbox.ExecRequest{Command: "sleep 100 & echo parent"}); res.Status != sandbox.ExecCompleted || !res.Leaked {
		t.Errorf("a background child: %+v", res.ExecStatus)
	}
	for dir, want := range map[string]string{"": s.Info().Workdir, "/tmp": "/tmp"} {
		if res := Run(t, s, sandbox.ExecRequest{Argv: []string{"pwd"}, Dir: dir}); string(res.Stdout.Bytes()) != want+"\n" {
			t.Errorf("directory %q, want %q", res.Stdout.Bytes(), want)
		}
	}
}

func launchErrors(t *testing.T, s *session.Session) {
	Output(t, s, "touch plain")
	for _, test := range []struct {
		req  sandbox.ExecRequest
		want sandbox.LaunchReason
		is   error
	}{
		{sandbox.ExecRequest{Argv: []string{"no-such-program"}}, sandbox.LaunchNotFound, backend.ErrNotFound},
		{sandbox.ExecRequest{Argv: []string{s.Info().Workdir + "/plain"}}, sandbox.LaunchNotExecutable, backend.ErrPermission},
		{sandbox.ExecRequest{Argv: []string{"true"}, Dir: "/no/such/dir"}, sandbox.LaunchBadDir, backend.ErrInvalid},
		{sandbox.ExecRequest{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, sandbox.LaunchTooLong, backend.ErrTooLarge},
	} {
		_, err := s.Exec(t.Context(), test.req)
		var launch *sandbox.LaunchError
		if !errors.As(err, &launch) || launch.Reason != test.want || !errors.Is(err, test.is) {
			t.Errorf("%.60q in %q: %v, want a LaunchError %s", test.req.Argv, test.req.Dir, err, test.want)
		}
	}
	if got := Output(t, s, "echo alive"); got != "alive\n" {
		t.Errorf("output %q", got)
	}
}
