package walk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/commandtest"
)

// excuses is the number of blocks that no test machine can run. Each is preceded by <!-- not run: REASON -->.
const excuses = 34

// block is a fenced block of a page, or an invisible command: <!-- test: COMMAND -->.
type block struct {
	kind, text string // language of the fence, or "test"
	file       string // name of the file with the text on the page; empty for none
	line       int    // line of the text
	excuse     string // reason why it cannot run; empty if it can
}

// blocks returns the blocks of a page in order.
func blocks(t *testing.T, page string) []block {
	t.Helper()
	text := output(t, "cat", page)
	var out []block
	excuse, end := "", 0
	find := regexp.MustCompile("(?ms)^ *<!-- (test|not run): (.*?) -->$|^( *)```(\\w*)\n(.*?)^ *```$")
	for _, m := range find.FindAllStringSubmatchIndex(text, -1) {
		group := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return text[m[2*i]:m[2*i+1]]
		}
		between := text[end:m[0]]
		end = m[1]
		if excuse != "" && (strings.TrimSpace(between) != "" || group(1) != "") {
			t.Errorf("%s: no block follows the excuse %q", page, excuse)
		}
		b := block{kind: group(1) + group(4), text: group(2), excuse: excuse}
		if excuse = ""; b.kind == "not run" {
			excuse = b.text
			continue
		}
		if b.kind != "test" {
			b.text = regexp.MustCompile("(?m)^"+group(3)).ReplaceAllString(group(5), "")
			b.line = strings.Count(text[:m[10]], "\n") + 1
		}
		paragraph := between[strings.LastIndex(strings.TrimSpace(between), "\n\n")+1:]
		if name := regexp.MustCompile("(?s)[Ss]ave .*\\sas `(\\S+)`").FindStringSubmatch(paragraph); name != nil {
			b.file = name[1]
		}
		out = append(out, b)
	}
	return out
}

// TestPages runs the blocks of the documentation with a fake vendor and, unless a page selects another backend, on the
// local backend. Each page gets a new shell. It also compiles the statements in the comments of packages.
func TestPages(t *testing.T) {
	t.Parallel()
	binary, err := commandtest.Build(t.TempDir())
	must(t, err)
	excused, programs := 0, map[string]string{}
	walk := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		page := strings.TrimPrefix(path, "../../")
		all := blocks(t, path)
		for _, b := range all {
			if b.excuse != "" {
				excused++
				t.Logf("%s:%d: not run: %s", page, b.line, b.excuse)
			}
		}
		all = slices.DeleteFunc(all, func(b block) bool {
			if b.kind == "go" || b.kind == "golang" {
				programs[fmt.Sprintf("%s:%d", page, b.line)] = b.text
			}
			return b.excuse != "" || slices.Contains([]string{"text", "mermaid", "go", "golang"}, b.kind)
		})
		if len(all) > 0 {
			t.Run(page, func(t *testing.T) {
				w := newWalker(t)
				w.take(t, "mkdir bin && cp "+binary+" bin/workcell && export WORKCELL_BACKEND=local", step{})
				for _, b := range all {
					w.try(t, page, b)
				}
			})
		}
		return nil
	}
	err = errors.Join(filepath.WalkDir("../../docs", walk), filepath.WalkDir("../../examples/README.md", walk))
	if err != nil || excused > excuses {
		t.Errorf("%d blocks are excused, %v", excused, err)
	}
	for _, file := range []string{"mcpserver/doc.go", "sandbox/doc.go", "tools/doc.go", "workflow/doc.go"} {
		source := regexp.MustCompile(` +// .*`).ReplaceAllString(output(t, "cat", "../../"+file), "")
		for _, m := range regexp.MustCompile(`(?m)(^//\t.*\n)+`).FindAllStringIndex(source, -1) {
			if text := strings.ReplaceAll(source[m[0]:m[1]], "//\t", ""); !strings.HasPrefix(text, "go get") {
				programs[fmt.Sprintf("%s:%d", file, strings.Count(source[:m[0]], "\n")+1)] = text
			}
		}
	}
	t.Run("go", func(t *testing.T) { compile(t, programs) })
}

// try tests a block.
func (w *walker) try(t *testing.T, page string, b block) {
	t.Helper()
	switch b.kind {
	case "test":
		w.take(t, b.text, step{})
	case "sh":
		for _, command := range split(b.text) {
			w.take(t, written(command), step{})
		}
	case "console":
		for _, part := range regexp.MustCompile(`(?m)^\$ `).Split(b.text, -1)[1:] {
			command := split(part)[0]
			want := strings.TrimSpace(part[len(command)+1:])
			out, code := w.say(t, written(command))
			if !matches(want, out) {
				t.Errorf("%s:%d: $ %s\nexit code %s; documented:\n%s\nactual:\n%s", page, b.line, command, code,
					want, out)
			}
		}
	case "json":
		if !json.Valid([]byte(b.text)) {
			t.Errorf("%s:%d: invalid JSON", page, b.line)
		}
	case "yaml":
		if page == "docs/reference/workflow-file.md" {
			return // workflow.TestDocumentation runs it
		}
		name, text, command := reader(b.text)
		if b.file != "" {
			name = b.file
		}
		w.write(t, strings.Replace(name, "~", "..", 1), text)
		w.take(t, command+" "+name, step{})
	default:
		t.Errorf("%s:%d: block of kind %q is neither run nor excused", page, b.line, b.kind)
	}
}

