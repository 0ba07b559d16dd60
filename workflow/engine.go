package workflow

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/firebase/genkit/go/core"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

// Defaults of Options.
const (
	defaultStopGrace    = 15 * time.Second
	defaultCloseTimeout = 2 * time.Minute
)

// AgentRunner runs the agents that workflows name.
type AgentRunner interface {
	// RunAgent runs an agent to its end. ctx carries the run (session.RunFromContext), what the run wants its sandboxes
	// to be (session.BaseFromContext) and which of them the agent's default sandbox is (session.SessionNameFromContext).
	// It also carries the record of the agent's conversation, which the first Run of the tools.Agent of that name keeps.
	// RunAgent must return soon after ctx ended; a call that does not is abandoned after Options.StopGrace. input
	// belongs to the callee. It is called concurrently.
	RunAgent(ctx context.Context, name string, input map[string]any) (AgentOutput, error)
}

// AgentOutput is what an agent answered.
type AgentOutput struct {
	Text string
	// Output is the parsed answer of an agent that has an output schema or answers with a JSON object; nil otherwise.
	Output any
	// CostUSD is what the agent's model cost, also when the agent failed; nil when that is not known.
	CostUSD *float64
	// Evidence is tools.AgentResult.Evidence.
	Evidence []sandbox.Evidence
}

// SandboxDescriber is implemented by AgentRunners that know which sandbox an agent asks for. A step of type exec that
// runs before any agent then makes the sandbox that the workflow's first agent wants to share.
type SandboxDescriber interface {
	// AgentSandbox returns what the agent asks for; false when it asks for none or for one of its own.
	AgentSandbox(name string) (session.Request, bool)
}

// Options configure an Engine. The comment of each field says what its zero value means.
type Options struct {
	// Journal records runs, for Resume. Nil: they are not recorded.
	Journal Journal
	// OnEvent is called with the progress of runs. It should return soon: the run waits for it. Nil: it is not reported.
	OnEvent func(Event)
	// TracerProvider makes spans. Nil is the global one.
	TracerProvider trace.TracerProvider
	// Logger takes what operators should know: panics with their stack, sandboxes left behind. Nil discards.
	Logger *slog.Logger
	// Workspace is a directory of the host that is copied into every sandbox of a run when it is made, in place of the
	// one that the workflow names. Empty leaves it to the workflow.
	Workspace string
	// Retention is how long the sandboxes of a run outlive it, in place of what the workflow says. Zero leaves it to the
	// workflow.
	Retention time.Duration
	// Results is a directory of the host. Below it each run keeps the tree that its workspace began as, for as long as it
	// is under way or can be resumed, and then its outputs and its patch, in a directory of its own. Empty keeps them
	// nowhere but in the Result.
	Results string
	// Within is a run of the caller's whose sandboxes the workflow uses in place of its own. They stay open at its end,
	// for the caller to close, and what the context asks of sandboxes (session.WithBase) holds where the workflow says
	// nothing. Nil gives every run its own.
	Within *session.Run
	// OnSnapshot is called at the end of a run with what its sandboxes began with, which is the callee's to remove: for
	// those whose sandboxes outlive the run, as by Within; the run then keeps nothing else in Results. Nil removes it.
	OnSnapshot func(*transfer.Snapshot)
	// OnKept is called when the outputs and the patch of a run lie in Results, before its sandboxes go: for those who keep
	// them elsewhere, too. An error leaves the run unfinished, with its sandboxes. Nil keeps them in Results alone.
	OnKept func(ctx context.Context, runID string) error
	// OnPull is called with the progress of images that are pulled for a run. May be nil.
	OnPull func(backend.PullProgress)
	// StopGrace is how long a step may take to return after it was cancelled. Zero is 15 seconds.
	StopGrace time.Duration
	// CloseTimeout bounds the closing of a run's sandboxes. Zero is 2 minutes.
	CloseTimeout time.Duration
}

// Engine runs workflows. It is safe for concurrent use.
type Engine struct {
	manager *session.Manager
	agents  AgentRunner
	opts    Options
}

// NewEngine returns an engine. manager opens the sandboxes of runs; without one, steps of type exec fail with
// backend.ErrUnsupported. agents may be nil when no workflow has agents.
func NewEngine(manager *session.Manager, agents AgentRunner, opts *Options) *Engine {
	e := &Engine{manager: manager, agents: agents}
	if opts != nil {
		e.opts = *opts
	}
	e.opts.TracerProvider = cmp.Or(e.opts.TracerProvider, otel.GetTracerProvider())
	e.opts.Logger = cmp.Or(e.opts.Logger, slog.New(slog.DiscardHandler))
	e.opts.StopGrace = cmp.Or(e.opts.StopGrace, defaultStopGrace)
	e.opts.CloseTimeout = cmp.Or(e.opts.CloseTimeout, defaultCloseTimeout)
	return e
}

