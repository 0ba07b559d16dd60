package tools_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/middleware"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/tools"
)

func TestLoadPrompt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	name, seen := r.model(call("sandbox_exec", obj{"command": "echo $WHO"}), say("done"), say("no sandbox"))
	src := "\ufeff# licence\r\n---\r\nmodel: " + name + "\r\nsandbox: # code\r\n  mode: code\r\n  runtime: bash\r\n  env: {WHO: you}\r\nmaxTurns: 3\r\n---\r\nGreet {{who}}.\r\n"
	p, err := tools.LoadPrompt(r.g, "prompts/greeter.formal.prompt", []byte(src))
	checktest.Must(t, err)
	if p.Name() != "greeter.formal" {
		t.Errorf("name %q", p.Name())
	}
	if _, err := p.Execute(context.Background(), ai.WithInput(map[string]any{"who": "{{x}} & <y>"})); err != nil {
		t.Fatal(err)
	}
	if out := seen.outputs(); out[0]["stdout"] != "you\n" {
		t.Errorf("%v", out)
	}
	if text := seen.list[0].Messages[0].Text(); text != "Greet {{x}} & <y>." {
		t.Errorf("prompt %q", text)
	}
	// Genkit replaces the file's middleware, although the comment of ai.WithUse says that it adds to it.
	_, err = p.Execute(context.Background(), ai.WithUse(&middleware.Retry{}))
	if err != nil || len(seen.list[2].Tools) != 0 {
		t.Errorf("with other middleware: %d tools, %v", len(seen.list[2].Tools), err)
	}
	if _, err := tools.LoadPrompt(r.g, "other/greeter.formal.prompt", []byte(src)); err == nil || !strings.Contains(err.Error(), `other/greeter.formal.prompt: prompt "greeter.formal" is already loaded`) {
		t.Errorf("loaded twice: %v", err)
	}
}

func TestLoadPromptErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	schema := func(key, properties, want string) struct{ src, want string } {
		src := "---\n" + key + ": {schema: {type: object, properties: {" + properties + "}}}\n---\nx"
		return struct{ src, want string }{src, "bad.prompt:2:" + strconv.Itoa(len(key)+12) + ": " + want}
	}
	for name, tt := range map[string]struct{ src, want string }{
		"frontmatter": {"---\nmodel: m\nsandbx: python\n---\nx", "bad.prompt:3:1: unknown key"},
		"syntax":      {"---\nmodel: [\n---\nx", "bad.prompt:2:8: malformed YAML"},
		"template":    {"---\nsandbox: python\n---\n\nok\n{{#each x}}\n", "bad.prompt:"},
		"helper":      {"---\nsandbox: python\n---\n{{}}\n", "bad.prompt:4: cannot read the template"},
		"address of the model": {
			"---\nmodel: m\nconfig: {topK: 1, HTTPoptions: {baseUrl: \"http://127.0.0.1:1\"}}\n---\nx",
			"bad.prompt:3:32: config must not contain httpOptions",
		},
		// Genkit's validator would open or fetch these, or follow them without end.
		"address": schema("input", `a: {$ref: "http://127.0.0.1:1/x"}`, "input.schema: $ref is not supported, write the definition out"),
		"file":    schema("output", `a: {items: {$ref: "file:///dev/zero"}}`, "output.schema: $ref is not supported"),
		"base":    schema("input", `a: {$id: "http://127.0.0.1:1/x"}`, "input.schema: $id is not supported"),
		"loop":    schema("input", `a: {}}, allOf: [{$ref: "#"}], $defs: {b: {}`, "input.schema: $ref is not supported"),
	} {
		_, err := tools.LoadPrompt(r.g, "bad.prompt", []byte(tt.src))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		var one *frontmatter.Error
		if !errors.As(err, &one) {
			t.Errorf("%s: %T", name, err)
		}
		if genkit.LookupPrompt(r.g, "bad") != nil {
			t.Errorf("%s: it is registered", name)
		}
	}
	bare := initGenkit(t, fstest.MapFS{})
	if _, err := tools.LoadPrompt(bare, "a.prompt", []byte("---\nsandbox: python\n---\nx")); err == nil || !strings.Contains(err.Error(), "Genkit has no sandbox plugin; pass genkit.WithPlugins") {
		t.Errorf("without the plugin: %v", err)
	}
	if _, err := tools.LoadPrompt(bare, "b.prompt", []byte("---\nmodel: m/x\n---\nx")); err != nil {
		t.Errorf("a prompt without sandbox: %v", err)
	}
}

