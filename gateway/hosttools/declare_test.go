package hosttools_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// corpus returns the definitions in testdata: ordinary definitions of well-known servers, and hostile definitions.
func corpus(t testing.TB) []hosttools.Tool {
	t.Helper()
	names, err := filepath.Glob("testdata/declare/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	var all []hosttools.Tool
	for _, name := range names {
		b, err := os.ReadFile(name)
		checktest.Must(t, err)
		var tools []hosttools.Tool
		if err := json.Unmarshal(b, &tools); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, tools...)
	}
	return all
}

func TestDeclarations(t *testing.T) {
	t.Parallel()
	files := hosttools.Declarations(corpus(t))
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, "json/") {
			fmt.Fprintf(&b, "-- %s --\n%s", name, files[name])
		}
	}
	const golden = "testdata/declare/golden.txt"
	if *update {
		checktest.Must(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	checktest.Must(t, err)
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("declarations (-want +got), -update rewrites them:\n%s", diff)
	}
	for name := range files {
		if !filepath.IsLocal(name) || strings.Contains(name, "//") {
			t.Errorf("%q is not a local file path", name)
		}
	}
}

// TestPythonParses verifies that the signatures are valid Python, because people and models read them as Python.
func TestPythonParses(t *testing.T) {
	t.Parallel()
	files := hosttools.Declarations(corpus(t))
	maps.DeleteFunc(files, func(name, _ string) bool { return !strings.HasSuffix(name, ".pyi") })
	in, err := json.Marshal(files)
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	cmd := exec.Command("python3", "-c", `
import ast, json, sys
for name, text in json.load(sys.stdin).items():
    try: ast.parse(text)
    except SyntaxError as e: print(name, e, text)`)
	cmd.Stdin = strings.NewReader(string(in))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDeclarationBounds verifies that declarations stay bounded for definitions that grow when their references are
// followed.
func TestDeclarationBounds(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]map[string]any{
		"doubling": doubling(60), "deep": deep(5000), "wide": wide(100_000), "long": {"type": "string", "enum": []any{strings.Repeat("x", 1<<20)}},
		"long names": {"type": "object", "properties": map[string]any{strings.Repeat("x", 1<<20): true}},
	} {
		for file, text := range hosttools.Declarations([]hosttools.Tool{{Server: "s", Definition: hosttools.Definition{Name: "t", Input: schema, Output: schema}}}) {
			if len(text) > 200<<10 {
				t.Errorf("%s: %s has %d bytes", name, file, len(text))
			}
		}
	}
}

// doubling returns n definitions. Each definition contains the previous definition twice.
func doubling(n int) map[string]any {
	defs := map[string]any{"d0": map[string]any{"type": "object", "properties": map[string]any{"x": map[string]any{"type": "string"}}}}
	for i := 1; i < n; i++ {
		before := map[string]any{"$ref": fmt.Sprintf("#/$defs/d%d", i-1)}
		merged := map[string]any{"allOf": []any{before, map[string]any{"type": "object", "properties": map[string]any{fmt.Sprint("p", i): map[string]any{"allOf": []any{before}}}}}}
		defs[fmt.Sprint("d", i)] = map[string]any{"allOf": []any{merged, map[string]any{"type": "object", "properties": map[string]any{
			fmt.Sprint("a", i): map[string]any{"anyOf": []any{before, map[string]any{"type": "array", "items": map[string]any{"allOf": []any{before}}}}},
		}}}}
	}
	return map[string]any{"$defs": defs, "$ref": fmt.Sprintf("#/$defs/d%d", n-1)}
}

// deep returns a nested schema whose nesting does not increase the declared depth.
func deep(n int) map[string]any {
	s := map[string]any{"type": "string"}
	for i := range n {
		s = map[string]any{[]string{"allOf", "anyOf", "oneOf"}[i%3]: []any{s}}
	}
	return s
}

func wide(n int) map[string]any {
	properties := map[string]any{}
	for i := range n {
		properties[fmt.Sprint("p", i)] = map[string]any{"type": "string"}
	}
	return map[string]any{"type": "object", "properties": properties}
}

func FuzzDeclarations(f *testing.F) {
	for _, t := range corpus(f) {
		in, _ := json.Marshal(t.Input)
		out, _ := json.Marshal(t.Output)
		f.Add(t.Server, t.Name, t.Description, in, out)
	}
	f.Fuzz(func(t *testing.T, server, name, description string, in, out []byte) {
		tool := hosttools.Tool{Server: server, Definition: hosttools.Definition{Name: name, Description: description}}
		_ = json.Unmarshal(in, &tool.Input) // without a schema if in is not an object
		_ = json.Unmarshal(out, &tool.Output)
		files := hosttools.Declarations([]hosttools.Tool{tool})
		if len(files) != 3 {
			t.Errorf("%d files", len(files))
		}
		for file, text := range files {
			switch {
			case !filepath.IsLocal(file):
				t.Errorf("%q is not a local file path", file)
			case len(text) > len(description)+200<<10:
				t.Errorf("%s has %d bytes", file, len(text))
			}
		}
		if line := hosttools.IndexLine(tool); strings.ContainsAny(line, "\n\r\x00\u2028\u202e") || len(line) > 8192 {
			t.Errorf("the line of the index is %q", line)
		}
	})
}
