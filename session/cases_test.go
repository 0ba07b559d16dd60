//go:build linux

package session_test

import (
	"context"
	"errors"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/sessiontest"
	"github.com/workcell-dev/workcell/session/transfer"
)

// TestExec runs the conformance suite's command tests with local processes.
func TestExec(t *testing.T) {
	t.Parallel()
	s, _, err := newManager(t, newEngine(t), nil).Open(t.Context(), session.WorkflowKey("run_1", "default"), sessiontest.ExecRequest("test:1"))
	must(t, err)
	sessiontest.Exec(t, s)
	sleep, err := s.Start(t.Context(), sandbox.ExecRequest{Command: "sleep 0.1"})
	must(t, err)
	_, err = sleep.Wait(t.Context(), math.MaxInt64)
	must(t, err)
	t.Run("invalid requests", func(t *testing.T) { t.Parallel(); invalidRequests(t, s) })
	t.Run("refused terminals", func(t *testing.T) { t.Parallel(); terminalsRefused(t, s) })
}

// TestFiles runs the conformance suite's file tests with local processes.
func TestFiles(t *testing.T) {
	t.Parallel()
	m := newManager(t, newEngine(t), &session.Options{MaxFileBytes: sessiontest.FileLimit})
	sessiontest.Files(t, mustOpen(t, m, session.WorkflowKey("run_1", "default")))
}

// TestDiff runs the conformance suite's diff tests with local processes.
func TestDiff(t *testing.T) {
	t.Parallel()
	sessiontest.Diff(t, mustOpen(t, newManager(t, newEngine(t), nil), session.WorkflowKey("run_1", "default")))
}

// TestDiffHasBounds verifies that Diff fails with a reason if the workspace exceeds a limit. Files at too great a depth
// are left out and are not reported as deleted. The test uses a private guest, so that the large directories do not
// fill an engine's disk.
func TestDiffHasBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, script, err string }{
		{"rules", "for i in 1 2 3 4 5 6; do mkdir $i; seq 2000 > $i/.gitignore; done", "more than 10000 rules in .gitignore files"},
		{"a large file of rules", "head -c 2000000 /dev/zero | tr '\\0' '#' > .gitignore", ".gitignore has 2000000 bytes, the limit is 1048576"},
		{"long paths", `n=$(printf '%0250d' 0); for i in $(seq 14); do mkdir $n; cd $n; done
for i in $(seq 25); do mkdir $i; (cd $i; touch $(seq 450)); done`, "the paths in the workspace have more than 33554432 bytes"},
		{"many files", "for i in $(seq 11); do mkdir $i; (cd $i; seq 9500 | xargs touch); done", "more than 100000 files and directories"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, newManager(t, newEngine(t), nil), session.WorkflowKey("run_1", "default"))
			if res := run(t, s, sandbox.ExecRequest{Argv: []string{"sh", "-ec", c.script}}); res.ExitCode != 0 {
				t.Fatalf("%+v", res)
			}
			_, err := s.Diff(t.Context(), patch.Tree{})
			if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
		})
	}
	s := mustOpen(t, newManager(t, newEngine(t), nil), session.WorkflowKey("run_2", "default"))
	deep := strings.Repeat("d/", 102) + "f"
	if res := run(t, s, sandbox.ExecRequest{Argv: []string{"sh", "-ec", "mkdir -p " + path.Dir(deep) + "; echo x > " + deep + "; echo x > f"}}); res.ExitCode != 0 {
		t.Fatalf("%+v", res)
	}
	p, err := s.Diff(t.Context(), patch.Tree{deep: {Mode: 0o644, Content: []byte("y\n")}})
	must(t, err)
	want := []patch.Conflict{{Path: strings.Repeat("d/", 100) + "d", Reason: "the path has more than 100 directories"}}
	if diff := cmp.Diff(want, p.Omitted); diff != "" || len(p.Changes) != 1 || p.Changes[0].Path != "f" {
		t.Errorf("%+v, omitted (-want +got):\n%s", p.Changes, diff)
	}
}

// TestCanceledStart verifies that a failed start leaves no running command, even if the guest answered before it
// noticed the cancellation.
func TestCanceledStart(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newManager(t, newEngine(t), nil), session.WorkflowKey("run_1", "default"))
	took, started := time.Hour, 0
	for range 10 { // the first start takes longer
		began := time.Now()
		run(t, s, sandbox.ExecRequest{Argv: []string{"true"}, Background: true})
		took = min(took, time.Since(began))
	}
	wait := took / 100
	for range 400 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		wait += wait / 50 // up to 27 times the fastest start
		command, err := s.Start(ctx, sandbox.ExecRequest{Argv: []string{"sleep", "1000"}, Timeout: sandbox.MaxExecTimeout})
		cancel()
		if err == nil {
			started++
			_, err = command.Signal(t.Context(), "KILL")
			must(t, err)
			_, err = command.Wait(t.Context(), time.Minute)
			must(t, err)
		}
	}
	if started == 0 || started == 400 {
		t.Errorf("%d of 400 started: the times do not cover a start", started)
	}
	eventually(t, "no command is running", func() bool {
		commands, err := s.Commands(t.Context())
		must(t, err)
		return !slices.ContainsFunc(commands, func(c sandbox.ExecStatus) bool { return !c.Done() })
	})
}

