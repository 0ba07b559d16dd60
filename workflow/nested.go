package workflow

import (
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

func (o *object) switchBody(*step) body {
	b := &switchBody{}
	switch {
	case o.has("cases") && (o.has("transitions") || o.has("expression")):
		o.Fail(o.at["cases"], "use one of the two forms", "%s mixes cases with expression and transitions", o.what)
	case o.has("cases"):
		o.cases(b)
	case o.has("expression") || o.has("transitions"):
		o.transitions(b)
	default:
		o.Fail(o.node, "for example cases: [{when: \"steps.test.output.ok\", next: done}]",
			"%s has neither cases nor expression", o.what)
	}
	b.fallback = o.target("default")
	return b
}

func (o *object) cases(b *switchBody) {
	for c := range o.objects("cases", maxSteps, "when", "next") {
		var sc switchCase
		if c.require("when", "an expression that is true or false") {
			sc.when = o.expression(c.at["when"], "when of "+c.what, true)
		}
		c.require("next", "the ID of a step")
		sc.to = c.target("next")
		b.cases = append(b.cases, sc)
	}
}

func (o *object) transitions(b *switchBody) {
	if o.require("expression", "set the value that conditions are compared to") {
		b.expression = o.expression(o.at["expression"], "expression of "+o.what, false)
	}
	o.require("transitions", `for example transitions: [{condition: "true", next: done}]`)
	isBool := b.expression != nil && b.expression.Kind() == expr.KindBool
	seen := map[string]int{}
	for c := range o.objects("transitions", maxSteps, "condition", "next") {
		var sc switchCase
		if c.require("condition", "set the text that the expression's value is compared to") {
			at := c.at["condition"]
			sc.text = at.Value // true and "true", 3 and "3" are equal here
			switch first, double := seen[sc.text]; {
			case at.Kind != yamlnode.Scalar:
				o.Fail(at, "", "condition of %s must be text, not %s", c.what, yamlnode.Kind(at))
			case double:
				o.Fail(at, fmt.Sprintf("the first is on line %d", first), "%s: duplicate condition %q", o.what, clip(sc.text))
			case isBool && sc.text != "true" && sc.text != "false":
				o.Fail(at, `the expression is "true" or "false"`, "%s: the condition %q can never match", o.what, clip(sc.text))
				fallthrough
			default:
				seen[sc.text] = at.Line
			}
		}
		c.require("next", "the ID of a step")
		sc.to = c.target("next")
		b.cases = append(b.cases, sc)
	}
	for _, want := range []string{"true", "false"} { // a boolean expression needs transitions for both values
		if _, ok := seen[want]; !ok && isBool && !o.has("default") && len(seen) > 0 {
			o.Fail(o.at["expression"], "add it, or a default", "%s has no transition for %q", o.what, want)
		}
	}
}

// fan reads the common keys of parallel and for_each.
func (o *object) fan(concurrency int) *fanBody {
	b := &fanBody{maxConcurrency: concurrency, wait: o.has("fail_fast") && !o.boolean("fail_fast")}
	if o.has("max_concurrency") {
		b.maxConcurrency = max(o.integer("max_concurrency", 1, maxBranches), 1)
	}
	return b
}

func (o *object) parallelBody(s *step) body {
	b := o.fan(maxBranches)
	o.require("branches", "for example branches: [{id: lint, steps: [...]}]")
	seen := map[string]int{}
	for bo := range o.objects("branches", maxBranches, "id", "steps", "output", "sandbox") {
		br := branch{sandbox: bo.sandboxRef()}
		if bo.require("id", "set the key of the branch's output") {
			br.id = bo.word("id")
			if first, double := seen[br.id]; double {
				o.Fail(bo.at["id"], fmt.Sprintf("the first is on line %d", first), "%s has duplicate branch %q", o.what, br.id)
			}
			seen[br.id] = bo.at["id"].Line
		}
		bo.require("steps", "a branch is a list of steps")
		br.steps, br.output = o.inner(bo, o.env, fmt.Sprintf("branch %s of step %s", br.id, s.id))
		b.branches = append(b.branches, br)
	}
	return b
}

func (o *object) forEachBody(s *step) body {
	b := o.fan(1)
	if o.require("items", `use a list, or an expression whose value is a list, for example items: "input.files"`) {
		b.items = o.list("items")
	}
	b.as, b.indexAs = o.loopVar("as", "item"), o.loopVar("index_as", "index")
	if b.as == b.indexAs {
		o.Fail(o.where("as"), "", "%s: item and index have the same name", o.what)
	}
	o.require("steps", "add the steps to run for each item")
	br := branch{sandbox: sandboxRef{fork: o.boolean("fork")}}
	br.steps, br.output = o.inner(o, o.inside(b.as, b.indexAs), "step "+s.id)
	b.fork = br.sandbox.fork
	if n := o.at["keep"]; n != nil {
		outer := o.place
		o.loader.place = place{o.inside(b.as, b.indexAs), br.steps}
		br.keep = o.expression(n, "keep of "+o.what, true)
		o.loader.place = outer
		b.wait = true // some attempts may fail
		if !b.fork {
			o.Fail(n, "add fork: true", "keep of %s requires forks, because it chooses one of them", o.what)
		}
	}
	b.branches = []branch{br}
	return b
}

// inside returns the environment for expressions inside a for_each.
func (o *object) inside(as, indexAs string) *expr.Env {
	key := strings.Join(append(o.env.Names(), as, indexAs), " ")
	if known := o.envs[key]; known != nil {
		return known
	}
	inside, err := o.env.With(expr.Var{Name: as}, expr.Var{Name: indexAs})
	if err != nil {
		o.Fail(o.node, "", "%v", err)
		return o.env
	}
	o.envs[key] = inside
	return inside
}

// loopVar reads the name of a loop variable. A default name may hide the same name of an outer loop; an explicit name
// must be unused.
func (o *object) loopVar(key, fallback string) string {
	name := o.text(key)
	if name == "" {
		return fallback
	}
	if !expr.IsIdent(name) || o.env.Has(name) {
		o.Fail(o.at[key], "", "%s %q of %s is invalid or already in use", key, clip(name), o.what)
		return fallback
	}
	return name
}

// list reads a list, or a single expression returning a list.
func (o *object) list(key string) *expr.Value {
	n := o.at[key]
	if n.Kind == yamlnode.List {
		if len(n.Content) > maxItems {
			o.Fail(n, "", "%s of %s has %d entries, at most %d are allowed", key, o.what, len(n.Content), maxItems)
			return nil
		}
		return o.value(n)
	}
	p := o.expression(n, key+" of "+o.what, false)
	if p == nil {
		return nil
	}
	if k := p.Kind(); k != expr.KindAny && k != expr.KindList {
		o.Fail(n, "", "%s of %s must be a list, not %s", key, o.what, k)
	}
	return expr.Of(p)
}
