package frontmatter_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/dotprompt/go/dotprompt"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// checkSource verifies that Genkit's parser gets the same content from the rewritten file as Parse from the original.
func checkSource(t *testing.T, doc *frontmatter.Document) string {
	t.Helper()
	src, err := doc.Source()
	checktest.Must(t, err)
	if doc.Sandbox == nil {
		return string(src)
	}
	m := dotprompt.FrontmatterAndBodyRegex.FindStringSubmatch(string(src))
	if m == nil {
		t.Fatalf("dotprompt sees no frontmatter in %q", src)
	}
	var raw map[string]any
	if err := yaml.Unmarshal([]byte(m[1]), &raw); err != nil {
		t.Fatalf("Genkit's YAML parser refuses %q: %v", m[1], err)
	}
	if _, ok := raw["sandbox"]; ok {
		t.Error("sandbox is still there")
	}
	uses, _ := raw["use"].([]any)
	var found *frontmatter.Sandbox
	for _, u := range uses {
		if entry, ok := u.(map[string]any); ok && entry["name"] == frontmatter.Middleware {
			b, err := json.Marshal(entry["config"])
			checktest.Must(t, err)
			found, err = frontmatter.ParseConfig("config", b)
			checktest.Must(t, err)
		}
	}
	if diff := cmp.Diff(doc.Sandbox, found); diff != "" {
		t.Errorf("sandbox after the rewrite (-want +got):\n%s", diff)
	}
	if got := strings.TrimPrefix(strings.TrimSpace(m[2]), "{{! }}"); got != strings.TrimSpace(doc.Body) {
		t.Errorf("body after the rewrite = %q, want %q", got, doc.Body)
	}
	again, err := dotprompt.ParseDocument(strings.TrimSpace(m[2]))
	if err != nil || again.Raw != nil || again.Template != strings.TrimSpace(m[2]) {
		t.Errorf("Genkit would take part of the template for frontmatter: %+v, %v", again, err)
	}
	return string(src)
}

