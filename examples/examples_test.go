// Package examples_test runs every example with the real command in real sandboxes.
package examples_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/commandtest"
)

// images replace the official images in the examples, so that no registry is needed.
const images = "python:3.11-slim=workcell/python:3.11,node:20-slim=workcell/node:22,debian:bookworm-slim=workcell/debian:12"

// command is the path of the built command.
var command string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "workcell-examples")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if command, err = commandtest.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// workcell runs the command in this directory with additional variables, so that the paths are the same as in the
// README.
func workcell(t *testing.T, vars []string, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Dir = ".."
	for _, name := range []string{"PATH", "HOME", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"} {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Env = append(cmd.Env, "WORKCELL_STATE_DIR="+t.TempDir(), "WORKCELL_REAPER=off", "WORKCELL_IMAGE_MAP="+images)
	cmd.Env = append(cmd.Env, vars...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("workcell %s: %v\n%s%s", strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), errs.String()
}

// decode decodes the JSON output of the command.
func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func TestEveryExampleIsValid(t *testing.T) {
	t.Parallel()
	workcell(t, nil, "validate", "examples")
}

// workflows returns each workflow's expected output. The recorded parts equal the script, and the rest must result from
// the commands in the sandbox.
func workflows() map[string]map[string]any {
	return map[string]map[string]any{
		"debug-and-fix": {
			"all_passed": true, "tests": 7.0,
			"diagnosis": "Of 7 tests some fail. Sums are worked out from right to left, because expression() calls itself for everything after the first operator.",
			"fix":       "term() now raises a CalculatorError when the divisor is zero.",
		},
		"code-review-and-fix": {
			"findings": 3.0, "tests": 5.0, "changed_files": []any{"bookshop.py", "test_bookshop.py"},
			"fix": "Queries take parameters, add() makes its own list of tags, and sell() raises errors instead of answering 0. Each has a test.",
		},
		"polyglot-checks": {
			"python_tests": 1.0, "changed_files": []any{"node/slug.js"},
			"node": "slug() dropped letters with accents. It now takes the accents off first, as the Python version does; 5 tests pass.",
		},
		"cli-debug-and-fix": {"attempts": 1.0, "tests": 5.0, "fix": "slug() dropped letters with accents. It now takes the accents off first."},
	}
}

func TestWorkflows(t *testing.T) {
	t.Parallel()
	want := workflows()
	if diff := cmp.Diff(named(t, "workflows/*.yaml"), slices.Sorted(maps.Keys(want))); diff != "" {
		t.Errorf("every workflow needs its expectation here:\n%s", diff)
	}
	for name, output := range want {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args, vars := []string{"run", "examples/workflows/" + name + ".yaml", "-o", "json"}, []string(nil)
			coding := name == "cli-debug-and-fix" // sends model requests over HTTP
			if coding {
				vars = []string{"GEMINI_API_KEY=none", "GOOGLE_GEMINI_BASE_URL=" + mockModel(t, "examples/workflows/scripts/"+name+".json")}
			} else {
				args = append(args, "--model", "scripted/examples/workflows/scripts/"+name+".yaml")
			}
			stdout, stderr := workcell(t, vars, args...)
			result := decode(t, stdout)
			if result["outcome"] != "succeeded" {
				t.Errorf("outcome = %v", result["outcome"])
			}
			if diff := cmp.Diff(output, result["output"]); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if !coding && !strings.Contains(stderr, "instead of a model") {
				t.Error("it does not say that the answers are recorded")
			}
			// The first fix is incomplete, so the loop runs twice in one sandbox.
			fixes, back := strings.Count(stderr, "code-fixer: sandbox_fs_write ok"), strings.Count(stderr, "next: fix")
			if name == "debug-and-fix" && (fixes != 2 || back != 1) {
				t.Errorf("the fixer wrote %d times, the run went back %d times:\n%s", fixes, back, stderr)
			}
		})
	}
}

