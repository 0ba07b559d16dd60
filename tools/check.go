package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"
	"github.com/google/dotprompt/go/dotprompt"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// CheckAgent reads an agent's file and reports the problems that prevent it from running with any model and input. It
// runs CheckPrompt and checks the partials. It also checks that the listed tools, middleware, and output format exist
// in a program that defines no additional ones. It returns all problems at once as frontmatter.Errors, some of which
// may be in partials. If the file is readable, CheckAgent returns the document even with an error.
func CheckAgent(file string) (*frontmatter.Document, error) {
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
	c.names()
	source := string(src)
	if len(c.errs) == 0 { // check the source Genkit gets
		out, err := doc.Source()
		if err != nil {
			return nil, err
		}
		source = string(out)
	}
	parsed, errs := checkSource(doc, source)
	c.errs = append(c.errs, errs...)
	c.contract(parsed)
	if err := c.partials(); err != nil {
		return nil, err
	}
	if len(c.errs) > 0 {
		c.errs.Sort(file)
		return doc, c.errs
	}
	return doc, nil
}

// CheckPartial reads a partial's file and checks the syntax and the partials it includes. The error is a
// frontmatter.Errors.
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
	found[name] = template{file: file, line: 1, text: string(src)} // keyed by the caller's name for the file
	c := agentCheck{}
	c.partial(found, name)
	if len(c.errs) > 0 {
		return c.errs
	}
	return nil
}

type agentCheck struct {
	doc  *frontmatter.Document
	errs frontmatter.Errors
}

func (c *agentCheck) fail(path, hint, format string, args ...any) {
	c.errs = append(c.errs, c.doc.Problem(path, hint, format, args...))
}

// names checks tools: and use:, which Genkit resolves when the agent runs.
func (c *agentCheck) names() {
	for i, name := range c.doc.Meta.Tools {
		path := fmt.Sprintf("tools[%d]", i)
		if strings.HasPrefix(name, "sandbox_") {
			c.fail(path, "remove it; sandbox: adds the sandbox tools", "tool %q must not be listed", sanitize.Clip(name))
		} else {
			c.fail(path, "remove it; sandbox: adds tools that run code", "unknown tool %q", sanitize.Clip(name))
		}
	}
	for _, name := range c.doc.Meta.Use {
		hint := ""
		if near, ok := suggest.Closest(name, []string{frontmatter.Middleware}); ok {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		c.fail("use", hint, "use: unknown middleware %q", sanitize.Clip(name))
	}
}

// contract checks the declared input and output.
func (c *agentCheck) contract(parsed dotprompt.ParsedPrompt) {
	format := parsed.Output.Format
	var formats []string
	for _, f := range ai.DEFAULT_FORMATS {
		formats = append(formats, f.Name())
	}
	if format != "" && !slices.Contains(formats, format) {
		c.fail("output.format", suggest.Hint(format, formats), "unknown output format %q", sanitize.Clip(format))
	}
	text, _ := parsed.Input.Schema.(string)
	if name, _, _ := strings.Cut(text, ","); slices.Contains(dotprompt.JSONSchemaScalarTypes, strings.TrimSpace(name)) {
		c.fail("input.schema", "for example schema: {task: string}",
			"input must be a mapping of names to values, not %s", sanitize.Clip(text))
	} else {
		c.schema(parsed.Input.Schema, "input.schema")
	}
	if format != ai.OutputFormatText { // the text format ignores the schema
		c.schema(parsed.Output.Schema, "output.schema")
	}
}

// partials checks the partials the agent's template includes.
func (c *agentCheck) partials() error {
	found, err := partialsBeside(c.doc)
	if one, ok := errors.AsType[*frontmatter.Error](err); ok {
		c.errs = append(c.errs, one)
		return nil
	}
	if err != nil {
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
	t := found[name]
	if err := compile(t.text); err != nil {
		message := "cannot read the template: " + oneLine(err.Error())
		c.errs = append(c.errs, &frontmatter.Error{File: t.file, Line: 1, Message: message})
	}
	c.included(found, t)
	one, ok := errors.AsType[*frontmatter.Error](found.cycleFrom(name))
	if ok && !slices.ContainsFunc(c.errs, func(e *frontmatter.Error) bool { return *e == *one }) {
		c.errs = append(c.errs, one)
	}
}

// included reports missing partials of t.
func (c *agentCheck) included(found partials, t template) {
	for _, inc := range t.includes() {
		switch _, ok := found[inc.name]; {
		case inc.computed():
			c.errs = append(c.errs, t.problem(inc.offset, "write it out", "the name of an included partial must be literal"))
		case !ok:
			c.errs = append(c.errs, t.problem(inc.offset,
				"create partial NAME as a file _NAME"+promptSuffix+" next to the agent's file", "partial %q not found",
				sanitize.Clip(inc.name)))
		}
	}
}

// schema checks a schema in dotprompt's short form (Picoschema) or in JSON Schema.
func (c *agentCheck) schema(v any, path string) {
	if v == nil {
		return
	}
	_, err := picoschema(v)
	if err == nil {
		return
	}
	if m, ok := v.(map[string]any); ok && likeJSONSchema(m) {
		// if a schema has several problems, Genkit's error names a random one.
		c.fail(path, "remove keys that JSON Schema does not have, empty values such as false and [], and lists of types",
			"Genkit cannot read the JSON Schema")
		return
	}
	c.fail(path, "", "cannot read the schema: %s", oneLine(strings.TrimPrefix(err.Error(), "Picoschema: ")))
}

// likeJSONSchema reports whether a schema looks like JSON Schema rather than Picoschema.
func likeJSONSchema(m map[string]any) bool {
	_, properties := m["properties"].(map[string]any)
	name, _ := m["type"].(string)
	return properties || name == "object" || name == "array"
}

// picoschema parses a schema like Genkit and returns it as JSON Schema.
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
