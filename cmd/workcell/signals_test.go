//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// waiting is a workflow whose only step waits until the file "go" exists in the sandbox.
const waiting = `
id: waiting
sandbox: {image: debian:bookworm-slim}
steps:
  - id: wait
    type: exec
    command: |
      echo waiting > state
      while [ ! -e go ]; do sleep 0.05; done
      cat go
`

// running is a running `workcell run`.
type running struct {
	user
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr buffertest.Buffer
	done   chan error
}

// startWaiting starts the workflow and returns when the step is waiting in the sandbox.
func startWaiting(t *testing.T, flags ...string) *running {
	t.Helper()
	path := filepath.Join(t.TempDir(), "waiting.yaml")
	checktest.Must(t, os.WriteFile(path, []byte(waiting), 0o600))
	// A background job of a shell, for example this test, ignores interrupts. Child processes inherit this. Go resets
	// caught signals before it starts a child.
	catch := make(chan os.Signal, 1)
	signal.Notify(catch, os.Interrupt)
	t.Cleanup(func() { signal.Stop(catch) })

	r := &running{user: newUser(t, "docker"), done: make(chan error, 1)}
	r.cmd = r.command(append([]string{"run", path, "-o", "json"}, flags...)...)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	// Tests may run with nohup. A child does not ignore a signal caught here.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	checktest.Must(t, r.cmd.Start())
	go func() { r.done <- r.cmd.Wait() }()
	t.Cleanup(func() { _ = r.cmd.Process.Kill() }) // already ended, unless the test failed
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if run := r.runID(); run != "" {
			if r.command("sandbox", "exec", run, "--", "cat", "state").Run() == nil {
				return r
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the step does not wait:\n%s", r.stderr.String())
		}
	}
}

// runID returns the run's id from the progress output.
func (r *running) runID() string {
	return regexp.MustCompile(`run_[a-z2-7]{26}`).FindString(r.stderr.String())
}

// ends waits for the run and checks the exit code.
func (r *running) ends(code int) {
	r.t.Helper()
	select {
	case err := <-r.done:
		got := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			got = exit.ExitCode()
		}
		if got != code {
			r.t.Errorf("exit code %d, want %d; standard error:\n%s", got, code, r.stderr.String())
		}
	case <-time.After(3 * time.Minute):
		r.t.Fatalf("the run does not end:\n%s", r.stderr.String())
	}
}

// TestSignalEndsARunAndItsSandboxes verifies signals with a real process, a real sandbox, and Genkit, which permanently
// catches these signals.
func TestSignalEndsARunAndItsSandboxes(t *testing.T) {
	t.Parallel()
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			r := startWaiting(t)
			if n := len(r.sandboxes()); n != 1 {
				t.Errorf("%d sandboxes during the run", n)
			}
			checktest.Must(t, r.cmd.Process.Signal(sig))
			r.ends(code)
			if n := len(r.sandboxes()); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
			if !strings.Contains(r.stderr.String(), "shutting down; repeat the signal to exit immediately") {
				t.Errorf("standard error does not report the shutdown:\n%s", r.stderr.String())
			}
			var result struct{ Outcome string }
			if err := json.Unmarshal(r.stdout.Bytes(), &result); err != nil || result.Outcome != "cancelled" {
				t.Errorf("standard output = %q (%v)", r.stdout.String(), err)
			}
		})
	}
}

// TestSignalWhileReading verifies that a signal ends commands that wait for standard input.
func TestSignalWhileReading(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "flow.yaml")
	checktest.Must(t, os.WriteFile(path, []byte("id: flow\nsteps: [{id: a, type: end}]\n"), 0o600))
	for _, args := range [][]string{{"run", path, "--input-file", "-"}, {"tools", "call", "shop.stock", "-"}} {
		code, text := -1, ""
		for wait := 100 * time.Millisecond; code == -1; wait *= 2 { // until the command catches signals
			cmd, stderr := workcell(t, args...), &buffertest.Buffer{}
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "WORKCELL_STATE_DIR=" + t.TempDir()}
			cmd.Stderr = stderr
			_, err := cmd.StdinPipe() // open until Wait
			checktest.Must(t, errors.Join(err, cmd.Start()))
			time.Sleep(wait)
			checktest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
			_ = cmd.Wait() // the code is enough
			code, text = cmd.ProcessState.ExitCode(), stderr.String()
		}
		if code != 143 {
			t.Errorf("%v: exit code %d: %s", args, code, text)
		}
	}
}

