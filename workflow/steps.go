package workflow

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/session"
)

// commonKeys are understood by every type of step.
func commonKeys() []string {
	return []string{"id", "type", "name", "description", "if", "timeout", "retry", "on_error", "next", "sandbox", "max_visits"}
}

// keysOf lists the keys that belong to one type of step.
func keysOf(t Type) []string {
	switch t {
	case TypeAgent:
		return []string{"agent", "input"}
	case TypeExec:
		return []string{"command", "cmd", "cwd", "env", "stdin", "ok_codes", "allow_failure", "json"}
	case TypeSwitch:
		return []string{"expression", "transitions", "cases", "default"}
	case TypeParallel:
		return []string{"branches", "max_concurrency", "fail_fast"}
	case TypeForEach:
		return []string{"items", "as", "index_as", "steps", "output", "max_concurrency", "fail_fast"}
	case TypeSet:
		return []string{"vars"}
	case TypeFail:
		return []string{"message"}
	case TypeEnd:
		return []string{"output"}
	}
	return nil
}

// Types lists the types of steps.
func Types() []Type {
	return []Type{TypeAgent, TypeExec, TypeSwitch, TypeParallel, TypeForEach, TypeSet, TypeFail, TypeEnd}
}

// sequence reads a list of steps.
func (l *loader) sequence(env *expr.Env, o *object, key, scope string, depth int) *sequence {
	seq := &sequence{index: map[string]int{}, scope: scope}
	if depth > maxNesting {
		l.fail(o.at[key], "", "steps are nested more than %d levels deep", maxNesting)
		return seq
	}
	for _, n := range o.items(key, maxSteps) {
		if len(l.steps) >= maxSteps {
			l.fail(n, "", "the file has more than %d steps", maxSteps)
			return seq
		}
		s := l.step(env, n, depth)
		if s == nil {
			continue
		}
		s.seq, s.index = seq, len(seq.steps)
		if s.id != "" {
			if _, double := seq.index[s.id]; !double {
				seq.index[s.id] = s.index
			}
		}
		seq.steps = append(seq.steps, s)
	}
	return seq
}

func (l *loader) step(env *expr.Env, n *yaml.Node, depth int) *step {
	what := "the step"
	if id := scalarAt(n, "id"); id != "" {
		what = "step " + clip(id)
	}
	typ := Type(scalarAt(n, "type"))
	own := keysOf(typ)
	o, ok := l.object(n, what, append(commonKeys(), l.tolerated(n, typ, own, what)...)...)
	if !ok {
		return nil
	}
	s := &step{id: o.word("id"), typ: typ, node: o.where("id")}
	l.steps = append(l.steps, s) // before the steps inside it, in order of the file
	l.register(o, s)
	l.common(env, o, s)
	if own == nil {
		l.unknownType(o)
		return s
	}
	switch typ {
	case TypeAgent:
		s.body = l.agentStep(env, o)
	case TypeExec:
		s.body = l.execStep(env, o)
	case TypeSwitch:
		s.body = l.switchStep(env, o)
	case TypeParallel:
		s.body = l.parallelStep(env, o, s, depth)
	case TypeForEach:
		s.body = l.forEachStep(env, o, s, depth)
	case TypeSet:
		s.body = l.setStep(env, o)
	case TypeFail:
		s.body = l.failStep(env, o)
	case TypeEnd:
		s.body = l.endStep(env, o)
	}
	return s
}

// scalarAt reads a key before the mapping is checked.
func scalarAt(n *yaml.Node, key string) string {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if v := follow(n.Content[i+1]); n.Content[i].Value == key && v.Kind == yaml.ScalarNode {
			return v.Value
		}
	}
	return ""
}

// tolerated returns the keys of the step's type. A key of another type is reported here, with the type it belongs to, and
// tolerated so that it is not reported twice. With an unknown type everything is tolerated: the type is the mistake.
func (l *loader) tolerated(n *yaml.Node, typ Type, own []string, what string) []string {
	keys := slices.Clone(own)
	for _, other := range Types() {
		for _, key := range keysOf(other) {
			if slices.Contains(keys, key) || slices.Contains(own, key) {
				continue
			}
			at := keyNode(n, key)
			if own != nil && at == nil {
				continue
			}
			if own != nil {
				l.fail(at, fmt.Sprintf("%s belongs to steps of type %s", key, other), "unknown key %q in %s", key, what)
			}
			keys = append(keys, key)
		}
	}
	return keys
}

