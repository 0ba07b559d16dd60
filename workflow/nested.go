package workflow

import (
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/expr"
)

func (l *loader) switchStep(env *expr.Env, o *object) body {
	b := &switchBody{}
	switch {
	case o.has("cases") && (o.has("transitions") || o.has("expression")):
		l.fail(o.at["cases"], "use one of the two forms", "%s mixes cases with expression and transitions", o.what)
	case o.has("cases"):
		b.cases = l.cases(env, o)
	case o.has("expression") || o.has("transitions"):
		l.transitions(env, o, b)
	default:
		l.fail(o.node, "as in cases: [{when: \"steps.test.output.ok\", next: done}]", "%s has neither cases nor expression", o.what)
	}
	if n := o.at["default"]; n != nil {
		b.fallback = l.target(o, "default", n)
	}
	return b
}

func (l *loader) cases(env *expr.Env, o *object) []switchCase {
	var out []switchCase
	for i, n := range o.items("cases", maxSteps) {
		what := fmt.Sprintf("cases[%d] of %s", i, o.what)
		c, ok := l.object(n, what, "when", "next")
		if !ok {
			continue
		}
		var sc switchCase
		if c.require("when", "an expression that is true or false") {
			sc.when = l.expression(env, c.at["when"], "when of "+what, true)
		}
		if c.require("next", "the id of a step") {
			sc.to = l.target(c, "next", c.at["next"])
		}
		out = append(out, sc)
	}
	return out
}

func (l *loader) transitions(env *expr.Env, o *object, b *switchBody) {
	if o.require("expression", "what the conditions are compared to") {
		b.expression = l.expression(env, o.at["expression"], "expression of "+o.what, false)
	}
	o.require("transitions", `as in transitions: [{condition: "true", next: done}]`)
	seen := map[string]int{}
	for i, n := range o.items("transitions", maxSteps) {
		what := fmt.Sprintf("transitions[%d] of %s", i, o.what)
		c, ok := l.object(n, what, "condition", "next")
		if !ok {
			continue
		}
		var sc switchCase
		if c.require("condition", "the text that the expression's value is compared to") {
			at := c.at["condition"]
			sc.text = at.Value // true, 3 and "true", "3" are the same here
			if at.Kind != yaml.ScalarNode {
				l.fail(at, "", "condition of %s must be text, it is %s", what, kindOf(at))
			} else if first, double := seen[sc.text]; double {
				l.fail(at, fmt.Sprintf("the first is on line %d", first), "%s: the condition %q is there twice", o.what, clip(sc.text))
			} else {
				seen[sc.text] = at.Line
				l.canMatch(b.expression, at, o.what)
			}
		}
		if c.require("next", "the id of a step") {
			sc.to = l.target(c, "next", c.at["next"])
		}
		b.cases = append(b.cases, sc)
	}
	l.covers(b, o, seen)
}

// canMatch refuses a condition that a boolean can never be.
func (l *loader) canMatch(e *condition, at *yaml.Node, what string) {
	if e != nil && e.Kind() == expr.KindBool && at.Value != "true" && at.Value != "false" {
		l.fail(at, `the expression is "true" or "false"`, "%s: the condition %q can never match", what, clip(at.Value))
	}
}

// covers refuses a switch on a boolean that leaves one of the two without a way.
func (l *loader) covers(b *switchBody, o *object, seen map[string]int) {
	if b.expression == nil || b.expression.Kind() != expr.KindBool || o.has("default") || len(seen) == 0 {
		return
	}
	for _, want := range []string{"true", "false"} {
		if _, ok := seen[want]; !ok {
			l.fail(o.at["expression"], "add it, or a default", "%s has no transition for %q", o.what, want)
		}
	}
}

