package backendtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

func workspaceChecks() []check {
	return []check{
		{"size", (*suite).workspaceSize},
		{"many files", (*suite).workspaceFiles},
		{"writer", (*suite).workspaceWriter},
		{"hidden files", (*suite).workspaceHidden},
		{"typed", (*suite).workspaceTyped},
		{"kept", (*suite).workspaceOutlives},
	}
}

// workspaceLimit is the limit of these tests.
const workspaceLimit = 4 << 20

// confined opens a sandbox whose workspace has a limit.
func (s *suite) confined(t *testing.T) *session.Session {
	t.Helper()
	o := s.office(t, session.Options{})
	req := o.request()
	req.Limits.WorkspaceBytes = workspaceLimit
	x, _, err := o.Open(t.Context(), session.WorkflowKey("run_1", "default"), req)
	must(t, err)
	if i := x.Info(); i.Workspace != s.caps.Workspace || i.Limits.WorkspaceBytes != workspaceLimit {
		t.Errorf("Info tells of %+v held by %q, want %q", i.Limits, i.Workspace, s.caps.Workspace)
	}
	return x
}

// unlimited tells that nothing here holds a workspace to a size, of which unenforceable has asked.
func (s *suite) unlimited() bool { return s.caps.Workspace == "" }

// refused runs what must not come through because the workspace is full, and must be told so.
func refused(t *testing.T, x *session.Session, command string) session.ExecResult {
	t.Helper()
	res, err := x.Exec(t.Context(), session.ExecRequest{Command: command})
	must(t, err)
	if res.ExitCode == 0 && res.Signal == "" || !res.QuotaExceeded {
		t.Errorf("%s: %+v, %s", command, res.ExecStatus, res.Stderr.Bytes())
	}
	return res
}

// workspaceSize fills a workspace with one file. What is deleted can be used again.
func (s *suite) workspaceSize(t *testing.T) {
	if s.unlimited() {
		return
	}
	x := s.confined(t)
	if got := inShell(t, x, "stat -c '%u:%g %a' /workspace; ls -A"); got != "1000:1000 755\n" {
		t.Errorf("workspace: %q", got)
	}
	for range 3 {
		inShell(t, x, "head -c 3145728 /dev/zero > a && stat -c %s a")
		refused(t, x, "exec head -c 6291456 /dev/zero > a")
		inShell(t, x, "rm a")
	}
	res, err := x.Exec(t.Context(), session.ExecRequest{Command: "echo x > b"})
	if err != nil || res.ExitCode != 0 || res.QuotaExceeded {
		t.Errorf("afterwards: %+v, %v", res.ExecStatus, err)
	}
}

// workspaceFiles fills a workspace with empty files.
func (s *suite) workspaceFiles(t *testing.T) {
	if s.unlimited() {
		return
	}
	x := s.confined(t)
	refused(t, x, "mkdir d; i=0; while [ $i -lt 20000 ]; do : > d/n$i || exit 3; i=$((i+1)); done; sleep 600; exit 4")
	if _, err := x.WriteFile(t.Context(), "more", strings.NewReader("x"), session.WriteFileOptions{}); !errors.Is(err, backend.ErrQuota) {
		t.Errorf("a further file: %v, want ErrQuota", err)
	}
	if _, err := x.RemoveFile(t.Context(), "d", true); err != nil {
		t.Errorf("making room: %v", err)
	}
	if got := inShell(t, x, "echo x > b; cat b"); got != "x\n" {
		t.Errorf("afterwards: %q", got)
	}
}

// workspaceWriter writes file after file, in the background of a command that has ended as well. It must come to an end,
// and so must what the next command would add.
func (s *suite) workspaceWriter(t *testing.T) {
	if s.unlimited() {
		return
	}
	x := s.confined(t)
	writer := "i=0; while :; do head -c 131072 /dev/zero > w$i || exit 3; i=$((i+1)); sleep 0.05; done"
	res := refused(t, x, writer)
	if killed := res.Status == session.ExecQuotaKilled; killed != (s.caps.Workspace == backend.WorkspaceWatched) {
		t.Errorf("the writer: %+v", res.ExecStatus)
	}
	refused(t, x, "head -c 262144 /dev/zero > more")
	if got := inShell(t, x, "echo read; ls w0"); got != "read\nw0\n" {
		t.Errorf("reading: %q", got)
	}
	inShell(t, x, "rm -f w* more")
	pid := strings.TrimSpace(inShell(t, x, "setsid sh -c '"+writer+"' >/dev/null 2>&1 & echo $!"))
	eventually(t, "the writer in the background to end", func() bool {
		res, err := x.Exec(t.Context(), session.ExecRequest{Argv: []string{"test", "-e", "/proc/" + pid}})
		return err == nil && res.Status == session.ExecCompleted && res.ExitCode == 1
	})
	inShell(t, x, "rm -f w* more")
	inShell(t, x, "head -c 3145728 /dev/zero > a && rm a")
}