func keyNode(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i]
		}
	}
	return nil
}

func (l *loader) unknownType(o *object) {
	var names []string
	for _, t := range Types() {
		names = append(names, string(t))
	}
	if !o.has("type") {
		l.fail(o.node, "one of "+strings.Join(names, ", "), "%s has no type", o.what)
		return
	}
	hint := "known are " + strings.Join(names, ", ")
	if near, ok := suggest.Closest(o.at["type"].Value, names); ok {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	l.fail(o.at["type"], hint, "unknown type %q of %s", clip(o.at["type"].Value), o.what)
}

func (l *loader) register(o *object, s *step) {
	if !o.require("id", "every step needs one") || s.id == "" {
		return
	}
	if s.id == "continue" {
		l.fail(o.at["id"], "on_error: continue has a meaning of its own", "a step cannot be called continue")
	}
	if first := l.byID[s.id]; first != nil {
		l.fail(o.at["id"], fmt.Sprintf("the first is on line %d", first.node.Line), "duplicate step id %q", s.id)
		return
	}
	l.byID[s.id] = s
}

func (l *loader) common(env *expr.Env, o *object, s *step) {
	o.text("name")
	o.text("description")
	if n := o.at["if"]; n != nil {
		s.cond = l.expression(env, n, "if of "+o.what, true)
	}
	s.timeout = o.duration("timeout", time.Millisecond, maxTimeout)
	s.maxVisits = o.integer("max_visits", 1, maxMaxSteps)
	s.retry = retry{attempts: 1}
	if n := o.at["retry"]; n != nil {
		l.retry(n, o.what, &s.retry)
	}
	if n := o.at["on_error"]; n != nil {
		s.onError = l.target(o, "on_error", n)
		if s.onError.id == "continue" {
			s.onError = target{kind: targetContinue, at: n}
		}
	}
	if n := o.at["next"]; n != nil {
		s.next = l.target(o, "next", n)
		switch s.typ {
		case TypeSwitch:
			l.fail(n, "say where to go when nothing matches with default", "%s is a switch, which has no next", o.what)
		case TypeEnd, TypeFail:
			l.fail(n, "remove it", "nothing comes after %s, which is of type %s", o.what, s.typ)
		}
	}
	s.sandbox, s.isolated = l.sessionName(o)
}

// sessionName reads `sandbox` of a step or branch.
func (l *loader) sessionName(o *object) (name string, isolated bool) {
	n := o.at["sandbox"]
	if n == nil {
		return "", false
	}
	switch name = o.word("sandbox"); name {
	case "isolated":
		return "", true
	case "":
		return "", false
	}
	return name, false
}

func (l *loader) retry(n *yaml.Node, what string, r *retry) {
	o, ok := l.object(n, "retry of "+what, "max_attempts", "backoff")
	if !ok {
		return
	}
	o.require("max_attempts", "how often the step is tried in all, as in {max_attempts: 3, backoff: 2s}")
	r.attempts = max(o.integer("max_attempts", 1, maxAttempts), 1)
	r.backoff = time.Second
	if o.has("backoff") {
		r.backoff = o.duration("backoff", 0, maxBackoff)
	}
}

// target reads the id of a step; whether it exists is checked when all steps are known.
func (l *loader) target(o *object, key string, n *yaml.Node) target {
	id := o.text(key)
	if id == "" {
		return target{}
	}
	return target{kind: targetStep, id: id, at: n}
}

func (l *loader) agentStep(env *expr.Env, o *object) body {
	b := &agentBody{agent: o.text("agent")}
	if o.require("agent", "name the file of the agent without .prompt") && b.agent != "" {
		var err error
		if b.file, err = l.known(b.agent); err != nil {
			l.fail(o.at["agent"], "", "unknown agent %q: %v", clip(b.agent), err)
		}
	}
	if n := o.at["input"]; n != nil {
		if n.Kind != yaml.MappingNode {
			l.fail(n, `as in input: {path: "${ input.repo }"}`, "input of %s must be a mapping, it is %s", o.what, kindOf(n))
			return b
		}
		b.input = l.value(env, n)
	}
	return b
}

func (l *loader) setStep(env *expr.Env, o *object) body {
	b := &setBody{}
	if o.require("vars", `as in vars: {count: "${ vars.count + 1 }"}`) {
		b.vars = l.assignments(env, o.at["vars"], "vars of "+o.what)
	}
	return b
}

func (l *loader) failStep(env *expr.Env, o *object) body {
	o.require("message", "say why the run fails")
	return &failBody{message: l.textValue(env, o, "message")}
}

func (l *loader) endStep(env *expr.Env, o *object) body {
	b := &endBody{}
	if n := o.at["output"]; n != nil {
		b.output = l.value(env, n)
	}
	return b
}

func (l *loader) execStep(env *expr.Env, o *object) body {
	b := &execBody{wantJSON: o.boolean("json"), allowFailure: o.boolean("allow_failure")}
	switch {
	case o.has("command") && o.has("cmd"):
		l.fail(o.at["cmd"], "command is one line for /bin/sh, cmd a list that no shell reads", "%s has both command and cmd", o.what)
	case o.has("command"):
		b.command = l.shellCommand(env, o)
	case o.has("cmd"):
		for i, n := range o.items("cmd", 10_000) {
			if n.Kind != yaml.ScalarNode || isNull(n) {
				l.fail(n, "", "cmd[%d] of %s must be text, it is %s", i, o.what, kindOf(n))
				continue
			}
			b.argv = append(b.argv, l.value(env, n))
		}
	default:
		l.fail(o.node, `command: one line for /bin/sh, or cmd: ["program", "argument"]`, "%s has neither command nor cmd", o.what)
	}
	if d, _ := time.ParseDuration(scalarAt(o.node, "timeout")); d > session.MaxExecTimeout && d <= maxTimeout {
		l.fail(o.at["timeout"], "", "timeout of %s: a command may take at most %s", o.what, session.MaxExecTimeout)
	}
	b.cwd, b.stdin = l.textValue(env, o, "cwd"), l.textValue(env, o, "stdin")
	if n := o.at["env"]; n != nil {
		b.env = l.execEnv(env, n, o)
	}
	for i, n := range o.items("ok_codes", 256) {
		var code int
		if n.Kind != yaml.ScalarNode || n.Decode(&code) != nil || code < 0 || code > 255 {
			l.fail(n, "", "ok_codes[%d] of %s must be a number between 0 and 255, it is %s", i, o.what, kindOf(n))
		}
		b.okCodes = append(b.okCodes, code)
	}
	if b.allowFailure && o.has("ok_codes") {
		l.fail(o.at["ok_codes"], "remove one", "%s has both allow_failure and ok_codes", o.what)
	}
	return b
}

func (l *loader) execEnv(env *expr.Env, n *yaml.Node, o *object) []assignment {
	if n.Kind != yaml.MappingNode {
		l.fail(n, "", "env of %s must be a mapping of names to text, it is %s", o.what, kindOf(n))
		return nil
	}
	var out []assignment
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], follow(n.Content[i+1])
		switch {
		case !isEnvName(key.Value):
			l.fail(key, "", "%q in env of %s is not the name of an environment variable", clip(key.Value), o.what)
		case strings.HasPrefix(key.Value, "WORKCELL_"):
			l.fail(key, "", "%q in env of %s: names that begin with WORKCELL_ are taken", clip(key.Value), o.what)
		case v.Kind != yaml.ScalarNode || isNull(v):
			l.fail(v, `write "" for an empty value`, "%s in env of %s must be text, it is %s", key.Value, o.what, kindOf(v))
		default:
			out = append(out, assignment{name: key.Value, value: l.value(env, v)})
		}
	}
	return out
}

func isEnvName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// nearHint names the word that was probably meant, or all there are.
func nearHint(word string, known []string) string {
	if near, ok := suggest.Closest(word, known); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if len(known) == 0 || len(known) > 20 {
		return ""
	}
	return "known are " + strings.Join(known, ", ")
}

func sortedIDs[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
