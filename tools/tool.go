package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"runtime/debug"
	"slices"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// tool is a tool of Workcell. Genkit rejects arguments in conflict with the schema, and ends the run. Therefore, the
// action Genkit runs accepts any JSON. Models see a different schema, which is inferred from the input type. Register
// does not modify the tool, so several Generate calls can use one tool concurrently.
type tool struct {
	*ai.ToolAction[json.RawMessage, *ai.MultipartToolResponse]
	def toolspec.Definition
	run func(context.Context, json.RawMessage) (any, error) // runs the tool without Genkit
}

var (
	_ ai.Tool    = (*tool)(nil)
	_ api.Action = (*tool)(nil)
)

// newTool creates a tool from do. It converts errors of do to output. It returns only the error of a done ctx to
// Genkit.
func newTool[In, Out any](b *binding, do func(context.Context, In) (Out, error), def toolspec.Definition,
	bounds ...toolspec.Bound) *tool {
	def.Input, def.Output = b.box.schemas(def.Name, toolspec.Schemas[In, Out])
	for _, bound := range bounds {
		bound.Describe(def.Input)
	}
	t := &tool{def: def}
	t.run = func(ctx context.Context, raw json.RawMessage) (any, error) {
		out, err := answer(ctx, b, def.Name, raw, do, bounds)
		var known *toolspec.Error
		switch interrupt, _ := ai.IsToolInterruptError(err); {
		case err == nil:
			return out, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case interrupt, b.record.Interrupted(ctx, err):
			return nil, err
		case !errors.As(err, &known):
			if known = toolspec.ErrorOf(err); known.Code == toolspec.CodeInternal {
				b.box.log.ErrorContext(ctx, "a tool failed", "tool", def.Name, "error", err)
			}
		}
		if b.cfg.Mode != frontmatter.ModeCode {
			known = known.Plain()
		}
		return toolspec.Result{Error: known}, nil
	}
	t.ToolAction = ai.NewMultipartTool(def.Name, def.Description,
		func(tc *ai.ToolContext, raw json.RawMessage) (*ai.MultipartToolResponse, error) {
			describeTool(tc)
			out, err := b.interruptible(tc, func(ctx context.Context) (any, error) { return t.run(ctx, raw) })
			if err != nil {
				return nil, err
			}
			if e := toolspec.FailureOf(out); e != nil { // Genkit considers the call successful
				telemetry.Fail(trace.SpanFromContext(tc), string(e.Code))
			}
			return &ai.MultipartToolResponse{Output: out, Content: imageParts(out)}, nil
		}, ai.WithOutputSchema(def.Output), ai.WithStrictSchema(false))
	return t
}

// describeTool records the run of a tool call in Genkit's span.
func describeTool(ctx context.Context) {
	span := trace.SpanFromContext(ctx)
	if run, ok := session.RunFromContext(ctx); ok {
		span.SetAttributes(semconv.ConversationID.String(run.ID))
	}
	if a, ok := ctx.Value(agentKey{}).(*Agent); ok {
		span.SetAttributes(telemetry.Text(semconv.AgentName, a.name))
	}
}

// answer decodes a model's arguments and calls do.
func answer[In, Out any](ctx context.Context, b *binding, name string, raw json.RawMessage,
	do func(context.Context, In) (Out, error), bounds []toolspec.Bound) (out Out, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked(ctx, b.box.log, name, r)
		}
	}()
	ctx = audit.With(ctx, func(r *audit.Record) {
		r.Tool = name
		if mine := slices.Collect(maps.Values(b.inRun(ctx))); len(mine) == 1 {
			b.settings(mine[0]).Note(r)
		}
	})
	in, fail := toolspec.DecodeInput[In](raw)
	if fail != nil {
		return out, b.refused(ctx, fail)
	}
	given, _ := any(&in).(interface{ args() toolspec.Args })
	if given != nil {
		fail = b.check(ctx, given.args())
	}
	if fail = cmp.Or(fail, toolspec.CheckBounds(&in, bounds)); fail != nil {
		return out, b.refused(ctx, fail)
	}
	if err := b.decided(ctx, audit.Allowed, "", ""); err != nil {
		return out, err
	}
	out, err = do(ctx, in)
	if err != nil && refuses(toolspec.ErrorOf(err).Code) {
		err = cmp.Or(b.noteRefusal(ctx, toolspec.ErrorOf(err)), err)
	}
	span := trace.SpanFromContext(ctx)
	if given != nil && err == nil { // the arguments of a failed call may contain anything, including secrets
		// Shell command lines and arguments are not recorded, because they may contain secrets.
		if argv := given.args().Argv; len(argv) > 0 {
			span.SetAttributes(telemetry.Text(semconv.ProcessName, path.Base(argv[0])))
		}
	}
	if ended, ok := any(out).(interface{ exit() *int }); ok && ended.exit() != nil {
		span.SetAttributes(semconv.ProcessExitCode.Int(*ended.exit()))
	}
	return out, err
}

// panicked logs a panic of a tool and returns the failure for the model.
func panicked(ctx context.Context, log *slog.Logger, tool string, value any) *toolspec.Error {
	log.ErrorContext(ctx, "a tool panicked", "tool", tool, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	return toolspec.Failf(toolspec.CodeInternal, "%s failed unexpectedly", tool)
}

// refuses reports whether code means a rule or limit refused a call after it had been allowed to start.
func refuses(code toolspec.Code) bool {
	return slices.Contains([]toolspec.Code{toolspec.CodePermission, toolspec.CodeTooLarge, toolspec.CodeCapacity,
		toolspec.CodeQuota}, code)
}

// refused records the refusal of a call by a check, and returns the reason.
func (b *binding) refused(ctx context.Context, fail *toolspec.Error) error {
	return cmp.Or[error](b.noteRefusal(ctx, fail), fail)
}

// noteRefusal writes the refusal of a call to the audit log and to the call's span.
func (b *binding) noteRefusal(ctx context.Context, fail *toolspec.Error) error {
	if fail.Rule != "" {
		trace.SpanFromContext(ctx).AddEvent(telemetry.EventRefused,
			trace.WithAttributes(telemetry.Text(telemetry.KeyRule, fail.Rule)))
	}
	return b.decided(ctx, audit.Refused, fail.Rule, fail.Code)
}

// decided writes the decision on a tool call to the audit log.
func (b *binding) decided(ctx context.Context, decision, rule string, class toolspec.Code) error {
	return audit.Note(ctx, func(r *audit.Record) {
		r.Event, r.Run, r.Decision, r.Rule, r.Error = audit.EventTool, cmp.Or(r.Run, b.run(ctx).ID), decision, rule,
			string(class)
	})
}

// Definition returns the definition models see.
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

// Register registers the tool under both keys Genkit uses to look up tools.
func (t *tool) Register(r api.Registry) {
	for _, kind := range []api.ActionType{api.ActionTypeToolV2, api.ActionTypeTool} {
		r.RegisterAction(api.KeyFromName(kind, t.Name()), t)
	}
}
