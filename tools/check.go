package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"
	"github.com/google/dotprompt/go/dotprompt"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Known are the names that agents' files may use beside those of Genkit and of this package, because the program
// registers them.
type Known struct {
	Tools      []string
	Middleware []string
	Formats    []string
	Schemas    []string
}

// CheckAgent reads an agent's file and checks what would keep it from running whatever its model and its input are:
// CheckPrompt, what it includes, and that there is everything it names: tools, middleware, an output format and types.
// Nil known is none of the program's own. All problems come at once, as frontmatter.Errors; some may be in partials. The
// document comes along with them when the file could be read at all.
func CheckAgent(file string, known *Known) (*frontmatter.Document, error) {
	src, err := frontmatter.ReadFile(file)
	if err != nil {
		return nil, err
	}
	doc, err := frontmatter.Check(file, src)
	if doc == nil {
		return nil, err
	}
	c := agentCheck{doc: doc}
	errors.As(err, &c.errs)
	if known != nil {
		c.known = *known
	}
	c.names()
	source := string(src)
	if len(c.errs) == 0 { // what Genkit gets
		out, err := doc.Source()
		if err != nil {
			return nil, err
		}
		source = string(out)
	}
	c.errs = append(c.errs, checkSource(doc, source)...)
	if err := c.contract(source); err != nil && len(c.errs) == 0 {
		return nil, err
	}
	if err := c.partials(); err != nil {
		return nil, err
	}
	if len(c.errs) > 0 {
		slices.SortStableFunc(c.errs, frontmatter.InOrder(file))
		return doc, c.errs
	}
	return doc, nil
}

// CheckPartial reads the file of a partial and checks its syntax and what it includes. The error is a frontmatter.Errors.
func CheckPartial(file string) error {
	src, err := frontmatter.ReadFile(file)
	if err != nil {
		return err
	}
	found, err := partialsIn(filepath.Dir(file))
	if err != nil {
		return err
	}
	name := partialName(filepath.ToSlash(file))
	found[name] = partial{file: file, source: string(src)} // under the name that the caller knows it by
	c := agentCheck{}
	c.partial(found, name)
	if len(c.errs) > 0 {
		return c.errs
	}
	return nil
}

type agentCheck struct {
	doc   *frontmatter.Document
	known Known
	errs  frontmatter.Errors
}

func (c *agentCheck) fail(path []any, hint, format string, args ...any) {
	c.errs = append(c.errs, c.doc.Problem(path, hint, format, args...))
}

// names checks tools: and use:, which Genkit looks up when the agent runs.
func (c *agentCheck) names() {
	for i, name := range c.doc.Meta.Tools {
		switch {
		case slices.Contains(c.known.Tools, name):
		case strings.HasPrefix(name, "sandbox_"):
			c.fail([]any{"tools", i}, "remove it; sandbox: adds the sandbox tools", "tool %q must not be listed", sanitize.Clip(name))
		default:
			c.fail([]any{"tools", i}, hintOf(name, c.known.Tools, "remove it; sandbox: adds tools that run code"), "unknown tool %q", sanitize.Clip(name))
		}
	}
	for _, name := range c.doc.Meta.Use {
		if !slices.Contains(c.known.Middleware, name) {
			c.fail([]any{"use"}, hintOf(name, append([]string{frontmatter.Middleware}, c.known.Middleware...), ""), "use: unknown middleware %q", sanitize.Clip(name))
		}
	}
}

// hintOf returns the known name that is nearest, else the other hint.
func hintOf(name string, known []string, otherwise string) string {
	if near, ok := suggest.Closest(name, known); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return otherwise
}

// contract checks what the file declares of its input and its answer.
func (c *agentCheck) contract(source string) error {
	parsed, err := parseSource(source)
	if err != nil {
		return err
	}
	format := parsed.Output.Format
	if format != "" && !slices.Contains(formats(c.known), format) {
		c.fail([]any{"output", "format"}, suggest.Hint(format, formats(c.known)),
			"unknown output format %q", sanitize.Clip(format))
	}
	input := schemaCheck{agentCheck: c, path: []any{"input", "schema"}}
	if name, ok := parsed.Input.Schema.(string); ok && slices.Contains(dotprompt.JSONSchemaScalarTypes, first(name)) {
		c.fail(input.path, "as in schema: {task: string}", "input must be a mapping of names to values, not %s", sanitize.Clip(name))
	} else {
		input.schema(parsed.Input.Schema)
	}
	if format != ai.OutputFormatText { // which looks at no schema
		(&schemaCheck{agentCheck: c, path: []any{"output", "schema"}}).schema(parsed.Output.Schema)
	}
	return nil
}

// formats lists the names of output formats.
func formats(known Known) []string {
	var names []string
	for _, f := range ai.DEFAULT_FORMATS {
		names = append(names, f.Name())
	}
	return append(names, known.Formats...)
}

