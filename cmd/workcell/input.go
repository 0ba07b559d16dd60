package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// maxInputBytes bounds an input file and a value that is read from one.
const maxInputBytes = 4 << 20

// input returns the input of a run: the values of a file, if one is named, and those of arguments over them.
func (a *app) input(stdin io.Reader, wf *workflow.Workflow, file string, args []string) (map[string]any, error) {
	input, err := readInputFile(stdin, file)
	if err != nil {
		return nil, err
	}
	schema, err := schemaOf(wf)
	if err != nil {
		return nil, err
	}
	doc, fields, text := wf.Agent(), inputFields(schema), ""
	if doc != nil {
		args, text = splitArgs(args, fields)
	}
	pairs, err := parsePairs(args)
	if err != nil {
		return nil, err
	}
	if doc != nil {
		for _, name := range slices.Sorted(maps.Keys(pairs)) {
			if err := knownInput(name, fields); err != nil {
				known := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
				hint := fmt.Sprintf("the inputs are %s; for text that starts with %q, use FIELD=%[2]s…", known, name+"=")
				return nil, fail(exitInvalid, err, hint)
			}
		}
	}
	values, err := parseInput(wf, fields, pairs, text)
	if err != nil && doc == nil {
		err = fail(exitInvalid, err, "check input: in the workflow")
	}
	if err != nil {
		return nil, err
	}
	maps.Copy(input, values)
	if doc == nil {
		a.reportStrange(input, schema)
		return input, nil
	}
	if err := tools.CheckInput(doc, input); err != nil {
		return nil, fail(exitInvalid, err, "pass NAME=VALUE or --input-file FILE")
	}
	return input, nil
}

// schemaOf returns the JSON Schema of the input of a workflow or an agent.
func schemaOf(wf *workflow.Workflow) (map[string]any, error) {
	if doc := wf.Agent(); doc != nil {
		return tools.InputSchema(doc)
	}
	return wf.InputSchema(), nil
}

// parseInput returns the values of named inputs and of a bare text, by the types of a schema's fields.
func parseInput(wf *workflow.Workflow, fields, pairs map[string]string, text string) (map[string]any, error) {
	pairs, err := withText(fields, pairs, text)
	if err != nil {
		return nil, err
	}
	if wf.Agent() == nil {
		return wf.ParseInput(pairs)
	}
	input := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		err := knownInput(name, fields)
		if err == nil {
			input[name], err = typedValue(name, fields[name], pairs[name])
		}
		if err != nil {
			return nil, fail(exitInvalid, err, "")
		}
	}
	return input, nil
}

// reportStrange prints the names that a workflow's schema does not have. It may allow them, as JSON Schema does unless it is
// told not to, but most are typing errors, and what was meant has its default. A schema that speaks of further names in any
// other way is taken at its word.
func (a *app) reportStrange(input, schema map[string]any) {
	for _, key := range []string{
		"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf",
		"if", "dependentSchemas",
	} {
		if schema[key] != nil {
			return
		}
	}
	fields := inputFields(schema)
	for _, name := range slices.Sorted(maps.Keys(input)) {
		if err := knownInput(name, fields); err != nil {
			a.notice("notice: %v", err)
		}
	}
}

// parsePairs reads NAME=VALUE and NAME=@FILE.
func parsePairs(pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if strings.HasPrefix(strings.TrimSpace(p), "{") {
			return nil, usageError(fmt.Errorf("invalid input %q: must be NAME=VALUE", sanitize.Cut(p, 60)),
				"to read all inputs from a file, use --input-file FILE, or --input-file - for standard input")
		}
		if !ok || name == "" {
			return nil, usageError(fmt.Errorf("invalid input %q: must be NAME=VALUE", sanitize.Cut(p, 60)), "for example --input repo=acme/shop")
		}
		if _, twice := out[name]; twice {
			return nil, usageError(fmt.Errorf("input %s is specified twice", name), "")
		}
		path, special := strings.CutPrefix(value, "@")
		switch {
		case special && strings.HasPrefix(path, "@"):
			value = path // @@ stands for a value that begins with @
		case special:
			raw, err := readLimited(nil, path)
			if err != nil {
				return nil, usageError(fmt.Errorf("input %s: %w", name, err), "@ reads a file; use @@ for a value that starts with @")
			}
			value = string(raw)
		}
		out[name] = value
	}
	return out, nil
}

