package tools

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/core/status"
	"github.com/firebase/genkit/go/core/tracing"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// Agent is a runnable prompt file. It is safe for concurrent use, including concurrent runs of the same agent.
type Agent struct {
	g      *genkit.Genkit
	name   string
	doc    *frontmatter.Document
	prompt ai.Prompt
	source string // digest of the file and its partials
}

// Name is the base name of the agent's file without ".prompt".
func (a *Agent) Name() string { return a.name }

// RunOptions configures Run. The field comments describe the zero values.
type RunOptions struct {
	// Model overrides the file's model. If the provider differs, the file's `config:` is ignored, because the other
	// provider would reject it. If empty, Run uses the file's model, or else Genkit's default model.
	Model string
	// Config replaces the file's `config:`. It is a map or a value of the type that the model's plugin defines. If nil,
	// Run uses the file's.
	Config any
	// MaxTurns limits the turns with tool calls. The model can use one more turn for the answer. If zero, it defaults to
	// the file's `maxTurns`, or else to frontmatter.DefaultMaxTurns. For coding agents, it defaults to
	// `executor.max_turns`, or else to no limit.
	MaxTurns int
	// Messages are the earlier messages of the conversation. The template places them at {{history}}, or else before the
	// last user message. If nil, Run uses the messages of ctx (ai.NewHistoryContext). Agents of tools do not see them.
	Messages []*ai.Message
	// OnText is called with each part of the answer as it arrives. If nil, Run does not stream the answer.
	OnText func(text string)
	// OnTool is called when a tool call starts and when it ends. Calls may come from several goroutines at once. If
	// nil, Run reports no tool events.
	OnTool func(ToolEvent)
	// OnApproval decides on calls to host tools whose rule requires approval. It blocks until it has a decision. It may
	// be called from several goroutines at once. If nil, Run uses the approver of ctx (hosttools.WithApprover). If ctx
	// has no approver either, these calls are refused.
	OnApproval hosttools.ApproverFunc
}

// ToolEvent reports the start or the end of a tool call.
type ToolEvent struct {
	Tool     string
	Ref      string // the same in a call's start and end events
	Done     bool
	Duration time.Duration // set if Done
	Failure  string        // error code; set if Done and the output has an error
}

// AgentResult is the result of an agent run.
type AgentResult struct {
	// Response is Genkit's response, for example with media and the conversation. If Run failed, it contains the complete
	// turns. It is nil if Run failed before the first turn.
	Response *ai.ModelResponse
	Text     string // text of the answer
	// Output is the parsed answer. If the file has an output schema, Output conforms to it. Otherwise it is set if the
	// answer is a JSON object, fenced or not. If neither applies, Output is nil. In an object, an integer above 2^53
	// is an int64 value.
	Output any
	// Outputs are the files listed in the file's `outputs:`, keyed by their path in the workspace. Run collects them
	// only if it began the run. If the caller began the run, the caller collects them with transfer.Collect.
	Outputs      patch.Tree
	Model        string // first model asked; if another model answered (Fallback), its tokens are counted as this model's
	FinishReason string
	Turns        int // number of the model's answers
	ToolCalls    int
	InputTokens  int // sum over all turns; includes CachedTokens if the provider reports them
	OutputTokens int // including reasoning
	CachedTokens int // input tokens from the provider's cache

	// Evidence has an entry for each combination of isolation and settings under which the agent's code ran, even if
	// the agent failed.
	Evidence []sandbox.Evidence

	// Executor is the result of the coding agent, with the cost. It is nil in other modes.
	Executor *ExecutorResult
}

// ExecutorResult is the result of a coding agent.
type ExecutorResult struct {
	executor.Result
	Metered model.Usage // model usage, measured by the model proxy
}

// Cost returns the model cost in USD. It returns nil if r is nil or the cost is unknown.
func (r *ExecutorResult) Cost() *float64 {
	if r == nil || !r.Metered.CostKnown {
		return nil
	}
	return &r.Metered.CostUSD
}

