//go:build linux

package session_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestExec runs the cases that hold on every backend; on Docker they run in TestDocker.
func TestExec(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), nil)
	s, _, err := m.Open(t.Context(), session.WorkflowKey("run_1", "default"), execRequest())
	if err != nil {
		t.Fatal(err)
	}
	execCases(t, s)
}

// execRequest asks for the session that execCases needs.
func execRequest() session.Request {
	return session.Request{Image: "test:1", Env: map[string]string{"FROM_SESSION": "session", "BOTH": "session"}}
}

// execCases checks commands in a session of execRequest.
func execCases(t *testing.T, s *session.Session) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *session.Session)
	}{
		{"ArgvIsVerbatim", argvVerbatim},
		{"Environment", environment},
		{"Stdin", stdin},
		{"Outcomes", outcomes},
		{"LaunchErrors", launchErrors},
		{"InvalidRequests", invalidRequests},
		{"Timeout", timeouts},
		{"TimeoutEndsTheTree", timeoutTree},
		{"IgnoredTERM", ignoredTerm},
		{"BackgroundChildHoldsOutput", heldOutput},
		{"CancelEndsTheTree", cancelTree},
		{"OwnSignal", ownSignal},
		{"YieldAndBackground", yielding},
		{"WriteToStdin", writeStdin},
		{"Kill", killing},
		{"LargeOutput", largeOutput},
		{"BothStreamsFlooded", flood},
		{"OddBytes", oddBytes},
		{"Stream", streaming},
		{"StreamFailures", streamFailures},
		{"Concurrent", concurrentExecs},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, s)
		})
	}
}

// run executes and wants a result.
func run(t *testing.T, s *session.Session, req session.ExecRequest) session.ExecResult {
	t.Helper()
	res, err := s.Exec(t.Context(), req)
	if err != nil {
		t.Fatalf("Exec(%.100v): %v", req.Argv, err)
	}
	return res
}

