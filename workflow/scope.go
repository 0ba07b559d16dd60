package workflow

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/session/record"
)

// scope contains the variables of the steps in one sequence. Only the goroutine running the sequence uses it. A branch
// gets a copy of the scope, and only the output is kept.
type scope struct {
	run     *run
	path    string         // prefix of its steps' paths: "", "each[3]/", "checks.lint/"
	session string         // name of the sandbox the steps share
	files   string         // prefix of the paths of all steps that share it, if it is isolated
	steps   map[string]any // value of `steps` in expressions; entries are replaced, never modified
	vars    map[string]any
	extra   map[string]any // item and index
	visits  map[string]int
	held    map[string]int // size of the state in bytes for each step; "" for vars
	last    any            // output of the latest step
}

// root returns the scope of the top-level steps.
func (r *run) root(ctx context.Context) (*scope, error) {
	sc := &scope{run: r, session: record.DefaultName, steps: map[string]any{}, vars: map[string]any{},
		extra: map[string]any{}}
	sc.enter(r.wf.steps)
	for _, a := range r.wf.vars {
		v, err := a.value.Eval(ctx, map[string]any{"input": r.input, "run": r.info, "steps": sc.steps,
			"vars": map[string]any{}})
		if err != nil {
			return nil, r.wf.withPosition(err)
		}
		sc.vars[a.name] = v
	}
	return sc, sc.rememberVars()
}

// child returns the scope of a branch or an item.
func (sc *scope) child(seq *sequence, path, session string, extra map[string]any) *scope {
	c := &scope{run: sc.run, path: path, session: session, steps: maps.Clone(sc.steps), vars: maps.Clone(sc.vars),
		extra: maps.Clone(sc.extra)}
	maps.Copy(c.extra, extra)
	if c.files = sc.files; session != sc.session {
		c.files = path
	}
	c.enter(seq)
	return c
}

// enter adds the steps of a sequence, to allow expressions about steps before their execution.
func (sc *scope) enter(seq *sequence) {
	sc.visits, sc.held = map[string]int{}, map[string]int{}
	for _, s := range seq.steps {
		sc.steps[s.id] = map[string]any{"status": string(StatusPending), "visits": int64(0), "attempts": int64(0)}
	}
}

// leave releases the state size of an ended scope.
func (sc *scope) leave() {
	for _, n := range sc.held {
		sc.run.held.Add(-int64(n))
	}
}

// variables returns the variables of expressions.
func (sc *scope) variables() map[string]any {
	out := map[string]any{"input": sc.run.input, "steps": sc.steps, "run": sc.run.info, "vars": sc.vars}
	maps.Copy(out, sc.extra)
	return out
}

// update updates the entry of a step.
func (sc *scope) update(id string, change map[string]any, remove ...string) {
	step, _ := sc.steps[id].(map[string]any) // all entries have this type
	entry := maps.Clone(step)
	for _, key := range remove {
		delete(entry, key)
	}
	maps.Copy(entry, change)
	sc.steps[id] = entry
}

// assign sets variables.
func (sc *scope) assign(values map[string]any) error {
	vars := maps.Clone(sc.vars)
	maps.Copy(vars, values)
	sc.vars = vars
	return sc.rememberVars()
}

func (sc *scope) rememberVars() error { return sc.account("", expr.Size(sc.vars)) }

// account updates the size of the run's state after a change of an output or of the variables.
func (sc *scope) account(key string, size int) error {
	grown := size - sc.held[key]
	sc.held[key] = size
	if sc.run.held.Add(int64(grown)) > maxStateBytes {
		return finalf(codeLimit, nil, "the run's data exceeds %d MiB", maxStateBytes>>20)
	}
	return nil
}

// in returns the name of the sandbox for a place in a run. around is the name of the enclosing sandbox. An isolated
// sandbox belongs to one execution of one step.
func (ref sandboxRef) in(around, id, path string, visit int) string {
	switch {
	case ref.name != "":
		return ref.name
	case !ref.isolated:
		return around
	}
	owner := fmt.Sprintf("%s.%d", id, visit)
	if path != "" {
		owner += "." + digest([]byte(path), 6)
	}
	return strings.ToValidUTF8(rules.IsolatedName(owner), "_")
}