func TestSource(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, src, want string }{
		{
			"no sandbox", "\n---\nmodel: x\n---\nbody", "\n---\nmodel: x\n---\nbody",
		},
		{
			"no frontmatter", "# Title\n\nbody {{x}}", "# Title\n\nbody {{x}}",
		},
		{
			"short", "---\nmodel: x # why\nsandbox: python\nconfig: {a: 1}\n---\nbody\n",
			"---\nmodel: x # why\nconfig: {a: 1}\nmaxTurns: 40\nuse: [{\"config\":{\"runtime\":\"python\"},\"name\":\"workcell/sandbox\"}]\n---\nbody\n",
		},
		{
			"block with comments and crlf",
			"---\r\nmodel: x\r\nsandbox:\r\n  # the mode\r\n  mode: code\r\n\r\n# about config\r\nconfig: {a: 1}\r\n---\r\nbody\r\n",
			"---\r\nmodel: x\n# about config\nconfig: {a: 1}\nmaxTurns: 40\nuse: [{\"config\":{\"mode\":\"code\"},\"name\":\"workcell/sandbox\"}]\n---\r\nbody\r\n",
		},
		{
			"with use before", "---\nuse:\n  - a/b # first\n  - {name: c/d, config: {day: 2026-01-02, x: [1, 2.5, true, null]}}\nsandbox: node\n---\nbody\n",
			"---\nmaxTurns: 40\nuse: [{\"config\":{\"runtime\":\"node\"},\"name\":\"workcell/sandbox\"},\"a/b\",{\"config\":{\"day\":\"2026-01-02\",\"x\":[1,2.5,true,null]},\"name\":\"c/d\"}]\n---\nbody\n",
		},
		{
			"executor", "---\nsandbox: {mode: executor, executor: {command: codex}}\nuse: [a/b]\n---\nbody\n",
			"---\nmaxTurns: 40\nuse: [\"a/b\",{\"config\":{\"mode\":\"executor\",\"executor\":" +
				"{\"command\":\"codex\"}},\"name\":\"workcell/sandbox\"}]\n---\nbody\n",
		},
		{
			"native", "---\nuse: [z/z, {name: workcell/sandbox, config: {env: {A: 1.10}}}]\n---\nbody\n",
			"---\nmaxTurns: 40\nuse: [{\"config\":{\"env\":{\"A\":\"1.10\"}},\"name\":\"workcell/sandbox\"},\"z/z\"]\n---\nbody\n",
		},
		{
			"indented", "---\n  model: x\n  sandbox: python\n---\nbody", "---\nmodel: x\nmaxTurns: 40\nuse: [{\"config\":{\"runtime\":\"python\"},\"name\":\"workcell/sandbox\"}]\n---\nbody",
		},
		{
			"in braces", "---\n{? sandbox : python, model: x}\n---\nbody", "---\nmodel: x\nmaxTurns: 40\nuse: [{\"config\":{\"runtime\":\"python\"},\"name\":\"workcell/sandbox\"}]\n---\nbody",
		},
		{
			"heading and rule in the template", "---\nsandbox: python\n---\n\n# Task\n\n---\nname: {{x}}\n---\nmore\n",
			"---\nmaxTurns: 40\nuse: [{\"config\":{\"runtime\":\"python\"},\"name\":\"workcell/sandbox\"}]\n---\n\n{{! }}# Task\n\n---\nname: {{x}}\n---\nmore\n",
		},
		{
			"odd characters", "---\nsandbox: {env: {A: \"q\\\"b\\\\ \\u0085 \\u2028 \\x01 \\uFEFF 😀 {{x}} # % @ '\"}}\n---\nbody",
			"---\nmaxTurns: 40\nuse: [{\"config\":{\"env\":{\"A\":\"q\\\"b\\\\ \\u0085 \\u2028 \\u0001 \\ufeff 😀 {{x}} # % @ '\"}},\"name\":\"workcell/sandbox\"}]\n---\nbody",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			doc, err := frontmatter.Parse("a.prompt", []byte(tt.src))
			checktest.Must(t, err)
			got := checkSource(t, doc)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("source (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryValueSurvives writes every possible value of each sandbox field to a file. It verifies that Genkit reads the
// same values, and that an explicit default differs from a missing value.
func TestEveryValueSurvives(t *testing.T) {
	t.Parallel()
	values := map[string][]string{
		"mode": {"compute", "code", "script", "executor, executor: claude"}, "runtime": {"python", "node", "bash"}, "root": {"readonly", "writable"},
		"isolation": {"process", "container", "kernel", "vm"},
		"image":     {"x"}, "session": {"default", "isolated", "mine"}, "keep": {"workspace, mode: code, session: user"}, "user": {"0", `"5:6"`},
		"env": {"{}", `{A: ""}`, "{A: b}"}, "limits": {"{}"},
		"network":       {"{}", `{allow: [a.b, "*.c.d:80", "registry:pypi"], deny: [x.c.d]}`},
		"network.allow": {"[]", "[a.b]"}, "network.deny": {}, // deny alone has no effect
		"pip_packages": {"[]", "[a]"}, "npm_packages": {"[]", "[a]"}, "outputs": {"[]", `[a, "b?"]`},
		"cache":      {"[]", "[pip, my-models]"},
		"snapshots":  {"true"},
		"ports":      {"{}", "{web: 8080, api-2: 65535}"},
		"setup":      {"{run: [a, b]}", `{run: ["c: d"], network: {allow: [a.b, "registry:go"], deny: [x.a.b]}}`},
		"services":   {"[]", `[github, {name: a-b, allow: ["GET /**"]}]`},
		"host_tools": {"{allow: [a.b, {tool: a.c, when: 'args.x == 1', ask: true, max_calls: 3}], limits: {calls: 5}, index: full}"},
		"executor": {
			"claude", "{command: codex, max_turns: 3, budget: {usd: 0.5, output_tokens: 9}, timeout_seconds: 60, stall_seconds: 5, resume: session}",
			"{command: gemini, skills: [skills/*], web: true, before: [a], after: [b, c], args: {effort: high}}",
			"{command: acp, argv: [a, \"{model}\"], args: {permissions: deny}}", "{command: custom, argv: [a, \"{prompt}\"], events: json}",
		},
	}
	for path, typ := range leaves("", reflect.TypeFor[frontmatter.Sandbox]()) {
		if values[path] != nil {
			continue
		}
		switch typ {
		case reflect.TypeFor[*bool]():
			values[path] = []string{"true", "false"}
		case reflect.TypeFor[frontmatter.Duration]():
			values[path] = []string{"17s", "1m30s"}
		case reflect.TypeFor[int64]():
			values[path] = []string{"17"}
		default:
			t.Errorf("%s, a %s, has no values here", path, typ)
		}
	}
	for path, list := range values {
		for _, value := range list {
			text := path + ": " + value
			if outer, inner, ok := strings.Cut(path, "."); ok {
				text = fmt.Sprintf("%s: {%s: %s}", outer, inner, value)
			}
			if path == "session" || path == "yield_ms" || path == "outputs" || path == "ports" || path == "snapshots" || path == "host_tools" {
				text += ", mode: code"
			}
			if path == "executor" {
				text += ", mode: executor"
			}
			doc, err := frontmatter.Parse("a.prompt", []byte("---\nsandbox: {"+text+"}\n---\nbody\n"))
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			if value != "{}" && cmp.Equal(doc.Sandbox, &frontmatter.Sandbox{}) {
				t.Errorf("%s is lost when it is read", text)
			}
			checkSource(t, doc)
		}
	}
}

// leaves returns the types of a struct's fields by their path in a file. For a nested struct, it returns the nested
// fields.
func leaves(prefix string, typ reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct {
			maps.Copy(out, leaves(prefix+name+".", f.Type))
			continue
		}
		out[prefix+name] = f.Type
	}
	return out
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"---\nsandbox: python\n---\nbody",
		"---\nsandbox:\n  mode: code\n  env: {A: \"b\\n\"}\nuse: [a, {name: b, config: {c: 1}}]\n---\nbody {{x}}",
		"# c\n\n---\r\nmodel: x\r\nsandbox: {limits: {pids: 5}}\r\n---\r\n# T\n---\nx: y\n---\n",
		"---\nx: &a [1]\ny: *a\nsandbox: {image: \"a\"}\n---\n---\n---\nx",
		"---\nuse:\n- name: workcell/sandbox\n  config: {runtime: node}\n---\n",
		"---\n? sandbox\n: python\n---\n", "---\n\"sandbox\" : {user: 0x10}\n---\n", "\ufeff---\n---\n", "--- \nsandbox: |\n  python\n---\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		doc, err := frontmatter.Parse("f.prompt", src)
		if err != nil {
			if doc != nil || !strings.Contains(err.Error(), "f.prompt") {
				t.Fatalf("doc %v, error %v", doc, err)
			}
			return
		}
		if doc.Sandbox == nil {
			return
		}
		if p := doc.Sandbox.Problems(); len(p) > 0 {
			t.Fatalf("accepted with %v", p)
		}
		out := checkSource(t, doc)
		again, err := frontmatter.Parse("f.prompt", []byte(out))
		if err != nil {
			t.Fatalf("the rewritten file %q is refused: %v", out, err)
		}
		if diff := cmp.Diff(doc.Sandbox, again.Sandbox); diff != "" {
			t.Fatalf("the rewritten file differs (-want +got):\n%s", diff)
		}
	})
}
