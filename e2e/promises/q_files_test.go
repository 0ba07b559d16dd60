package promises

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hostileYAML gives documents that are made to exhaust, confuse or surprise a parser. None of them is a workflow or the
// frontmatter of an agent.
func hostileYAML() map[string]string {
	bomb := func(width, depth int) string {
		var b strings.Builder
		b.WriteString("a0: &a0 [x]\n")
		for i := 1; i <= depth; i++ {
			fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), width))
		}
		return b.String()
	}
	var keys, deep, indented strings.Builder
	for i := range 500_000 {
		fmt.Fprintf(&keys, "k%d: 1\n", i)
	}
	for i := range 10_000 {
		deep.WriteString(strings.Repeat(" ", i%300) + "a:\n")
	}
	for i := range 700 { // longer would be refused for its size
		indented.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return map[string]string{
		"alias bomb":          bomb(9, 9),
		"wide alias bomb":     bomb(9000, 3),
		"quadratic aliases":   "a: &a [" + strings.Repeat("x,", 20_000) + "]\nb: [" + strings.Repeat("*a,", 20_000) + "]\n",
		"alias to itself":     "a: &a {b: &b {c: *a, d: *b}}\n",
		"merge bomb":          "a: &a {x: 1}\nb: &b {<<: [" + strings.Repeat("*a,", 5000) + "]}\nc: {<<: [" + strings.Repeat("*b,", 5000) + "]}\n",
		"10k flow nesting":    "a: " + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "\n",
		"10k map nesting":     "a: " + strings.Repeat("{a: ", 10_000) + "\n",
		"10k open brackets":   strings.Repeat("[", 10_000),
		"10k block nesting":   deep.String(),
		"block nesting":       indented.String(),
		"10k sequence dashes": "a: " + strings.Repeat("- ", 10_000) + "\n",
		"10k question marks":  strings.Repeat("? ", 10_000) + "\n",
		"many keys":           keys.String(),
		"many items":          "a: [" + strings.Repeat("x,", 120_000) + "]\n",
		"many empty items":    "a:\n" + strings.Repeat("-\n", 125_000),
		"duplicate keys":      "id: w\nid: v\nsteps: [{id: a, type: end}]\nsandbox: python\nsandbox: node\n",
		"binary tag":          "id: !!binary aGVsbG8=\nsandbox: !!binary cHl0aG9u\nsteps: [{id: a, type: end}]\n",
		"foreign tag":         "id: !!python/object/apply:os.system [id]\nsandbox: !!python/name:os.system python\nsteps: []\n",
		"own tag":             "id: !mine w\nsandbox: !mine python\nsteps: [{id: a, type: end}]\n",
		"merge keys":          "x: &x {type: end}\nid: w\nsandbox: &s {mode: code}\nuse: {<<: *s}\nsteps: [{id: a, <<: *x}]\n",
		"long scalar":         "id: " + strings.Repeat("x", 200_000) + "\nsandbox: " + strings.Repeat("x", 50_000) + "\n",
		"many documents":      strings.Repeat("--- a\n", 30_000),
		"directives":          strings.Repeat("%TAG ! tag:x,2000:\n", 10_000) + "--- a\n",
		"NUL":                 "id: a\x00b\nsandbox: python\x00\n",
		"not UTF-8":           "id: \xff\xfe\nsandbox: \xff\n",
		"huge number":         "id: w\nmax_steps: 1e999999999\nsandbox: {limits: {pids: 1e999999999}}\nsteps: [{id: a, type: end}]\n",
	}
}

// TestQ1Validate gives the same to the command line: workflows one by one, so that time and memory of each can be told,
// and all scripts and all agents at once.
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
	began := time.Now()
	must(t, cmd.Start())
	peak := watchMemory(cmd.Process.Pid)
	_ = cmd.Wait() // its exit code is looked at
	within(t, time.Duration(len(files))*time.Second, began)
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

// watchMemory gives the most memory that a process was seen to have, in KiB, when it has ended.
func watchMemory(pid int) <-chan int {
	peak := make(chan int, 1)
	go func() {
		most := 0
		for {
			s, err := status(pid)
			n, aerr := strconv.Atoi(strings.TrimSuffix(s["VmHWM"], " kB"))
			if err != nil || aerr != nil { // it is gone, or about to be
				peak <- most
				return
			}
			most = max(most, n)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return peak
}
