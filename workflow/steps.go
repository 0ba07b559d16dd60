package workflow

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/sandbox"
)

// commonKeys returns the keys valid in every type of step.
func commonKeys() []string {
	return []string{"id", "type", "name", "description", "if", "timeout", "retry", "on_error", "next", "sandbox",
		"max_visits"}
}

// stepType is the type-specific part of reading a step.
type stepType struct {
	name Type
	keys []string
	body func(*object, *step) body
}

func stepTypes() []stepType {
	return []stepType{
		{TypeAgent, []string{"agent", "input"}, (*object).agentBody},
		{TypeExec, []string{"command", "cmd", "cwd", "env", "stdin", "ok_codes", "allow_failure", "json"}, (*object).
			execBody},
		{TypeSwitch, []string{"expression", "transitions", "cases", "default"}, (*object).switchBody},
		{TypeParallel, []string{"branches", "max_concurrency", "fail_fast"}, (*object).parallelBody},
		{TypeForEach, []string{"items", "as", "index_as", "steps", "output", "max_concurrency", "fail_fast", "fork", "keep"},
			(*object).forEachBody},
		{TypeSet, []string{"vars"}, (*object).setBody},
		{TypeFail, []string{"message"}, (*object).failBody},
		{TypeEnd, []string{"output"}, (*object).endBody},
	}
}

// inner reads the required `steps` of the workflow, a branch, or an item, with the variables of env. It also reads the
// `output` of a branch or an item.
func (l *loader) inner(o *object, env *expr.Env, scope string) (seq *sequence, output *expr.Value) {
	outer := l.place
	defer func() { l.place = outer }()
	seq = &sequence{index: map[string]int{}, scope: scope, outer: outer.seq}
	l.place = place{env, seq}
	l.sequences = append(l.sequences, seq)
	l.fill(seq, o)
	if outer.seq != nil {
		output = o.optional("output")
	}
	return seq, output
}

// fill reads the steps of a sequence.
func (l *loader) fill(seq *sequence, o *object) {
	depth := 0
	for q := seq.outer; q != nil; q = q.outer {
		depth++
	}
	if depth > maxNesting {
		l.Fail(o.where("steps"), "", "steps are nested more than %d levels deep", maxNesting)
		return
	}
	for _, n := range o.items("steps", maxSteps) {
		if len(l.steps) >= maxSteps {
			l.Fail(n, "", "the file has more than %d steps", maxSteps)
			return
		}
		s := l.step(n)
		if s == nil {
			continue
		}
		s.seq, s.index = seq, len(seq.steps)
		if _, double := seq.index[s.id]; !double && s.id != "" {
			seq.index[s.id] = s.index
		}
		seq.steps = append(seq.steps, s)
	}
}

func (l *loader) step(n *yamlnode.Node) *step {
	what := "the step"
	if id := scalarAt(n, "id"); id != "" {
		what = "step " + clip(id)
	}
	types := stepTypes()
	typ := Type(scalarAt(n, "type"))
	at := slices.IndexFunc(types, func(t stepType) bool { return t.name == typ })
	var own []string
	if at >= 0 {
		own = types[at].keys
	}
	o, ok := l.object(n, what, append(commonKeys(), l.tolerated(n, own, what)...)...)
	if !ok {
		return nil
	}
	s := &step{id: o.word("id"), typ: typ, node: o.where("id")}
	l.steps = append(l.steps, s) // before the inner steps, in file order
	l.register(o, s)
	l.common(o, s)
	if at < 0 {
		l.unknownType(o)
		return s
	}
	s.body = types[at].body(o, s)
	return s
}

// scalarAt reads a key before the mapping is checked.
func scalarAt(n *yamlnode.Node, name string) string {
	for key, v := range yamlnode.Pairs(n) {
		if key.Value == name && v.Kind == yamlnode.Scalar {
			return v.Value
		}
	}
	return ""
}

