package hosttools

import (
	"context"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/rules"
)

// Limits for the evaluation of a condition.
const (
	conditionSteps = 100_000
	conditionTime  = time.Second // evaluation of the steps is faster, except on an overloaded host
)

// conditionEnv returns the variables of conditions: args, the arguments of the call; tool {server, name, read_only,
// destructive, open_world}; run {id, workflow, agent, step}; calls {total, tool}, the numbers of earlier calls in the
// run.
func conditionEnv() *expr.Env {
	var vars []expr.Var
	for _, name := range []string{"args", "tool", "run", "calls"} {
		vars = append(vars, expr.Var{Name: name, Map: true})
	}
	env, err := expr.New(vars...)
	if err != nil {
		panic(err) // the names above are valid identifiers
	}
	return env.Within(conditionSteps, conditionTime)
}

// condition is a compiled condition of a rule. If nil, the rule has no condition.
type condition struct{ program *expr.Program }

// compile compiles a condition. If the text is empty, compile returns nil.
func compile(env *expr.Env, text string) (*condition, error) {
	if text == "" {
		return nil, nil
	}
	p, err := env.Condition(text)
	if err != nil {
		return nil, err
	}
	return &condition{p}, nil
}

// holds evaluates the condition. If the condition is nil, holds returns otherwise.
func (c *condition) holds(ctx context.Context, vars map[string]any, otherwise bool) (bool, error) {
	if c == nil {
		return otherwise, nil
	}
	return c.program.EvalBool(ctx, vars)
}

// ConditionProblems returns the conditions of rules that do not compile. Rules.Problems returns all other problems.
func ConditionProblems(r Rules) (found Problems) {
	if len(r.Allow) > rules.MaxTools {
		return nil // rules.Problems reports this problem already
	}
	env := conditionEnv()
	for i, rule := range r.Allow {
		for _, c := range []struct{ name, text string }{{"when", rule.When}, {"ask", rule.Ask}} {
			if _, err := compile(env, c.text); err != nil {
				found.Add(fmt.Sprintf("allow[%d].%s", i, c.name), "", "%s: %v", c.name, err)
			}
		}
	}
	return found
}
