package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core"
	"github.com/firebase/genkit/go/core/api"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/telemetry"
)

// tool is one of our tools. Genkit would refuse arguments that do not fit the schema and end the run; so the action
// that Genkit runs takes any JSON, and the schema that models see is another one, inferred from the input type.
// Register writes nothing, so one tool may take part in several Generate calls at once.
type tool struct {
	*ai.ToolAction[json.RawMessage, any]
	def    Definition
	handle func(*ai.ToolContext, json.RawMessage) (any, error)
}

var (
	_ ai.Tool    = (*tool)(nil)
	_ api.Action = (*tool)(nil)
)

// newTool makes a tool from a function that reports failures as errors. What the function returns as an error becomes
// output; only the end of ctx is an error for Genkit.
func newTool[In, Out any](b *binding, def Definition, fn func(context.Context, In) (Out, error), args func(*In) Args, bounds ...bound) *tool {
	def.Input, def.Output = b.box.schemas(def.Name, inferSchemas[In, Out])
	properties, _ := def.Input["properties"].(map[string]any)
	for _, r := range bounds {
		property, _ := properties[r.name].(map[string]any)
		r.keywords(property)
	}
	bounded := func(ctx context.Context, in In) (out Out, err error) {
		if fail := checkBounds(&in, bounds); fail != nil {
			return out, fail
		}
		return fn(ctx, in)
	}
	handle := func(tc *ai.ToolContext, raw json.RawMessage) (any, error) {
		return answer(b, tc, def.Name, raw, bounded, args)
	}
	traced := func(tc *ai.ToolContext, raw json.RawMessage) (any, error) {
		out, err := handle(tc, raw)
		if e := FailureOf(out); e != nil { // Genkit takes it for a success
			telemetry.Fail(trace.SpanFromContext(tc), string(e.Code))
		}
		return out, err
	}
	return &tool{
		ToolAction: ai.NewTool(def.Name, def.Description, traced, ai.WithOutputSchema(def.Output), ai.WithStrictSchema(false)),
		def:        def,
		handle:     handle,
	}
}

func inferSchemas[In, Out any]() (input, output map[string]any) {
	var in In
	var out Out
	output = core.InferSchemaMap(out)
	delete(output, "required") // a failed call returns nothing but its error
	return core.InferSchemaMap(in), output
}

// answer runs fn on a model's arguments.
func answer[In, Out any](b *binding, tc *ai.ToolContext, name string, raw json.RawMessage, fn func(context.Context, In) (Out, error), args func(*In) Args) (out any, err error) {
	defer func() {
		if r := recover(); r != nil {
			b.box.log.ErrorContext(tc, "a tool panicked", "tool", name, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			out, err = Result{Error: failure(CodeInternal, "%s failed unexpectedly", name)}, nil
		}
	}()
	in, fail := DecodeInput[In](raw)
	if fail != nil {
		return Result{Error: fail}, nil
	}
	if b.check != nil {
		var given Args
		if args != nil {
			given = args(&in)
		}
		given.SandboxID = stringField(&in, "SandboxID")
		if fail := b.check(tc, given); fail != nil {
			return Result{Error: fail}, nil
		}
	}
	result, err := fn(tc, in)
	if err == nil {
		return result, nil
	}
	if tc.Err() != nil {
		return nil, context.Cause(tc)
	}
	if interrupt, _ := ai.IsToolInterruptError(err); interrupt {
		return nil, err
	}
	told := ErrorOf(err)
	if told.Code == CodeInternal {
		var known *ToolError
		if !errors.As(err, &known) {
			b.box.log.ErrorContext(tc, "a tool failed", "tool", name, "error", err)
		}
	}
	return Result{Error: told}, nil
}

// Definition is what models see.
func (t *tool) Definition() *ai.ToolDefinition {
	def := t.ToolAction.Definition()
	def.InputSchema = t.def.Input
	return def
}

func (t *tool) Desc() api.ActionDesc {
	desc := t.ToolAction.Desc()
	desc.InputSchema = t.def.Input
	desc.Metadata = maps.Clone(desc.Metadata)
	return desc
}

// Register registers the tool under both keys that Genkit looks tools up by.
func (t *tool) Register(r api.Registry) {
	for _, kind := range []api.ActionType{api.ActionTypeToolV2, api.ActionTypeTool} {
		r.RegisterAction(api.KeyFromName(kind, t.Name()), t)
	}
}