// Run runs the agent once. Template syntax and message markers in input are not interpreted. Each missing input value
// is taken from `input.default` in the file.
//
// If ctx has neither a run (session.WithRun) nor a session of a Genkit agent, Run begins a run and closes its sandboxes
// at the end. All spans are children of one span, invoke_agent NAME, so each run has one trace. In a workflow step with
// a journal, Run records the conversation there. If the run is resumed, Run continues the recorded conversation.
//
// If the agent could not open its sandbox, Run fails, even if the model answered. Errors name the agent and its file.
// Callers can test for ai.ErrMaxTurnsExceeded, ai.ErrModelNotFound, backend.ErrInvalid (invalid input, see CheckInput),
// and the errors of ctx.
func (a *Agent) Run(ctx context.Context, input map[string]any, opts *RunOptions) (res AgentResult, err error) {
	defer func() { err = classified(err) }()
	o := *cmp.Or(opts, &RunOptions{})
	if a.doc.Sandbox != nil {
		if err := checkUser(ctx, *a.doc.Sandbox); err != nil {
			return AgentResult{}, fmt.Errorf("agent %s (%s): %w", a.name, a.doc.File, err)
		}
	}
	p := pluginOf(a.g)
	if p != nil {
		if err := wish.CheckIsolation(p.toolbox().manager, a.doc); err != nil {
			return AgentResult{}, fmt.Errorf("agent %s: %w", a.name, err)
		}
	}
	run, bound := runOf(ctx)
	if !bound {
		run = session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()}
	}
	ctx = session.WithRun(ctx, run)
	// Genkit's spans become children of this span only with Genkit's provider, even if the program configured none.
	ctx, span := telemetry.StartOperation(ctx, tracing.TracerProvider(), semconv.InvokeAgent, semconv.AgentName, a.name,
		telemetry.KeyRunID.String(run.ID), telemetry.Text(telemetry.KeyAgent, a.name), semconv.ConversationID.String(run.ID))
	defer func() { telemetry.End(span, err) }()
	if !bound && p != nil {
		defer (&binding{box: p.toolbox()}).endRun(ctx, run)
	}
	if o.OnApproval != nil {
		ctx = hosttools.WithApprover(ctx, o.OnApproval)
	}
	req, err := a.request(ctx, input, o)
	if err != nil {
		return AgentResult{}, a.explain(ctx, req, err)
	}
	_, model, _ := strings.Cut(req.Model, "/")
	span.SetAttributes(telemetry.Text(telemetry.KeyModel, req.Model),
		telemetry.Text(semconv.RequestModel, cmp.Or(model, req.Model)))
	opening := &opening{}
	defer func() { res.Evidence = opening.evidence() }()
	ctx = context.WithValue(context.WithValue(ctx, openingKey{}, opening), agentKey{}, a)
	ctx = ai.NewHistoryContext(ctx, nil) // for the agents of tools
	ctx = audit.With(ctx, func(r *audit.Record) { r.Run, r.Agent = cmp.Or(r.Run, run.ID), a.name })
	res, err = a.generate(ctx, req, o)
	if err == nil && !bound {
		res.Outputs, err = a.outputs(ctx, run)
	}
	if err != nil {
		return res, a.explain(ctx, req, err)
	}
	return res, nil
}

// generate runs the model, or the coding agent replacing it, and returns the answer.
func (a *Agent) generate(ctx context.Context, req *ai.GenerateActionOptions,
	o RunOptions) (res AgentResult, err error) {
	w := &watcher{provider: maker(req.Model), onTool: o.OnTool}
	x := &execution{agent: a.name, file: a.doc.File, model: req.Model, turns: o.MaxTurns, watch: w}
	if a.coding() { // the usage of coding agents is added when they end
		ctx = context.WithValue(ctx, executionKey{}, x)
		req.Model = placeholderModel
	} else {
		// The first middleware is the guard, which may ask the model again.
		req.Use = slices.Insert(req.Use, 1, local("workcell/count", &ai.Hooks{WrapModel: w.model}))
	}
	call, err := a.recorded(ctx, req, w)
	if err != nil {
		return res, err
	}
	call.Use = append(call.Use, local("workcell/watch", &ai.Hooks{WrapTool: w.tool}))
	defer w.report(ctx, a.name)
	resp, err := genkit.GenerateWithRequest(seeded(ctx, a.g), a.g, call, nil, stream(o.OnText))
	res = AgentResult{Response: resp, Model: x.model, Turns: w.turns, ToolCalls: w.calls}
	res.InputTokens, res.OutputTokens, res.CachedTokens = w.input, w.output, w.cached
	if resp != nil { // even if the answer does not match the schema
		res.Text, res.FinishReason = resp.Text(), string(resp.FinishReason)
	}
	if x.result != nil {
		res.Executor = &ExecutorResult{*x.result, x.metered}
		err = a.limited(x, err)
	}
	if errors.Is(err, status.ErrInvalidOutput) && resp != nil && resp.FinishReason == ai.FinishReasonLength {
		err = finished(x.model, resp) // the answer does not match the schema because it is truncated
	}
	if err != nil {
		return res, err
	}
	opening, _ := ctx.Value(openingKey{}).(*opening)
	if err := cmp.Or(opening.failure(), finished(x.model, resp)); err != nil {
		return res, err
	}
	res.Output, err = a.parse(resp)
	return res, err
}