// reportSkipped prints what of a workspace is not copied into sandboxes, but for version control's own.
func (a *app) reportSkipped(ctx context.Context, at transfer.Place) {
	skipped, err := transfer.CheckWorkspace(ctx, at)
	if err != nil || len(skipped) == 0 { // the copy itself fails with the error
		return
	}
	names := skipped[:min(len(skipped), 3)]
	more := ""
	if rest := len(skipped) - len(names); rest > 0 {
		more = fmt.Sprintf(" and %d more", rest)
	}
	a.notice("notice: links and special files in %s are not copied: %s%s", at.Dir, strings.Join(names, ", "), more)
}

// readInputFile reads a mapping, an empty one without a path.
func readInputFile(stdin io.Reader, path string) (map[string]any, error) {
	if path == "" {
		return map[string]any{}, nil
	}
	raw, err := readLimited(stdin, path)
	if err != nil {
		return nil, fail(exitInvalid, fmt.Errorf("input: %w", err), "")
	}
	input := map[string]any{}
	if err := yamlnode.Unmarshal(raw, &input); err != nil { // JSON is YAML
		return nil, fail(exitInvalid, fmt.Errorf("input %s: %w", path, err), "the file must contain one JSON or YAML mapping")
	}
	return input, nil
}

// readLimited reads a file, or stdin for "-" when there is one.
func readLimited(stdin io.Reader, path string) ([]byte, error) {
	src := stdin
	if path != "-" || stdin == nil {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() // only read from
		src = f
	}
	raw, err := io.ReadAll(io.LimitReader(src, maxInputBytes+1))
	if err == nil && len(raw) > maxInputBytes {
		err = errors.New("larger than 4 MiB")
	}
	return raw, err
}

// withText adds a bare text to named inputs, under the field that is for it.
func withText(fields, pairs map[string]string, text string) (map[string]string, error) {
	if text == "" {
		return pairs, nil
	}
	field, err := textField(fields)
	if err != nil {
		return nil, err
	}
	if _, twice := pairs[field]; twice {
		return nil, usageError(fmt.Errorf("input %s is specified twice", field), "quote values that contain spaces: "+field+"='…'")
	}
	out := map[string]string{field: text}
	maps.Copy(out, pairs)
	return out, nil
}

// inputFields returns the properties of an input schema with their types.
func inputFields(schema map[string]any) map[string]string {
	fields := map[string]string{}
	properties, _ := schema["properties"].(map[string]any)
	for name, p := range properties {
		property, _ := p.(map[string]any)
		fields[name] = schemaType(property["type"])
	}
	return fields
}

// schemaType returns the type of a property, which dotprompt writes as [type, null] when the field is optional.
func schemaType(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		for _, t := range v {
			if s, ok := t.(string); ok && s != "null" {
				return s
			}
		}
	case []string:
		for _, s := range v {
			if s != "null" {
				return s
			}
		}
	}
	return ""
}

// splitArgs separates NAME=VALUE, where NAME is a field or could be one, from text; several words without quotes are one
// text.
func splitArgs(args []string, fields map[string]string) (pairs []string, text string) {
	var words []string
	for _, arg := range args {
		name, _, ok := strings.Cut(arg, "=")
		_, known := fields[name]
		if ok && (known || expr.IsIdent(name)) {
			pairs = append(pairs, arg)
		} else {
			words = append(words, arg)
		}
	}
	return pairs, strings.Join(words, " ")
}

// knownInput refuses a name that the fields of an agent do not have, or that no input can have. A schema may allow others,
// but nothing in the agent's file then speaks of them.
func knownInput(name string, fields map[string]string) error {
	if _, known := fields[name]; known || len(fields) == 0 && expr.IsIdent(name) {
		return nil
	}
	if len(fields) == 0 {
		return fmt.Errorf("invalid input name %q", sanitize.Cut(name, 60))
	}
	known := slices.Sorted(maps.Keys(fields))
	if near, ok := suggest.Closest(name, known); ok {
		return fmt.Errorf("unknown input %s, did you mean %s?", sanitize.Cut(name, 60), near)
	}
	return fmt.Errorf("unknown input %s, available inputs are %s", sanitize.Cut(name, 60), strings.Join(known, ", "))
}

