package tools_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/core"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/tools"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestSchemas pins the definitions of all tools models see.
func TestSchemas(t *testing.T) {
	t.Parallel()
	var names []string
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		for _, tool := range tools.ToolsOf(mode) {
			names = append(names, tool.Name())
			checkGolden(t, filepath.Join("schema", tool.Name()), tool.Definition())
		}
	}
	want := []string{
		"sandbox_run", "sandbox_close", "sandbox_exec", "sandbox_exec_kill", "sandbox_exec_read", "sandbox_exec_wait",
		"sandbox_exec_write", "sandbox_fs_delete", "sandbox_fs_edit", "sandbox_fs_list", "sandbox_fs_read", "sandbox_fs_write", "sandbox_open",
		"sandbox_rollback", "sandbox_snapshot",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

// checkGolden compares v, encoded as JSON, with testdata/NAME.json.
func checkGolden(t *testing.T, name string, v any) {
	t.Helper()
	var got bytes.Buffer
	enc := json.NewEncoder(&got)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	checktest.Must(t, enc.Encode(v))
	file := filepath.Join("testdata", name+".json")
	if *update {
		checktest.Must(t, os.WriteFile(file, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(file)
	checktest.Must(t, err)
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (-want +got), run the test with -update when this is meant:\n%s", file, diff)
	}
}

// TestSchemasArePortable verifies that all providers accept the schemas: every property has a type (no `any`), no
// references, names that every provider accepts, and no problematic characters in texts.
func TestSchemasArePortable(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$`)
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		for _, tool := range tools.ToolsOf(mode) {
			def := tool.Definition()
			if !name.MatchString(def.Name) {
				t.Errorf("name %q", def.Name)
			}
			if def.Description == "" || len(def.Description) > 1024 {
				t.Errorf("%s: description of %d bytes", def.Name, len(def.Description))
			}
			if strict, ok := def.Metadata["strict"].(bool); !ok || strict {
				t.Errorf("%s: strict = %v, %v", def.Name, strict, ok)
			}
			checkPortable(t, def.Name, def.InputSchema)
			if len(sub(def.InputSchema["properties"])) == 0 {
				t.Errorf("%s: no properties", def.Name)
			}
			undescribed(t, def.Name, def.InputSchema)
		}
	}
}

// TestEveryFieldIsDescribed verifies that every field of Sandbox has a description, because the Dev UI shows them in
// the form.
func TestEveryFieldIsDescribed(t *testing.T) {
	t.Parallel()
	schema := core.InferSchemaMap(tools.Sandbox{})
	var fields func(at reflect.Type) int
	fields = func(at reflect.Type) (n int) {
		for i := range at.NumField() {
			typ := at.Field(i).Type
			if at.Field(i).Tag.Get("jsonschema") == "-" {
				continue
			}
			if k := typ.Kind(); k == reflect.Pointer || k == reflect.Slice {
				typ = typ.Elem()
			}
			if n++; typ.Kind() == reflect.Struct {
				n += fields(typ)
			}
		}
		return n
	}
	if seen := undescribed(t, "Sandbox", schema); seen != fields(reflect.TypeFor[tools.Sandbox]()) || seen < 20 {
		t.Errorf("the schema has %d fields, the type %d", seen, fields(reflect.TypeFor[tools.Sandbox]()))
	}
}

// undescribed reports the properties of a schema without a description, at any depth, and returns the number of all
// properties.
func undescribed(t *testing.T, at string, schema map[string]any) (seen int) {
	t.Helper()
	for name, prop := range sub(schema["properties"]) {
		seen++
		if str(sub(prop)["description"]) == "" {
			t.Errorf("%s.%s has no description; give its field a tag jsonschema_description", at, name)
		}
		seen += undescribed(t, at+"."+name, sub(prop)) + undescribed(t, at+"."+name+"[]", sub(sub(prop)["items"]))
	}
	return seen
}

func checkPortable(t *testing.T, at string, schema map[string]any) {
	t.Helper()
	typ, ok := schema["type"].(string)
	if !ok || !slices.Contains([]string{"object", "string", "integer", "boolean", "array"}, typ) {
		t.Errorf("%s: type %v", at, schema["type"])
	}
	for key, value := range schema {
		switch {
		case strings.HasPrefix(key, "$"), key == "anyOf", key == "oneOf", key == "allOf":
			t.Errorf("%s: %s", at, key)
		case key == "properties":
			for name, prop := range sub(value) {
				checkPortable(t, at+"."+name, sub(prop))
			}
		case key == "items":
			checkPortable(t, at+"[]", sub(value))
		}
	}
}