// seeded returns ctx with g, which Genkit's middlewares expect. genkit.Generate adds it, and genkit.GenerateWithRequest
// does not.
func seeded(ctx context.Context, g *genkit.Genkit) context.Context {
	_, _ = genkit.Generate(ctx, g, ai.WithPromptFn(func(with context.Context, _ any) (string, error) {
		ctx = with
		return "", errors.New("only ctx is needed") // before a request is made
	}))
	return ctx
}

// recorded returns a copy of req with hooks to record the conversation, if ctx has a recorder for the agent. If an
// earlier process recorded part of the conversation, the copy continues after it, and the recorded turns count towards
// the limit. If ctx has no recorder, recorded returns an unchanged copy.
func (a *Agent) recorded(ctx context.Context, req *ai.GenerateActionOptions,
	w *watcher) (*ai.GenerateActionOptions, error) {
	out := *req
	rec := transcript.Claim(ctx, a.name)
	if rec == nil {
		return &out, nil
	}
	rec.Provider = w.provider
	if a.doc.Sandbox == nil {
		transcript.ClaimSandbox(ctx) // to prevent claims by agents of this agent's tools
	}
	out.Use = append([]*ai.MiddlewareRef{local("workcell/record", rec.Hooks())}, req.Use...)
	if err := rec.Define(ctx, digest(a.source, req.Model)); err != nil {
		return nil, err
	}
	past, err := rec.Progress()
	if err != nil || past.Turns == 0 {
		return &out, err
	}
	out.Messages = past.Messages
	out.MaxTurns = max(req.MaxTurns-past.Turns+1, 1) // the latest turn is played back; 0 would mean Genkit's default
	w.turns, w.calls, w.input, w.output = past.Turns, past.Calls, past.InputTokens, past.OutputTokens
	return &out, nil
}

// opening is the result of the latest attempt of an agent's run to open its own sandbox. If the sandbox could not be
// opened, the agent's answer is not a result, because the agent worked without the sandbox.
type opening struct {
	err atomic.Pointer[error]

	mu   sync.Mutex         // guards used
	used []sandbox.Evidence // AgentResult.Evidence
}

// failure returns the error of the latest attempt, or nil.
func (o *opening) failure() error {
	if err := o.err.Load(); err != nil && *err != nil {
		return fmt.Errorf("cannot open the sandbox: %w", *err)
	}
	return nil
}

// evidence returns AgentResult.Evidence.
func (o *opening) evidence() []sandbox.Evidence {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.used)
}

type (
	openingKey struct{} // holds the *opening of an agent's run
	agentKey   struct{} // holds the running *Agent
)

// noteOpened stores the result of an attempt for the agent of ctx. It does nothing if ctx has no agent.
func noteOpened(ctx context.Context, err error) {
	if o, ok := ctx.Value(openingKey{}).(*opening); ok {
		o.err.Store(&err)
	}
}

