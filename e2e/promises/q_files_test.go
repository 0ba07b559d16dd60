//go:build linux

package promises

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

// hostileYAML returns documents that are made to exhaust, confuse or surprise a parser. None of them is a workflow or the
// frontmatter of an agent. frontmatter and workflow test more of them.
func hostileYAML() map[string]string {
	var bomb, keys, deep strings.Builder
	bomb.WriteString("a0: &a0 [x]\n")
	for i := 1; i <= 9; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9))
	}
	for i := range 500_000 {
		fmt.Fprintf(&keys, "k%d: 1\n", i)
	}
	for i := range 10_000 {
		deep.WriteString(strings.Repeat(" ", i%300) + "a:\n")
	}
	return map[string]string{
		"alias bomb":        bomb.String(),
		"quadratic aliases": "a: &a [" + strings.Repeat("x,", 20_000) + "]\nb: [" + strings.Repeat("*a,", 20_000) + "]\n",
		"merge bomb":        "a: &a {x: 1}\nb: &b {<<: [" + strings.Repeat("*a,", 5000) + "]}\nc: {<<: [" + strings.Repeat("*b,", 5000) + "]}\n",
		"10k flow nesting":  "a: " + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "\n",
		"10k block nesting": deep.String(),
		"many keys":         keys.String(),
		"duplicate keys":    "id: w\nid: v\nsteps: [{id: a, type: end}]\nsandbox: python\nsandbox: node\n",
		"foreign tag":       "id: !!python/object/apply:os.system [id]\nsandbox: !!python/name:os.system python\nsteps: []\n",
		"long scalar":       "id: " + strings.Repeat("x", 200_000) + "\nsandbox: " + strings.Repeat("x", 50_000) + "\n",
		"many documents":    strings.Repeat("--- a\n", 30_000),
		"not UTF-8":         "id: \xff\xfe\nsandbox: \xff\n",
		"huge number":       "id: w\nmax_steps: 1e999999999\nsandbox: {limits: {pids: 1e999999999}}\nsteps: [{id: a, type: end}]\n",
	}
}

// TestQ1Validate: the command line refuses hostile files, by their names, soon and in little memory: workflows one by one, and
// all scripts and all agents at once.
func TestQ1Validate(t *testing.T) {
	t.Parallel()
	state := w.stateDir(t, w.instance)
	dir := t.TempDir()
	must(t, errors.Join(os.Mkdir(filepath.Join(dir, "scripts"), 0o700), os.Mkdir(filepath.Join(dir, "agents"), 0o700)))
	var paths, scripts, agents []string
	write := func(list *[]string, path, src string) {
		path = filepath.Join(dir, path)
		must(t, os.WriteFile(path, []byte(src), 0o600))
		*list = append(*list, path)
	}
	for name, src := range hostileYAML() {
		name = strings.ReplaceAll(name, " ", "-")
		write(&paths, name+".yaml", src)
		write(&scripts, "scripts/"+name+".yaml", "agents: {a: [[{text: x}]]}\n"+src)
		write(&agents, "agents/"+name+".prompt", "---\n"+src+"---\n{{x}}\n")
	}
	for _, name := range []string{"large.yaml", "large.prompt"} { // 100 MB that take no room
		write(&paths, name, "---\nid: w\nsteps: []\n")
		must(t, os.Truncate(filepath.Join(dir, name), 100_000_000))
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			validate(t, state, path, path)
		})
	}
	for _, list := range [][]string{scripts, agents} {
		t.Run(filepath.Base(filepath.Dir(list[0])), func(t *testing.T) {
			t.Parallel()
			validate(t, state, filepath.Dir(list[0]), list...)
		})
	}
}