// textField is the field that a bare text is for.
func textField(fields map[string]string) (string, error) {
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range []string{"input", "task"} {
		if slices.Contains(names, name) || len(names) == 0 {
			return name, nil
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return "", usageError(errors.New("the agent has no input for plain text"), "use NAME=VALUE with "+strings.Join(names, ", "))
}

// typedValue reads the value of an input as JSON where its field wants something else than text.
func typedValue(name, want, text string) (any, error) {
	if want == "string" || want == "" {
		return text, nil
	}
	v, err := expr.DecodeJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("input %s: %q is not a JSON value of type %s", name, sanitize.Cut(text, 60), want)
	}
	return v, nil
}

// agentExt is the ending of agents' files.
const agentExt = ".prompt"

// agentFiles finds the file of an agent by the agent's name.
type agentFiles struct {
	dirs []string // looked into in this order
	near int      // the first directories, which were found, not named: they must not be links
}

// agentsFor returns where a workflow's agents are: in dir when one is given, else in agents/ beside or above the
// workflow's own directory, or beside the workflow.
func agentsFor(workflowPath, dir string) agentFiles {
	if dir != "" {
		return agentFiles{dirs: []string{dir}}
	}
	base := filepath.Dir(workflowPath)
	return agentFiles{near: 2, dirs: []string{filepath.Join(base, "agents"), filepath.Join(base, "..", "agents"), base}}
}

// find returns the file of an agent, which may be one that its reader refuses, with the reason.
func (a agentFiles) find(name string) (string, error) {
	if strings.ContainsAny(name, `/\`) {
		return "", fmt.Errorf("invalid agent name %q", name)
	}
	for i, dir := range a.dirs {
		path := filepath.Join(dir, name+agentExt)
		st, err := os.Lstat(path)
		if err != nil || st.IsDir() {
			continue
		}
		if at, err := os.Lstat(dir); i < a.near && (err != nil || !at.IsDir()) {
			return "", fmt.Errorf("directory %s is a link; to follow it, pass it with --agents", dir)
		}
		return path, nil
	}
	return "", fmt.Errorf("%s%s not found in %s", name, agentExt, strings.Join(a.dirs, ", "))
}

// known reads the file of an agent for the workflow loader. What is wrong inside the file is reported where the agent is
// loaded.
func (a agentFiles) known(name string) (*frontmatter.Document, error) {
	path, err := a.find(name)
	if err != nil {
		return nil, err
	}
	return readAgent(path)
}

// readAgent is agentFiles.known for a file that is known.
func readAgent(path string) (*frontmatter.Document, error) {
	src, err := frontmatter.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	doc, _ := frontmatter.Parse(path, src)
	return doc, nil
}

// list returns the names of all agents, sorted. Files that begin with an underscore are parts of others.
func (a agentFiles) list() []string {
	var names []string
	for _, dir := range a.dirs {
		paths, err := filepath.Glob(filepath.Join(dir, "*"+agentExt))
		if err != nil {
			continue // the directory's name is a malformed pattern: then nothing can be listed, only found by name
		}
		for _, p := range paths {
			if name := strings.TrimSuffix(filepath.Base(p), agentExt); !strings.HasPrefix(name, "_") {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// loadFile loads a workflow, or an agent as a workflow. find returns the files of a workflow's agents.
func loadFile(path string, find func(agent string) (*frontmatter.Document, error)) (*workflow.Workflow, error) {
	if !strings.HasSuffix(path, agentExt) {
		return workflow.Load(path, &workflow.LoadOptions{Agents: find})
	}
	doc, err := checkAgent(path)
	if err != nil {
		return nil, err
	}
	return workflow.ForAgent(doc), nil
}

// loadWorkflow is loadFile, and returns the files of the agents by name. If dir is not empty, it has a workflow's agents.
func loadWorkflow(path, dir string) (*workflow.Workflow, map[string]string, error) {
	files := agentsFor(path, dir)
	wf, err := loadFile(path, files.known)
	if err != nil {
		return nil, nil, fail(exitInvalid, err, "")
	}
	if wf.Agent() != nil {
		return wf, map[string]string{wf.ID: path}, nil
	}
	agents := map[string]string{}
	for _, name := range wf.Agents() {
		if path, err := files.find(name); err == nil {
			agents[name] = path
		}
	}
	return wf, agents, nil
}
