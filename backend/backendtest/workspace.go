package backendtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func workspaceChecks() []check {
	var all []check
	for name, test := range map[string]func(*suite, *testing.T){
		"size": (*suite).workspaceSize, "many files": (*suite).workspaceFiles, "writer": (*suite).workspaceWriter,
		"hidden files": (*suite).workspaceHidden, "typed": (*suite).workspaceTyped, "kept": (*suite).workspaceOutlives,
	} {
		all = append(all, check{name, func(s *suite, t *testing.T) {
			if !s.unlimited() {
				test(s, t)
			}
		}})
	}
	return all
}

// workspaceLimit is the workspace limit of these tests, in bytes.
const workspaceLimit = 4 << 20

// confined creates a sandbox whose workspace has a limit.
func (s *suite) confined(t *testing.T) *client.Conn {
	t.Helper()
	info, conn := s.limited(t, s.h.Debian, backend.Limits{WorkspaceBytes: workspaceLimit})
	if info.Workspace != s.caps.Workspace || info.Limits.WorkspaceBytes != workspaceLimit {
		t.Errorf("Info tells of %+v held by %q, want %q", info.Limits, info.Workspace, s.caps.Workspace)
	}
	return conn
}

// unlimited reports whether the driver cannot limit the size of a workspace. unenforceable covers this case.
func (s *suite) unlimited() bool { return s.caps.Workspace == "" }

// refused runs a script and verifies its failure because the workspace is full. The result must report the exceeded
// quota.
func refused(t *testing.T, conn *client.Conn, script string) wire.RunResult {
	t.Helper()
	res := Exec(t, conn, "/bin/sh", "-c", script)
	if res.ExitCode == 0 && res.Signal == "" || !res.QuotaExceeded {
		t.Errorf("%s: %+v, %s", script, res.ExecStatus, res.Stderr.Head)
	}
	return res
}

// isFull reports whether an error means a reached limit.
func isFull(err error) bool {
	var we *wire.Error
	return errors.As(err, &we) && we.Code == wire.CodeQuota
}

// workspaceSize verifies that a workspace can be filled with one file, and the space of a deleted file can be used
// again.
func (s *suite) workspaceSize(t *testing.T) {
	conn := s.confined(t)
	Prints(t, conn, "stat -c '%u:%g %a' /workspace; ls -A", "1000:1000 755\n")
	for range 2 {
		Sh(t, conn, "head -c 3145728 /dev/zero > a && stat -c %s a")
		refused(t, conn, "exec head -c 6291456 /dev/zero > a")
		Sh(t, conn, "rm a")
	}
	if res := Exec(t, conn, "/bin/sh", "-c", "echo x > b"); res.ExitCode != 0 || res.QuotaExceeded {
		t.Errorf("afterwards: %+v", res.ExecStatus)
	}
}

// workspaceFiles verifies the limit for the number of files with empty files.
func (s *suite) workspaceFiles(t *testing.T) {
	conn := s.confined(t)
	refused(t, conn, "mkdir d; i=0; while [ $i -lt 20000 ]; do : > d/n$i || exit 3; i=$((i+1)); done; sleep 600; exit 4")
	if err := put(t, conn, wire.FilePutRequest{Path: "more", Size: 1}, 1); !isFull(err) {
		t.Errorf("a further file: %v, want it refused for the limit", err)
	}
	must(t, second(conn.Remove(t.Context(), wire.PathRequest{Path: "d", Recursive: true})))
	Prints(t, conn, "echo x > b; cat b", "x\n")
}

func put(t *testing.T, conn *client.Conn, req wire.FilePutRequest, size int) error {
	t.Helper()
	_, err := conn.PutFile(t.Context(), req, strings.NewReader(strings.Repeat("x", size)))
	return err
}

// workspaceWriter verifies that writing many files stops at the limit, even if a background process of a finished
// command writes them. Writes of the next command must also fail.
func (s *suite) workspaceWriter(t *testing.T) {
	conn := s.confined(t)
	writer := "i=0; while :; do head -c 131072 /dev/zero > w$i || exit 3; i=$((i+1)); sleep 0.05; done"
	res := refused(t, conn, writer)
	if killed := res.State == wire.ExecQuotaKilled; killed != (s.caps.Workspace == backend.WorkspaceWatched) {
		t.Errorf("the writer: %+v", res.ExecStatus)
	}
	refused(t, conn, "head -c 262144 /dev/zero > more")
	Prints(t, conn, "echo read; ls w0", "read\nw0\n")
	Sh(t, conn, "rm -f w* more")
	pid := strings.TrimSpace(Sh(t, conn, "setsid sh -c '"+writer+"' >/dev/null 2>&1 & echo $!"))
	Eventually(t, "the writer in the background to end", func() bool {
		res := Exec(t, conn, "test", "-e", "/proc/"+pid)
		return res.State == wire.ExecCompleted && res.ExitCode == 1
	})
	Sh(t, conn, "rm -f w* more")
	Sh(t, conn, "head -c 3145728 /dev/zero > a && rm a")
}