// TestCancelWhileKilled verifies that one cancel ends a run whose process is killed while the cancel waits for it.
func TestCancelWhileKilled(t *testing.T) {
	t.Parallel()
	r := startWaiting(t)
	vars := map[string]string{}
	for _, v := range r.environ {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	j, err := app.New(app.Options{Env: environ.Of(vars)}).OpenJournal(t.Context())
	if err == nil {
		defer j.Close() //nolint:errcheck // only read from
		err = r.cmd.Process.Signal(syscall.SIGSTOP)
	}
	checktest.Must(t, err)
	canceled := make(chan string, 1)
	go func() {
		out, _ := r.run(0, "runs", "cancel", r.runID())
		canceled <- out
	}()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if run, err := j.Run(t.Context(), r.runID()); err != nil || time.Now().After(deadline) {
			t.Fatalf("the cancel does not ask: %v", err)
		} else if run.Cancel {
			break
		}
	}
	checktest.Must(t, r.cmd.Process.Kill())
	if out := <-canceled; !strings.Contains(out, "cancelled") || len(r.sandboxes()) != 0 {
		t.Errorf("%d sandboxes are left after the cancel:\n%s", len(r.sandboxes()), out)
	}
}

// TestKeepLeavesTheSandbox verifies that --keep keeps the sandbox, even after an interrupt.
func TestKeepLeavesTheSandbox(t *testing.T) {
	t.Parallel()
	r := startWaiting(t, "--keep")
	checktest.Must(t, r.cmd.Process.Signal(syscall.SIGTERM))
	r.ends(143)
	if out, _ := r.run(0, "sandbox", "exec", r.runID(), "--", "cat", "state"); out != "waiting\n" {
		t.Errorf("exec in the kept sandbox: %q", out)
	}
	if !strings.Contains(r.stderr.String(), "to remove them, run: workcell sandbox rm "+r.runID()) {
		t.Errorf("standard error:\n%s", r.stderr.String())
	}
	if out, _ := r.run(0, "sandbox", "rm", r.runID()); strings.Count(out, "sbx_") != 1 {
		t.Errorf("rm: %q", out)
	}
	if n := len(r.sandboxes()); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// TestRunWithoutReaders verifies that a run continues to the end if the reader of the progress is gone. If the reader
// of the result is gone, the run writes its outputs and closes its sandboxes, or keeps them if it can be continued.
func TestRunWithoutReaders(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "flow.yaml")
	const flow = "id: flow\ncheckpoints: true\noutputs: [out]\nsandbox: {runtime: bash}\nsteps:\n" +
		"  - {id: say, type: exec, command: echo done | tee out}\n" +
		"  - {id: check, type: exec, cmd: [test, \"${ input.end }\", =, ok]}\n" +
		"  - {id: done, type: end, output: \"${ steps.say.output.stdout }\"}\n"
	checktest.Must(t, os.WriteFile(path, []byte(flow), 0o600))
	for name, test := range map[string]struct {
		code      int
		end, want string
	}{
		"stderr": {0, "ok", "done"}, "stdout": {1, "ok", "broken pipe"},
		"stdout of a failed run": {1, "bad", "broken pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			checktest.Must(t, err)
			r.Close() // the reader is gone
			defer w.Close()
			var out bytes.Buffer
			u, dir := newUser(t, "docker"), t.TempDir()
			cmd := u.command("run", path, "-o", "json", "--input", "end="+test.end, "--out", dir)
			cmd.Stdout, cmd.Stderr = &out, w
			if name != "stderr" {
				cmd.Stdout, cmd.Stderr = w, &out
			}
			if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != test.code {
				t.Fatalf("%v, want exit code %d; %s", err, test.code, out.String())
			}
			if !strings.Contains(out.String(), test.want) {
				t.Errorf("no %q in %s", test.want, out.String())
			}
			if run := regexp.MustCompile(`run_[a-z2-7]{26}`).FindString(out.String()); test.end == "bad" {
				if list := u.sandboxes(); len(list) != 1 {
					t.Errorf("%d sandboxes after the failed run", len(list))
				}
				u.run(1, "runs", "resume", run, "--from", "check")
				u.run(0, "runs", "cancel", run)
			} else if got, err := os.ReadFile(filepath.Join(dir, "out")); string(got) != "done\n" {
				t.Errorf("output %q, %v", got, err)
			}
			if list := u.sandboxes(); list != nil {
				t.Errorf("left: %v", list)
			}
		})
	}
}