// request renders the prompt and applies the options.
func (a *Agent) request(ctx context.Context, input map[string]any, o RunOptions) (*ai.GenerateActionOptions, error) {
	variables, err := templateInput(a.doc, a.InputSchema(), input)
	if err != nil {
		return nil, err
	}
	if o.Messages != nil {
		ctx = ai.NewHistoryContext(ctx, o.Messages)
	}
	req, err := a.render(ctx, variables)
	if err != nil {
		return nil, err
	}
	if req.Model == "" && !(a.coding() && a.doc.Sandbox.Executor.Command == "custom") { // these programs need no model
		req.Model, _ = genkit.LookupValue(a.g, api.DefaultModelKey).(string)
	}
	if o.Model != "" && o.Model != req.Model {
		if provider(o.Model) != provider(req.Model) {
			req.Config = nil
		}
		req.Model = o.Model
	}
	if o.Config != nil {
		req.Config = o.Config
	}
	switch {
	case o.MaxTurns > 0:
		req.MaxTurns = o.MaxTurns
	case req.MaxTurns == 0:
		req.MaxTurns = frontmatter.DefaultMaxTurns
	}
	// Genkit parses the file's toolChoice but drops it.
	req.ToolChoice = ai.ToolChoice(a.doc.Meta.ToolChoice)
	req.StepName = "agent:" + a.name
	if a.doc.Sandbox == nil {
		req.Use = append([]*ai.MiddlewareRef{guardRef(pluginOf(a.g))}, req.Use...)
	}
	return req, nil
}

// render renders the prompt. Template helpers panic on arguments of the wrong type, so render recovers panics.
func (a *Agent) render(ctx context.Context, variables any) (req *ai.GenerateActionOptions, err error) {
	defer recovered(&err)
	return a.prompt.Render(ctx, variables)
}

// coding reports whether a coding agent answers instead of the model.
func (a *Agent) coding() bool {
	return a.doc.Sandbox != nil && a.doc.Sandbox.Mode == frontmatter.ModeExecutor
}

// digest returns a short hash of texts.
func digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

func provider(model string) string {
	name, _, _ := strings.Cut(model, "/")
	return name
}

// maker returns the provider of a model. Claude models of Vertex AI's Model Garden behave like Anthropic's.
func maker(model string) string {
	if strings.HasPrefix(model, "vertexai/claude-") {
		return "anthropic"
	}
	return provider(model)
}

// guardRef returns the guard middleware, which tolerates mistakes of the model, for agents without a sandbox.
func guardRef(p *Plugin) *ai.MiddlewareRef {
	box := newToolbox(&Plugin{})
	if p != nil {
		box = p.toolbox()
	}
	b := newBinding(box, frontmatter.Sandbox{})
	g := &guard{log: box.log}
	return local("workcell/guard", &ai.Hooks{
		Tools: []ai.Tool{b.unknownTool()},
		WrapGenerate: func(ctx context.Context, p *ai.GenerateParams, next ai.GenerateNext) (*ai.ModelResponse, error) {
			return next(context.WithValue(ctx, modelKey{}, p.Options.Model), p)
		},
		WrapModel: g.wrapModel, WrapTool: g.wrapTool,
	})
}

// local returns a middleware reference to hooks for one Generate call.
func local(name string, hooks *ai.Hooks) *ai.MiddlewareRef {
	return &ai.MiddlewareRef{Name: name,
		Config: ai.MiddlewareFunc(func(context.Context) (*ai.Hooks, error) { return hooks, nil })}
}

func stream(onText func(string)) ai.ModelStreamCallback {
	if onText == nil {
		return nil
	}
	return func(_ context.Context, chunk *ai.ModelResponseChunk) error {
		if text := chunk.Text(); text != "" && (chunk.Role == ai.RoleModel || chunk.Role == "") {
			onText(text)
		}
		return nil
	}
}

// finished returns an error for incomplete answers, because a truncated answer must not be used as a complete answer.
// An unknown reason is an error of the providers whose plugins know all reasons of complete answers. Servers with the
// OpenAI protocol use more reasons.
func finished(model string, resp *ai.ModelResponse) error {
	incomplete := []ai.FinishReason{ai.FinishReasonBlocked, ai.FinishReasonAborted, ai.FinishReasonFailed,
		ai.FinishReasonOther}
	if slices.Contains([]string{"anthropic", "googleai", "vertexai"}, provider(model)) ||
		resp.Text() == "" && resp.Media() == "" {
		incomplete = append(incomplete, ai.FinishReasonUnknown)
	}
	switch reason := resp.FinishReason; {
	case reason == ai.FinishReasonLength:
		return errors.New("the answer was truncated at the model's token limit; raise the limit in `config:` of a file " +
			"for this provider or in RunOptions.Config, or request less")
	case reason == ai.FinishReasonInterrupted:
		return errors.New("a tool call requires approval, which ends the agent's run; set RunOptions.OnApproval")
	case slices.Contains(incomplete, reason):
		return fmt.Errorf("the model did not complete its answer (%s): %s", reason,
			cmp.Or(resp.FinishMessage, "no reason given"))
	case len(resp.ToolRequests()) > 0:
		return errors.New("the answer calls tools; remove returnToolRequests from the file")
	}
	return nil
}

