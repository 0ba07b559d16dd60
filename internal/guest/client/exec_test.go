//go:build linux

package client_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// mustRun runs a request and fails the test unless it completes.
func mustRun(t testing.TB, c *client.Conn, req wire.RunRequest) wire.RunResult {
	t.Helper()
	res, err := c.Run(testContext(t), req)
	if err != nil {
		t.Fatalf("Run %q: %v", req.Argv, err)
	}
	return res
}

func TestRunResult(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for _, tc := range []struct {
		script, stdout, stderr string
		code                   int
		signal                 string
	}{
		{"echo out; echo err >&2; exit 3", "out\n", "err\n", 3, ""},
		{"true", "", "", 0, ""},
		{"exit 255", "", "", 255, ""},
		{"printf 'no newline'", "no newline", "", 0, ""},
		{"echo only >&2", "", "only\n", 0, ""},
		{"kill -KILL $$", "", "", 0, "SIGKILL"},
		{"kill -SEGV $$", "", "", 0, "SIGSEGV"},
		{"kill -TERM $$", "", "", 0, "SIGTERM"},
		{"exit 137", "", "", 137, ""},
		{`printf '\377\376\000x'`, "\xff\xfe\x00x", "", 0, ""},
	} {
		res := mustRun(t, c, sh(tc.script))
		if res.State != wire.ExecCompleted || string(res.Stdout.Head) != tc.stdout || string(res.Stderr.Head) != tc.stderr ||
			res.Signal != tc.signal || tc.signal == "" && res.ExitCode != tc.code {
			t.Errorf("%s: got %+v", tc.script, res)
		}
		if res.PID <= 0 || res.DurationMicros <= 0 || res.StdoutBytes != int64(len(tc.stdout)) || res.Leaked {
			t.Errorf("%s: got %+v", tc.script, res.ExecStatus)
		}
	}
}

