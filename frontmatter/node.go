package frontmatter

import (
	"fmt"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// maxProblems is how many problems of one file are reported.
const maxProblems = 50

// format returns what frontmatter that begins on a line of its file has to keep to. Real frontmatter is far below the
// limits. Genkit's parser takes time with the square of the number of keys.
func format(line int) yamlnode.Format {
	return yamlnode.Format{
		Name: "the frontmatter", Single: "remove lines that begin with --- or ... from the frontmatter", FirstLine: line,
		MaxDepth: 64, MaxValues: 5_000, MergeKeys: true,
	}
}

// tree parses one YAML document. An empty one is a nil node.
func tree(name, text string, line int) (*yaml.Node, error) {
	root, problem := format(line).Parse(text)
	if problem != nil {
		problem.File = name
		return nil, problem
	}
	return root, nil
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
		r.errs = append(r.errs, &Error{File: r.file, Message: "more problems; only the first are listed"})
	}
}

// wellFormed checks what holds for all of the frontmatter. Genkit's own YAML parser gives up on some of it without an
// error and would then show the model the whole file.
func (r *reporter) wellFormed(root *yaml.Node) bool {
	before := len(r.errs)
	return format(r.line).Check(root, r.fail) && len(r.errs) == before
}

func follow(n *yaml.Node) *yaml.Node { return yamlnode.Follow(n) }

func kind(n *yaml.Node) string { return yamlnode.Kind(n) }

func clip(s string) string { return sanitize.Clip(s) }