func argvVerbatim(t *testing.T, s *session.Session) {
	args := []string{";", "$(id)", "`id`", "a\nb", "*", "-rf", "'\"", "", " ", "ü", "\xff\xfe", "\\", "--", "&", "${HOME}"}
	res := run(t, s, session.ExecRequest{Argv: append([]string{"/bin/sh", "-c", `for a; do printf '%s\0' "$a"; done`, "sh"}, args...)})
	if got := string(res.Stdout.Bytes()); got != strings.Join(args, "\x00")+"\x00" {
		t.Errorf("arguments arrived as %q", got)
	}
	res = run(t, s, session.ExecRequest{Command: "echo $((6*7)) | cat; exit 3"})
	if string(res.Stdout.Bytes()) != "42\n" || res.ExitCode != 3 || res.Status != session.ExecCompleted {
		t.Errorf("shell command: %+v", res)
	}
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
		"BOTH": "request", "ODD": value, "FROM_SESSION": "session", "HOME": s.Info().Workdir, "LANG": "C.UTF-8",
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
	big := noise(50 << 20)
	sum := fmt.Sprintf("%x  -\n", sha256.Sum256(big))
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
		{"50 MiB", "sha256sum", big, sum, 0},
		{"never read", "sleep 0.3; exit 4", big[:4<<20], "", 4},
		{"early exit", "head -c 3; exit 5", append([]byte("abc"), big[:4<<20]...), "abc", 5},
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
		"short timeout": {Argv: []string{"true"}, Timeout: time.Millisecond},
		"long timeout":  {Argv: []string{"true"}, Timeout: 3601 * time.Second},
		"negative":      {Argv: []string{"true"}, Timeout: -time.Second},
		"huge text":     {Argv: []string{"true"}, HeadBytes: 1 << 30},
	} {
		_, err := s.Exec(t.Context(), req)
		if !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
		if req.Timeout != 0 && (err == nil || !strings.Contains(err.Error(), "1 to 3600 seconds")) {
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

func timeouts(t *testing.T, s *session.Session) {
	begun := time.Now()
	res := run(t, s, session.ExecRequest{Command: "echo partial; sleep 60", Timeout: time.Second})
	if res.Status != session.ExecTimedOut || string(res.Stdout.Bytes()) != "partial\n" || res.Timeout != time.Second {
		t.Errorf("%+v, stdout %q", res.ExecStatus, res.Stdout.Bytes())
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("the timeout of 1 s took %v", took)
	}
}

// survivors gives what is still running of processes that carry a marker as an argument to sleep.
func survivors(t *testing.T, s *session.Session, marker string) string {
	t.Helper()
	return output(t, s, `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null | grep -q '^sleep `+marker+`' && echo $p; done; true`)
}

// tree is a command that spreads processes in every way that escapes a simple kill; all of them sleep for marker seconds.
func tree(marker string) string {
	return fmt.Sprintf(`sleep %[1]s & (sleep %[1]s & sleep %[1]s) & setsid sleep %[1]s & nohup sleep %[1]s >/dev/null 2>&1 &
		setsid sh -c 'setsid sleep %[1]s & exit' & sh -c '(setsid sleep %[1]s </dev/null >/dev/null 2>&1 &)'; echo spread; sleep %[1]s`, marker)
}

func timeoutTree(t *testing.T, s *session.Session) {
	res := run(t, s, session.ExecRequest{Command: tree("4711"), Timeout: time.Second})
	if res.Status != session.ExecTimedOut || string(res.Stdout.Bytes()) != "spread\n" {
		t.Errorf("%+v, stdout %q", res.ExecStatus, res.Stdout.Bytes())
	}
	if left := survivors(t, s, "4711"); left != "" {
		t.Errorf("survivors: %s", left)
	}
}

func ignoredTerm(t *testing.T, s *session.Session) {
	res := run(t, s, session.ExecRequest{Command: "trap '' TERM INT HUP; while :; do sleep 4712; done", Timeout: time.Second})
	if res.Status != session.ExecTimedOut {
		t.Errorf("%+v", res.ExecStatus)
	}
	if left := survivors(t, s, "4712"); left != "" {
		t.Errorf("survivors: %s", left)
	}
}

func heldOutput(t *testing.T, s *session.Session) {
	begun := time.Now()
	res := run(t, s, session.ExecRequest{Command: "sleep 20 & echo parent"})
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("a background child held the command for %v", took)
	}
	if res.Status != session.ExecCompleted || res.ExitCode != 0 || string(res.Stdout.Bytes()) != "parent\n" || !res.Leaked {
		t.Errorf("%+v, stdout %q", res.ExecStatus, res.Stdout.Bytes())
	}
}

func cancelTree(t *testing.T, s *session.Session) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Exec(ctx, session.ExecRequest{Command: "touch cancel-began; (sleep 3; touch cancel-effect) & " + tree("4713")})
		done <- err
	}()
	eventually(t, "the command runs", func() bool { _, err := s.StatFile(t.Context(), "cancel-began"); return err == nil })
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled command = %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a cancelled command still holds its caller after 5 s")
	}
	eventually(t, "its processes are gone", func() bool { return survivors(t, s, "4713") == "" })
	time.Sleep(3500 * time.Millisecond) // past the moment at which the effect was due
	if _, err := s.StatFile(t.Context(), "cancel-effect"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("an effect that was scheduled for later appeared: %v", err)
	}
}

func ownSignal(t *testing.T, s *session.Session) {
	for _, signal := range []string{"TERM", "KILL", "SEGV"} {
		res := run(t, s, session.ExecRequest{Command: "kill -" + signal + " $$; sleep 5"})
		if res.Status != session.ExecCompleted || res.Signal != "SIG"+signal {
			t.Errorf("SIG%s: %+v", signal, res.ExecStatus)
		}
	}
}