func promptFiles() fstest.MapFS {
	return fstest.MapFS{
		"prompts/plain.prompt":       {Data: []byte("---\r\nmodel: test/m\r\n---\r\nPlain {{>who}}\r\n")},
		"prompts/sub/coder.prompt":   {Data: []byte("---\nmodel: test/m # why\nsandbox: bash\n# more\n---\nCode {{>who}}\n")},
		"prompts/coder.fast.prompt":  {Data: []byte("---\nmodel: test/m\nsandbox: {mode: code}\n---\nFast\n")},
		"prompts/broken.prompt":      {Data: []byte("---\nmodel: test/m\nsandbox: {mode: cod}\n---\nx\n")},
		"prompts/_who.prompt":        {Data: []byte("you {{name}}")},
		"prompts/_loop.prompt":       {Data: []byte("a {{> pool }}")},
		"prompts/sub/_pool.prompt":   {Data: []byte("b {{>loop}}")},
		"prompts/notes.txt":          {Data: []byte("sandbox: x")},
		"prompts/unclosed.prompt":    {Data: []byte("---\nsandbox: python\n")},
		"prompts/directory.prompt/x": {Data: []byte("x")},
	}
}

func TestPromptFS(t *testing.T) {
	t.Parallel()
	under := promptFiles()
	fsys := tools.PromptFS(under)
	for name, want := range map[string]string{
		"prompts/plain.prompt":      "---\r\nmodel: test/m\r\n---\r\nPlain {{>who}}{{! workcell }}\r\n",
		"prompts/sub/coder.prompt":  "---\nmodel: test/m # why\nmaxTurns: 40\nuse: [{\"config\":{\"runtime\":\"bash\"},\"name\":\"workcell/sandbox\"}]\n---\nCode {{>who}}\n",
		"prompts/coder.fast.prompt": "---\nmodel: test/m\nmaxTurns: 40\nuse: [{\"config\":{\"mode\":\"code\"},\"name\":\"workcell/sandbox\"}]\n---\nFast\n",
		"prompts/_who.prompt":       "you {{name}}",
		"prompts/notes.txt":         "sandbox: x",
	} {
		got, err := fs.ReadFile(fsys, name)
		if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	for name, want := range map[string]string{
		"prompts/broken.prompt":   `prompts/broken.prompt:3:17: unknown mode "cod"; did you mean "code"?`,
		"prompts/unclosed.prompt": "prompts/unclosed.prompt:1:1: the frontmatter is not closed",
		"prompts/_loop.prompt":    "the partial includes itself: loop > pool > loop",
	} {
		_, err := fs.ReadFile(fsys, name)
		var path *fs.PathError
		if !errors.As(err, &path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := fsys.Open("prompts/none.prompt"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, bad := range []string{"prompts/broken.prompt", "prompts/unclosed.prompt", "prompts/_loop.prompt", "prompts/sub/_pool.prompt"} {
		delete(under, bad)
	}
	checktest.Must(t, fstest.TestFS(fsys, "prompts/sub/coder.prompt", "prompts/plain.prompt", "prompts/notes.txt"))
}

// TestPromptFSInGenkit verifies that Genkit itself can load a directory through PromptFS.
func TestPromptFSInGenkit(t *testing.T) {
	t.Parallel()
	r := rigWith(t, tools.PromptFS(promptFiles()))
	for name, want := range map[string]bool{"plain": true, "coder": true, "coder.fast": true, "broken": false, "unclosed": false} {
		if got := genkit.LookupPrompt(r.g, name) != nil; got != want {
			t.Errorf("prompt %s exists: %v, want %v", name, got, want)
		}
	}
	turns := append(slices.Repeat([]turn{call("sandbox_run", obj{"code": "echo ran"})}, frontmatter.DefaultMaxTurns-1), say("done"))
	model, seen := r.model(turns...)
	_, err := genkit.LookupPrompt(r.g, "coder").Execute(context.Background(), ai.WithModelName(model), ai.WithInput(map[string]any{"name": "Ann"}))
	if err != nil || seen.outputs()[0]["stdout"] != "ran\n" {
		t.Errorf("%v: %v", seen.outputs(), err)
	}
	if text := seen.list[0].Messages[0].Text(); text != "Code you Ann" {
		t.Errorf("prompt %q", text)
	}
}

// TestPromptsThatGenkitLoads verifies that genkit.Init panics if Genkit itself loads a prompt with `sandbox:` from a
// directory, because Genkit ignores `sandbox:`. It only logs prompts it cannot check, whose files exist on a
// developer's machine but not in production.
func TestPromptsThatGenkitLoads(t *testing.T) {
	m := newRig(t).manager
	const plain, code = "---\nmodel: test/m\n---\n{{#if x}}\nyes\n{{/if}}\n", "---\nmodel: test/m\nsandbox: {mode: code}\n---\nx\n"
	const native = "---\nmodel: test/m\nuse: [{name: workcell/sandbox, config: {mode: code}}]\n---\nx\n"
	dir := func(files ...string) string {
		tree := map[string]string{}
		for i := 0; i < len(files); i += 2 {
			tree["prompts/"+files[i]] = files[i+1]
		}
		return writeAll(t, tree)
	}
	served := func(name, text string) fstest.MapFS { return fstest.MapFS{"prompts/" + name: {Data: []byte(text)}} }
	both := fstest.MapFS{"prompts/a.prompt": {Data: []byte(plain)}, "prompts/b.prompt": {Data: []byte(code)}}
	at := func(root string) genkit.GenkitOption { return genkit.WithPromptDir(filepath.Join(root, "prompts")) }
	for name, tc := range map[string]struct {
		cwd  string // empty for a directory without prompts
		opts []genkit.GenkitOption
		want string // part of the panic; empty if Init must succeed
	}{
		"the default directory":   {dir("a.prompt", plain, "sub/coder.prompt", code), nil, filepath.Join("prompts", "sub", "coder.prompt") + ":3:10: it requires a sandbox"},
		"a directory":             {"", []genkit.GenkitOption{at(dir("coder.fast.prompt", code))}, "coder.fast.prompt:3:10: it requires a sandbox, which Genkit ignores"},
		"a misspelt one":          {"", []genkit.GenkitOption{at(dir("a.prompt", "---\nsandbx: python\n---\nx"))}, "did you mean `sandbox:`?"},
		"malformed":               {"", []genkit.GenkitOption{at(dir("a.prompt", "---\nsandbox: [python\n---\nx"))}, "a.prompt:"},
		"plain ones":              {"", []genkit.GenkitOption{at(dir("a.prompt", plain, "_p.prompt", "sandbox:", "b.prompt", "no frontmatter"))}, ""},
		"native ones":             {"", []genkit.GenkitOption{at(dir("a.prompt", native))}, ""},
		"no prompts":              {"", nil, ""},
		"a file system":           {"", []genkit.GenkitOption{genkit.WithPromptFS(served("a.prompt", plain))}, ""},
		"a PromptFS":              {"", []genkit.GenkitOption{genkit.WithPromptFS(tools.PromptFS(both))}, ""},
		"a PromptFS of the same":  {dir("a.prompt", plain, "b.prompt", code), []genkit.GenkitOption{genkit.WithPromptFS(tools.PromptFS(both))}, ""},
		"a file system of plain":  {dir("a.prompt", plain), []genkit.GenkitOption{genkit.WithPromptFS(served("a.prompt", plain))}, ""},
		"a file system, native":   {"", []genkit.GenkitOption{genkit.WithPromptFS(served("a.prompt", native))}, ""},
		"a PromptFS of a heading": {"", []genkit.GenkitOption{genkit.WithPromptFS(tools.PromptFS(fstest.MapFS{"prompts/a.prompt": {Data: []byte("# only\ntext")}, "prompts/e.prompt": {}}))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.cwd == "" {
				tc.cwd = t.TempDir()
			}
			t.Chdir(tc.cwd)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			defer func() {
				r := recover()
				if text := fmt.Sprint(r); (r != nil) != (tc.want != "") || !strings.Contains(text, tc.want) && r != nil {
					t.Errorf("%v, want %q", r, tc.want)
				}
			}()
			log := &buffertest.Buffer{}
			p := &tools.Plugin{Manager: m, Logger: slog.New(slog.NewTextHandler(log, nil))}
			genkit.Init(ctx, append(tc.opts, genkit.WithPlugins(p))...)
			if told := strings.Contains(log.String(), "prompts=[a]"); told != (name == "a file system") {
				t.Errorf("log %q", log.String())
			}
		})
	}
}

// TestStdoutStaysClean verifies that malformed files print nothing to stdout, which is for data.
func TestStdoutStaysClean(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	checktest.Must(t, err)
	defer out.Close()
	old := os.Stdout
	os.Stdout = out
	for _, src := range []string{"---\nmodel: [\n---\nx", "---\na: 1\na: 2\n---\nx", "---\nsandbox: python\n---\n# T\n---\na: [\n---\nx"} {
		if doc, err := tools.CheckPrompt("x.prompt", []byte(src)); err == nil && doc.Sandbox == nil {
			t.Errorf("%q is accepted", src)
		}
	}
	os.Stdout = old
	if text, err := os.ReadFile(out.Name()); err != nil || len(text) > 0 {
		t.Errorf("stdout got %q: %v", text, err)
	}
}