// mockModel starts a server with a model that plays a script, until the test ends, and returns its address.
func mockModel(t *testing.T, script string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "mockmodel")
	build := exec.Command("go", "build", "-o", binary, "github.com/workcell-dev/workcell/examples/mockmodel")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(binary, "--script", script)
	cmd.Dir = ".."
	out, err := cmd.StdoutPipe()
	checktest.Must(t, err)
	checktest.Must(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // reports that it was killed
	address, err := bufio.NewReader(out).ReadString('\n')
	checktest.Must(t, err)
	return strings.TrimSpace(address)
}

// TestFixComesHome verifies that a project does not change until the run's changes are applied.
func TestFixComesHome(t *testing.T) {
	t.Parallel()
	dir, vars := t.TempDir(), []string{"WORKCELL_STATE_DIR=" + t.TempDir()}
	checktest.Must(t, os.CopyFS(dir, os.DirFS("workflows/projects/buggy-calculator")))
	source := func() string {
		raw, err := os.ReadFile(filepath.Join(dir, "calculator.py"))
		checktest.Must(t, err)
		return string(raw)
	}
	before := source()
	_, stderr := workcell(t, vars, "run", "examples/workflows/debug-and-fix.yaml", "--workspace", dir,
		"--model", "scripted/examples/workflows/scripts/debug-and-fix.yaml")
	end := regexp.MustCompile(`(?m)^1 file changed, \d+ insertions\(\+\), \d+ deletions\(-\)\nto apply the changes to ` + regexp.QuoteMeta(dir) + `, run: workcell (runs apply run_\w+)\n`).FindStringSubmatch(stderr)
	if end == nil || source() != before {
		t.Fatalf("the end of the run:\n%s", stderr)
	}
	workcell(t, vars, strings.Fields(end[1])...)
	if after := source(); after == before || !strings.Contains(after, "CalculatorError") {
		t.Errorf("after runs apply:\n%s", after)
	}
}

// agentCase describes how to run a single agent, and the expected parts of its answer.
type agentCase struct {
	args []string
	want []string
}

func agents() map[string]agentCase {
	calculator := []string{"--workspace", "examples/workflows/projects/buggy-calculator"}
	return map[string]agentCase{
		"code-analyzer":    {calculator, []string{"FAILED (failures=1, errors=1) in 7 tests.", `"line":47`, `"line":56`}},
		"code-fixer":       {append([]string{"dividing by zero must be a CalculatorError"}, calculator...), []string{"calculator.py"}},
		"test-runner":      {calculator, []string{`"all_passed":false`, `"tests":7`, "ZeroDivisionError"}},
		"python-developer": {[]string{"print the first primes"}, []string{"2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53 59 61 67 71", "Ran 3 tests", "OK"}},
		"node-developer":   {[]string{"write a counter of words"}, []string{`"tests_passed":true`, "2 tests pass"}},
		"order-desk": {
			[]string{"--host-tools", "examples/host-tools.yaml", "What do the orders come to?"},
			[]string{"The orders come to 530 euros, the largest is 7.", "orders.refund requires approval with these arguments, but no approver is available."},
		},
		"data-analyst": {
			[]string{"question=Which region sold most?", "csv=@examples/workflows/projects/sales/sales.csv"},
			[]string{"South sold most, for 1682.30 of 4285.60 in all."},
		},
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	cases := agents()
	if diff := cmp.Diff(named(t, "agents/*.prompt"), slices.Sorted(maps.Keys(cases))); diff != "" {
		t.Errorf("every agent needs its expectation here:\n%s", diff)
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"agent", "run", "examples/agents/" + name + ".prompt", "-o", "json",
				"--model", "scripted/examples/agents/scripts/" + name + ".yaml"}, tc.args...)
			stdout, _ := workcell(t, nil, args...)
			result := decode(t, stdout)
			text, _ := result["text"].(string)
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("the answer lacks %q:\n%s", want, text)
				}
			}
			if result["model"] != "scripted/"+name {
				t.Errorf("model = %v", result["model"])
			}
		})
	}
}

// named returns the base names of files, sorted.
func named(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	checktest.Must(t, err)
	for i, p := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(p), filepath.Ext(p))
	}
	slices.Sort(paths)
	return paths
}
