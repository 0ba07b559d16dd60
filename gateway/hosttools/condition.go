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

// compile compiles a condition. If the text is empty, compile returns nil.
func compile(env *expr.Env, text string) (*expr.Program, error) {
	if text == "" {
		return nil, nil
	}
	return env.Condition(text)
}

// holds evaluates a condition. If the condition is nil, holds returns otherwise.
func holds(ctx context.Context, condition *expr.Program, vars map[string]any, otherwise bool) (bool, error) {
	if condition == nil {
		return otherwise, nil
	}
	return condition.EvalBool(ctx, vars)
}

// ConditionProblems returns the invalid conditions of rules. Rules.Problems returns all other problems.
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
