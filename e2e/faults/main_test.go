//go:build linux

// Package faults kills the command and spoils what it keeps, on real engines, and looks at what is lost and what is left.
package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/commandtest"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// images makes the official images be those that `make images` builds.
const images = "python:3.11-slim=workcell/python:3.11,node:20-slim=workcell/node:22,debian:bookworm-slim=workcell/debian:12"

// patience is how long a test waits for what must happen.
const patience = 3 * time.Minute

// binary is the command, built once before the first test.
var binary string

func TestMain(m *testing.M) {
	if args := os.Getenv(cyclesVariable); args != "" {
		if err := runCycles(args); err != nil {
			fmt.Fprintln(os.Stderr, "cycles:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "faults-")
	if err != nil {
		return 1, err
	}
	if binary, err = commandtest.Build(dir); err != nil {
		return 1, errors.Join(err, os.RemoveAll(dir))
	}
	if err := openLedger(); err != nil {
		return 1, errors.Join(err, os.RemoveAll(dir))
	}
	code := m.Run()
	err = errors.Join(book.print(os.Stdout), os.RemoveAll(dir))
	if code == 0 && err == nil {
		err = leaktest.Find()
	}
	return code, err
}

// host is a user's machine: an engine and a state directory.
type host struct {
	engine, state string
	// reaps lets its processes have reapers, which a test must see the end of. Each is in a process group of its own then.
	reaps bool
}

// newHost makes a state directory, and checks at the end of the test that the engine has nothing of it any more.
func newHost(t *testing.T, engine string) *host {
	t.Helper()
	h := &host{engine: engine, state: filepath.Join(t.TempDir(), "state")}
	t.Cleanup(func() {
		h.run(t, "sessions", "rm", "--all")
		h.nothingLeft(t)
	})
	return h
}

// on runs a test on engines, side by side.
func on(t *testing.T, engines []string, test func(t *testing.T, h *host)) {
	t.Parallel()
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			test(t, newHost(t, engine))
		})
	}
}

func (h *host) command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(h.state), "WORKCELL_STATE_DIR=" + h.state,
		"WORKCELL_BACKEND=" + h.engine, "WORKCELL_IMAGE_MAP=" + images,
	}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "DOCKER_") || strings.HasPrefix(v, "CONTAINERD_ADDRESS=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if h.reaps {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	} else {
		cmd.Env = append(cmd.Env, "WORKCELL_REAPER=off")
	}
	return cmd
}

// result is how a command ended.
type result struct {
	code           int
	stdout, stderr string
}

// run runs the command to its end.
func (h *host) run(t *testing.T, args ...string) result {
	t.Helper()
	cmd := h.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatalf("workcell %s: %v", strings.Join(args, " "), err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ok runs the command, which must succeed, and returns its standard output.
func (h *host) ok(t *testing.T, args ...string) string {
	t.Helper()
	res := h.run(t, args...)
	if res.code != 0 {
		t.Fatalf("workcell %s: exit code %d\n%s%s", strings.Join(args, " "), res.code, res.stdout, res.stderr)
	}
	return res.stdout
}

// read runs the command with -o json and decodes what it prints.
func (h *host) read(t *testing.T, v any, args ...string) {
	t.Helper()
	if err := json.Unmarshal([]byte(h.ok(t, append(args, "-o", "json")...)), v); err != nil {
		t.Fatalf("workcell %s: %v", strings.Join(args, " "), err)
	}
}

// process is a command under way.
type process struct {
	cmd   *exec.Cmd
	lines chan string   // of its standard error
	ended chan struct{} // closed when it has closed its standard error

	mu  sync.Mutex // guards log
	log []string
}

// start starts the command. It is killed at the end of the test if it still runs.
func (h *host) start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{cmd: h.command(args...), lines: make(chan string, 1000), ended: make(chan struct{})}
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	must(t, err)
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.mu.Lock()
			p.log = append(p.log, s.Text())
			p.mu.Unlock()
			p.lines <- s.Text()
		}
		_, _ = io.Copy(io.Discard, stderr) // what is no line
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// await waits for a line with these words, one after the other.
func (p *process) await(t *testing.T, words ...string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				t.Fatalf("it ended before it said %q:\n%s", words, p.text())
			}
			if strings.Contains(" "+strings.Join(strings.Fields(line), " ")+" ", " "+strings.Join(words, " ")+" ") {
				return
			}
		case <-timeout:
			t.Fatalf("it does not say %q:\n%s", words, p.text())
		}
	}
}

// exited reports whether the process has ended, or is about to.
func (p *process) exited() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}

// kill ends the process without warning. It may be called twice, also when it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// wait waits for the end of the process and returns its exit code.
func (p *process) wait() int {
	for range p.lines { // Wait closes the pipe
	}
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

// instance returns the id that marks everything of the host on its engine.
func (h *host) instance(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.state, "instance"))
	must(t, err)
	return strings.TrimSpace(string(raw))
}

// left returns what the engine has of the host.
func (h *host) left(t *testing.T) []string {
	t.Helper()
	label := "dev.workcell.instance=" + h.instance(t)
	lists := map[string][][]string{
		"docker": {
			{"docker", "ps", "-aq", "--filter", "label=" + label},
			{"docker", "volume", "ls", "-q", "--filter", "label=" + label},
		},
		"containerd": {
			{"ctr", "--namespace", "workcell", "containers", "ls", "-q", `labels."dev.workcell.instance"==` + h.instance(t)},
			{"grep", "--recursive", "--files-with-matches", "--no-messages", "--exclude-dir=workspace", h.instance(t), "/var/lib/workcell/containerd"},
		},
		"local": {{"grep", "--recursive", "--files-with-matches", "--no-messages", "--exclude-dir=workspace", h.instance(t), "/var/lib/workcell/local"}},
	}
	var left []string
	for _, list := range lists[h.engine] {
		out, err := exec.Command(list[0], list[1:]...).Output()
		if err != nil && list[0] != "grep" { // which fails when it finds nothing
			t.Fatal(err)
		}
		left = append(left, strings.Fields(string(out))...)
	}
	return left
}

// nothingLeft waits until the engine has nothing of the host any more. Every command sweeps, so one that looks is enough.
func (h *host) nothingLeft(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is left on "+h.engine, func() bool {
		if len(h.left(t)) == 0 {
			return true
		}
		h.ok(t, "sessions", "ls")
		return false
	})
}