// tolerated returns the keys to accept for a step. It reports keys of other types, names their type, and accepts them
// to avoid a second report. If own is empty, the step's type is the problem, and all keys are accepted.
func (l *loader) tolerated(n *yamlnode.Node, own []string, what string) []string {
	keys := slices.Clone(own)
	for _, other := range stepTypes() {
		if own == nil {
			keys = append(keys, other.keys...)
			continue
		}
		for key := range yamlnode.Pairs(n) {
			if slices.Contains(other.keys, key.Value) && !slices.Contains(keys, key.Value) {
				l.Fail(key, fmt.Sprintf("%s belongs to steps of type %s", key.Value, other.name), "unknown key %q in %s", key.Value,
					what)
				keys = append(keys, key.Value)
			}
		}
	}
	return keys
}

func (l *loader) unknownType(o *object) {
	known := names(stepTypes(), func(t stepType) string { return string(t.name) })
	if !o.has("type") {
		l.Fail(o.node, "use one of "+strings.Join(known, ", "), "%s has no type", o.what)
		return
	}
	typ := o.at["type"]
	l.Fail(typ, suggest.Hint(typ.Value, known), "unknown type %q of %s", clip(typ.Value), o.what)
}

func (l *loader) register(o *object, s *step) {
	if !o.require("id", "every step requires an id") || s.id == "" {
		return
	}
	if s.id == onErrorContinue {
		l.Fail(o.at["id"], "continue is reserved for on_error: continue", "a step cannot be called continue")
	}
	if first := l.byID[s.id]; first != nil {
		l.Fail(o.at["id"], fmt.Sprintf("the first is on line %d", first.node.Line), "duplicate step ID %q", s.id)
		return
	}
	l.byID[s.id] = s
}

func (l *loader) common(o *object, s *step) {
	o.text("name")
	o.text("description")
	if n := o.at["if"]; n != nil {
		s.cond = l.expression(n, "if of "+o.what, true)
	}
	s.timeout = o.duration("timeout", time.Millisecond, maxTimeout)
	s.maxVisits = o.integer("max_visits", 1, maxMaxSteps)
	s.retry = retry{attempts: 1}
	if n := o.at["retry"]; n != nil {
		l.retry(n, o.what, &s.retry)
	}
	s.onError, s.next = o.target("on_error"), o.target("next")
	if n := o.at["next"]; n != nil {
		switch s.typ {
		case TypeSwitch:
			l.Fail(n, "use default to set the next step if nothing matches", "%s is a switch and cannot have next", o.what)
		case TypeEnd, TypeFail:
			l.Fail(n, "remove it", "%s has type %s and cannot have next", o.what, s.typ)
		}
	}
	s.sandbox = o.sandboxRef()
}

// sandboxRef reads `sandbox` of a step or branch.
func (o *object) sandboxRef() sandboxRef {
	name := o.word("sandbox")
	if name == "isolated" {
		return sandboxRef{isolated: true}
	}
	return sandboxRef{name: name}
}

func (l *loader) retry(n *yamlnode.Node, what string, r *retry) {
	o, ok := l.object(n, "retry of "+what, "max_attempts", "backoff")
	if !ok {
		return
	}
	o.require("max_attempts", "set the total number of attempts, for example {max_attempts: 3, backoff: 2s}")
	r.attempts = max(o.integer("max_attempts", 1, maxAttempts), 1)
	r.backoff = time.Second
	if o.has("backoff") {
		r.backoff = o.duration("backoff", 0, maxBackoff)
	}
}

// target reads the id of a step. check looks for the step later.
func (o *object) target(key string) target {
	return target{id: o.text(key), at: o.at[key]}
}