// validate checks that files are refused within the promised time and memory, each by its name.
func validate(t *testing.T, state, arg string, files ...string) {
	t.Helper()
	cmd := command(t, state, nil, "validate", arg)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
	peak := watchMemory(cmd.Process.Pid)
	_ = cmd.Wait() // its exit code is looked at
	text := out.String()
	if code := cmd.ProcessState.ExitCode(); code != 3 || strings.Contains(text, "goroutine") {
		t.Errorf("exit code %d: %.500s", code, text)
	}
	for _, f := range files {
		if !strings.Contains(text, filepath.Base(f)+":") {
			t.Errorf("no word of %s", f)
		}
	}
	if len(text) > len(files)*(64<<10) {
		t.Errorf("%d bytes of problems", len(text))
	}
	if kb := <-peak; kb > 150_000 { // of which the program itself is a third
		t.Errorf("it took %d MB", kb/1000)
	}
}

// watchMemory returns the most memory that a process was seen to have, in KiB, when it has ended.
func watchMemory(pid int) <-chan int {
	peak := make(chan int, 1)
	go func() {
		for most := 0; ; time.Sleep(2 * time.Millisecond) {
			s, err := status(pid)
			n, aerr := strconv.Atoi(strings.TrimSuffix(s["VmHWM"], " kB"))
			if err != nil || aerr != nil { // it is gone, or about to be
				peak <- most
				return
			}
			most = max(most, n)
		}
	}()
	return peak
}

// parse parses a workflow, with the plain image for IMAGE.
func parse(t *testing.T, src string) *workflow.Workflow {
	t.Helper()
	wf, err := workflow.Parse("w.yaml", []byte(strings.ReplaceAll(strings.TrimLeft(src, "\n"), "IMAGE", debianImage)), nil)
	must(t, err)
	return wf
}

// TestQ3Caps: workflows that would never end, never stop printing or take too many sandboxes end with a typed error, and
// their sandboxes with them. TestCaps of workflow has the limits that no sandbox is needed for.
func TestQ3Caps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		src   string
		input map[string]any
		want  error
		boxes int // most sandboxes at a time
	}{
		"infinite loop": {`
id: w
max_steps: 25
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "echo x >> f"}
  - {id: b, type: switch, cases: [{when: "false", next: c}], default: a}
  - {id: c, type: end}`, nil, workflow.ErrLimit, 1},
		"more sandboxes than places": {`
id: w
max_steps: 100
sandbox: {image: "IMAGE"}
steps:
  - {id: f, type: for_each, items: input.list, sandbox: isolated, max_concurrency: 20, fail_fast: false, steps: [{id: b, type: exec, command: "sleep 1"}]}`,
			map[string]any{"list": make([]any, 20)}, backend.ErrCapacity, 3},
		"endless output": {`
id: w
timeout: 2s
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "yes"}`, nil, context.DeadlineExceeded, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t, w.driver, session.Options{MaxSandboxes: 3})
			most := 0
			opts := &workflow.Options{OnEvent: func(workflow.Event) {
				if list, err := w.driver.List(context.Background(), backend.Filter{Instance: m.Instance()}); err == nil {
					most = max(most, len(list))
				}
			}}
			res, err := workflow.NewEngine(m, nil, opts).Run(t.Context(), parse(t, c.src), c.input)
			if !errors.Is(err, c.want) && !capacityFailed(err, c.want) {
				t.Errorf("Run: %v, want %v", err, c.want)
			}
			if res != nil && (res.Outcome == workflow.Succeeded || res.Cleanup != nil) {
				t.Errorf("%+v", res)
			}
			if most > c.boxes {
				t.Errorf("%d sandboxes at a time", most)
			}
			nothingLeft(t, m.Instance()) // also before the manager ends
		})
	}
}

// capacityFailed reports whether the items of a for_each failed for lack of places.
func capacityFailed(err, want error) bool {
	var e *workflow.Error
	if !errors.Is(want, backend.ErrCapacity) || !errors.As(err, &e) {
		return false
	}
	for _, f := range e.Failed {
		if f.Code == "capacity" {
			return true
		}
	}
	return false
}