func TestEnvironmentIsExact(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := sh("")
	req.Argv = []string{"/usr/bin/env", "-0"}
	req.Env = []string{"A=1", "B=x=y", "C=two\nlines", "D='\"", "E=", "F=\xff", "LD_PRELOAD=", "WORKCELL_EXEC=forged"}
	got := strings.Split(strings.TrimSuffix(string(mustRun(t, c, req).Stdout.Head), "\x00"), "\x00")
	want := append(slices.Clone(req.Env[:7]), "WORKCELL_EXEC="+req.ExecID)
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for name, change := range map[string]func(*wire.RunRequest){
		"empty argv":           func(r *wire.RunRequest) { r.Argv = nil },
		"empty command":        func(r *wire.RunRequest) { r.Argv = []string{""} },
		"NUL in argument":      func(r *wire.RunRequest) { r.Argv = []string{"/bin/echo", "a\x00b"} },
		"NUL in program":       func(r *wire.RunRequest) { r.Argv = []string{"/bin/true\x00x"} },
		"NUL in environment":   func(r *wire.RunRequest) { r.Env = []string{"A=\x00"} },
		"NUL in directory":     func(r *wire.RunRequest) { r.Dir = "/tmp\x00" },
		"no name":              func(r *wire.RunRequest) { r.Env = []string{"=x"} },
		"no value":             func(r *wire.RunRequest) { r.Env = []string{"A"} },
		"bad id":               func(r *wire.RunRequest) { r.ExecID = "../x" },
		"empty id":             func(r *wire.RunRequest) { r.ExecID = "" },
		"long id":              func(r *wire.RunRequest) { r.ExecID = strings.Repeat("x", 65) },
		"negative time limit":  func(r *wire.RunRequest) { r.TimeoutMillis = -1 },
		"negative open files":  func(r *wire.RunRequest) { r.OpenFiles = -1 },
		"negative file bytes":  func(r *wire.RunRequest) { r.FileBytes = -1 },
		"negative grace":       func(r *wire.RunRequest) { r.GraceMillis = -1 },
		"NUL in variable name": func(r *wire.RunRequest) { r.Env = []string{"A\x00B=1"} },
	} {
		req := sh("true")
		change(&req)
		fails(t, name, second(c.Run(testContext(t), req)), wire.CodeInvalid)
	}
	req := sh("true")
	mustRun(t, c, req)
	fails(t, "an id used twice", second(c.Run(testContext(t), req)), wire.CodeExists)
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// fails verifies the code of an error.
func fails(t testing.TB, what string, err error, want wire.Code) {
	t.Helper()
	if codeOf(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func codeOf(err error) wire.Code {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func launchOf(err error) string {
	var e *wire.Error
	if errors.As(err, &e) && e.Code == wire.CodeLaunch {
		return e.Launch
	}
	return fmt.Sprintf("no launch failure: %v", err)
}

func TestLaunchFailures(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	put := func(name, content string, mode os.FileMode) string {
		p := filepath.Join(g.Workdir, name)
		must(t, os.WriteFile(p, []byte(content), mode))
		return p
	}
	plain := put("plain", "x", 0o644)
	script := put("script", "#!/no/such/interpreter\n", 0o755)
	foreign := put("foreign", "\x7fELF\x02\x01\x01garbage", 0o755)
	noMagic := put("nomagic", "echo hi\n", 0o755)
	for _, tc := range []struct {
		want string
		argv []string
	}{
		{"not_found", []string{"/no/such/program"}},
		{"not_found", []string{"no-such-program-anywhere"}},
		{"not_found", []string{"./nothing"}},
		{"not_found", []string{script}},
		{"not_found", []string{plain + "/below"}},
		{"not_executable", []string{plain}},
		{"not_executable", []string{g.Workdir}},
		{"not_executable", []string{foreign}},
		{"not_executable", []string{noMagic}},
		{"too_long", []string{"/bin/true", strings.Repeat("x", 128<<10)}},
		{"too_long", append([]string{"/bin/true"}, slices.Repeat([]string{strings.Repeat("x", 100<<10)}, 25)...)},
		{"too_long", append([]string{"/bin/true"}, slices.Repeat([]string{strings.Repeat("x", 100<<10)}, 50)...)},
	} {
		req := sh("")
		req.Argv = tc.argv
		_, err := c.Run(testContext(t), req)
		if tc.want == "too_long" && codeOf(err) == wire.CodeTooLarge {
			continue // already too large for the protocol
		}
		if got := launchOf(err); got != tc.want {
			t.Errorf("%.60q: got %s, want %s", tc.argv, got, tc.want)
		}
	}
	req := sh("")
	req.Argv = []string{"./script"}
	if _, err := c.Run(testContext(t), req); err == nil || !strings.Contains(err.Error(), "interpreter") {
		t.Errorf("a relative script without interpreter: %v", err)
	}
	req = sh("")
	req.Argv = append([]string{"/bin/sh", "-c", "echo ${#1}", "sh"}, slices.Repeat([]string{strings.Repeat("x", 100<<10)}, 10)...)
	if res := mustRun(t, c, req); string(res.Stdout.Head) != "102400\n" {
		t.Errorf("1 MiB of arguments: %v", brief(res))
	}
}

func TestPathOfTheRequest(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	dir := filepath.Join(g.Workdir, "my bin")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "hello"), []byte("#!/bin/sh\necho found\n"), 0o755))
	for path, ok := range map[string]bool{"/bin:" + dir: true, "my bin": true, "/bin": false, "": false} {
		req := sh("")
		req.Argv, req.Env = []string{"hello"}, []string{"PATH=" + path}
		res, err := c.Run(testContext(t), req)
		if ok && (err != nil || string(res.Stdout.Head) != "found\n") || !ok && launchOf(err) != "not_found" {
			t.Errorf("PATH=%s: %+v, %v", path, res, err)
		}
	}
}

func TestDirectory(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	for _, d := range []string{"sub", "closed"} {
		must(t, os.Mkdir(filepath.Join(g.Workdir, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(g.Workdir, "file"), nil, 0o644))
	for name, to := range map[string]string{"link": "sub", "magic": "/proc/self/root", "fd": "/proc/self/fd"} {
		must(t, os.Symlink(to, filepath.Join(g.Workdir, name)))
	}
	for dir, want := range map[string]string{"": g.Workdir, g.Workdir + "/sub": g.Workdir + "/sub", g.Workdir + "/link": g.Workdir + "/sub", "/": "/"} {
		req := sh("/bin/pwd -P")
		req.Dir = dir
		if got := string(mustRun(t, c, req).Stdout.Head); got != want+"\n" {
			t.Errorf("in %q: got %q", dir, got)
		}
	}
	for _, dir := range []string{"relative", "sub", "/no/such", g.Workdir + "/file", "/proc/self/root", "/proc/1/root",
		"/proc/self/root/etc", "/proc/self/fd", "/proc/self/cwd", "/proc", "/dev/fd", g.Workdir + "/magic", g.Workdir + "/magic/tmp",
		g.Workdir + "/fd", "/proc/self/fd/0", "/" + strings.Repeat("x/", 3000)} {
		req := sh("pwd")
		req.Dir = dir
		_, err := c.Run(testContext(t), req)
		if got := launchOf(err); got != "bad_dir" {
			t.Errorf("in %.40q: %v", dir, err)
		}
	}
}