func yielding(t *testing.T, s *session.Session) {
	res := run(t, s, session.ExecRequest{Command: "echo one; sleep 2; echo two; exit 7", Yield: 500 * time.Millisecond})
	if res.Status != session.ExecRunning || string(res.Stdout.Bytes()) != "one\n" {
		t.Fatalf("%+v, stdout %q", res.ExecStatus, res.Stdout.Bytes())
	}
	first, err := s.ReadExec(t.Context(), session.ReadExecRequest{ExecID: res.ExecID, Wait: 10 * time.Second})
	if err != nil || len(first.Chunks) != 1 || first.Chunks[0].Seq != 1 || string(first.Chunks[0].Data) != "one\n" || first.Done {
		t.Errorf("first read: %+v, %v", first, err)
	}
	status, err := s.WaitExec(t.Context(), res.ExecID, time.Millisecond)
	if err != nil || status.Done() {
		t.Errorf("short wait: %+v, %v", status, err)
	}
	status, err = s.WaitExec(t.Context(), res.ExecID, -1)
	if err != nil || status.Status != session.ExecCompleted || status.ExitCode != 7 {
		t.Errorf("wait: %+v, %v", status, err)
	}
	for range 2 { // reads consume nothing
		all, err := s.ReadExec(t.Context(), session.ReadExecRequest{ExecID: res.ExecID})
		if err != nil || !all.Done || len(all.Chunks) != 2 || string(all.Chunks[1].Data) != "two\n" {
			t.Errorf("read of all: %+v, %v", all, err)
		}
	}
	rest, err := s.ReadExec(t.Context(), session.ReadExecRequest{ExecID: res.ExecID, SinceSeq: first.NextSeq})
	if err != nil || !rest.Done || len(rest.Chunks) != 1 || rest.Chunks[0].Stream != "stdout" {
		t.Errorf("read of the rest: %+v, %v", rest, err)
	}
	begun := time.Now()
	res = run(t, s, session.ExecRequest{Command: "sleep 3", Background: true})
	if res.Status != session.ExecRunning || time.Since(begun) > 2*time.Second {
		t.Errorf("background: %+v after %v", res.ExecStatus, time.Since(begun))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.WaitExec(ctx, res.ExecID, -1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait whose context ended: %v", err)
	}
	if status, err := s.WaitExec(t.Context(), res.ExecID, -1); err != nil || status.Status != session.ExecCompleted {
		t.Errorf("giving up a wait ended the command: %+v, %v", status, err)
	}
	for _, req := range []session.ReadExecRequest{
		{ExecID: res.ExecID, SinceSeq: -1}, {ExecID: res.ExecID, MaxChunks: -1}, {ExecID: res.ExecID, Wait: -1}, {ExecID: res.ExecID, Wait: time.Hour},
	} {
		if _, err := s.ReadExec(t.Context(), req); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", req, err)
		}
	}
}

