package tools

import (
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

// CheckPrompt parses a dotprompt file and checks everything that does not depend on a model. It checks the frontmatter
// as strictly as package frontmatter, and the syntax of the template. The error is a frontmatter.Errors.
func CheckPrompt(name string, src []byte) (*frontmatter.Document, error) {
	doc, err := frontmatter.Parse(name, src)
	if err != nil {
		return nil, err
	}
	out, err := doc.Source()
	if err != nil {
		return nil, err
	}
	if _, errs := checkSource(doc, string(out)); len(errs) > 0 {
		return nil, errs
	}
	return doc, nil
}

// checkReach prevents an agent's file from making the host open files or URLs. Examples are the model's address and
// schema references, which Genkit's validator follows. It also rejects schemas the validator cannot read.
func checkReach(doc *frontmatter.Document, parsed dotprompt.ParsedPrompt) (errs frontmatter.Errors) {
	for key := range parsed.Config {
		if strings.EqualFold(key, "httpOptions") { // JSON keys are case-insensitive
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

// checkSource parses and checks the source Genkit gets. It compiles the template, as Genkit does for every call.
func checkSource(doc *frontmatter.Document, source string) (parsed dotprompt.ParsedPrompt, errs frontmatter.Errors) {
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
		return parsed, errs
	}
	text := oneLine(err.Error())
	line := doc.BodyLine
	if m := templateLine.FindStringSubmatch(text); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			// Genkit trims the template, so line 1 is the first non-blank line.
			blank := len(doc.Body) - len(strings.TrimLeft(doc.Body, " \t\r\n"))
			line += n - 1 + strings.Count(doc.Body[:blank], "\n")
		}
	}
	text = "cannot read the template: " + text
	return parsed, append(errs, &frontmatter.Error{File: doc.File, Line: line, Message: text})
}

// parseSource parses a prompt file like Genkit.
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

// recovered converts a panic to an error, because an invalid file must not crash the program.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%v", r)
	}
}

// LoadPrompt registers a dotprompt file under the base name of name, without ".prompt", and returns the prompt. Errors
// contain name. LoadPrompt converts `sandbox:` to an entry of `use:`, so executing the prompt offers the sandbox tools
// to the model. In this case, `maxTurns:` defaults to frontmatter.DefaultMaxTurns. LoadPrompt returns an error if the
// file is malformed, or if it configures a sandbox and the plugin is missing. It never returns a prompt without the
// configured sandbox.
//
// If you pass ai.WithUse to Execute, Genkit ignores the file's `use:`, including the sandbox. Add other middleware to
// the file's `use:` instead.
//
// Genkit ignores `toolChoice:` in a file. Pass ai.WithToolChoice to Execute instead, or use an Agent, which supports
// it.
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

// loadSource registers a prompt. Genkit panics on errors in the file, as if they were programming mistakes.
func loadSource(g *genkit.Genkit, source, name string) (p ai.Prompt, err error) {
	defer recovered(&err)
	return genkit.LoadPromptFromSource(g, source, name, "")
}

// promptName returns the prompt's name for a file name, for example "coder" for "agents/coder.prompt".
func promptName(file string) string {
	return strings.TrimSuffix(path.Base(strings.ReplaceAll(file, "\\", "/")), promptSuffix)
}

const promptSuffix = ".prompt"

// isPartial reports whether a file contains a partial.
func isPartial(name string) bool { return strings.HasPrefix(path.Base(name), "_") }

// isPrompt reports whether a file contains a prompt.
func isPrompt(name string) bool { return strings.HasSuffix(name, promptSuffix) && !isPartial(name) }

// neutral returns v as safe template data. In rendered text, dotprompt uses markers to begin a message or a media part.
// neutral escapes these markers. Template syntax in data needs no escaping, because templates are rendered only once.
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

// exactText converts large integers to text, because Genkit rounds them.
func exactText(v any) any {
	if n, isLarge := jsonNumber(v).(int64); isLarge {
		return strconv.FormatInt(n, 10)
	}
	return v
}

const marker = "<<<dotprompt:"

func neutralText(s string) string {
	s = strings.ReplaceAll(s, marker, "<<< dotprompt:")
	// A marker could also form from the end of one value and the beginning of the next value.
	for n := len(marker) - 1; n >= 3; n-- {
		if strings.HasSuffix(s, marker[:n]) {
			return s + " "
		}
	}
	return s
}