func (l *loader) parallelStep(env *expr.Env, o *object, s *step, depth int) body {
	b := &parallelBody{maxConcurrency: maxBranches, wait: o.has("fail_fast") && !o.boolean("fail_fast")}
	if o.has("max_concurrency") {
		b.maxConcurrency = max(o.integer("max_concurrency", 1, maxBranches), 1)
	}
	o.require("branches", "as in branches: [{id: lint, steps: [...]}]")
	seen := map[string]int{}
	for i, n := range o.items("branches", maxBranches) {
		what := fmt.Sprintf("branches[%d] of %s", i, o.what)
		bo, ok := l.object(n, what, "id", "steps", "output", "sandbox")
		if !ok {
			continue
		}
		br := branch{}
		if bo.require("id", "it names the branch's output") {
			br.id = bo.word("id")
			if first, double := seen[br.id]; double {
				l.fail(bo.at["id"], fmt.Sprintf("the first is on line %d", first), "%s has two branches %q", o.what, br.id)
			}
			seen[br.id] = bo.at["id"].Line
		}
		br.sandbox, br.isolated = l.sessionName(bo)
		if bo.require("steps", "a branch is a list of steps") {
			br.steps = l.sequence(env, bo, "steps", fmt.Sprintf("branch %s of step %s", br.id, s.id), depth+1)
		} else {
			br.steps = &sequence{index: map[string]int{}}
		}
		if out := bo.at["output"]; out != nil {
			br.output = l.value(env, out)
		}
		b.branches = append(b.branches, br)
	}
	return b
}

func (l *loader) forEachStep(env *expr.Env, o *object, s *step, depth int) body {
	b := &forEachBody{as: "item", indexAs: "index", maxConcurrency: 1, wait: o.has("fail_fast") && !o.boolean("fail_fast")}
	if o.has("max_concurrency") {
		b.maxConcurrency = max(o.integer("max_concurrency", 1, maxBranches), 1)
	}
	if o.require("items", `an expression that gives a list, or a list, as in items: "input.files"`) {
		b.items = l.listOf(env, o)
	}
	b.as, b.indexAs = l.loopVar(env, o, "as", b.as), l.loopVar(env, o, "index_as", b.indexAs)
	if b.as == b.indexAs {
		l.fail(o.where("as"), "", "%s: item and index have the same name", o.what)
	}
	inside := l.inside(env, o, b.as, b.indexAs)
	b.steps = &sequence{index: map[string]int{}}
	if o.require("steps", "what is done for each item") {
		b.steps = l.sequence(inside, o, "steps", "step "+s.id, depth+1)
	}
	if out := o.at["output"]; out != nil {
		b.output = l.value(inside, out)
	}
	return b
}

// inside returns the environment of what is inside a for_each.
func (l *loader) inside(env *expr.Env, o *object, as, indexAs string) *expr.Env {
	key := strings.Join(append(env.Names(), as, indexAs), " ")
	if known := l.envs[key]; known != nil {
		return known
	}
	inside, err := env.With(expr.Var{Name: as}, expr.Var{Name: indexAs})
	if err != nil {
		l.fail(o.node, "", "%v", err)
		return env
	}
	l.envs[key] = inside
	return inside
}

// loopVar reads a name for expressions inside a for_each. The defaults may hide those of an outer loop; names that were
// chosen may not.
func (l *loader) loopVar(env *expr.Env, o *object, key, fallback string) string {
	n := o.at[key]
	if n == nil {
		return fallback
	}
	name := o.text(key)
	if name == "" {
		return fallback
	}
	if !expr.IsIdent(name) || env.Has(name) {
		l.fail(n, "", "%s %q of %s is not a free name", key, clip(name), o.what)
		return fallback
	}
	return name
}

// listOf reads `items`: a list, or an expression that stands alone.
func (l *loader) listOf(env *expr.Env, o *object) *value {
	n := o.at["items"]
	if n.Kind == yaml.SequenceNode {
		if len(n.Content) > maxItems {
			l.fail(n, "", "items of %s has %d entries, at most %d are allowed", o.what, len(n.Content), maxItems)
			return nil
		}
		return l.value(env, n)
	}
	c := l.expression(env, n, "items of "+o.what, false)
	if c == nil {
		return nil
	}
	if k := c.Kind(); k != expr.KindAny && k != expr.KindList {
		l.fail(n, "", "items of %s must give a list, it gives %s", o.what, k)
	}
	tmpl, err := env.Template("${" + c.Source() + "}")
	if err != nil {
		l.failExpr(n, c.offset-2, err)
		return nil
	}
	return &value{Value: tmpl, src: l.source, root: n, shift: c.offset - 2, progs: []compiled{c.compiled}}
}
