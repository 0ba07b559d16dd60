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

const (
	defaultStopGrace = 15 * time.Second
	closeTimeout     = 2 * time.Minute // for a run's sandboxes
)

// AgentRunner runs the agents of workflows.
type AgentRunner interface {
	// RunAgent must run an agent and wait until it ends. ctx contains the run (session.RunFromContext), the base
	// request for its sandboxes (session.BaseFromContext), and the name of the agent's default sandbox
	// (session.SessionNameFromContext). ctx also contains the recorded conversation of the agent, which the first Run
	// of the tools.Agent with this name continues. RunAgent must return soon after ctx has ended; otherwise the call is
	// abandoned after Options.StopGrace. RunAgent may keep and modify input. It is called concurrently.
	RunAgent(ctx context.Context, name string, input map[string]any) (AgentOutput, error)
}

// AgentOutput is an agent's answer.
type AgentOutput struct {
	Text string
	// Output is the parsed answer if the agent has an output schema or answers with a JSON object. Otherwise it is nil.
	Output any
	// CostUSD is the cost of the agent's model, even if the agent failed. It is nil if unknown.
	CostUSD *float64
	// Usage is the agent's model usage, even if the agent failed. It is nil if unknown.
	Usage *Usage
	// Evidence is tools.AgentResult.Evidence.
	Evidence []sandbox.Evidence
}

// Options configure an Engine.
type Options struct {
	// Journal records runs, so they can be resumed. If nil, runs are not recorded.
	Journal Journal
	// OnEvent is called with the progress of runs. It should return soon, because the run waits. It may be nil.
	OnEvent func(Event)
	// TracerProvider creates spans. If nil, the global provider is used.
	TracerProvider trace.TracerProvider
	// Logger receives events for operators, for example panics with their stacks and remaining sandboxes. If nil,
	// events are discarded.
	Logger *slog.Logger
	// Workspace is a host directory copied into every new sandbox of a run. It overrides the workflow's workspace. If
	// empty, the workflow's workspace applies.
	Workspace string
	// Retention is how long the sandboxes of a run are kept after the end. It overrides the workflow's retention. If
	// zero, the workflow's retention applies.
	Retention time.Duration
	// Results is a host directory with one subdirectory per run. While a run is running or can be resumed, the
	// subdirectory contains the initial files of its workspace. Afterwards it contains the run's outputs and patch. If
	// empty, outputs and patch are only available in the Result.
	Results string
	// Within is an existing run whose sandboxes the workflow uses. The sandboxes stay open at the end, and the caller
	// must close them. The context's sandbox settings (session.WithBase) apply where the workflow sets none. If nil,
	// every run has its own sandboxes.
	Within *session.Run
	// OnSnapshot is called at the end of a run with the initial files of its sandboxes. The callee must remove the
	// snapshot. Use it if sandboxes outlive the run, for example with Within. With OnSnapshot, the run saves no outputs
	// and no patch in Results. If nil, the snapshot is removed.
	OnSnapshot func(*transfer.Snapshot)
	// OnKept is called after the outputs and the patch of a run have been saved in Results and before the sandboxes are
	// closed. Use it to copy them to another place. If it fails, the run stays unfinished and keeps the sandboxes. It
	// may be nil.
	OnKept func(ctx context.Context, runID string) error
	// OnPull is called with the progress of image pulls for a run. It may be nil.
	OnPull func(backend.PullProgress)
	// StopGrace is how long a canceled step may take to return. If zero, it is 15 seconds.
	StopGrace time.Duration
}

// Engine runs workflows. It is safe for concurrent use.
type Engine struct {
	manager *session.Manager
	agents  AgentRunner
	opts    Options
}

// NewEngine returns an engine. manager opens the sandboxes of runs. If manager is nil, steps of type exec fail with
// backend.ErrUnsupported. agents may be nil if no workflow has agents.
func NewEngine(manager *session.Manager, agents AgentRunner, opts *Options) *Engine {
	e := &Engine{manager: manager, agents: agents, opts: *cmp.Or(opts, &Options{})}
	e.opts.TracerProvider = cmp.Or(e.opts.TracerProvider, otel.GetTracerProvider())
	e.opts.Logger = cmp.Or(e.opts.Logger, slog.New(slog.DiscardHandler))
	e.opts.StopGrace = cmp.Or(e.opts.StopGrace, defaultStopGrace)
	return e
}

