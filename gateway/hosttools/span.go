package hosttools

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// start starts the span of a call. The parent is the span in the request if this span belongs to the command's trace.
// Otherwise, the parent is the command's span. A span of another trace becomes a link.
func (p *pass) start(ctx context.Context, command trace.SpanContext) (context.Context, trace.Span) {
	named, parent := telemetry.ParseTraceParent(p.req.TraceParent), command
	var links []trace.Link
	switch {
	case !named.IsValid():
	case named.TraceID() == command.TraceID():
		parent = named
	default:
		links = []trace.Link{{SpanContext: named}}
	}
	ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	t, c := p.entry.tool, p.caller
	attrs := append(telemetry.Texts(map[attribute.Key]string{
		telemetry.KeyExecID: c.ExecID, telemetry.KeySandboxID: c.SandboxID,
		semconv.ConversationID: c.Run, semconv.AgentName: c.Agent,
	}), semconv.MCPMethod.String(methodCall), telemetry.KeyToolServer.String(t.Server),
		telemetry.KeyToolSet.String(p.set.digest), telemetry.KeyArgsBytes.Int(len(p.req.Args)))
	tracers := p.set.r.o.TracerProvider
	ctx, span := telemetry.StartOperation(ctx, tracers, semconv.ExecuteTool, semconv.ToolName, t.MCPName(), attrs...)
	for _, l := range links {
		span.AddLink(l)
	}
	ctx = audit.With(ctx, func(r *audit.Record) {
		r.Event, r.Tool, r.Exec, r.Sandbox = audit.EventTool, t.FullName(), c.ExecID, c.SandboxID
		p.cmd.Settings.Note(r)
		r.Run, r.Step, r.Agent = cmp.Or(r.Run, c.Run), cmp.Or(r.Step, c.Step), cmp.Or(r.Agent, c.Agent)
	})
	return ctx, span
}

// note writes a decision to the audit log.
func (p *pass) note(ctx context.Context, decision, rule string) error {
	return audit.Note(ctx, func(r *audit.Record) { r.Decision, r.Rule = decision, rule })
}

// finish counts a call and records the result. Without a span, the tool is unknown.
func (p *pass) finish(ctx context.Context, span trace.Span, reply Reply) Reply {
	var code toolspec.Code
	tool := ""
	if reply.Error != nil {
		code = reply.Error.Code
	}
	refused := p.decision == denied || p.decision == rejected
	if refused {
		p.set.tally.refused.Add(1)
	}
	if span != nil {
		tool = p.entry.tool.FullName()
		size := len(reply.Data) + len(reply.Text)
		span.SetAttributes(telemetry.KeyDecision.String(p.decision), telemetry.KeyResultBytes.Int(size))
		if code != "" {
			telemetry.Fail(span, string(code))
		}
		if refused && reply.Error != nil {
			if rule := reply.Error.Rule; rule != "" {
				span.AddEvent(telemetry.EventRefused, trace.WithAttributes(telemetry.KeyRule.String(rule)))
			}
			if err := p.note(ctx, audit.Refused, reply.Error.Rule); err != nil {
				p.set.r.o.Log.ErrorContext(ctx, "cannot record a refusal", "error", err)
			}
		}
		span.End()
	}
	p.counts.add(tool, code, p.decision)
	return reply
}

// counter counts the calls of a command.
type counter struct {
	mu sync.Mutex // guards the fields below
	Counts
	waited time.Duration
}

func (c *counter) wait(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waited += d
}

func (c *counter) add(tool string, code toolspec.Code, decision string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Total++
	switch {
	case code == toolspec.CodePermission || decision == rejected:
		c.Denied++
	case code != "":
		c.Failed++
	}
	if tool == "" { // the caller used an unknown name
		return
	}
	if c.ByTool == nil {
		c.ByTool = map[string]int64{}
	}
	c.ByTool[tool]++
}

// Counts returns the counts of the command's calls so far.
func (a *Access) Counts() Counts {
	a.counts.mu.Lock()
	defer a.counts.mu.Unlock()
	out := a.counts.Counts
	out.WaitedMS = a.counts.waited.Milliseconds()
	out.ByTool, out.Asking = maps.Clone(out.ByTool), a.overtime.total()
	return out
}
