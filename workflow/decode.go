package workflow

import (
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// loader turns one file into a Workflow and collects what is wrong with it.
type loader struct {
	*yamlnode.Source
	place
	errs  frontmatter.Errors
	known func(agent string) (*frontmatter.Document, error)

	steps     []*step          // all steps, in order of the file
	sequences []*sequence      // all of them
	reads     []read           // all expressions
	byID      map[string]*step // the first step of each id
	varsAt    map[string]bool  // names of variables that anything assigns
	inputOf   *schema
	envs      map[string]*expr.Env // of for_each, by the names they add; making one takes milliseconds
}

func (l *loader) fail(n *yaml.Node, hint, format string, args ...any) {
	l.report(&frontmatter.Error{File: l.File, Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// failAt reports a problem at a place inside a scalar.
func (l *loader) failAt(at expr.Place, hint, format string, args ...any) {
	line, column := l.Place(at.Node, at.Offset)
	l.report(&frontmatter.Error{File: l.File, Line: line, Column: column, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// report adds a problem, as long as there are not too many.
func (l *loader) report(e *frontmatter.Error) {
	switch {
	case len(l.errs) < maxProblems:
		l.errs = append(l.errs, e)
	case len(l.errs) == maxProblems:
		l.errs = append(l.errs, &frontmatter.Error{File: l.File, Message: "more problems; only the first are listed"})
	}
}

// hyphenated matches what reads as a subtraction and was meant as a step's id.
var hyphenated = regexp.MustCompile(`steps\.([A-Za-z_]\w*(?:-\w+)+)`)

// failExpr reports an error of package expr in the scalar n, at the place inside it that the error names.
func (l *loader) failExpr(n *yaml.Node, err error) {
	var e *expr.Error
	if !errors.As(err, &e) || e.Node == nil {
		l.fail(n, "", "%v", err)
		return
	}
	hint := ""
	if m := hyphenated.FindStringSubmatch(n.Value); m != nil {
		hint = fmt.Sprintf(`write an ID with hyphens as steps["%s"]`, m[1])
	}
	l.failAt(e.Place, hint, "%s", e.Msg)
}

// object is a mapping whose keys are known to be legal.
type object struct {
	*loader
	node *yaml.Node
	what string // "the workflow", "step fix", for messages
	at   map[string]*yaml.Node
}

// object checks that n is a mapping without unknown keys; the second result is false when it is no mapping.
func (l *loader) object(n *yaml.Node, what string, known ...string) (*object, bool) {
	o := &object{loader: l, node: n, what: what, at: map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode {
		l.fail(n, "", "%s must be a mapping, not %s", what, yamlnode.Kind(n))
		return o, false
	}
	for key, value := range yamlnode.Pairs(n) {
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			continue // reported by yamlnode.Check
		}
		if !slices.Contains(known, key.Value) {
			l.fail(key, nearHint(key.Value, known), "unknown key %q in %s", clip(key.Value), what)
			continue
		}
		if yamlnode.IsNull(value) {
			l.fail(key, "set a value or remove the key", "%s of %s is empty", key.Value, what)
			continue
		}
		o.at[key.Value] = value
	}
	return o, true
}

// nearHint names the word that was probably meant, or all there are.
func nearHint(word string, known []string) string {
	if near, ok := suggest.Closest(word, known); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if len(known) == 0 || len(known) > 20 {
		return ""
	}
	return "available: " + strings.Join(known, ", ")
}

func (o *object) has(key string) bool { return o.at[key] != nil }

// where returns the node of a key's value, or of the whole object when there is none.
func (o *object) where(key string) *yaml.Node {
	if n := o.at[key]; n != nil {
		return n
	}
	return o.node
}

// require reports a missing key.
func (o *object) require(key, hint string) bool {
	if !o.has(key) {
		o.fail(o.node, hint, "%s has no %s", o.what, key)
	}
	return o.has(key)
}

// text returns a key's text; "" when it is absent or no text.
func (o *object) text(key string) string {
	n := o.at[key]
	if n == nil {
		return ""
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		o.fail(n, quoteHint(n), "%s of %s must be text, not %s", key, o.what, yamlnode.Kind(n))
		return ""
	}
	if n.Value == "" {
		o.fail(n, "set a value or remove the key", "%s of %s is empty", key, o.what)
	}
	return n.Value
}

// word returns a key's text when it follows the rules for ids.
func (o *object) word(key string) string {
	n := o.at[key]
	if n == nil {
		return ""
	}
	s := o.text(key)
	if s != "" && !isID(s) {
		o.fail(n, "use at most 64 letters, digits, '_', or '-', starting with a letter or '_'", "%s %q of %s is not a valid name", key, clip(s), o.what)
		return ""
	}
	return s
}

func (o *object) integer(key string, low, high int) int {
	n := o.at[key]
	if n == nil {
		return 0
	}
	v, err := strconv.Atoi(n.Value)
	switch {
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int":
		o.fail(n, "", "%s of %s must be a whole number, not %s", key, o.what, yamlnode.Kind(n))
		return 0
	case err != nil || v < low || v > high:
		o.fail(n, "", "%s of %s must be %d to %d, not %s", key, o.what, low, high, clip(n.Value))
		return 0
	}
	return v
}

func (o *object) boolean(key string) bool {
	n := o.at[key]
	if n == nil {
		return false
	}
	var v bool
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(&v) != nil {
		o.fail(n, "", "%s of %s must be true or false, not %s", key, o.what, yamlnode.Kind(n))
	}
	return v
}

// duration reads "90s", "30m", "1h30m"; zero only when zero is allowed.
func (o *object) duration(key string, low, high time.Duration) time.Duration {
	n := o.at[key]
	if n == nil {
		return 0
	}
	d, hint, ok := yamlnode.Duration(n)
	switch {
	case n.Kind != yaml.ScalarNode:
		o.fail(n, hint, "%s of %s must be a duration, not %s", key, o.what, yamlnode.Kind(n))
		return 0
	case !ok:
		o.fail(n, hint, "%s of %s: %q is not a duration", key, o.what, clip(n.Value))
		return 0
	case d < low || d > high:
		o.fail(n, "", "%s of %s must be %s to %s, not %s", key, o.what, low, high, d)
		return 0
	}
	return d
}

// items returns the entries of a list.
func (o *object) items(key string, most int) []*yaml.Node {
	n := o.at[key]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		o.fail(n, "", "%s of %s must be a list, not %s", key, o.what, yamlnode.Kind(n))
		return nil
	}
	if len(n.Content) == 0 {
		o.fail(n, "", "%s of %s is empty", key, o.what)
	}
	if len(n.Content) > most {
		o.fail(n, "", "%s of %s has %d entries, at most %d are allowed", key, o.what, len(n.Content), most)
		return nil
	}
	out := make([]*yaml.Node, len(n.Content))
	for i, c := range n.Content {
		out[i] = yamlnode.Follow(c)
	}
	return out
}

// quoteHint helps where YAML took text for a number or a boolean.
func quoteHint(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && !yamlnode.IsNull(n) && len(n.Value) < 40 {
		return fmt.Sprintf("put it in quotes: %q", n.Value)
	}
	return ""
}

// objects iterates over the mappings of a list.
func (o *object) objects(key string, most int, known ...string) iter.Seq[*object] {
	return func(yield func(*object) bool) {
		for i, n := range o.items(key, most) {
			if c, ok := o.object(n, fmt.Sprintf("%s[%d] of %s", key, i, o.what), known...); ok && !yield(c) {
				return
			}
		}
	}
}

func clip(s string) string { return sanitize.Clip(s) }

// isID reports whether s can name a workflow, a step or a branch. In Genkit's names '/' and '.' have a meaning.
func isID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i, c := range []byte(s) {
		if !isLetter(c) && (i == 0 || c != '-' && !isDigit(c)) {
			return false
		}
	}
	return true
}
