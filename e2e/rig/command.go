// Package rig runs the command for the tests below e2e.
package rig

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// patience is longer than any test step takes on a busy host.
const patience = 4 * time.Minute

// Environ returns the variables needed to find programs and engines.
func Environ() []string {
	env := []string{"PATH=" + os.Getenv("PATH")}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "DOCKER_") || strings.HasPrefix(v, "CONTAINERD_ADDRESS=") {
			env = append(env, v)
		}
	}
	return env
}

// Result is the result of a command.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a command until it exits.
func Run(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", strings.Join(cmd.Args, " "), err)
	}
	return Result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// Output runs a command, which must succeed, and returns the standard output.
func Output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.Bytes())
	}
	return string(out), err
}

// Process is a started command.
type Process struct {
	Cmd   *exec.Cmd
	Ended chan struct{} // closed at the end of standard error

	seen int        // number of lines read by Await
	mu   sync.Mutex // guards log
	log  []string
}

// Start starts a command. It is killed at the end of the test.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, Ended: make(chan struct{})}
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	checktest.Must(t, err)
	go func() {
		defer close(p.Ended)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.mu.Lock()
			p.log = append(p.log, s.Text())
			p.mu.Unlock()
		}
		_, _ = io.Copy(io.Discard, stderr) // data without line ends
	}()
	t.Cleanup(p.Kill)
	return p
}

// Await waits for a line with these words in this order. The next call continues after this line.
func (p *Process) Await(t testing.TB, words ...string) {
	t.Helper()
	want := " " + strings.Join(words, " ") + " "
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		ended := p.Exited()
		for lines := p.lines(); p.seen < len(lines); {
			line := lines[p.seen]
			p.seen++
			if strings.Contains(" "+strings.Join(strings.Fields(line), " ")+" ", want) {
				return
			}
		}
		if ended || time.Now().After(deadline) {
			t.Fatalf("no line with %q (ended: %v):\n%s", words, ended, p.Text())
		}
	}
}

// Exited reports whether the process has closed standard error.
func (p *Process) Exited() bool {
	select {
	case <-p.Ended:
		return true
	default:
		return false
	}
}

func (p *Process) lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log
}

// Text returns the standard error of the process.
func (p *Process) Text() string { return strings.Join(p.lines(), "\n") }

// Kill kills the process with SIGKILL if it is still running.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	_ = p.Cmd.Wait()
}

// Wait waits until the process exits, and returns the exit code.
func (p *Process) Wait() int {
	<-p.Ended // required because Cmd.Wait closes the pipe
	_ = p.Cmd.Wait()
	return p.Cmd.ProcessState.ExitCode()
}
