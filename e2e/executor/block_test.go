//go:build linux

package executor

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/sandbox"
)

// TestPastedBlock: Claude Code and Codex can use the README's block for adding Workcell to a Genkit project. The model
// of the test follows the steps of the block. The changed project must compile and run a program in a sandbox.
func TestPastedBlock(t *testing.T) {
	t.Parallel()
	block := pasted(t)
	for _, a := range agents()[:2] {
		t.Run(a.Name(), func(t *testing.T) {
			t.Parallel()
			runProject(t, paste(t, a, block))
		})
	}
}

// paste gives a block to a coding agent whose workspace has the project, and returns the changed program.
func paste(t *testing.T, a agent, block string) string {
	t.Helper()
	r := newRig(t, a)
	_, err := r.s.WriteFile(t.Context(), "main.go", strings.NewReader(project), sandbox.WriteFileOptions{})
	must(t, err)
	args := map[string]string{}
	must(t, json.Unmarshal([]byte(shells[a.Name()][1]), &args))
	for name := range args {
		args[name] = "cat >main.go <<'EOF'\n" + follow(block, project) + "EOF\n"
	}
	data, err := json.Marshal(args)
	must(t, err)
	r.model.tool, r.model.args = shells[a.Name()][0], string(data)
	res, err := r.run(t.Context(), "", executor.Task{Prompt: block})
	must(t, err)
	if res.Outcome != executor.Completed || !r.model.seen("arguments of genkit.WithPlugins") {
		t.Fatalf("%+v\n%s", res, r.output.Bytes())
	}
	changed, err := r.s.Exec(t.Context(), sandbox.ExecRequest{Argv: []string{"cat", "main.go"}})
	must(t, err)
	return string(changed.Stdout.Bytes())
}

// project is a Genkit program without Workcell.
const project = `package main

import (
	"context"
	"fmt"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/googlegenai"
)

func main() {
	ctx := context.Background()
	g := genkit.Init(ctx, genkit.WithPlugins(&googlegenai.GoogleAI{}))
	answer, err := genkit.GenerateText(ctx, g,
		ai.WithModelName("googleai/gemini-2.5-flash"),
		ai.WithPrompt("Multiply 6, 7, and 1000. Run a program."),
	)
	if err != nil {
		panic(err)
	}
	fmt.Println(answer)
}
`

// pasted returns the block of the README.
func pasted(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	must(t, err)
	m := regexp.MustCompile("(?s)```text\n(.*?\n)```").FindStringSubmatch(string(readme))
	if m == nil {
		t.Fatal("README.md has no block to paste")
	}
	return m[1]
}

// follow changes a program as the numbered steps of a block require.
func follow(block, program string) string {
	code, step, imports := map[string]string{}, "", ""
	fallible := regexp.MustCompile(`^\w+, err := .*\n`)
	for line := range strings.Lines(block) {
		if text, ok := strings.CutPrefix(line, "     "); ok {
			code[step] += "\t" + fallible.ReplaceAllString(text, "${0}\tif err != nil {\n\t\tpanic(err)\n\t}\n")
			continue
		}
		step = line[:1]
		if names, module, ok := strings.Cut(line, " from "); ok {
			names = strings.TrimPrefix(names, "2. Import ")
			for name := range strings.SplitSeq(strings.ReplaceAll(names, "and ", ""), ", ") {
				imports += "\t\"" + strings.TrimSuffix(module, ".\n") + "/" + name + "\"\n"
			}
		}
	}
	return strings.NewReplacer(
		"import (\n", "import (\n"+imports,
		"\tg := genkit.Init", code["3"]+"\tg := genkit.Init",
		"WithPlugins(", "WithPlugins(sandboxes, ",
		"\t\tai.WithPrompt", "\t"+code["6"]+"\t\tai.WithPrompt",
	).Replace(program)
}

// runProject compiles a program as a package of this module and runs it with a model that runs Python on Docker.
func runProject(t *testing.T, program string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	must(t, err)
	dir := t.TempDir()
	source, overlay, binary := dir+"/main.go", dir+"/overlay.json", dir+"/project"
	program = strings.ReplaceAll(program, "python:3.11-slim", "workcell/python:3.11")
	must(t, os.WriteFile(source, []byte(program), 0o600))
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{root + "/e2e/executor/pasted/main.go": source}})
	must(t, err)
	must(t, os.WriteFile(overlay, data, 0o600))
	build := exec.Command("go", "build", "-overlay", overlay, "-o", binary, "./e2e/executor/pasted")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
	m := newModel("sandbox_run", `{"code":"print(6*7*1000)"}`, "The program ran.")
	server := httptest.NewServer(m)
	defer server.Close()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "GEMINI_API_KEY="+key, "GOOGLE_API_KEY=", "GOOGLE_GEMINI_BASE_URL="+server.URL)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), m.text) || !m.seen("42000") {
		t.Errorf("%v\n%s", err, out)
	}
}