// split returns the commands of a text. A line that ends with \ or | continues.
func split(text string) []string {
	return regexp.MustCompile(`(?m)^.*[^\n\\|](?:[\\|]\n.*[^\n\\|])*$`).FindAllString(text, -1)
}

// written returns the test's command for a command on a page.
func written(command string) string {
	for _, r := range [][2]string{
		// Releases are not this tree.
		{`^go install github.com/workcell-dev/workcell/cmd/workcell@latest`, `make build`},
		{`^git clone https://github.com/workcell-dev/workcell && cd workcell`, `true`},
		{`\b10\.0\.0\.5\b`, `127.0.0.1`}, // an address of another host
		// A terminal ends with the input, and a server when it is stopped.
		{`^workcell sandbox attach .*`, "timeout 5 script -qec '$0' /dev/null <<<exit; (( $$? % 124 == 0 ))"},
		{`^workcell (mcp|dev|worker|ui|sandbox forward)\b.*`, "timeout -s INT 3 $0\n(( $$? % 124 == 0 ))"},
	} {
		command = regexp.MustCompile(`(?s)`+r[0]).ReplaceAllString(command, strings.ReplaceAll(r[1], "$0", "${0}"))
	}
	return command
}

// matches reports whether the output is the documented one, in which … stands for any text.
func matches(documented, out string) bool {
	lines := regexp.MustCompile(`[ \t]+\n`)
	pattern := strings.ReplaceAll(regexp.QuoteMeta(documented), "…", ".*")
	return regexp.MustCompile(`(?s)^` + pattern + `$`).MatchString(strings.TrimSpace(lines.ReplaceAllString(out, "\n")))
}

// reader returns a complete file with the text, the name, and the command for reading it.
func reader(text string) (name, complete, command string) {
	key := regexp.MustCompile(`(?m)^(---|\w+)`).FindString(text)
	prompt := func(text string) string { return "---\nmodel: googleai/gemini-2.5-flash\n" + text + "---\nx\n" }
	switch {
	case key == "---":
		return "page.prompt", text, "workcell validate"
	case key == "sandbox":
		return "page.prompt", prompt(text), "workcell validate"
	case key == "host_tools", key == "outputs":
		inner := regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSpace(text), "  ")
		return "page.prompt", prompt("sandbox:\n  mode: code\n" + inner + "\n"), "workcell validate"
	case key == "agents", strings.Contains(text, "\nsteps:"):
		return "page.yaml", text, "workcell validate"
	case key == "servers", key == "policy":
		return "tools.yaml", text, "workcell validate examples/agents/python-developer.prompt --host-tools"
	case key == "commands":
		return "guard.yaml", text, "workcell mcp --policy"
	default:
		return "workcell.yaml", text, "workcell config show --config"
	}
}

// compile compiles programs and statements by position. Statements get the usual variables of programs, and can use
// others of the reader's program.
func compile(t *testing.T, programs map[string]string) {
	w := newWalker(t)
	known := map[string]string{
		"ai": "github.com/firebase/genkit/go/ai", "genkit": "github.com/firebase/genkit/go/genkit",
		"sdktrace": "go.opentelemetry.io/otel/sdk/trace", "context": "context", "fmt": "fmt",
		"http": "net/http", "url": "net/url",
	}
	list, _ := w.say(t, `go list -f '{{.Name}} {{.ImportPath}}' ./... | grep -v -e internal -e '^main '`)
	for _, p := range regexp.MustCompile(`(?m)^(\w+) (\S+)$`).FindAllStringSubmatch(list, -1) {
		known[p[1]] = p[2]
	}
	for at, text := range programs {
		text = "//line " + at + "\n" + text
		if !strings.Contains(text, "\npackage ") {
			text = "var (\nctx context.Context\ng *genkit.Genkit\nengine backend.SandboxBackend\n" +
				"manager *session.Manager\ns *session.Session\n)\nfunc main() {\n" + text + "\n}\n"
			head := "package main\n"
			for name, path := range known {
				if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(text) {
					head += fmt.Sprintf("import %s %q\n", name, path)
				}
			}
			text = head + text
		}
		w.write(t, "page/"+strings.NewReplacer("/", "_", ":", "_", ".", "_").Replace(at)+"/main.go", text)
	}
	out, _ := w.say(t, "go build -gcflags=-e ./page/...")
	for fault := range strings.Lines(out) {
		if !regexp.MustCompile(`^#|: (undefined|declared and not used): \w+\n`).MatchString(fault) {
			t.Error(fault)
		}
	}
}

// write writes a file in the copy of the repository.
func (w *walker) write(t *testing.T, name, text string) {
	t.Helper()
	name = filepath.Join(w.dir, name)
	must(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)))
}
