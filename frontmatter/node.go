package frontmatter

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// Limits on YAML. Real frontmatter is far below them. Genkit's parser takes time with the square of the number of keys.
const (
	maxDepth    = 64
	maxNodes    = 5_000 // after aliases are followed
	maxProblems = 50
)

// tree parses one YAML document. An empty one is a nil node.
func tree(name, text string, line int) (node *yaml.Node, err error) {
	// yaml.v3 has panicked on hostile documents; whatever it does, a file must not end the program.
	defer func() {
		if r := recover(); r != nil {
			node, err = nil, &Error{File: name, Line: line, Message: fmt.Sprintf("the YAML cannot be read: %v", r)}
		}
	}()
	dec := yaml.NewDecoder(strings.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxError(name, text, line, err)
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, syntaxError(name, text, line, err)
		}
		return nil, &Error{
			File: name, Line: line - 1 + max(second.Line, 1), Message: "the frontmatter has more than one YAML document",
			Hint: "remove lines that begin with --- or ... from it",
		}
	}
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		return doc.Content[0], nil
	}
	return nil, nil
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntaxError finds the line in the text of err, the only place where yaml.v3 has it.
func syntaxError(name, text string, line int, err error) *Error {
	msg := err.Error()
	e := &Error{File: name, Line: line, Message: "malformed YAML: " + strings.TrimSpace(yamlErrorLine.ReplaceAllString(msg, ""))}
	if m := yamlErrorLine.FindStringSubmatch(msg); m != nil && m[1] != "" {
		if n, err := strconv.Atoi(m[1]); err == nil {
			e.Line = line - 1 + max(n, 1)
		}
	}
	lines := strings.Split(text, "\n")
	// yaml.v3 counts from the token it expected: the line itself or the one before may hold the tab.
	for _, i := range []int{e.Line - line, e.Line - line + 1} {
		if i >= 0 && i < len(lines) {
			if indent := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], " \t"))]; strings.Contains(indent, "\t") {
				e.Line, e.Column = line+i, strings.Index(indent, "\t")+1
				e.Message, e.Hint = "malformed YAML: a tab in the indentation", "indent with spaces"
				break
			}
		}
	}
	return e
}

// reporter collects problems of one file.
type reporter struct {
	file string
	line int // number of the first line of the YAML
	errs Errors
}

func (r *reporter) fail(n *yaml.Node, hint, format string, args ...any) {
	switch {
	case len(r.errs) < maxProblems:
		r.errs = append(r.errs, &Error{
			File: r.file, Line: r.line - 1 + n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: hint,
		})
	case len(r.errs) == maxProblems:
		r.errs = append(r.errs, &Error{File: r.file, Message: "more problems; these come first"})
	}
}

// walk checks what holds for all of the frontmatter: depth, size with aliases followed, tags, duplicate keys. Genkit's
// own YAML parser gives up on some of these without an error and would then show the model the whole file.
type walk struct {
	*reporter
	sizes  map[*yaml.Node]int // of anchored nodes, once known
	inside map[*yaml.Node]bool
}

func (r *reporter) wellFormed(root *yaml.Node) bool {
	w := walk{reporter: r, sizes: map[*yaml.Node]int{}, inside: map[*yaml.Node]bool{}}
	before := len(r.errs)
	if size := w.node(root, 1); size > maxNodes && len(r.errs) == before {
		r.fail(root, "make it smaller", "the frontmatter has more than %d values, aliases followed", maxNodes)
	}
	return len(r.errs) == before
}

// node returns the number of values below n, never much more than maxNodes.
func (w *walk) node(n *yaml.Node, depth int) int {
	if depth > maxDepth {
		if depth == maxDepth+1 {
			w.fail(n, "", "the frontmatter is nested more than %d levels deep", maxDepth)
		}
		return 1
	}
	if n.Kind == yaml.AliasNode {
		return w.alias(n, depth)
	}
	if size, ok := w.sizes[n]; ok {
		return size
	}
	w.inside[n] = true
	defer delete(w.inside, n)
	if n.Style&yaml.TaggedStyle != 0 && !plainTag(n) {
		w.fail(n, "remove it", "the tag %s is not supported", clip(n.Tag))
	}
	size := 1
	if n.Kind == yaml.MappingNode {
		w.keys(n)
	}
	for _, c := range n.Content {
		if size <= maxNodes {
			size += w.node(c, depth+1)
		}
	}
	if n.Anchor != "" {
		w.sizes[n] = size
	}
	return size
}

func (w *walk) alias(n *yaml.Node, depth int) int {
	if n.Alias == nil || w.inside[n.Alias] {
		w.fail(n, "", "the alias *%s contains itself", clip(n.Value))
		return 1
	}
	return w.node(n.Alias, depth)
}

func (w *walk) keys(n *yaml.Node) {
	seen := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			w.fail(key, "", "a key must be text")
			continue
		}
		if first, ok := seen[key.Value]; ok {
			w.fail(key, fmt.Sprintf("the first is on line %d", w.line-1+first.Line), "duplicate key %q", clip(key.Value))
			continue
		}
		seen[key.Value] = key
	}
}

// plainTag reports whether the explicit tag is one of YAML's core types.
func plainTag(n *yaml.Node) bool {
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq":
		return true
	}
	return false
}

// follow returns what an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// kind names the type of n for people.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return n.Value
	case "!!int", "!!float":
		return "the number " + clip(n.Value)
	}
	return "text"
}
