// Package walk follows the documentation like a new user: with a clean copy of the repository, an empty home directory,
// and the commands on the pages from top to bottom, exactly as written.
package walk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// step describes how to test a command on a page. run_… in the command is the latest run.
type step struct {
	says         string // pattern of the output that shows that the command works as documented
	why, instead string // reason why the command cannot run as written, and the replacement; empty if it can
	first, then  string // commands for the preconditions, and commands to check the result
	killed       bool   // run_… is a run whose process was killed
}

// readme returns all commands of the README.
func readme() map[string]step {
	const fix = "workcell run examples/workflows/debug-and-fix.yaml"
	return map[string]step{
		`go install github.com/workcell-dev/workcell/cmd/workcell@latest`: {why: "it is a release, and not this tree", instead: "make build", says: `^bin/workcell`},
		`workcell doctor`:                 {says: `(?m)^sandboxes can run on: docker`},
		fix + ` --workspace ./my-project`: {first: "cp -r examples/workflows/projects/buggy-calculator my-project", says: `(?s)all_passed: true.*1 file changed.*, run: workcell runs apply run_`},
		`workcell runs apply run_…`:       {says: `1 file changed in .*/my-project`, then: "(cd my-project && python3 -m unittest)"},
		`workcell runs resume run_…`:      {killed: true, says: `all_passed: true`},
		`workcell agent run examples/agents/python-developer.prompt "how many primes are below 100?"`: {says: `(?m)^there are 25$`},
		`workcell validate examples`:                                                      {says: `^workcell: 0 problems in`},
		`id=$(workcell sandbox open --image python:3.11-slim)`:                            {},
		`workcell sandbox exec "$id" -- sh -c 'python3 -c "print(6*7)" | tee report.csv'`: {says: `^42\n$`},
		`workcell sandbox cp "$id":report.csv .`:                                          {then: "grep -qx 42 report.csv"},
		`workcell sandbox attach "$id"`: {
			why: "the test has no terminal", instead: `script -qec "workcell sandbox attach $id" /dev/null <<<'echo $((6*7)); exit'`, says: `(?m)^42\s*$`,
		},
		`workcell sandbox rm "$id"`: {says: `^sbx_`},
		`workcell sandbox gc`:       {says: `nothing (to remove|removed)`},
	}
}

// TestNewcomer tests the README, and the first Go program of two pages.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	w := newWalker(t)
	left := readme()
	for _, command := range commands(output(t, "cat", w.dir+"/README.md")) {
		s, ok := left[command]
		if !ok {
			t.Errorf("a command that the walk does not know, or knew once: %s", command)
			continue
		}
		w.take(t, command, s)
		delete(left, command)
	}
	for command := range left {
		t.Errorf("the README does not have the command %s", command)
	}
	const quickstart = "DOCKER_HOST=unix:///none go run ./examples/quickstart" // Docker does not have the official image
	w.take(t, quickstart, step{says: `(?m)^1229$`, then: "env -u GEMINI_API_KEY " + quickstart + " | grep -qx '1229 primes are below 10,000'"})
	program(t, w, "README.md", `(?m)^1229$`)
	program(t, w, "docs/reference/go.md", `^42\n$`)
}

// commands returns the lines of a page's shell blocks, without comments.
func commands(page string) []string {
	var out []string
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(block[1]) {
			if line = strings.TrimSpace(regexp.MustCompile(`(^|\s)#.*`).ReplaceAllString(line, "")); line != "" {
				out = append(out, line)
			}
		}
	}
	return out
}

// walker is a shell in a clean copy of the repository.
type walker struct {
	dir   string
	env   []string
	model *gemini
	ids   map[string]string // latest ID by prefix: run_…, sbx_…, exe_…

	stdin  io.Writer      // of the shell
	codes  *bufio.Scanner // exit codes of the shell's commands
	output string         // file with the output of a command
}