// partials checks what the agent's template includes.
func (c *agentCheck) partials() error {
	found, err := partialsBeside(c.doc)
	var one *frontmatter.Error
	switch {
	case errors.As(err, &one):
		c.errs = append(c.errs, one)
		return nil
	case err != nil:
		return err
	}
	c.included(found, body(c.doc))
	for _, name := range found.needed(c.doc.Body) {
		c.partial(found, name)
	}
	return nil
}

// partial checks one partial.
func (c *agentCheck) partial(found partials, name string) {
	t := found[name].template()
	if err := compile(t.text); err != nil {
		c.errs = append(c.errs, &frontmatter.Error{File: t.file, Line: 1, Message: "cannot read the template: " + oneLine(err.Error())})
	}
	c.included(found, t)
	var one *frontmatter.Error
	if err := found.cycleFrom(name); errors.As(err, &one) && !slices.ContainsFunc(c.errs, func(e *frontmatter.Error) bool { return *e == *one }) {
		c.errs = append(c.errs, one)
	}
}

// included checks that there is what a template includes.
func (c *agentCheck) included(found partials, t template) {
	for _, inc := range t.includes() {
		switch _, ok := found[inc.name]; {
		case inc.computed():
			c.errs = append(c.errs, t.problem(inc.offset, "write it out", "the name of an included partial must be literal"))
		case !ok:
			c.errs = append(c.errs, t.problem(inc.offset, "create partial NAME as a file _NAME"+promptSuffix+" next to the agent's file", "partial %q not found", sanitize.Clip(inc.name)))
		}
	}
}

// schemaCheck checks a schema, in the short form of dotprompt or as JSON Schema.
type schemaCheck struct {
	*agentCheck
	path  []any
	named bool // it names schemas of the program
}

func (c *schemaCheck) schema(v any) {
	if v == nil {
		return
	}
	before := len(c.errs)
	_, err := picoschema(v)
	if err == nil {
		return
	}
	if m, ok := v.(map[string]any); ok && likeJSONSchema(m) {
		c.fail(c.path, "remove keys that JSON Schema does not have, empty values such as false and [], and lists of types",
			"Genkit cannot read the JSON Schema")
		return
	}
	c.short(v, c.path)
	if len(c.errs) == before && !c.named {
		c.fail(c.path, "", "cannot read the schema: %s", oneLine(strings.TrimPrefix(err.Error(), "Picoschema: ")))
	}
}

// likeJSONSchema reports whether a schema is meant to be JSON Schema, not the short form.
func likeJSONSchema(m map[string]any) bool {
	_, properties := m["properties"].(map[string]any)
	name, _ := m["type"].(string)
	return properties || name == "object" || name == "array"
}

// picoschema reads a schema as Genkit does, and returns it as JSON Schema.
func picoschema(v any) (m map[string]any, err error) {
	defer recovered(&err)
	s, err := dotprompt.Picoschema(v, &dotprompt.PicoschemaOptions{})
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return m, json.Unmarshal(b, &m)
}

// short checks a schema in the short form.
func (c *schemaCheck) short(v any, path []any) {
	switch v := v.(type) {
	case string:
		name := first(v)
		switch {
		case slices.Contains(dotprompt.JSONSchemaScalarTypes, name):
		case slices.Contains(c.known.Schemas, name):
			c.named = true
		default:
			known := append(slices.Clone(dotprompt.JSONSchemaScalarTypes), c.known.Schemas...)
			c.fail(path, suggest.Hint(name, known), "unknown type %q", sanitize.Clip(name))
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			c.field(key, v[key], append(slices.Clone(path), key))
		}
	default:
		c.fail(path, "write the name of a type, as in string", "the type of %v must be text or a mapping", path[len(path)-1])
	}
}

// field checks one field of the short form, "name(kind, description)".
func (c *schemaCheck) field(key string, v any, path []any) {
	_, paren, ok := strings.Cut(key, "(")
	if !ok || key == dotprompt.WildcardPropertyName {
		c.short(v, path)
		return
	}
	switch kind := first(strings.TrimSuffix(paren, ")")); kind {
	case "array", "object":
		c.short(v, path)
	case "enum":
		if _, ok := v.([]any); !ok {
			c.fail(path, "as in [red, green]", "%s: the values of an enum must be a list", sanitize.Clip(key))
		}
	default:
		c.fail(path, suggest.Hint(kind, []string{"array", "object", "enum"}), "%s: unknown kind %q", sanitize.Clip(key), sanitize.Clip(kind))
	}
}

// first is what stands before the description in the short form.
func first(s string) string {
	name, _, described := strings.Cut(s, ",")
	if described {
		return strings.TrimSpace(name)
	}
	return s
}