// workspaceHidden writes what a listing does not show: files without a name, and directories that are closed.
func (s *suite) workspaceHidden(t *testing.T) {
	if s.unlimited() {
		return
	}
	x := s.confined(t)
	open := "for i in 3 4 5; do eval \"exec $i>f\"; rm f; head -c 2097152 /dev/zero >&$i || exit 3; done; sleep 600"
	res, err := x.Exec(t.Context(), session.ExecRequest{Command: open})
	if err != nil || res.ExitCode == 0 && res.Signal == "" {
		t.Errorf("files without a name: %+v, %v", res.ExecStatus, err)
	}
	refused(t, x, "mkdir d; for i in 3 4 5; do head -c 2097152 /dev/zero > d/$i || { chmod 0 d; exit 3; }; done; chmod 0 d; sleep 600")
	refused(t, x, "echo x > more; head -c 2097152 /dev/zero > more")
	inShell(t, x, "chmod 700 d; rm -r d; rm -f more; ls -A")
	refused(t, x, "chmod 311 /workspace; for i in 3 4 5; do head -c 2097152 /dev/zero > $i || exit 3; done; sleep 600")
	refused(t, x, "head -c 2097152 /dev/zero > more")
	inShell(t, x, "chmod 755 /workspace; rm -f 3 4 5 more; ls -A")
}

// workspaceTyped writes through the file calls: all or nothing, and an error that says what it is.
func (s *suite) workspaceTyped(t *testing.T) {
	if s.unlimited() {
		return
	}
	x := s.confined(t)
	write := func(name string, size int, opts session.WriteFileOptions) error {
		_, err := x.WriteFile(t.Context(), name, strings.NewReader(strings.Repeat("x", size)), opts)
		return err
	}
	must(t, write("a", 1<<20, session.WriteFileOptions{}))
	for _, size := range []int64{0, 6 << 20} { // unknown and known
		if err := write("b", 6<<20, session.WriteFileOptions{Size: size}); !errors.Is(err, backend.ErrQuota) {
			t.Errorf("too much: %v, want ErrQuota", err)
		}
		if err := write("a", 6<<20, session.WriteFileOptions{Size: size, Overwrite: true}); !errors.Is(err, backend.ErrQuota) {
			t.Errorf("too much over what is there: %v, want ErrQuota", err)
		}
	}
	if got := inShell(t, x, "ls -A; stat -c %s a"); got != "a\n1048576\n" {
		t.Errorf("afterwards there is %q", got)
	}
	must(t, write("b", 2<<20, session.WriteFileOptions{}))
	if err := write("c", 2<<20, session.WriteFileOptions{}); !errors.Is(err, backend.ErrQuota) {
		t.Errorf("a third: %v, want ErrQuota", err)
	}
	if _, err := x.RemoveFile(t.Context(), "b", false); err != nil {
		t.Error(err)
	}
	must(t, write("c", 2<<20, session.WriteFileOptions{}))
}

// workspaceOutlives has files outlive a stop and the sandbox, under the same limit.
func (s *suite) workspaceOutlives(t *testing.T) {
	if s.unlimited() {
		return
	}
	spec := s.lone(t)
	spec.Limits.WorkspaceBytes = workspaceLimit
	info := s.create(t, spec)
	sh(t, s.dial(t, info.ID), "echo kept > f; chmod 600 f")
	for range 2 {
		sh(t, s.dial(t, info.ID), "chmod 311 .")
		must(t, s.b.Stop(t.Context(), info.ID))
		must(t, s.b.Start(t.Context(), info.ID))
		if got := sh(t, s.dial(t, info.ID), "cat f"); got != "kept\n" {
			t.Errorf("after a stop: %q", got)
		}
	}
	if got, err := s.b.Get(t.Context(), info.ID); err != nil || got.Workspace != s.caps.Workspace {
		t.Errorf("Get tells of %q, %v", got.Workspace, err)
	}
	must(t, s.b.Remove(t.Context(), info.ID, backend.RemoveOptions{}))
	if s.caps.Workspace != backend.WorkspaceWatched { // which can be given another limit at any time
		spec.Limits.WorkspaceBytes = 2 * workspaceLimit
		if _, err := s.b.Create(t.Context(), spec); !errors.Is(err, backend.ErrExists) {
			t.Errorf("the same workspace in another size: %v, want ErrExists", err)
		}
		spec.Limits.WorkspaceBytes = workspaceLimit
	}
	info = s.create(t, spec)
	conn := s.dial(t, info.ID)
	if got := sh(t, conn, "cat f"); got != "kept\n" {
		t.Errorf("in the next sandbox: %q", got)
	}
	if res := run(t, conn, "sh", "-c", "exec head -c 6291456 /dev/zero > a"); res.ExitCode == 0 && res.Signal == "" || !res.QuotaExceeded {
		t.Errorf("too much in the next sandbox: %+v", res.ExecStatus)
	}
}

// LoopDevices lists the loop devices that hold files below dir, for the end of a driver's tests. The kernel gets a while
// to release those of sandboxes that just ended.
func LoopDevices(dir string) []string {
	var found []string
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		found = nil
		names, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is well formed
		for _, name := range names {
			if file, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(file), dir+"/") {
				found = append(found, name+": "+strings.TrimSpace(string(file)))
			}
		}
		if len(found) == 0 || time.Now().After(end) {
			return found
		}
	}
}