// TestDiffEnds verifies that a canceled Diff stops within the current directory.
func TestDiffEnds(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newManager(t, newEngine(t), nil), session.WorkflowKey("run_1", "default"))
	run(t, s, sandbox.ExecRequest{Argv: []string{"sh", "-c", "mkdir $(seq 100); for i in $(seq 100); do touch $i/f; done"}})
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	_, _, err := s.ReadTree(ctx, func(string) bool { return true }, func(string) bool {
		seen++
		cancel()
		return true
	})
	if !errors.Is(err, context.Canceled) || seen != 1 {
		t.Errorf("%v, %d files were looked at", err, seen)
	}
}

// TestIncompleteOutputs verifies that outputs are not collected if a directory with more of them is too large. Other
// directories are only listed. An unreadable output has priority, because a user can repair it.
func TestIncompleteOutputs(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newManager(t, newEngine(t), nil), session.WorkflowKey("run_1", "default"))
	output(t, s, "mkdir d && cd d && seq 10001 | xargs touch")
	made, err := transfer.Collect(t.Context(), s, []string{"*.png?", "{a,b}.md?", "**/*.png?"}, nil)
	if must(t, err); !slices.Equal(made.Unread, []string{"d"}) {
		t.Errorf("unread directories: %q", made.Unread)
	}
	for _, c := range []struct {
		command, glob, text string
		tooLarge            bool
	}{
		{"true", "d/*.png?", "output d: ", true},
		{"touch $(printf 'a\\377.txt')", "d/*.png?", "output d: ", true},
		{"true", "{d/*.png,*.txt}?", "its name is not UTF-8", false},
		{"mv d/* .", "*.png?", "output .: ", true},
	} {
		output(t, s, c.command)
		_, err := transfer.Collect(t.Context(), s, []string{c.glob}, nil)
		if err == nil || !strings.Contains(err.Error(), c.text) || errors.Is(err, backend.ErrTooLarge) != c.tooLarge {
			t.Errorf("%s: %v", c.glob, err)
		}
	}
}

// TestLifecycle runs the conformance suite's tests of named sandboxes with local processes.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	sessiontest.Lifecycle(t, pickySharing{newEngine(t)}, "shared", session.Request{Image: "test:1"}, "test:2")
}

// pickySharing is an engine that has only the images test:1 and test:2 and cannot change users.
type pickySharing struct{ *engine }

func (e pickySharing) Create(ctx context.Context, spec backend.Spec) (backend.Info, error) {
	if spec.Image != "test:1" && spec.Image != "test:2" {
		return backend.Info{}, backend.ErrImage
	}
	return e.engine.Create(ctx, spec)
}

func invalidRequests(t *testing.T, s *session.Session) {
	for name, req := range map[string]sandbox.ExecRequest{
		"nothing":       {},
		"empty argv":    {Argv: []string{""}},
		"both":          {Argv: []string{"true"}, Command: "true"},
		"NUL in argv":   {Argv: []string{"echo", "a\x00b"}},
		"NUL in shell":  {Command: "echo \x00"},
		"NUL in dir":    {Argv: []string{"true"}, Dir: "/\x00"},
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
		_, readErr := s.Command(id).Read(t.Context(), sandbox.ReadRequest{})
		_, waitErr := s.Command(id).Wait(t.Context(), 0)
		_, killErr := s.Command(id).Signal(t.Context(), "")
		writeErr := s.Command(id).Write(t.Context(), []byte("x"), false)
		for _, err := range []error{readErr, waitErr, killErr, writeErr} {
			if !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("exec %.20q: %v, want ErrNotFound", id, err)
			}
		}
	}
}

func terminalsRefused(t *testing.T, s *session.Session) {
	for name, test := range map[string]struct {
		req  sandbox.TerminalRequest
		want error
	}{
		"no program":    {sandbox.TerminalRequest{Argv: []string{"no-such-program"}}, backend.ErrNotFound},
		"empty program": {sandbox.TerminalRequest{Argv: []string{""}}, backend.ErrInvalid},
		"short":         {sandbox.TerminalRequest{Unattended: 1}, backend.ErrInvalid},
	} {
		if res, err := s.Terminal(t.Context(), test.req, sandbox.TerminalStreams{}); !errors.Is(err, test.want) || res.ExecID != "" {
			t.Errorf("%s: %+v, %v, want %v", name, res.ExecStatus, err, test.want)
		}
	}
	if _, err := s.Command("nobody").Attach(t.Context(), sandbox.TerminalSize{}, sandbox.TerminalStreams{}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("joining an unknown command: %v", err)
	}
}

// TestReapedToSuspend verifies that a process stops its own idle sandbox. Holders of the closed session can open the
// key again.
func TestReapedToSuspend(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	m, clock := newTimed(t, e, opts)
	req := testImage()
	req.IdlePolicy = record.IdleStop
	s := openKept(t, m, session.UserKey("lab"), req)
	clock.add(time.Hour)
	m.Reap(t.Context())
	if got := listed(t, m, s.ID()); got != session.StateStopped {
		t.Errorf("an idle sandbox is %s", got)
	}
	if _, err := s.StatFile(t.Context(), "file"); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("its session: %v, want ErrClosed", err)
	}
	if _, err := m.Lookup(t.Context(), s.Key().Scope(), s.ID()); !errors.Is(err, backend.ErrClosed) || !strings.Contains(err.Error(), "open it again") {
		t.Errorf("Lookup: %v", err)
	}
	reopen(t, newManager(t, e, opts), s.Key(), testImage(), s.ID())
}
