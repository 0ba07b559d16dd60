package frontmatter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Middleware is the name of the middleware of package tools. `sandbox:` is a short form for an entry of `use:` with
// this name.
const Middleware = "workcell/sandbox"

// Error is a problem in a file, with its position. A problem of a [Sandbox] has a Field below `sandbox` instead.
type Error = hint.Problem

// Errors are all problems of a file, sorted by line. errors.As finds the first [*Error].
type Errors = hint.Problems

// Document is a dotprompt file.
type Document struct {
	File     string
	Sandbox  *Sandbox // nil without a sandbox
	Meta     Meta
	Body     string // the template
	BodyLine int    // line of the file on which Body begins

	parts parts
	named []string       // value of `outputs:`; nil if missing
	root  *yamlnode.Node // root of the frontmatter; nil if missing
}

// Meta contains the other frontmatter fields that package tools needs. Genkit reads the file separately.
type Meta struct {
	Model       string // "provider/name"
	Description string
	ToolChoice  string // "", "auto", "required", or "none"
	MaxTurns    int    // 0 if not set
	Tools       []string
	Use         []string       // names of middleware, in order, without the sandbox
	HasOutput   bool           // an output schema or format is set
	Input       map[string]any // default input
}

// Parse parses a dotprompt file. name is only used in errors. The error is an Errors with all problems, or nil.
func Parse(name string, src []byte) (*Document, error) {
	d, err := Check(name, src)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Check is like Parse, but also returns a document with problems, for callers that report all problems of a file. If
// the file cannot be parsed at all, the document is nil. A document with problems must not be used otherwise.
func Check(name string, src []byte) (*Document, error) {
	p, problem := cut(name, src)
	if problem != nil {
		return nil, Errors{problem}
	}
	d := &Document{File: name, Body: p.text, BodyLine: 1, parts: p}
	if !p.found {
		return d, nil
	}
	d.Body, d.BodyLine = p.text[p.body:], p.bodyLine
	r, root := read(name, p.yaml(), p.line)
	if err := r.Err(); err != nil { // do not pass it to Genkit's parser, which would expand aliases
		return nil, err
	}
	if d.root = root; root == nil {
		return d, nil
	}
	r.document(d)
	r.movable(d)
	return d, r.Err()
}

// ParseConfig parses the configuration of the middleware as JSON, as strictly as Parse. name is only used in errors.
func ParseConfig(name string, src []byte) (*Sandbox, error) {
	if len(src) > MaxFrontmatterBytes {
		return nil, Errors{{File: name, Message: fmt.Sprintf("larger than %d KiB", MaxFrontmatterBytes>>10)}}
	}
	d, root := read(name, escape(string(src)), 1)
	s := &Sandbox{}
	if root != nil && len(d.Problems) == 0 {
		s = d.sandbox(root, "sandbox")
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// document decodes the top level.
func (d decoder) document(doc *Document) {
	root := doc.root
	if root.Kind != yamlnode.Mapping {
		d.Fail(root, "write `key: value` lines", "the frontmatter must be a mapping, not %s", yamlnode.Kind(root))
		return
	}
	d.merges(root)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Value == "sandbox" {
			if key.Anchor != "" {
				d.Fail(key, "remove it", "anchors are not supported here")
			}
			if doc.Sandbox != nil {
				d.Fail(key, "remove one of the two", "the sandbox is declared twice")
				continue
			}
			doc.Sandbox = d.sandbox(value, "sandbox")
			continue
		}
		if looksLikeSandbox(key.Value) {
			d.Fail(key, "did you mean `sandbox:`?", "unknown key %q", sanitize.Clip(key.Value))
			continue
		}
		doc.meta(d, key, yamlnode.Follow(value))
	}
	doc.placeOutputs(d)
}

// placeOutputs copies the top-level `outputs:` to the sandbox, where it may also be written.
func (doc *Document) placeOutputs(d decoder) {
	switch {
	case doc.named == nil:
	case doc.Sandbox == nil || !doc.Sandbox.Mode.Lasting():
		d.Fail(d.At["outputs"], "add sandbox: {mode: code}, or remove outputs", "outputs require a persistent sandbox")
	case doc.Sandbox.Outputs != nil:
		d.Fail(d.At["outputs"], "remove one of the two", "the outputs are declared twice")
	default:
		doc.Sandbox.Outputs = doc.named
	}
}

// Outputs returns the patterns of workspace files to collect after a run of the agent. A question mark at the end of a
// pattern means the file is optional.
func (d *Document) Outputs() []string {
	if d.Sandbox == nil {
		return nil
	}
	return d.Sandbox.Outputs
}

// Text returns the file as it was read, without the byte order mark.
func (d *Document) Text() string { return d.parts.text }

// looksLikeSandbox detects misspellings, because Genkit ignores unknown keys and would run without a sandbox.
func looksLikeSandbox(key string) bool {
	_, near := suggest.Closest(key, []string{"sandbox"})
	return near && len(key) < 12 || strings.HasPrefix(key, "sandbox.")
}

// meta decodes a key other than `sandbox`. Genkit silently drops values with a wrong type; meta reports them.
func (doc *Document) meta(d decoder, key, n *yamlnode.Node) {
	m := &doc.Meta
	if yamlnode.IsNull(n) && slices.Contains([]string{"description", "tools", "use"}, key.Value) {
		return
	}
	switch key.Value {
	case "name":
		d.Decode(n, "name", new(string))
	case "model":
		d.Decode(n, "model", &m.Model)
	case "description":
		d.Decode(n, "description", &m.Description)
	case "maxTurns":
		if d.Decode(n, "maxTurns", &m.MaxTurns) && (m.MaxTurns < 0 || m.MaxTurns > 10_000) {
			d.Fail(n, "", "maxTurns must be 1 to 10000, not %d", m.MaxTurns)
		}
	case "toolChoice":
		if d.Decode(n, "toolChoice", &m.ToolChoice) && !slices.Contains([]string{"auto", "required", "none"}, m.ToolChoice) {
			d.Fail(n, "available: auto, required, none", "unknown toolChoice %q", sanitize.Clip(m.ToolChoice))
		}
	case "tools":
		d.Decode(n, "tools", &m.Tools)
	case "use":
		doc.use(d, n)
	case "outputs": // may come before `sandbox:`
		doc.named = []string{}
		d.Decode(n, "outputs", &doc.named)
		d.AddBelow("", rules.Globs(doc.named).Problems())
	case "output":
		d.merges(n)
		m.HasOutput = lookup(n, "schema") != nil || lookup(n, "format") != nil
	case "input":
		d.merges(n)
		if def := lookup(n, "default"); def != nil {
			if err := def.Decode(&m.Input); err != nil {
				d.Fail(def, "", "input.default must be a mapping of names to values")
			}
		}
	}
}

// use decodes `use:`. An entry for Workcell's middleware must follow the rules of `sandbox:`.
func (doc *Document) use(d decoder, n *yamlnode.Node) {
	if n.Kind != yamlnode.List {
		d.Fail(n, "", "use must be a list, not %s", yamlnode.Kind(n))
		return
	}
	for _, entry := range n.Content {
		entry = yamlnode.Follow(entry)
		name, config := entry, (*yamlnode.Node)(nil)
		if entry.Kind == yamlnode.Mapping {
			d.merges(entry)
			name, config = lookup(entry, "name"), lookup(entry, "config")
		}
		if name == nil || !yamlnode.Is(name, "!!str") || name.Value == "" {
			d.Fail(entry, "write a name, or {name: …, config: {…}}", "an entry of use must be the name of a middleware")
			continue
		}
		if name.Value != Middleware {
			doc.Meta.Use = append(doc.Meta.Use, name.Value)
			continue
		}
		if doc.Sandbox != nil {
			d.Fail(entry, "remove one of the two", "the sandbox is declared twice")
			continue
		}
		doc.Sandbox = &Sandbox{}
		if config != nil {
			doc.Sandbox = d.sandbox(config, "sandbox")
		}
	}
}

// Problem returns an error about the value at a path in the frontmatter, for example
// "sandbox.host_tools.allow[2].when". If the value does not exist, the error has the position of its closest existing
// parent.
func (d *Document) Problem(path, hint, format string, args ...any) *Error {
	e := &Error{File: d.File, Message: fmt.Sprintf(format, args...), Hint: hint}
	if d.root == nil {
		return e
	}
	at := d.root
	for _, name := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		next := lookup(at, name)
		if list := yamlnode.Follow(at); list.Kind == yamlnode.List {
			if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(list.Content) {
				next = list.Content[i]
			}
		}
		if next == nil {
			break
		}
		at = next
	}
	e.Line, e.Column = d.parts.line-1+at.Line, at.Column
	return e
}

// AsRoot returns the position where the agent requests a sandbox running as root, or nil.
func (d *Document) AsRoot() *Error {
	if d.Sandbox == nil || !d.Sandbox.AsRoot() {
		return nil
	}
	return d.Problem("sandbox.user", "", "the sandbox runs as root")
}

// lookup returns the value of a key in a mapping and follows aliases. If the key is missing, it returns nil.
func lookup(n *yamlnode.Node, key string) *yamlnode.Node {
	for name, value := range yamlnode.Pairs(yamlnode.Follow(n)) {
		if name.Value == key {
			return value
		}
	}
	return nil
}
