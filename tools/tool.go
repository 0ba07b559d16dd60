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
	inner  *ai.ToolAction[json.RawMessage, any]
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
	schemas := b.box.schemas(def.Name, inferSchemas[In, Out])
	def.Input, def.Output = schemas.input(), schemas.output()
	setBounds(def.Input, bounds)
	handle := func(tc *ai.ToolContext, raw json.RawMessage) (any, error) {
		return answer(b, tc, def.Name, raw, fn, args)
	}
	traced := func(tc *ai.ToolContext, raw json.RawMessage) (any, error) {
		out, err := handle(tc, raw)
		if e := FailureOf(out); e != nil { // Genkit takes it for a success
			telemetry.Fail(trace.SpanFromContext(tc), string(e.Code))
		}
		return out, err
	}
	return &tool{
		inner:  ai.NewTool(def.Name, def.Description, traced, ai.WithOutputSchema(def.Output), ai.WithStrictSchema(false)),
		def:    def,
		handle: handle,
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
	in, fail := decodeArgs[In](raw)
	if fail != nil {
		return Result{Error: fail}, nil
	}
	if b.check != nil {
		if fail := b.check(tc, args(&in)); fail != nil {
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
	told := errorOf(err)
	if told.Code == CodeInternal {
		var known *ToolError
		if !errors.As(err, &known) {
			b.box.log.ErrorContext(tc, "a tool failed", "tool", name, "error", err)
		}
	}
	return Result{Error: told}, nil
}

func (t *tool) Name() string { return t.inner.Name() }

// Definition is what models see.
func (t *tool) Definition() *ai.ToolDefinition {
	def := t.inner.Definition()
	def.InputSchema = t.def.Input
	return def
}

func (t *tool) Desc() api.ActionDesc {
	desc := t.inner.Desc()
	desc.InputSchema = t.def.Input
	desc.Metadata = maps.Clone(desc.Metadata)
	return desc
}

func (t *tool) RunRaw(ctx context.Context, input any) (any, error) { return t.inner.RunRaw(ctx, input) }

func (t *tool) RunRawMultipart(ctx context.Context, input any) (*ai.MultipartToolResponse, error) {
	return t.inner.RunRawMultipart(ctx, input)
}

func (t *tool) RunJSON(ctx context.Context, input json.RawMessage, cb func(context.Context, json.RawMessage) error) (json.RawMessage, error) {
	return t.inner.RunJSON(ctx, input, cb)
}

func (t *tool) RunJSONWithTelemetry(ctx context.Context, input json.RawMessage, cb func(context.Context, json.RawMessage) error) (*api.ActionRunResult[json.RawMessage], error) {
	return t.inner.RunJSONWithTelemetry(ctx, input, cb)
}

func (t *tool) Respond(toolReq *ai.Part, output any, opts *ai.RespondOptions) *ai.Part {
	return t.inner.Respond(toolReq, output, opts) //nolint:staticcheck // ai.Tool demands it
}

func (t *tool) Restart(toolReq *ai.Part, opts *ai.RestartOptions) *ai.Part {
	return t.inner.Restart(toolReq, opts) //nolint:staticcheck // ai.Tool demands it
}

// Register registers the tool under both keys that Genkit looks tools up by.
func (t *tool) Register(r api.Registry) {
	for _, kind := range []api.ActionType{api.ActionTypeToolV2, api.ActionTypeTool} {
		r.RegisterAction(api.KeyFromName(kind, t.Name()), t)
	}
}
