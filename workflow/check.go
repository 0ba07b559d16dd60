package workflow

import (
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// check validates what needs all steps to be known: where steps lead to, and what expressions read.
func (l *loader) check(wf *Workflow) {
	for _, a := range wf.vars {
		for _, c := range a.value.compiled() {
			l.checkPaths(c, nil, true)
		}
	}
	if wf.steps == nil {
		return
	}
	l.checkSequence(wf.steps, nil)
	l.checkSandboxes(wf)
}

// checkSequence checks a list of steps and what is inside them. visible holds the steps of the lists around it.
func (l *loader) checkSequence(seq *sequence, around map[string]*step) {
	visible := map[string]*step{}
	for id, s := range around {
		visible[id] = s
	}
	for _, s := range seq.steps {
		visible[s.id] = s
	}
	for _, s := range seq.steps {
		l.checkStep(s, visible)
	}
	l.checkFlow(seq)
}

func (l *loader) checkStep(s *step, visible map[string]*step) {
	if s.cond != nil {
		l.checkPaths(s.cond.compiled, visible, false)
	}
	if s.body == nil {
		return
	}
	for _, c := range s.body.expressions() {
		l.checkPaths(c, visible, false)
	}
	for _, in := range s.inner() {
		l.checkSequence(in.steps, visible)
		inside := visible
		if in.output != nil {
			inside = mergeSteps(visible, in.steps)
		}
		for _, c := range in.output.compiled() {
			l.checkPaths(c, inside, false)
		}
	}
	if s.typ == TypeFail && s.onError.kind != targetNone {
		l.fail(s.onError.at, "remove it", "step %s fails on purpose, it has no on_error", s.id)
	}
	to, _ := s.body.targets()
	for _, t := range append(to, s.next, s.onError) {
		l.checkTarget(s, t)
	}
}

func mergeSteps(around map[string]*step, seq *sequence) map[string]*step {
	out := map[string]*step{}
	for id, s := range around {
		out[id] = s
	}
	for _, s := range seq.steps {
		out[s.id] = s
	}
	return out
}

func (l *loader) checkTarget(s *step, t target) {
	if t.kind != targetStep {
		return
	}
	if _, ok := s.seq.index[t.id]; ok {
		return
	}
	if other := l.byID[t.id]; other != nil {
		l.fail(t.at, fmt.Sprintf("a step can only lead to steps of %s", s.seq.scope), "step %s leads to %q, which is part of %s", s.id, t.id, other.seq.scope)
		return
	}
	l.fail(t.at, nearHint(t.id, sortedIDs(s.seq.index)), "step %s leads to %q, but there is no such step", s.id, t.id)
}

// checkPaths checks what an expression reads. early is true for expressions that are evaluated before the first step.
func (l *loader) checkPaths(c compiled, visible map[string]*step, early bool) {
	for _, p := range c.Paths() {
		if len(p.Keys) == 0 {
			continue
		}
		switch p.Root {
		case "steps":
			l.checkStepPath(c, p, visible, early)
		case "run":
			l.checkKey(c, p, 0, runFields(), "run has no %q")
		case "vars":
			if early {
				l.failIn(c, p.Offset, "they are given together, use input or run", "vars cannot be read here")
				continue
			}
			l.checkKey(c, p, 0, sortedIDs(l.varsAt), "no step sets vars.%s")
		case "input":
			if names, closed := l.inputOf.names(); closed {
				l.checkKey(c, p, 0, names, "the input has no %q")
			}
		}
	}
}

func (l *loader) checkStepPath(c compiled, p expr.Path, visible map[string]*step, early bool) {
	if early {
		l.failIn(c, p.Offset, "", "steps cannot be read here: none has run")
		return
	}
	id := p.Keys[0]
	s, ok := visible[id]
	if !ok {
		if other := l.byID[id]; other != nil {
			l.failIn(c, p.Offsets[0], "read the output of the step around it", "step %q cannot be read here, it is part of %s", id, other.seq.scope)
			return
		}
		l.failIn(c, p.Offsets[0], nearHint(id, sortedIDs(visible)), "there is no step %q", clip(id))
		return
	}
	if len(p.Keys) == 1 {
		return
	}
	if !l.checkKey(c, p, 1, stepFields(), "a step has no %q") || p.Keys[1] != "output" || len(p.Keys) == 2 {
		return
	}
	switch b := s.body.(type) {
	case *execBody:
		l.checkKey(c, p, 2, execFields(), "the output of a command has no %q")
	case *parallelBody:
		var ids []string
		for _, br := range b.branches {
			ids = append(ids, br.id)
		}
		l.checkKey(c, p, 2, ids, "the output of step "+id+" has no %q")
	case *setBody:
		var names []string
		for _, a := range b.vars {
			names = append(names, a.name)
		}
		l.checkKey(c, p, 2, names, "the output of step "+id+" has no %q")
	}
}

// checkKey reports whether the path's key is among the known ones.
func (l *loader) checkKey(c compiled, p expr.Path, i int, known []string, format string) bool {
	if i >= len(p.Keys) || slices.Contains(known, p.Keys[i]) {
		return true
	}
	hint := ""
	if near, ok := suggest.Closest(p.Keys[i], known); ok {
		hint = fmt.Sprintf("did you mean %q?", near)
	} else if len(known) > 0 && len(known) <= 20 {
		hint = nearHint("", known)
	}
	l.failIn(c, p.Offsets[i], hint, format, clip(p.Keys[i]))
	return false
}

// failIn reports a mistake at a byte offset of an expression.
func (l *loader) failIn(c compiled, offset int, hint, format string, args ...any) {
	line, column := l.place(c.node, c.offset+offset)
	l.failAt(line, column, hint, format, args...)
}

// runFields are what expressions can read of `run`.
func runFields() []string { return []string{"id", "workflow", "started_at"} }

// stepFields are what expressions can read of a step.
func stepFields() []string {
	return []string{"status", "output", "error", "attempts", "visits"}
}

// execFields are what expressions can read of a command's output.
func execFields() []string {
	return []string{"ok", "status", "exit_code", "signal", "stdout", "stderr", "truncated", "duration_ms", "json"}
}