// Run runs a workflow to its end. The run's sandboxes are closed before Run returns, however it ended, unless the
// workflow retains them or they have what could not be brought home (Result.Unfinished).
//
// The result is nil only when the run never began: its input is invalid (ErrInvalidInput), its workspace cannot be
// copied (backend.ErrInvalid, backend.ErrTooLarge) or it is nested in a run of the same workflow (ErrRecursion).
// Otherwise it describes how the run ended, also beside an error, which then is an [*Error].
func (e *Engine) Run(ctx context.Context, wf *Workflow, input map[string]any) (*Result, error) {
	r, err := e.begin(ctx, wf, input)
	if err != nil {
		return nil, err
	}
	return e.drive(ctx, r)
}

// drive executes a run inside its Genkit flow.
func (e *Engine) drive(ctx context.Context, r *run) (*Result, error) {
	ctx, end := r.span(ctx)
	defer end()
	// The flow's own span and those of its steps are what Genkit's tools show a run by. The input was checked.
	if _, err := e.flow(r.wf, nil).Run(context.WithValue(ctx, pendingKey{}, r), r.input, nil); r.result.Outcome == "" {
		r.settle(ctx, nil, asError(err, codeInternal))
	}
	if err := r.result.failure(); err != nil {
		return &r.result, err
	}
	return &r.result, nil
}

// Register makes a workflow a Genkit flow with the workflow's id and input schema: it shows in the developer UI, and
// running it there, or with genkit.ListFlows, is a Run whose events are streamed.
func (e *Engine) Register(g *genkit.Genkit, wf *Workflow) error {
	if genkit.LookupAction(g, api.NewKey(api.ActionTypeFlow, "", wf.ID)) != nil {
		return fmt.Errorf("a flow named %s is already registered", wf.ID)
	}
	genkit.RegisterAction(g, e.flow(wf, wf.InputSchema()))
	return nil
}

type (
	pendingKey struct{} // holds the *run that a flow is to execute
	chainKey   struct{} // holds the ids of the workflows that are being run, outermost first
	runIDKey   struct{} // holds the id of the innermost run
)

// RunIDFromContext returns the id of the run of a workflow that an agent with ctx works for; empty when there is none.
// It differs from the run of session.RunFromContext where Options.Within names another.
func RunIDFromContext(ctx context.Context) string {
	id, _ := ctx.Value(runIDKey{}).(string)
	return id
}

type flowAction = core.Action[map[string]any, any, Event]

// flow returns the Genkit action of a workflow. Called inside Run it executes the run that Run began; called from
// elsewhere it begins one.
func (e *Engine) flow(wf *Workflow, schema map[string]any) *flowAction {
	opts := &core.ActionOptions{
		Description: wf.Description, InputSchema: schema, OutputSchema: map[string]any{},
		Metadata: map[string]any{"workflow": map[string]any{"id": wf.ID, "name": wf.Name, "file": wf.Path, "hash": wf.Hash}},
	}
	return core.NewStreamingActionOf(api.ActionTypeFlow, wf.ID, opts,
		func(ctx context.Context, input map[string]any, stream core.StreamCallback[Event]) (any, error) {
			ctx = core.WithFlowContext(ctx, wf.ID)
			telemetry.Around(ctx) // the run's own span is around it, or follows
			if r, ok := ctx.Value(pendingKey{}).(*run); ok && r.executed.CompareAndSwap(false, true) {
				return r.execute(ctx)
			}
			r, err := e.begin(ctx, wf, input)
			if err != nil {
				return nil, err
			}
			r.stream = stream
			ctx, end := r.span(ctx)
			defer end()
			return r.execute(ctx)
		})
}

// checkIsolation refuses a workflow whose sandboxes would be less isolated than it or one of its agents requires. The
// error has the place in the file.
func (e *Engine) checkIsolation(wf *Workflow) error {
	if e.manager == nil {
		return nil
	}
	if err := e.manager.CheckIsolation(wf.base); err != nil {
		if wf.base.Isolation == "" {
			return err // the operator requires it
		}
		at := wf.problem("isolation", err.Error())
		at.Hint, at.Err = wish.MoreIsolation, err
		return at
	}
	for _, s := range wf.all {
		if b, ok := s.body.(*agentBody); ok && b.file != nil {
			if err := wish.CheckIsolation(e.manager, b.file); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin checks the input and returns a new run.
func (e *Engine) begin(ctx context.Context, wf *Workflow, input map[string]any) (*run, error) {
	chain, _ := ctx.Value(chainKey{}).([]string)
	if slices.Contains(chain, wf.ID) || len(chain) >= maxRunDepth {
		way := strings.Join(append(slices.Clone(chain), wf.ID), " -> ")
		return nil, &Error{Code: codeRecursion, Message: "workflows run each other in a cycle: " + way, Err: ErrRecursion}
	}
	checked, err := wf.checkInput(input)
	if err == nil {
		err = e.checkIsolation(wf)
	}
	if err != nil {
		return nil, err
	}
	r := newRun(e, wf, checked, append(slices.Clone(chain), wf.ID))
	return r, r.setBase(ctx)
}