func (o *object) agentBody(*step) body {
	b := &agentBody{agent: o.text("agent")}
	if o.require("agent", "use the name of the agent's file without .prompt") && b.agent != "" {
		var err error
		if b.file, err = o.known(b.agent); err != nil {
			o.Fail(o.at["agent"], "", "unknown agent %q: %v", clip(b.agent), err)
		}
	}
	if n := o.at["input"]; n != nil && n.Kind != yamlnode.Mapping {
		o.Fail(n, `for example input: {path: "${ input.repo }"}`, "input of %s must be a mapping, not %s", o.what,
			yamlnode.Kind(n))
		return b
	}
	b.input = o.optional("input")
	return b
}

func (o *object) setBody(*step) body {
	b := &setBody{}
	if o.require("vars", `for example vars: {count: "${ vars.count + 1 }"}`) {
		b.vars = o.assignments(o.at["vars"], "vars of "+o.what)
	}
	return b
}

func (o *object) failBody(*step) body {
	o.require("message", "describe why the run fails")
	return &failBody{message: o.optionalText("message")}
}

func (o *object) endBody(*step) body { return &endBody{output: o.optional("output")} }

func (o *object) execBody(*step) body {
	b := &execBody{wantJSON: o.boolean("json"), allowFailure: o.boolean("allow_failure"), okCodes: []int{0}}
	switch {
	case o.has("command") && o.has("cmd"):
		o.Fail(o.at["cmd"], "use command for one line of /bin/sh, or cmd for a list without a shell",
			"%s has both command and cmd", o.what)
	case o.has("command"):
		b.command, b.vars = o.shellCommand()
	case o.has("cmd"):
		for i, n := range o.items("cmd", 10_000) {
			if n.Kind != yamlnode.Scalar || yamlnode.IsNull(n) {
				o.Fail(n, "", "cmd[%d] of %s must be text, not %s", i, o.what, yamlnode.Kind(n))
				continue
			}
			b.argv = append(b.argv, o.literal(n))
		}
	default:
		o.Fail(o.node, `use command: one line for /bin/sh, or cmd: ["program", "argument"]`, "%s has neither command nor cmd",
			o.what)
	}
	if d, _ := time.ParseDuration(scalarAt(o.node, "timeout")); d > sandbox.MaxExecTimeout && d <= maxTimeout {
		o.Fail(o.at["timeout"], "", "timeout of %s: the limit for a command is %s", o.what, sandbox.MaxExecTimeout)
	}
	b.cwd, b.stdin = o.optionalText("cwd"), o.optionalText("stdin")
	if n := o.at["env"]; n != nil {
		b.env = o.environment(n)
	}
	codes := o.items("ok_codes", 256)
	if codes != nil {
		o.get("ok_codes", &b.okCodes)
	}
	for i, code := range b.okCodes {
		if code < 0 || code > 255 {
			o.Fail(codes[i], "", "ok_codes[%d] of %s must be 0 to 255, not %d", i, o.what, code)
		}
	}
	if b.allowFailure && o.has("ok_codes") {
		o.Fail(o.at["ok_codes"], "remove one", "%s has both allow_failure and ok_codes", o.what)
	}
	return b
}

func (o *object) environment(n *yamlnode.Node) []assignment {
	if n.Kind != yamlnode.Mapping {
		o.Fail(n, "", "env of %s must be a mapping of names to text, not %s", o.what, yamlnode.Kind(n))
		return nil
	}
	var out []assignment
	for key, v := range yamlnode.Pairs(n) {
		switch {
		case !envName.MatchString(key.Value):
			o.Fail(key, "", "%q in env of %s is not the name of an environment variable", clip(key.Value), o.what)
		case strings.HasPrefix(key.Value, "WORKCELL_"):
			o.Fail(key, "", "%q in env of %s: names that begin with WORKCELL_ are reserved", clip(key.Value), o.what)
		case v.Kind != yamlnode.Scalar || yamlnode.IsNull(v):
			o.Fail(v, `write "" for an empty value`, "%s in env of %s must be text, not %s", key.Value, o.what, yamlnode.Kind(v))
		default:
			out = append(out, assignment{name: key.Value, value: o.literal(v)})
		}
	}
	return out
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