// workspaceHidden verifies that the limit includes hidden files: unnamed files and files in closed directories.
func (s *suite) workspaceHidden(t *testing.T) {
	conn := s.confined(t)
	open := "for i in 3 4 5; do eval \"exec $i>f\"; rm f; head -c 2097152 /dev/zero >&$i || exit 3; done; sleep 600"
	if res := Exec(t, conn, "/bin/sh", "-c", open); res.ExitCode == 0 && res.Signal == "" {
		t.Errorf("files without a name: %+v", res.ExecStatus)
	}
	refused(t, conn, "mkdir d; for i in 3 4 5; do head -c 2097152 /dev/zero > d/$i || { chmod 0 d; exit 3; }; done; chmod 0 d; sleep 600")
	refused(t, conn, "echo x > more; head -c 2097152 /dev/zero > more")
	Sh(t, conn, "chmod 700 d; rm -r d; rm -f more; ls -A")
	refused(t, conn, "chmod 311 /workspace; for i in 3 4 5; do head -c 2097152 /dev/zero > $i || exit 3; done; sleep 600")
	refused(t, conn, "head -c 2097152 /dev/zero > more")
	Sh(t, conn, "chmod 755 /workspace; rm -f 3 4 5 more; ls -A")
}

// workspaceTyped verifies that file operations write the whole file or nothing, and return the right error.
func (s *suite) workspaceTyped(t *testing.T) {
	conn := s.confined(t)
	must(t, put(t, conn, wire.FilePutRequest{Path: "a", Size: 1 << 20}, 1<<20))
	for _, size := range []int64{-1, 6 << 20} { // unknown and known
		for _, req := range []wire.FilePutRequest{{Path: "b", Size: size}, {Path: "a", Size: size, Overwrite: true}} {
			if err := put(t, conn, req, 6<<20); !isFull(err) {
				t.Errorf("too much to %s: %v, want it refused for the limit", req.Path, err)
			}
		}
	}
	Prints(t, conn, "ls -A; stat -c %s a", "a\n1048576\n")
}

// workspaceOutlives verifies that files and the limit are kept after a stop, and after a removal of the sandbox alone.
func (s *suite) workspaceOutlives(t *testing.T) {
	spec := s.lone(t)
	spec.Limits.WorkspaceBytes = workspaceLimit
	info := s.create(t, spec)
	Sh(t, s.dial(t, info.ID), "echo kept > f; chmod 600 f")
	for range 2 {
		Sh(t, s.dial(t, info.ID), "chmod 311 .")
		must(t, s.b.Stop(t.Context(), info.ID))
		must(t, s.b.Start(t.Context(), info.ID))
		Prints(t, s.dial(t, info.ID), "cat f", "kept\n")
	}
	if got, err := s.b.Get(t.Context(), info.ID); err != nil || got.Workspace != s.caps.Workspace {
		t.Errorf("Get tells of %q, %v", got.Workspace, err)
	}
	must(t, s.b.Remove(t.Context(), info.ID, backend.RemoveOptions{}))
	if s.caps.Workspace != backend.WorkspaceWatched { // a monitored workspace can get another limit at any time
		spec.Limits.WorkspaceBytes = 2 * workspaceLimit
		_, err := s.b.Create(t.Context(), spec)
		if !errors.Is(err, backend.ErrExists) || !strings.Contains(err.Error(), "limit of 4194304 bytes") {
			t.Errorf("another size: %v, want ErrExists with the limit", err)
		}
		spec.Limits.WorkspaceBytes = workspaceLimit
	}
	info = s.create(t, spec)
	conn := s.dial(t, info.ID)
	Prints(t, conn, "cat f", "kept\n")
	if res := Exec(t, conn, "sh", "-c", "exec head -c 6291456 /dev/zero > a"); res.ExitCode == 0 && res.Signal == "" || !res.QuotaExceeded {
		t.Errorf("too much in the next sandbox: %+v", res.ExecStatus)
	}
}

// LoopDevices returns the loop devices of files below dir, to check for leftovers at the end of a driver's tests. It
// waits for a while, because the kernel does not release the devices of ended sandboxes immediately.
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
