package workflow

import (
	"context"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/session"
)

// run lets the agent work and keeps its answer.
func (b *agentBody) run(ctx context.Context, ex *execution) (result, error) {
	if ex.run.agents == nil {
		return result{}, &Error{Code: CodeAgent, Message: "no agents can be run here"}
	}
	input := ex.run.input // without an input of its own an agent gets the run's
	if b.input != nil {
		v, err := b.input.Eval(ctx, ex.scope.variables())
		if err != nil {
			return result{}, exprError(b.input, err)
		}
		input, _ = v.(map[string]any)
	} else {
		input, _ = expr.Clone(input).(map[string]any)
	}
	ctx = session.WithSessionName(ctx, ex.session)
	out, err := guard(ctx, ex.run, ex.path, func(ctx context.Context) (AgentOutput, error) {
		out, err := ex.run.agents.RunAgent(ctx, b.agent, input)
		if err != nil { // also when it is an *Error, of a run that the agent made
			message := err.Error()
			if who := "agent " + b.agent; !strings.HasPrefix(message, who) { // those of package tools say it themselves
				message = who + ": " + message
			}
			err = &Error{Code: asError(err, CodeAgent).Code, Message: message, Err: err}
		}
		return out, err
	})
	if err != nil {
		return result{}, err
	}
	return result{output: answer(out), has: true, last: true}, nil
}

// answer is what later steps read: the parsed object of an agent that has an output schema or answers with a JSON
// object, also one in a code fence, else the text.
func answer(out AgentOutput) any {
	if out.Output != nil {
		return out.Output
	}
	text := strings.TrimSpace(out.Text)
	if rest, ok := strings.CutPrefix(text, "```"); ok {
		if body, ok := strings.CutSuffix(rest, "```"); ok {
			text = strings.TrimSpace(strings.TrimPrefix(body, "json"))
		}
	}
	if strings.HasPrefix(text, "{") {
		if v, err := expr.DecodeJSON([]byte(text)); err == nil {
			return v
		}
	}
	return out.Text
}