// explain adds the name of the failed agent to err, and a remedy if one is known.
func (a *Agent) explain(ctx context.Context, req *ai.GenerateActionOptions, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("agent %s: %w", a.name, context.Cause(ctx))
	case errors.Is(err, ai.ErrMaxTurnsExceeded) && !errors.Is(err, executor.ErrMaxTurns):
		err = fmt.Errorf("no answer within %d turns; raise maxTurns in the file or divide the task: %w", req.MaxTurns, err)
	case errors.Is(err, ai.ErrModelNotFound):
		err = fmt.Errorf("unknown model %q; check its name and its provider's setup: %w", req.Model, err)
	case req != nil && req.Model == "":
		err = errors.New("no model specified; add `model: provider/name` to the frontmatter, or specify one for the run")
	}
	return fmt.Errorf("agent %s (%s): %w", a.name, a.doc.File, err)
}

// classified adds Genkit's status to an error of another package, for Genkit's HTTP handlers and the middleware Retry,
// which repeats requests after errors without a status. Unknown errors get no status.
func classified(err error) error {
	_, done := status.Classified(err)
	failure := toolspec.ErrorOf(err)
	if done || err == nil || failure.Code == toolspec.CodeInternal {
		return err
	}
	kind := map[toolspec.Code]*status.Sentinel{
		toolspec.CodeInvalid: status.ErrInvalidArgument, toolspec.CodePermission: status.ErrPermissionDenied,
		toolspec.CodeUnsupported: status.ErrUnimplemented, toolspec.CodeTimeout: status.ErrDeadlineExceeded,
		toolspec.CodeCapacity: status.ErrResourceExhausted, toolspec.CodeUnavailable: status.ErrUnavailable,
	}[failure.Code]
	if kind == nil || failure.Code == toolspec.CodeUnavailable && !failure.Retryable {
		kind = status.ErrFailedPrecondition
	}
	return status.Errorf(kind, "%w", err)
}

// limited adds the limit to the error of a stopped coding agent.
func (a *Agent) limited(x *execution, err error) error {
	cfg := a.doc.Sandbox.Executor
	budget := fmt.Sprintf("executor.budget.usd (%.4g)", cfg.Budget.USD)
	if n := cfg.Budget.OutputTokens; n > 0 && (cfg.Budget.USD == 0 || x.metered.OutputTokens >= n) {
		budget = fmt.Sprintf("executor.budget.output_tokens (%d)", n)
	}
	limit := map[executor.Outcome]string{
		executor.MaxTurns: fmt.Sprintf("executor.max_turns (%d)", cmp.Or(x.turns, int(cfg.MaxTurns))),
		executor.Budget:   budget, executor.TimedOut: "executor.timeout_seconds", executor.Stalled: "executor.stall_seconds",
	}[x.result.Outcome]
	if err == nil || limit == "" {
		return err
	}
	return fmt.Errorf("no answer within %s; raise it in the file or divide the task: %w", limit, err)
}

// InputSchema returns the JSON Schema of the agent's input, or nil if the file has none.
func (a *Agent) InputSchema() map[string]any {
	action := genkit.LookupAction(a.g, api.KeyFromName(api.ActionTypeExecutablePrompt, a.prompt.Name()))
	if action == nil {
		return nil
	}
	return action.Desc().InputSchema
}

// Document returns the agent's file as it was when it was loaded.
func (a *Agent) Document() *frontmatter.Document { return a.doc }

// RequestOver returns the sandbox request of an agent with configuration s in a run with base request base. fields
// lists the fields that s itself sets. For all other fields, the agent accepts an existing sandbox with different
// settings.
func RequestOver(s frontmatter.Sandbox, base session.Request) (req session.Request, fields []string) {
	return (&binding{cfg: s}).request(session.WithBase(context.Background(), base), s.Runtime)
}
