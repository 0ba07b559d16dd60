package tools

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	"github.com/google/dotprompt/go/dotprompt"
	"github.com/xeipuuv/gojsonschema"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// CheckPrompt reads a dotprompt file and checks all that can be known of it without a model: the frontmatter, as
// strictly as package frontmatter does, and the syntax of the template. The error is a frontmatter.Errors.
func CheckPrompt(name string, src []byte) (*frontmatter.Document, error) {
	doc, err := frontmatter.Parse(name, src)
	if err != nil {
		return nil, err
	}
	out, err := doc.Source()
	if err != nil {
		return nil, err
	}
	if errs := checkSource(doc, string(out)); len(errs) > 0 {
		return nil, errs
	}
	return doc, nil
}

// checkReach refuses what would have the host open a file or an address that an agent's file chooses: the address of a
// model, and references of schemas, which Genkit's validator follows; and schemas that it cannot read.
func checkReach(doc *frontmatter.Document, parsed dotprompt.ParsedPrompt) (errs frontmatter.Errors) {
	for key := range parsed.Config {
		if strings.EqualFold(key, "httpOptions") { // as JSON is read
			errs = append(errs, doc.Problem("config."+key, "remove it; set provider addresses in the environment",
				"config must not contain httpOptions, which control where the provider's key is sent"))
		}
	}
	schemas := []any{parsed.Input.Schema, parsed.Output.Schema}
	for i, key := range []string{"input", "output"} {
		schema, err := picoschema(schemas[i])
		if err != nil || schema == nil { // the short form has no references
			continue
		}
		if err = yamlnode.CheckReferences(schema); err == nil {
			_, err = gojsonschema.NewSchema(gojsonschema.NewGoLoader(schema))
		}
		if err != nil {
			errs = append(errs, doc.Problem(key+".schema", "", "%s.schema: %s", key, oneLine(err.Error())))
		}
	}
	return errs
}

var templateLine = regexp.MustCompile(`(?i)line (\d+)`)

// checkSource checks what Genkit gets: it compiles the template as Genkit will do at every call.
func checkSource(doc *frontmatter.Document, source string) (errs frontmatter.Errors) {
	if doc.Sandbox != nil && doc.Sandbox.HostTools != nil {
		for _, p := range hosttools.ConditionProblems(*doc.Sandbox.HostTools) {
			errs = append(errs, doc.Problem("sandbox.host_tools."+p.Field, p.Hint, "%s", p.Message))
		}
	}
	parsed, err := parseSource(source)
	if err == nil {
		errs, err = append(errs, checkReach(doc, parsed)...), compile(parsed.Template)
	}
	if err == nil {
		return errs
	}
	text := oneLine(err.Error())
	line := doc.BodyLine
	if m := templateLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			// Genkit trims the template, so its first line is the first that is not blank.
			blank := len(doc.Body) - len(strings.TrimLeft(doc.Body, " \t\r\n"))
			line += n - 1 + strings.Count(doc.Body[:blank], "\n")
		}
	}
	text = "cannot read the template: " + text
	return append(errs, &frontmatter.Error{File: doc.File, Line: line, Message: text})
}

// parseSource reads a prompt file as Genkit does.
func parseSource(source string) (parsed dotprompt.ParsedPrompt, err error) {
	defer recovered(&err)
	return dotprompt.ParseDocument(source)
}

// compile checks the syntax of a template.
func compile(template string) (err error) {
	defer recovered(&err)
	_, err = dotprompt.NewDotprompt(nil).Compile(template, nil)
	return err
}

// recovered makes an error of a panic: what panics on a file must not end the program.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%v", r)
	}
}

// LoadPrompt registers a dotprompt file under the base name of name, without ".prompt", and returns the prompt; errors
// name name. `sandbox:` in it becomes an entry of `use:`, so executing the prompt offers the model its tools; without
// `maxTurns:` it may take frontmatter.DefaultMaxTurns turns. A file that is malformed, or that asks for a sandbox while
// the plugin is missing, is an error and never a prompt without sandbox.
//
// Genkit ignores `toolChoice:` of a file: pass ai.WithToolChoice to Execute, or use an Agent, which honours it.
func LoadPrompt(g *genkit.Genkit, name string, src []byte) (ai.Prompt, error) {
	doc, err := CheckPrompt(name, src)
	if err != nil {
		return nil, err
	}
	return register(g, doc)
}

func register(g *genkit.Genkit, doc *frontmatter.Document) (ai.Prompt, error) {
	if doc.Sandbox != nil && pluginOf(g) == nil {
		return nil, &frontmatter.Error{
			File: doc.File, Message: "it requires a sandbox, but Genkit has no sandbox plugin",
			Hint: "pass genkit.WithPlugins(&tools.Plugin{…}) to genkit.Init",
		}
	}
	name := promptName(doc.File)
	if genkit.LookupPrompt(g, name) != nil {
		return nil, &frontmatter.Error{File: doc.File, Message: fmt.Sprintf("prompt %q is already loaded", name)}
	}
	src, err := doc.Source()
	if err != nil {
		return nil, err
	}
	p, err := loadSource(g, string(src), name)
	if err != nil {
		return nil, &frontmatter.Error{File: doc.File, Message: oneLine(err.Error())}
	}
	return p, nil
}

// loadSource registers a prompt. Genkit panics on what it takes for mistakes of a program, which a file is not.
func loadSource(g *genkit.Genkit, source, name string) (p ai.Prompt, err error) {
	defer recovered(&err)
	return genkit.LoadPromptFromSource(g, source, name, "")
}

// promptName returns "coder" for "agents/coder.prompt".
func promptName(file string) string {
	return strings.TrimSuffix(path.Base(strings.ReplaceAll(file, "\\", "/")), promptSuffix)
}

const promptSuffix = ".prompt"

// isPartial reports whether a file holds a partial template.
func isPartial(name string) bool { return strings.HasPrefix(path.Base(name), "_") }

// isPrompt reports whether a file holds a prompt.
func isPrompt(name string) bool { return strings.HasSuffix(name, promptSuffix) && !isPartial(name) }

// neutral returns a value as data of a template: the markers that dotprompt puts into rendered text to begin a message
// or a media part lose their meaning in it. Templates are rendered once, so template syntax in data is text anyway.
func neutral(v any) any {
	switch v := v.(type) {
	case string:
		return neutralText(v)
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[neutralText(k)] = neutral(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = neutral(item)
		}
		return out
	}
	return v
}

// templateData returns input as Genkit would read it from JSON, and neutral.
func templateData(input map[string]any) (any, error) {
	b, err := json.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the input as JSON: %w", err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	return neutral(v), nil
}

const marker = "<<<dotprompt:"

func neutralText(s string) string {
	s = strings.ReplaceAll(s, marker, "<<< dotprompt:")
	// A marker could also be put together from the end of one value and the beginning of the next.
	for n := len(marker) - 1; n >= 3; n-- {
		if strings.HasSuffix(s, marker[:n]) {
			return s + " "
		}
	}
	return s
}
