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
		{"BackgroundChildHoldsOutput", heldOutput},
		{"CancelEndsTheTree", cancelTree},
		{"OwnSignal", ownSignal},
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
	for _, fromImage := range []string{"FROM_IMAGE"} {
		if v, ok := got[fromImage]; ok {
			want[fromImage] = v
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got["PATH"] == "" {
		t.Error("no PATH")
	}
}

func stdin(t *testing.T, s *session.Session) {
	big := Noise(4 << 20)
	for _, test := range []struct {
		name, command string
		in            []byte
		want          string
		code          int
	}{
		{"none", "cat", nil, "", 0},
		{"empty", "cat", []byte{}, "", 0},
		{"text", "cat", []byte("a\nb"), "a\nb", 0},
		{"binary", "cat", []byte("\x00\xff\r\n\x1b"), "\x00\xff\r\n\x1b", 0},
		{"never read", "sleep 0.3; exit 4", big, "", 4},
		{"early exit", "head -c 3; exit 5", append([]byte("abc"), big...), "abc", 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			res := run(t, s, session.ExecRequest{Command: test.command, Stdin: test.in})
			if string(res.Stdout.Bytes()) != test.want || res.ExitCode != test.code || res.Status != session.ExecCompleted {
				t.Errorf("stdout %.60q, %+v", res.Stdout.Bytes(), res.ExecStatus)
			}
		})
	}
	if _, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"cat"}, Stdin: make([]byte, session.MaxStdinBytes+1)}); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("too much input: %v", err)
	}
}

func outcomes(t *testing.T, s *session.Session) {
	for _, code := range []int{0, 1, 2, 42, 126, 127, 255} {
		res := run(t, s, session.ExecRequest{Command: fmt.Sprintf("printf out; printf err >&2; exit %d", code)})
		if res.ExitCode != code || res.Status != session.ExecCompleted || res.Signal != "" {
			t.Errorf("exit %d: %+v", code, res.ExecStatus)
		}
		if string(res.Stdout.Bytes()) != "out" || string(res.Stderr.Bytes()) != "err" || res.StdoutBytes != 3 || res.StderrBytes != 3 {
			t.Errorf("exit %d: streams %q and %q, %+v", code, res.Stdout.Bytes(), res.Stderr.Bytes(), res.ExecStatus)
		}
		if res.Timeout != session.DefaultExecTimeout || res.Duration <= 0 {
			t.Errorf("timeout %v, duration %v", res.Timeout, res.Duration)
		}
	}
	res := run(t, s, session.ExecRequest{Argv: []string{"pwd"}})
	if got := string(res.Stdout.Bytes()); got != s.Info().Workdir+"\n" {
		t.Errorf("default directory %q, want %q", got, s.Info().Workdir)
	}
	res = run(t, s, session.ExecRequest{Argv: []string{"pwd"}, Dir: "/tmp"})
	if got := string(res.Stdout.Bytes()); got != "/tmp\n" {
		t.Errorf("directory %q", got)
	}
}

func launchErrors(t *testing.T, s *session.Session) {
	dir := "launch-errors"
	output(t, s, "mkdir "+dir+"; touch "+dir+"/plain; printf 'junk' > "+dir+"/junk; chmod +x "+dir+"/junk")
	work := s.Info().Workdir
	for _, test := range []struct {
		req  session.ExecRequest
		want session.LaunchReason
		is   error
	}{
		{session.ExecRequest{Argv: []string{"no-such-program"}}, session.LaunchNotFound, backend.ErrNotFound},
		{session.ExecRequest{Argv: []string{"/no/such/program"}}, session.LaunchNotFound, backend.ErrNotFound},
		{session.ExecRequest{Argv: []string{work + "/" + dir + "/plain"}}, session.LaunchNotExecutable, backend.ErrPermission},
		{session.ExecRequest{Argv: []string{work + "/" + dir}}, session.LaunchNotExecutable, backend.ErrPermission},
		{session.ExecRequest{Argv: []string{work + "/" + dir + "/junk"}}, session.LaunchNotExecutable, backend.ErrPermission},
		{session.ExecRequest{Argv: []string{"true"}, Dir: "/no/such/dir"}, session.LaunchBadDir, backend.ErrInvalid},
		{session.ExecRequest{Argv: []string{"true"}, Dir: work + "/" + dir + "/plain"}, session.LaunchBadDir, backend.ErrInvalid},
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