// Run runs a workflow and waits for its end. It closes the run's sandboxes before it returns, unless the workflow
// retains them or the result is unfinished (Result.Unfinished).
//
// If the run could not start, the result is nil. Then the input is invalid (ErrInvalidInput), the workspace cannot be
// copied (backend.ErrInvalid, backend.ErrTooLarge), or the run is nested in a run of the same workflow (ErrRecursion).
// Otherwise the result describes the end of the run. If the run failed, Run also returns an [*Error].
func (e *Engine) Run(ctx context.Context, wf *Workflow, input map[string]any) (*Result, error) {
	r, err := e.begin(ctx, wf, input)
	if err != nil {
		return nil, err
	}
	return e.drive(ctx, r)
}

// drive executes a run as a Genkit flow.
func (e *Engine) drive(ctx context.Context, r *run) (*Result, error) {
	ctx, end := r.span(ctx)
	defer end()
	// Genkit's tools show the spans of the flow and of its steps. The input has already been validated.
	if _, err := e.flow(r.wf, nil).Run(context.WithValue(ctx, pendingKey{}, r), r.input, nil); r.result.Outcome == "" {
		r.finalize(ctx, nil, asError(err, codeInternal))
	}
	if err := r.result.failure(); err != nil {
		return &r.result, err
	}
	return &r.result, nil
}

// Register registers a workflow as a Genkit flow with the workflow's id and input schema. The developer UI shows the
// flow. Running the flow there or through genkit.ListFlows calls Run and streams the events.
func (e *Engine) Register(g *genkit.Genkit, wf *Workflow) error {
	if genkit.LookupAction(g, api.NewKey(api.ActionTypeFlow, "", wf.ID)) != nil {
		return fmt.Errorf("a flow named %s is already registered", wf.ID)
	}
	genkit.RegisterAction(g, e.flow(wf, wf.InputSchema()))
	return nil
}

type (
	pendingKey struct{} // *run a flow executes
	chainKey   struct{} // ids of the running workflows, outermost first
	runIDKey   struct{} // id of the innermost run
	stepKey    struct{} // path of the innermost step running an agent
)

// StepFromContext returns the path of the step for which an agent with ctx works. Without a step, it returns "".
func StepFromContext(ctx context.Context) string {
	path, _ := ctx.Value(stepKey{}).(string)
	return path
}

// RunIDFromContext returns the id of the workflow run for which an agent with ctx works. Without a run, it returns "".
// If Options.Within is set, the id differs from the run of session.RunFromContext.
func RunIDFromContext(ctx context.Context) string {
	id, _ := ctx.Value(runIDKey{}).(string)
	return id
}

type flowAction = core.Action[map[string]any, any, Event]

// flow returns the Genkit action of a workflow. If Run calls the action, the action executes Run's run. Otherwise the
// action starts a new run.
func (e *Engine) flow(wf *Workflow, schema map[string]any) *flowAction {
	opts := &core.ActionOptions{
		Description: wf.Description, InputSchema: schema, OutputSchema: map[string]any{},
		Metadata: map[string]any{"workflow": map[string]any{"id": wf.ID, "name": wf.Name, "file": wf.Path, "hash": wf.Hash}},
	}
	return core.NewStreamingActionOf(api.ActionTypeFlow, wf.ID, opts,
		func(ctx context.Context, input map[string]any, stream core.StreamCallback[Event]) (any, error) {
			ctx = core.WithFlowContext(ctx, wf.ID)
			telemetry.Around(ctx) // the run's span is the parent, or follows
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
	err := e.manager.CheckIsolation(wf.base)
	if err != nil && wf.base.Isolation != "" { // else the operator requires it
		at := wf.problem("isolation", err.Error())
		at.Hint, at.Err = wish.MoreIsolation, err
		err = at
	}
	for _, s := range wf.all {
		if b, ok := s.body.(*agentBody); ok && b.file != nil && err == nil {
			err = wish.CheckIsolation(e.manager, b.file)
		}
	}
	return err
}

// begin checks the input and returns a new run.
func (e *Engine) begin(ctx context.Context, wf *Workflow, input map[string]any) (*run, error) {
	chain, _ := ctx.Value(chainKey{}).([]string)
	if slices.Contains(chain, wf.ID) || len(chain) >= maxRunDepth {
		way := strings.Join(append(slices.Clone(chain), wf.ID), " -> ")
		return nil, failf(codeRecursion, ErrRecursion, "workflows run each other in a cycle: %s", way)
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
