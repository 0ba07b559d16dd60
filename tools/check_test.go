package tools_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/tools"
)

// writeAll writes files to a new directory.
func writeAll(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		checktest.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	return dir
}

// relative returns the lines of an error with the directory removed.
func relative(err error, dir string) []string {
	if err == nil {
		return nil
	}
	return strings.Split(strings.ReplaceAll(err.Error(), filepath.ToSlash(dir)+"/", ""), "\n")
}

func TestCheckAgent(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		head, body string
		want       []string
	}{
		"nothing": {},
		"tools": {
			head: "tools: [nosuchtool, sandbox_exec]\nuse: [nosuch]\nsandbox: {mode: code, image: \"Debian:12\"}",
			want: []string{
				`a.prompt:2:9: unknown tool "nosuchtool"; remove it; sandbox: adds tools that run code`,
				`a.prompt:2:21: tool "sandbox_exec" must not be listed; remove it; sandbox: adds the sandbox tools`,
				`a.prompt:3:6: use: unknown middleware "nosuch"`,
				`a.prompt:4:30: image reference "Debian:12": invalid reference format: repository name (library/Debian) must be lowercase: invalid argument`,
			},
		},
		"near names": {
			head: "use: [sandbx]\noutput: {format: jsn}",
			want: []string{
				`a.prompt:2:6: use: unknown middleware "sandbx"`,
				`a.prompt:3:18: unknown output format "jsn"; did you mean "json"?`,
			},
		},
		"types that are right": {
			head: "input: {schema: {a: string, \"b?\": \"any, what\", \"c(array, list)\": {d: integer}, \"e?(enum)\": [x, y], (*): string}}\n" +
				"output: {schema: {type: object, properties: {a: {type: string}}}}",
		},
		"text has no schema": {head: "output: {format: text, schema: {a: strin}}"},
		"types": {
			head: "input: {schema: {a: strin}}\noutput: {schema: {type: object, properties: {a: {items: {type: strng}}}}}",
			want: []string{
				`a.prompt:2:17: cannot read the schema: unsupported scalar type 'strin'`,
				`a.prompt:3:18: output.schema: has a primitive type that is NOT VALID -- given: /strng/ Expected valid values are:[array boolean integer number null object string]`,
			},
		},
		"JSON Schema": {
			head: "input: {schema: {type: object, properties: {a: {type: string}}, required: []}}\noutput: {schema: {type: object, properties: {a: {type: [string, \"null\"]}}}}",
			want: []string{
				"a.prompt:2:17: Genkit cannot read the JSON Schema; remove keys that JSON Schema does not have, empty values such as false and [], and lists of types",
				"a.prompt:3:18: Genkit cannot read the JSON Schema; remove keys that JSON Schema does not have, empty values such as false and [], and lists of types",
			},
		},
		"references": {
			head: "input: {schema: {type: object, properties: {a: {$ref: \"http://127.0.0.1:1/x\"}}}}\noutput: {format: text, schema: {type: object, properties: {a: {$id: x}}}}",
			want: []string{
				"a.prompt:2:17: input.schema: $ref is not supported, write the definition out",
				"a.prompt:3:32: output.schema: $id is not supported, write the definition out",
			},
		},
		"input is not a mapping": {
			head: "input: {schema: string}\noutput: {schema: any}",
			want: []string{
				`a.prompt:2:17: input must be a mapping of names to values, not string; for example schema: {task: string}`,
				`a.prompt:3:18: output.schema: has a primitive type that is NOT VALID -- given: /any/ Expected valid values are:[array boolean integer number null object string]`,
			},
		},
		"existing partials": {body: "{{!-- {{>no}} --}} \\{{>no}} {{! no }} {{~> good }} {{>\"good\" a=1}}"},
		"partials": {
			body: "é {{>missing}} {{> (lookup . \"x\")}}\n{{> broken}} {{>loop}}",
			want: []string{
				`a.prompt:3:3: partial "missing" not found; create partial NAME as a file _NAME.prompt next to the agent's file`,
				`a.prompt:3:16: the name of an included partial must be literal; write it out`,
				`_broken.prompt:1: cannot read the template: Parse error on line 1: Expecting OpenEndBlock, got: 'EOF'`,
				`_broken.prompt:1:2: partial "gone" not found; create partial NAME as a file _NAME.prompt next to the agent's file`,
				`_loop.prompt:2:3: the partial includes itself: loop > loop; partials must not be recursive`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			head := "---\n"
			if tt.head != "" {
				head += tt.head + "\n"
			}
			dir := writeAll(t, map[string]string{
				"a.prompt": head + "---\n" + tt.body, "_good.prompt": "be kind", "_broken.prompt": " {{>gone}} {{#if x}}", "_loop.prompt": "a\nb {{>loop}}",
			})
			_, err := tools.CheckAgent(filepath.Join(dir, "a.prompt"))
			if diff := cmp.Diff(tt.want, relative(err, dir)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			var list frontmatter.Errors
			if err != nil && !errors.As(err, &list) {
				t.Errorf("%T is not frontmatter.Errors", err)
			}
		})
	}
}

func TestCheckPartial(t *testing.T) {
	t.Parallel()
	dir := writeAll(t, map[string]string{
		"_good.prompt": "---\ntext: no frontmatter\n---\nbe {{>kind}}", "_kind.prompt": "kind", "_broken.prompt": "{{>gone}}", "_loop.prompt": "{{>loop}}",
	})
	for name, want := range map[string][]string{
		"_good.prompt":   nil,
		"_broken.prompt": {`_broken.prompt:1:1: partial "gone" not found; create partial NAME as a file _NAME.prompt next to the agent's file`},
		"_loop.prompt":   {`_loop.prompt:1:1: the partial includes itself: loop > loop; partials must not be recursive`},
	} {
		if diff := cmp.Diff(want, relative(tools.CheckPartial(filepath.Join(dir, name)), dir)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
