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

// Middleware is the name under which package tools registers its middleware; `sandbox:` is sugar for an entry of `use:`
// with this name.
const Middleware = "workcell/sandbox"

// Error is a problem of a file, with its place. A problem of a [Sandbox] has a Field below `sandbox` instead.
type Error = hint.Problem

// Errors are all problems of a file, in the order of their lines. errors.As finds the first [*Error].
type Errors = hint.Problems

// Document is a dotprompt file.
type Document struct {
	File     string
	Sandbox  *Sandbox // nil when the file asks for none
	Meta     Meta
	Body     string // the template
	BodyLine int    // line of the file that Body begins on

	parts parts
	named []string       // what `outputs:` says; nil without it
	root  *yamlnode.Node // of the frontmatter; nil without one
}

// Meta is what package tools needs to know of the rest of the frontmatter. Genkit reads the file again by itself.
type Meta struct {
	Model       string // "provider/name"
	Description string
	ToolChoice  string // "", "auto", "required" or "none"
	MaxTurns    int    // 0 when not given
	Tools       []string
	Use         []string       // names of middleware, in order, without the sandbox
	HasOutput   bool           // an output schema or format is there
	Input       map[string]any // default input
}

// Parse reads a dotprompt file; name is used in errors only. The error is an Errors with every problem found, or nil.
func Parse(name string, src []byte) (*Document, error) {
	d, err := Check(name, src)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Check is Parse for those who report everything that is wrong with a file: the document comes along with its problems
// as far as it could be read, nil when it could not be read at all. It must not be used.
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
	if err := r.Err(); err != nil { // other parsers must not read it: Genkit's would expand aliases
		return nil, err
	}
	if d.root = root; root == nil {
		return d, nil
	}
	r.document(d)
	r.movable(d)
	return d, r.Err()
}

// ParseConfig reads the configuration of the middleware from JSON; name is used in errors only. It is as strict as
// Parse.
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

// document reads the top level.
func (d decoder) document(doc *Document) {
	root := doc.root
	if root.Kind != yamlnode.Mapping {
		d.Fail(root, "write `key: value` lines", "the frontmatter must be a mapping, not %s", yamlnode.Kind(root))
		return
	}
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

// outputs reads `outputs:`, which may stand before `sandbox:`.
func (doc *Document) outputs(d decoder, n *yamlnode.Node) {
	doc.named = []string{}
	d.Decode(n, "outputs", &doc.named)
	d.AddBelow("", rules.Globs(doc.named).Problems())
}

// placeOutputs makes `outputs:` part of the sandbox, as it may also be written.
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

// Outputs returns the files below the work directory that a run of the agent brings home, as patterns; a question mark
// at the end of one says that it may be missing.
func (d *Document) Outputs() []string {
	if d.Sandbox == nil {
		return nil
	}
	return d.Sandbox.Outputs
}

// Text returns the file as it was read, without its byte order mark.
func (d *Document) Text() string { return d.parts.text }

// looksLikeSandbox finds misspellings: Genkit ignores keys it does not know, and the agent would run without a sandbox.
func looksLikeSandbox(key string) bool {
	if strings.HasPrefix(key, "sandbox.") {
		return true
	}
	near, ok := suggest.Closest(key, []string{"sandbox"})
	return ok && near == "sandbox" && len(key) < 12
}

// meta reads a key other than `sandbox`. Genkit drops values of the wrong type without a word; here they are errors.
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
	case "outputs":
		doc.outputs(d, n)
	case "output":
		m.HasOutput = lookup(n, "schema") != nil || lookup(n, "format") != nil
	case "input":
		if def := lookup(n, "default"); def != nil {
			if err := def.Decode(&m.Input); err != nil {
				d.Fail(def, "", "input.default must be a mapping of names to values")
			}
		}
	}
}

// use reads `use:`; an entry for our own middleware is held to the rules of `sandbox:`.
func (doc *Document) use(d decoder, n *yamlnode.Node) {
	if n.Kind != yamlnode.List {
		d.Fail(n, "", "use must be a list, not %s", yamlnode.Kind(n))
		return
	}
	for _, entry := range n.Content {
		entry = yamlnode.Follow(entry)
		name, config := entry, (*yamlnode.Node)(nil)
		if entry.Kind == yamlnode.Mapping {
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

// Problem makes an error about the value at a path in the frontmatter, "sandbox.host_tools.allow[2].when", or about the
// last value on the way to it that exists.
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

// AsRoot returns the place in the file where the agent asks for a sandbox that runs as root; nil when it does not.
func (d *Document) AsRoot() *Error {
	if d.Sandbox == nil || !d.Sandbox.AsRoot() {
		return nil
	}
	return d.Problem("sandbox.user", "", "the sandbox runs as root")
}

// lookup returns the value of a key of a mapping, aliases followed; nil when there is none.
func lookup(n *yamlnode.Node, key string) *yamlnode.Node {
	for name, value := range yamlnode.Pairs(yamlnode.Follow(n)) {
		if name.Value == key {
			return value
		}
	}
	return nil
}
