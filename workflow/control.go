package workflow

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/internal/expr"
)

func (b *setBody) run(ctx context.Context, ex *execution) (result, error) {
	values := make(map[string]any, len(b.vars))
	for _, a := range b.vars {
		v, err := a.value.Eval(ctx, ex.scope.variables())
		if err != nil {
			return result{}, err
		}
		values[a.name] = v
	}
	return result{output: values, has: true, vars: values}, nil
}

func (b *failBody) run(ctx context.Context, ex *execution) (result, error) {
	msg, err := b.message.EvalString(ctx, ex.scope.variables())
	if err != nil {
		return result{}, err
	}
	return result{}, &Error{Code: codeFailed, Message: msg}
}

func (b *endBody) run(ctx context.Context, ex *execution) (result, error) {
	if b.output == nil {
		return result{end: true}, nil
	}
	v, err := b.output.Eval(ctx, ex.scope.variables())
	if err != nil {
		return result{}, err
	}
	return result{output: v, has: true, last: true, end: true}, nil
}

// run compares the expression's value as text with the transitions. Without an expression, it uses the first case whose
// condition is true.
func (b *switchBody) run(ctx context.Context, ex *execution) (result, error) {
	vars := ex.scope.variables()
	value := ""
	res := result{}
	if b.expression != nil {
		v, err := b.expression.Eval(ctx, vars)
		if err != nil {
			return result{}, err
		}
		value = expr.Text(v)
		res.output, res.has = v, true
	}
	for _, c := range b.cases {
		matches := c.when == nil && c.text == value
		if c.when != nil {
			var err error
			if matches, err = c.when.EvalBool(ctx, vars); err != nil {
				return result{}, err
			}
		}
		if matches {
			res.next = &c.to
			return res, nil
		}
	}
	if b.fallback.id != "" {
		res.next = &b.fallback
		return res, nil
	}
	msg := "no case matches and default is not set"
	if b.expression != nil {
		msg = fmt.Sprintf("no transition for %q and default is not set", clip(value))
	}
	return res, &Error{Code: codeNoMatch, Message: msg}
}
