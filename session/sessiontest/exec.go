package sessiontest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// ExecRequest asks for the session that Exec needs.
func ExecRequest(image string) session.Request {
	return session.Request{Image: image, Env: map[string]string{"FROM_SESSION": "session", "BOTH": "session"}}
}

// Exec checks commands in a session of ExecRequest, in parallel.
func Exec(t *testing.T, s *session.Session) {
	t.Helper()
	runCases(t, s, []sessionCase{
		{"Environment", environment},
		{"Stdin", stdin},
		{"Outcomes", outcomes},
		{"LaunchErrors", launchErrors},
		{"InvalidRequests", invalidRequests},
		{"Timeout", timeouts},
		{"Cancel", cancelling},
		{"YieldAndBackground", yielding},
		{"WriteToStdin", writeStdin},
		{"Kill", killing},
		{"LargeOutput", largeOutput},
		{"Stream", streaming},
		{"StreamFailures", streamFailures},
		{"Terminal", terminals},
	})
}

func environment(t *testing.T, s *session.Session) {
	value := "a\nb=c 'd' \"e\" ü \xff"
	res := run(t, s, session.ExecRequest{Argv: []string{"/usr/bin/env", "-0"}, Env: map[string]string{"BOTH": "request", "ODD": value}})
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(res.Stdout.Bytes()), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		got[name] = value
	}
	want := map[string]string{
		"BOTH": "request", "ODD": value, "FROM_SESSION": "session", "HOME": s.Info().Workdir, "LANG": "C.UTF-8", "PYTHONPYCACHEPREFIX": "/tmp/.pycache",
		"PATH": got["PATH"], "WORKCELL_EXEC": res.ExecID,
	}
	if v, ok := got["FROM_IMAGE"]; ok {
		want["FROM_IMAGE"] = v
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got["PATH"] == "" {
		t.Error("no PATH")
	}
}

func stdin(t *testing.T, s *session.Session) {
	res := run(t, s, session.ExecRequest{Command: "cat; exit 5", Stdin: []byte("\x00\xff\r\n\x1b")})
	if string(res.Stdout.Bytes()) != "\x00\xff\r\n\x1b" || res.ExitCode != 5 || res.Status != session.ExecCompleted {
		t.Errorf("stdout %.60q, %+v", res.Stdout.Bytes(), res.ExecStatus)
	}
	if res := run(t, s, session.ExecRequest{Argv: []string{"cat"}}); res.StdoutBytes != 0 {
		t.Errorf("no input: %+v", res.ExecStatus)
	}
	if _, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"cat"}, Stdin: make([]byte, session.MaxStdinBytes+1)}); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("too much input: %v", err)
	}
}

func outcomes(t *testing.T, s *session.Session) {
	for _, code := range []int{0, 42} {
		res := run(t, s, session.ExecRequest{Command: fmt.Sprintf("printf out; printf err >&2; exit %d", code)})
		if res.ExitCode != code || res.Status != session.ExecCompleted || res.Signal != "" || res.Timeout != session.DefaultExecTimeout || res.Duration <= 0 {
			t.Errorf("exit %d: %+v, timeout %v", code, res.ExecStatus, res.Timeout)
		}
		if string(res.Stdout.Bytes()) != "out" || string(res.Stderr.Bytes()) != "err" || res.StdoutBytes != 3 || res.StderrBytes != 3 {
			t.Errorf("exit %d: streams %q and %q, %+v", code, res.Stdout.Bytes(), res.Stderr.Bytes(), res.ExecStatus)
		}
	}
	if res := run(t, s, session.ExecRequest{Command: "kill -SEGV $$; sleep 5"}); res.Status != session.ExecCompleted || res.Signal != "SIGSEGV" {
		t.Errorf("a signal of its own: %+v", res.ExecStatus)
	}
	if res := run(t, s, session.ExecRequest{Command: "sleep 100 & echo parent"}); res.Status != session.ExecCompleted || !res.Leaked {
		t.Errorf("a background child: %+v", res.ExecStatus)
	}
	for dir, want := range map[string]string{"": s.Info().Workdir, "/tmp": "/tmp"} {
		if res := run(t, s, session.ExecRequest{Argv: []string{"pwd"}, Dir: dir}); string(res.Stdout.Bytes()) != want+"\n" {
			t.Errorf("directory %q, want %q", res.Stdout.Bytes(), want)
		}
	}
}

func launchErrors(t *testing.T, s *session.Session) {
	output(t, s, "touch plain")
	for _, test := range []struct {
		req  session.ExecRequest
		want session.LaunchReason
		is   error
	}{
		{session.ExecRequest{Argv: []string{"no-such-program"}}, session.LaunchNotFound, backend.ErrNotFound},
		{session.ExecRequest{Argv: []string{s.Info().Workdir + "/plain"}}, session.LaunchNotExecutable, backend.ErrPermission},
		{session.ExecRequest{Argv: []string{"true"}, Dir: "/no/such/dir"}, session.LaunchBadDir, backend.ErrInvalid},
		{session.ExecRequest{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, session.LaunchTooLong, backend.ErrTooLarge},
	} {
		_, err := s.Exec(t.Context(), test.req)
		var launch *session.LaunchError
		if !errors.As(err, &launch) || launch.Reason != test.want || !errors.Is(err, test.is) {
			t.Errorf("%.60q in %q: %v, want a LaunchError %s", test.req.Argv, test.req.Dir, err, test.want)
		}
	}
	if got := output(t, s, "echo alive"); got != "alive\n" {
		t.Errorf("output %q", got)
	}
}

func invalidRequests(t *testing.T, s *session.Session) {
	for name, req := range map[string]session.ExecRequest{
		"nothing":       {},
		"empty argv":    {Argv: []string{""}},
		"both":          {Argv: []string{"true"}, Command: "true"},
		"NUL in argv":   {Argv: []string{"echo", "a\x00b"}},
		"NUL in shell":  {Command: "echo \x00"},
		"NUL in dir":    {Argv: []string{"true"}, Dir: "/\x00"},
		"NUL in env":    {Argv: []string{"true"}, Env: map[string]string{"A": "\x00"}},
		"bad env":       {Argv: []string{"true"}, Env: map[string]string{"A=B": "x"}},
		"reserved env":  {Argv: []string{"true"}, Env: map[string]string{"WORKCELL_EXEC": "x"}},
		"short timeout": {Argv: []string{"true"}, Timeout: time.Microsecond},
		"long timeout":  {Argv: []string{"true"}, Timeout: 3601 * time.Second},
		"negative":      {Argv: []string{"true"}, Timeout: -time.Second},
		"huge text":     {Argv: []string{"true"}, HeadBytes: 1 << 30},
	} {
		_, err := s.Exec(t.Context(), req)
		if !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
		if req.Timeout != 0 && (err == nil || !strings.Contains(err.Error(), "0.001 to 3600 seconds")) {
			t.Errorf("%s: %v does not name the range", name, err)
		}
	}
	for _, id := range []string{"", "unknown", "a b", "../x", strings.Repeat("x", 1000), "a\x00"} {
		_, readErr := s.ReadExec(t.Context(), session.ReadExecRequest{ExecID: id})
		_, waitErr := s.WaitExec(t.Context(), id, 0)
		_, killErr := s.KillExec(t.Context(), id, "")
		writeErr := s.WriteExec(t.Context(), id, []byte("x"), false)
		for _, err := range []error{readErr, waitErr, killErr, writeErr} {
			if !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("exec %.20q: %v, want ErrNotFound", id, err)
			}
		}
	}
}