func writeStdin(t *testing.T, s *session.Session) {
	res := run(t, s, session.ExecRequest{Argv: []string{"cat"}, Stdin: []byte("first "), StdinOpen: true, Background: true})
	for _, text := range []string{"second ", "\x00\xff "} {
		if err := s.WriteExec(t.Context(), res.ExecID, []byte(text), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.WriteExec(t.Context(), res.ExecID, []byte("last"), true); err != nil {
		t.Fatal(err)
	}
	if status, err := s.WaitExec(t.Context(), res.ExecID, 20*time.Second); err != nil || status.ExitCode != 0 || !status.Done() {
		t.Fatalf("%+v, %v", status, err)
	}
	read, err := s.ReadExec(t.Context(), session.ReadExecRequest{ExecID: res.ExecID})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, c := range read.Chunks {
		got = append(got, c.Data...)
	}
	if string(got) != "first second \x00\xff last" {
		t.Errorf("the command read %q", got)
	}
}

func killing(t *testing.T, s *session.Session) {
	res := run(t, s, session.ExecRequest{Command: tree("4714"), Background: true})
	if _, err := s.ReadExec(t.Context(), session.ReadExecRequest{ExecID: res.ExecID, Wait: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	status, err := s.KillExec(t.Context(), res.ExecID, "")
	if err != nil || status.Status != session.ExecKilled {
		t.Errorf("kill: %+v, %v", status, err)
	}
	if left := survivors(t, s, "4714"); left != "" {
		t.Errorf("survivors: %s", left)
	}
	if again, err := s.KillExec(t.Context(), res.ExecID, ""); err != nil || again.Status != session.ExecKilled {
		t.Errorf("killing an ended command: %+v, %v", again, err)
	}
	res = run(t, s, session.ExecRequest{Command: "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done", Background: true})
	if _, err := s.ReadExec(t.Context(), session.ReadExecRequest{ExecID: res.ExecID, Wait: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.KillExec(t.Context(), res.ExecID, "INT"); err != nil {
		t.Error(err)
	}
	if status, err := s.WaitExec(t.Context(), res.ExecID, 20*time.Second); err != nil || status.ExitCode != 9 {
		t.Errorf("after SIGINT: %+v, %v", status, err)
	}
	for _, signal := range []string{"NOSUCH", "0", "-9", "1000", "KILL; rm"} {
		if _, err := s.KillExec(t.Context(), res.ExecID, signal); err != nil && !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("signal %q: %v", signal, err)
		}
	}
}

func largeOutput(t *testing.T, s *session.Session) {
	const size = 3 << 20
	res := run(t, s, session.ExecRequest{Command: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo end", size), HeadBytes: 100, TailBytes: 200})
	out := res.Stdout
	if len(out.Head) != 100 || len(out.Tail) != 200 || out.Total != size+4 || out.Omitted != out.Total-300 || !bytes.HasSuffix(out.Tail, []byte("xend\n")) {
		t.Errorf("head %d, tail %d, total %d, omitted %d", len(out.Head), len(out.Tail), out.Total, out.Omitted)
	}
	if !strings.HasPrefix(out.Path, s.Info().Workdir+"/") || out.PathCut {
		t.Fatalf("the whole output is at %q, cut %v", out.Path, out.PathCut)
	}
	if got := output(t, s, "wc -c < "+out.Path); strings.TrimSpace(got) != fmt.Sprint(size+4) {
		t.Errorf("the file has %s bytes", got)
	}
}

func flood(t *testing.T, s *session.Session) {
	res := run(t, s, session.ExecRequest{Command: "yes aaaaaaa & yes bbbbbbb >&2", Timeout: 2 * time.Second})
	if res.Status != session.ExecTimedOut || res.Stdout.Omitted == 0 || res.Stderr.Omitted == 0 {
		t.Errorf("%+v, omitted %d and %d", res.ExecStatus, res.Stdout.Omitted, res.Stderr.Omitted)
	}
	for _, out := range []session.Output{res.Stdout, res.Stderr} {
		if len(out.Head)+len(out.Tail) > 30<<10 || int64(len(out.Head)+len(out.Tail))+out.Omitted != out.Total {
			t.Errorf("head %d, tail %d, omitted %d, total %d", len(out.Head), len(out.Tail), out.Omitted, out.Total)
		}
	}
	if bytes.Contains(res.Stdout.Bytes(), []byte("b")) || bytes.Contains(res.Stderr.Bytes(), []byte("a")) {
		t.Error("the streams are mixed")
	}
}

func oddBytes(t *testing.T, s *session.Session) {
	want := "\x00\xff\xfe\xe2\x82|\x1b[31m\r{\"jsonrpc\":\"2.0\"}\x07"
	res := run(t, s, session.ExecRequest{Argv: []string{"cat"}, Stdin: []byte(want)})
	if got := string(res.Stdout.Bytes()); got != want {
		t.Errorf("output %q, want %q", got, want)
	}
	res = run(t, s, session.ExecRequest{Command: "exit 0"})
	if res.Stdout.Total != 0 || len(res.Stdout.Bytes()) != 0 || res.Stderr.Total != 0 {
		t.Errorf("an empty output became %+v", res.Stdout)
	}
}

func streaming(t *testing.T, s *session.Session) {
	in := noise(50 << 20)
	var out, errOut bytes.Buffer
	res, err := s.Stream(t.Context(), session.ExecRequest{Command: "tee /dev/stderr; exit 6"},
		session.Streams{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errOut})
	if err != nil || res.ExitCode != 6 || res.Status != session.ExecCompleted {
		t.Fatalf("%+v, %v", res.ExecStatus, err)
	}
	if !bytes.Equal(out.Bytes(), in) || !bytes.Equal(errOut.Bytes(), in) {
		t.Errorf("%d bytes in, %d and %d out", len(in), out.Len(), errOut.Len())
	}
	res, err = s.Stream(t.Context(), session.ExecRequest{Command: "cat; echo kept >&2"}, session.Streams{})
	if err != nil || res.ExitCode != 0 {
		t.Errorf("no streams: %+v, %v", res.ExecStatus, err)
	}
	res, err = s.Stream(t.Context(), session.ExecRequest{Command: "echo partial; sleep 60", Timeout: time.Second}, session.Streams{Stdout: &out})
	if err != nil || res.Status != session.ExecTimedOut || !bytes.HasSuffix(out.Bytes(), []byte("partial\n")) {
		t.Errorf("timeout: %+v, %v", res.ExecStatus, err)
	}
}

// failing fails after its data.
type failing struct {
	data io.Reader
	err  error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.data.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

func (f *failing) Write([]byte) (int, error) { return 0, f.err }

func streamFailures(t *testing.T, s *session.Session) {
	broken := errors.New("the disk of the host failed")
	_, err := s.Stream(t.Context(), session.ExecRequest{Command: "cat > stream-input; touch stream-ended"},
		session.Streams{Stdin: &failing{strings.NewReader("half"), broken}})
	if !errors.Is(err, broken) {
		t.Errorf("an input that broke off = %v", err)
	}
	if _, err := s.StatFile(t.Context(), "stream-ended"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the command took half an input for the whole: %v", err)
	}
	_, err = s.Stream(t.Context(), session.ExecRequest{Command: "echo x; sleep 4715"}, session.Streams{Stdout: &failing{err: broken}})
	if !errors.Is(err, broken) {
		t.Errorf("a writer that failed = %v", err)
	}
	eventually(t, "the command is gone", func() bool { return survivors(t, s, "4715") == "" })
	for _, req := range []session.ExecRequest{
		{Command: "true", Stdin: []byte("x")}, {Command: "true", StdinOpen: true}, {Command: "true", Yield: 1}, {Command: "true", Background: true},
	} {
		if _, err := s.Stream(t.Context(), req, session.Streams{}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Stream(%+v) = %v", req, err)
		}
	}
}

// concurrentExecs mixes 50 commands with file calls; nothing crosses.
func concurrentExecs(t *testing.T, s *session.Session) {
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			name := fmt.Sprintf("concurrent/%d", i)
			want := strings.Repeat(fmt.Sprintf("%d ", i), 2000)
			if _, err := s.WriteFile(t.Context(), name, strings.NewReader(want), session.WriteFileOptions{}); err != nil {
				t.Error(err)
				return
			}
			res, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"cat", name}})
			if err != nil || string(res.Stdout.Bytes()) != want {
				t.Errorf("command %d: %d bytes of output, %v", i, len(res.Stdout.Bytes()), err)
			}
			got, _, err := s.ReadFileBytes(t.Context(), name, session.ReadFileOptions{})
			if err != nil || string(got) != want {
				t.Errorf("file %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	wg.Wait()
	list, err := s.ListFiles(t.Context(), "concurrent", session.ListFilesOptions{})
	if err != nil || len(list.Entries) != 50 || !slices.IsSortedFunc(list.Entries, func(a, b session.FileInfo) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("%d entries, %v", len(list.Entries), err)
	}
}
