package workflow

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"time"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// loader converts one file to a Workflow and collects the problems.
type loader struct {
	*yamlnode.Decoder
	place
	known func(agent string) (*frontmatter.Document, error)

	steps     []*step          // all steps in file order
	sequences []*sequence      // all sequences
	reads     []read           // all expressions
	byID      map[string]*step // the first step with each id
	varsAt    map[string]bool  // names of assigned variables
	inputOf   *schema
	envs      map[string]*expr.Env // environments of for_each by added names; creating one takes milliseconds
}

// hyphenated matches a step id with hyphens, which an expression parses as a subtraction.
var hyphenated = regexp.MustCompile(`steps\.([A-Za-z_]\w*(?:-\w+)+)`)

// failExpr reports an error of package expr in the scalar n, at the error's position inside the scalar.
func (l *loader) failExpr(n *yamlnode.Node, err error) {
	var e *expr.Error
	if !errors.As(err, &e) || e.Node == nil {
		l.Fail(n, "", "%v", err)
		return
	}
	hint := ""
	if m := hyphenated.FindStringSubmatch(n.Value); m != nil {
		hint = fmt.Sprintf(`write an ID with hyphens as steps["%s"]`, m[1])
	}
	l.failAt(e.Place, hint, "%s", e.Msg)
}

// failAt reports a problem at a position inside a scalar.
func (l *loader) failAt(at expr.Place, hint, format string, args ...any) {
	l.FailInside(at.Node, at.Offset, hint, format, args...)
}

// object is a mapping without unknown keys.
type object struct {
	*loader
	node *yamlnode.Node
	what string // name for messages, for example "the workflow" or "step fix"
	at   map[string]*yamlnode.Node
}

// object requires a mapping without unknown keys. If n is not a mapping, the second result is false.
func (l *loader) object(n *yamlnode.Node, what string, known ...string) (*object, bool) {
	at, ok := l.Fields(n, what, known...)
	return &object{l, n, what, at}, ok
}

func (o *object) has(key string) bool { return o.at[key] != nil }

// where returns the node of a key's value. If the key is missing, it returns the node of the whole object.
func (o *object) where(key string) *yamlnode.Node {
	return cmp.Or(o.at[key], o.node)
}

// require reports a problem if a key is missing.
func (o *object) require(key, hint string) bool {
	if !o.has(key) {
		o.Fail(o.node, hint, "%s has no %s", o.what, key)
	}
	return o.has(key)
}

// get decodes a key's value. If the key is missing or its value is invalid, get returns false.
func (o *object) get(key string, to any) bool {
	n := o.at[key]
	return n != nil && o.Decode(n, key+" of "+o.what, to)
}

// text returns a key's text. If the key is missing or its value is not text, it returns "".
func (o *object) text(key string) (s string) {
	o.get(key, &s)
	return s
}

// word returns a key's text if it is a valid id.
func (o *object) word(key string) string {
	s := o.text(key)
	if s != "" && !id.MatchString(s) {
		o.Fail(o.at[key], "use at most 64 letters, digits, '_', or '-', starting with a letter or '_'",
			"%s %q of %s is not a valid name", key, clip(s), o.what)
		return ""
	}
	return s
}

func (o *object) integer(key string, low, high int) (v int) {
	if o.get(key, &v) && (v < low || v > high) {
		o.Fail(o.at[key], "", "%s of %s must be %d to %d, not %d", key, o.what, low, high, v)
		return 0
	}
	return v
}

func (o *object) boolean(key string) (v bool) {
	o.get(key, &v)
	return v
}

// duration parses a duration, for example "90s", "30m", or "1h30m". Zero is only valid if low is zero.
func (o *object) duration(key string, low, high time.Duration) (d time.Duration) {
	if o.get(key, &d) && (d < low || d > high) {
		o.Fail(o.at[key], "", "%s of %s must be %s to %s, not %s", key, o.what, low, high, d)
		return 0
	}
	return d
}

// items returns the entries of a list.
func (o *object) items(key string, most int) (list []*yamlnode.Node) {
	switch {
	case !o.get(key, &list):
	case len(list) == 0:
		o.Fail(o.at[key], "", "%s of %s is empty", key, o.what)
	case len(list) > most:
		o.Fail(o.at[key], "", "%s of %s has %d entries, at most %d are allowed", key, o.what, len(list), most)
		return nil
	}
	return list
}

// objects iterates over the mappings in a list.
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

// id matches the ids of workflows, steps, and branches. Genkit names give '/' and '.' a meaning.
var id = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
