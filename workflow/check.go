package workflow

import (
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// check validates the parts with references between steps: the targets of steps and the paths expressions read.
func (l *loader) check(wf *Workflow) {
	for _, r := range l.reads {
		l.checkPaths(r)
		wf.readsInput = wf.readsInput || slices.ContainsFunc(r.Paths(), func(p expr.Path) bool { return p.Root == "input" })
	}
	for _, s := range l.steps {
		if s.typ == TypeFail && s.onError.id != "" {
			l.Fail(s.onError.at, "remove it", "step %s has type fail and cannot have on_error", s.id)
		}
		for _, t := range s.targets() {
			l.checkTarget(s, t)
		}
	}
	for _, seq := range l.sequences {
		l.checkFlow(seq)
	}
	if wf.steps != nil {
		l.checkSandboxes(wf)
	}
}

func (l *loader) checkTarget(s *step, t target) {
	if _, ok := s.seq.index[t.id]; ok {
		return
	}
	if other := l.byID[t.id]; other != nil {
		l.Fail(t.at, fmt.Sprintf("next can only be a step of %s", s.seq.scope), "step %s leads to %q, which is part of %s",
			s.id, t.id, other.seq.scope)
		return
	}
	l.Fail(t.at, suggest.Hint(t.id, sortedKeys(s.seq.index)), "step %s leads to unknown step %q", s.id, t.id)
}

// checkPaths checks the paths an expression reads.
func (l *loader) checkPaths(r read) {
	for _, p := range r.Paths() {
		if len(p.Keys) == 0 {
			continue
		}
		early := r.seq == nil
		switch p.Root {
		case "steps":
			if early {
				l.failAt(p.At, "", "steps cannot be used here, because no step has run yet")
				continue
			}
			l.checkStepPath(p, r.seq.visible())
		case "run":
			l.checkKey(p, 0, []string{"id", "workflow", "started_at"}, "run has no %q")
		case "vars":
			if early {
				l.failAt(p.At, "use input or run", "vars cannot be used here")
				continue
			}
			l.checkKey(p, 0, sortedKeys(l.varsAt), "no step sets vars.%s")
		case "input":
			if names, closed := l.inputOf.names(); closed {
				l.checkKey(p, 0, names, "the input has no %q")
			}
		}
	}
}

func (l *loader) checkStepPath(p expr.Path, visible map[string]*step) {
	id := p.Keys[0]
	s, ok := visible[id]
	if !ok {
		if other := l.byID[id]; other != nil {
			l.failAt(p.Places[0], "use the output of the enclosing step",
				"step %q cannot be used here, because it is part of %s", id, other.seq.scope)
			return
		}
		l.failAt(p.Places[0], suggest.Hint(id, sortedKeys(visible)), "unknown step %q", clip(id))
		return
	}
	fields := []string{"status", "output", "error", "attempts", "visits"}
	if !l.checkKey(p, 1, fields, "a step has no %q") || len(p.Keys) < 3 || p.Keys[1] != "output" {
		return
	}
	switch b := s.body.(type) {
	case *execBody:
		known := []string{"ok", "status", "exit_code", "signal", "limit", "stdout", "stderr", "truncated", "duration_ms",
			"json", "invalid_utf8"}
		l.checkKey(p, 2, known, "the output of a command has no %q")
	case *fanBody:
		if s.typ == TypeParallel {
			l.checkKey(p, 2, names(b.branches, func(br branch) string { return br.id }), "the output of step "+id+" has no %q")
		}
	case *setBody:
		l.checkKey(p, 2, names(b.vars, func(a assignment) string { return a.name }), "the output of step "+id+" has no %q")
	}
}

func names[T any](list []T, name func(T) string) []string {
	var out []string
	for _, v := range list {
		out = append(out, name(v))
	}
	return out
}

// checkKey reports whether the path's i-th key is known or missing. Otherwise it reports a problem.
func (l *loader) checkKey(p expr.Path, i int, known []string, format string) bool {
	if i >= len(p.Keys) || slices.Contains(known, p.Keys[i]) {
		return true
	}
	l.failAt(p.Places[i], suggest.Hint(p.Keys[i], known), format, clip(p.Keys[i]))
	return false
}