func newWalker(t *testing.T) *walker {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute) // for hanging commands
	t.Cleanup(cancel)
	home := t.TempDir()
	w := &walker{
		dir: filepath.Join(home, "workcell"), output: filepath.Join(t.TempDir(), "output"),
		model: &gemini{t: t}, ids: map[string]string{},
	}
	server := httptest.NewServer(w.model)
	t.Cleanup(server.Close)
	w.env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return regexp.MustCompile(`^(XDG|WORKCELL|OTEL|GEMINI|GOOGLE)_`).MatchString(v) ||
			strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") // set by the make that runs the tests
	})
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOENV"} { // reuse the caches, except for this tree
		w.env = append(w.env, name+"="+strings.TrimSpace(output(t, "go", "env", name)))
	}
	// A new user has a key and official images.
	w.env = append(w.env, "HOME="+home, "PATH="+w.dir+"/bin:"+os.Getenv("PATH"), "GEMINI_API_KEY=key", "GOOGLE_GEMINI_BASE_URL="+server.URL,
		"WORKCELL_IMAGE_MAP=python:3.11-slim=workcell/python:3.11,node:20-slim=workcell/node:22,debian:bookworm-slim=workcell/debian:12",
		"WORKCELL_REAPER=off") // a reaper would outlive the test
	// Copy the files of a clone, and uncommitted new files.
	output(t, "bash", "-c", `mkdir "$1" && cd ../.. && git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
		xargs -0 ls -d 2>/dev/null | tar -c -T - | tar -x -C "$1"`, "copy", w.dir)
	shell := exec.CommandContext(ctx, "bash", "--norc")
	shell.Dir, shell.Env, shell.Stderr = w.dir, w.env, os.Stderr
	stdin, errIn := shell.StdinPipe()
	codes, errOut := shell.StdoutPipe()
	must(t, errors.Join(errIn, errOut, shell.Start()))
	w.stdin, w.codes = stdin, bufio.NewScanner(codes)
	t.Cleanup(func() {
		w.say(t, "kill $(jobs -p); workcell sandbox rm --all") // after a failed command
		stdin.Close()
		_ = shell.Wait() // only the exit codes of the commands matter
	})
	return w
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

var ids = regexp.MustCompile(`\b(run|sbx|exe)_([0-9a-z]+|…)`)

// say runs a command in the shell and returns the output and exit code. It replaces run_… by the latest run, and so on.
func (w *walker) say(t *testing.T, command string) (out, code string) {
	t.Helper()
	command = ids.ReplaceAllStringFunc(command, func(id string) string {
		if latest := w.ids[id[:3]]; strings.HasSuffix(id, "…") && latest != "" {
			return latest
		}
		return id
	})
	fmt.Fprintf(w.stdin, "{ %s\n} >%q 2>&1 </dev/null\necho $?\n", command, w.output)
	if !w.codes.Scan() {
		t.Fatalf("the shell ended in: %s", command)
	}
	out = output(t, "cat", w.output)
	for _, id := range ids.FindAllString(out, -1) {
		w.ids[id[:3]] = id
	}
	return out, w.codes.Text()
}

// take tests one command.
func (w *walker) take(t *testing.T, command string, s step) {
	t.Helper()
	if s.first != "" {
		w.take(t, s.first, step{})
	}
	if s.killed {
		w.kill(t)
	}
	if s.why != "" {
		t.Logf("not as written, because %s: %s", s.why, command)
		if command = s.instead; command == "" {
			return
		}
	}
	began := time.Now()
	out, code := w.say(t, command)
	t.Logf("%5.1f s  %s", time.Since(began).Seconds(), command)
	if code != "0" || !regexp.MustCompile(s.says).MatchString(out) {
		t.Errorf("%s\nexit code %s, and it should say %q:\n%s", command, code, s.says, out)
	}
	if s.then != "" {
		w.take(t, s.then, step{})
	}
}

// kill starts a run and kills the process while the second agent sends a request to the model.
func (w *walker) kill(t *testing.T) {
	asked := w.model.hold("You fix")
	defer w.model.hold("")
	cmd := exec.Command(w.dir+"/bin/workcell", "run", "examples/workflows/debug-and-fix.yaml", "--workspace", "./my-project")
	cmd.Dir, cmd.Env = w.dir, w.env
	must(t, cmd.Start())
	select {
	case <-asked:
	case <-time.After(3 * time.Minute):
		t.Error("the second agent asks nothing")
	}
	_, _ = cmd.Process.Kill(), cmd.Wait() // reports the kill
	w.take(t, "workcell runs ls | grep interrupted", step{})
}

// program runs the first Go program on a page as part of the module.
func program(t *testing.T, w *walker, page, says string) {
	t.Helper()
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(output(t, "cat", w.dir+"/"+page))
	if block == nil {
		t.Fatalf("%s has no Go program", page)
	}
	source := strings.ReplaceAll(block[1], "python:3.11-slim", "workcell/python:3.11") // programs cannot map images
	w.write(t, "newcomer/main.go", source)
	w.take(t, "go run ./newcomer", step{says: says})
}
