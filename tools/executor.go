package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/core/status"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// placeholderModel is the Genkit model name for agents in mode executor. Their model requests go through the model
// proxy instead of a Genkit plugin.
const placeholderModel = pluginName + "/executor"

// newPlaceholder returns the placeholder model. It always fails, because a request reaches it only if no middleware
// runs the coding agent instead. Its answers are constrained, so Genkit leaves the output schema to the driver.
func newPlaceholder() api.Action {
	opts := &ai.ModelOptions{Label: "coding agent in a sandbox",
		Supports: &ai.ModelSupports{Multiturn: true, SystemRole: true, Constrained: ai.ConstrainedSupportAll}}
	return ai.NewModelAction(placeholderModel, opts,
		func(context.Context, *ai.ModelRequest, any, ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			return nil, fmt.Errorf("tools: %w: %s represents the coding agent of `sandbox: {mode: executor}` and does not "+
				"answer requests", backend.ErrInvalid, placeholderModel)
		})
}

// executorImage returns the default sandbox image for a coding agent. It is empty if the coding agent has no image.
func (t *toolbox) executorImage(cfg *frontmatter.Executor) string {
	if t == nil { // during a check of a file, because only the operator knows the images
		return ""
	}
	a := drivers.Of(cfg.Command, cfg.Argv, cfg.Events)
	return cmp.Or(t.plugin.ExecutorImages[cfg.Command], t.plugin.ExecutorImages[a.Name], a.Image)
}

// execution is a run of an Agent in mode executor.
type execution struct {
	agent   string
	file    string // path of the agent's file
	model   string // "provider/name"
	turns   int    // maximum number of turns; if zero, the file's maximum applies
	watch   *watcher
	result  *executor.Result // nil until available
	metered model.Usage
}

type executionKey struct{} // holds the *execution of an agent's run

// executorHooks returns hooks to run a coding agent instead of the model. If the coding agent failed, an answer of
// another model, for example of the middleware Fallback, does not replace its work.
func (b *binding) executorHooks() *ai.Hooks {
	var failed error // of the latest attempt
	return &ai.Hooks{
		WrapGenerate: func(ctx context.Context, p *ai.GenerateParams, next ai.GenerateNext) (*ai.ModelResponse, error) {
			resp, err := b.wrapGenerate(ctx, p, next)
			if err == nil && failed != nil {
				return nil, failed
			}
			return resp, err
		},
		WrapModel: func(ctx context.Context, p *ai.ModelParams, _ ai.ModelNext) (resp *ai.ModelResponse, err error) {
			resp, err = b.execute(ctx, p)
			failed = err
			return resp, err
		},
	}
}

// execute answers a request by running the coding agent on the task in the last message.
func (b *binding) execute(ctx context.Context, p *ai.ModelParams) (*ai.ModelResponse, error) {
	x, ctx := takeExecution(ctx)
	res, err := b.runExecutor(ctx, x, p)
	if err != nil {
		return nil, classified(err)
	}
	return &ai.ModelResponse{
		Request: p.Request, Message: ai.NewModelTextMessage(cmp.Or(string(res.Data), res.Text)),
		FinishReason: ai.FinishReasonStop, Raw: res,
		Usage: &ai.GenerationUsage{
			InputTokens: int(x.metered.InputTokens), OutputTokens: int(x.metered.OutputTokens),
			TotalTokens:         int(x.metered.InputTokens + x.metered.OutputTokens),
			CachedContentTokens: int(x.metered.CacheReadTokens), ThoughtsTokens: int(x.metered.ReasoningTokens),
		},
	}, nil
}

// takeExecution returns the execution of a context, and a context without it. If a host tool of the coding agent runs
// another prompt with values of this context, that prompt gets a separate execution.
func takeExecution(ctx context.Context) (*execution, context.Context) {
	x, ok := ctx.Value(executionKey{}).(*execution)
	if !ok { // the prompt was not run as an Agent
		x = &execution{watch: &watcher{}}
		x.model, _ = ctx.Value(modelKey{}).(string)
	}
	return x, context.WithValue(ctx, executionKey{}, nil)
}

// runExecutor opens the sandbox, connects the coding agent to the model and the host tools, and runs it.
func (b *binding) runExecutor(ctx context.Context, x *execution, p *ai.ModelParams) (*executor.Result, error) {
	cfg := b.cfg.Executor
	agent := drivers.Of(cfg.Command, cfg.Argv, cfg.Events)
	task, err := taskOf(p.Request, agent.WholeModel, x.model)
	if err != nil {
		return nil, err
	}
	task.MaxTurns, task.Web, task.Args = cmp.Or(x.turns, int(cfg.MaxTurns)), cfg.Web, cfg.Args
	skills, err := b.loadSkills(ctx, x.file)
	if err != nil {
		return nil, err
	}
	leave, err := b.takeTurn(ctx, cmp.Or(x.agent, agent.Driver.Name()))
	if err != nil {
		return nil, err
	}
	defer leave()
	s, err := b.sandbox(ctx, "")
	if err != nil {
		return nil, err
	}
	access, err := b.grantModel(ctx, s, x)
	if err != nil {
		return nil, err
	}
	defer access.Close() // after a complete run, this second call has no effect
	o := b.executorOptions(ctx, x, access)
	o.Skills, o.OnEvent = skills, x.watch.coding(ctx, p.Callback)
	grant, err := b.grantExecutor(ctx, s, o, access)
	if err != nil {
		return nil, err
	}
	if notice := b.box.versions.Differs(ctx, s, agent); notice != "" {
		b.box.log.WarnContext(ctx, notice, "image", s.Info().Image)
		o.OnEvent(executor.Event{Kind: executor.KindNotice, Text: notice})
	}
	b.evidence(ctx, s) // for the agent's result
	res, err := executor.Run(ctx, s, agent.Driver, task, o)
	b.recordHostCalls(ctx, grant, sandbox.ExecResult{ExecStatus: res.Exit})
	err = errors.Join(err, access.Close()) // the usage is final after this call
	x.result, x.metered = &res, access.Usage()
	x.watch.addUsage(res.Turns, x.metered)
	if err = executorError(res, err); err != nil {
		return nil, err
	}
	return &res, nil
}

// executorOptions returns the options of the agent's file for a run with access to a model.
func (b *binding) executorOptions(ctx context.Context, x *execution, access *modelAccess) *executor.Options {
	cfg := b.cfg.Executor
	o := &executor.Options{
		Agent: x.agent, Models: access.endpoints,
		Resume: executor.Resume(cmp.Or(cfg.Resume, frontmatter.ResumeStep)),
		Before: cfg.Before, After: cfg.After,
		Timeout: time.Duration(cfg.TimeoutSeconds) * time.Second, Stall: time.Duration(cfg.StallSeconds) * time.Second,
		OverBudget: access.Spent(),
	}
	// Outside of a workflow step, each run is a new task.
	if path, visit := hosttools.StepFromContext(ctx); path != "" {
		o.Step = fmt.Sprintf("%s %s %d %s", b.run(ctx).ID, path, visit, x.agent)
	} else if o.Resume == executor.ResumeStep {
		o.Resume = executor.ResumeNever
	}
	return o
}

// executorError returns the error for an ended run. err is the error of the executor.
func executorError(res executor.Result, err error) error {
	if err == nil {
		if err = res.Err(); errors.Is(err, executor.ErrMaxTurns) {
			err = fmt.Errorf("%w: %w", ai.ErrMaxTurnsExceeded, err)
		}
	}
	if err == nil {
		return nil
	}
	return status.Errorf(status.ErrFailedPrecondition, "%w", err) // Retry must not repeat the task
}

// grantExecutor gives the coding agent access to the host tools that the agent may use. The grant is nil without host
// tools.
func (b *binding) grantExecutor(ctx context.Context, s *session.Session, o *executor.Options,
	access *modelAccess) (*hostGrant, error) {
	var req sandbox.ExecRequest
	grant, err := b.hosts.grant(ctx, s, &req)
	if err != nil {
		return nil, err
	}
	if grant != nil {
		o.HostTools, o.Waited = true, func() time.Duration { return grant.access.Counts().Asking }
	}
	o.Grant = func(ctx context.Context, r *sandbox.ExecRequest) {
		access.Under(trace.SpanContextFromContext(ctx))
		r.Services, r.EnvBefore, r.Tools = req.Services, req.EnvBefore, req.Tools
		env := map[string]string{} // not the CLI's map, which is used for several commands
		maps.Copy(env, req.Env)
		maps.Copy(env, r.Env)
		r.Env = env
	}
	return grant, nil
}

// taskOf converts a request to a task. The task is the last message, preceded by quotes of the earlier messages.
func taskOf(req *ai.ModelRequest, wholeModel bool, modelName string) (t executor.Task, err error) {
	var system, earlier []string
	for i, m := range req.Messages {
		for _, part := range m.Content {
			if !part.IsText() && !part.IsReasoning() {
				return t, fmt.Errorf("tools: %w: coding agents accept only text messages", backend.ErrUnsupported)
			}
		}
		switch text := m.Text(); {
		case m.Role == ai.RoleSystem:
			system = append(system, text)
		case i == len(req.Messages)-1:
			t.Prompt = text
		default:
			earlier = append(earlier, fmt.Sprintf("<%s>\n%s\n</%[1]s>", m.Role, text))
		}
	}
	if len(earlier) > 0 {
		t.Prompt = "Earlier messages:\n" + strings.Join(earlier, "\n") + "\n\n" + t.Prompt
	}
	t.System, t.Model = strings.Join(system, "\n\n"), modelName
	if !wholeModel {
		_, t.Model, _ = strings.Cut(modelName, "/")
	}
	if req.Output != nil && req.Output.Schema != nil {
		t.Schema, err = json.Marshal(req.Output.Schema)
	}
	return t, err
}

// loadSkills reads the skills of an agent's file. The patterns match directories relative to the file's directory. If
// no pattern is configured, loadSkills uses skills/*, which may match nothing.
func (b *binding) loadSkills(ctx context.Context, file string) (skills []skill.Skill, err error) {
	patterns := b.cfg.Executor.Skills
	switch {
	case file == "" && len(patterns) > 0:
		return nil, fmt.Errorf("tools: %w: executor.skills requires an agent that is loaded from a file",
			backend.ErrUnsupported)
	case file == "":
		return nil, nil
	}
	root, err := os.OpenRoot(filepath.Dir(file)) // does not follow links out of the directory
	if errors.Is(err, fs.ErrNotExist) && len(patterns) == 0 {
		return nil, nil // the file does not exist on this host
	}
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	defer root.Close() // opened for reading only
	dirs, err := skill.Find(root.FS(), patterns)
	if err != nil {
		return nil, fmt.Errorf("tools: %w: executor.skills of %s: %v", backend.ErrInvalid, file, err)
	}
	for _, dir := range dirs {
		s, diagnostics, err := skill.Load(root.FS(), dir)
		if err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
		for _, d := range diagnostics {
			b.box.log.WarnContext(ctx, "a skill does not follow the standard", "skill", dir, "problem", d)
		}
		skills = append(skills, s)
	}
	return skills, nil
}

// turn identifies a coding agent's home directory in a sandbox. Only one run at a time may use it.
type turn struct {
	key   session.Key
	agent string
}

// turnHolder is the run that has a turn.
type turnHolder struct {
	hosts *hostCalls
	left  chan struct{} // closed at the end of the turn
}

// takeTurn waits until no other run uses the coding agent's home directory. leave ends this run's turn. A host tool of
// the other run cannot wait for it, so takeTurn returns ErrUnsupported.
func (b *binding) takeTurn(ctx context.Context, agent string) (leave func(), err error) {
	t, mine := turn{b.run(ctx).Key(b.name(ctx)), agent}, &turnHolder{hosts: b.hosts, left: make(chan struct{})}
	for {
		other, taken := b.box.turns.LoadOrStore(t, mine)
		if !taken {
			return func() {
				b.box.turns.Delete(t)
				close(mine.left)
			}, nil
		}
		holder, _ := other.(*turnHolder) // the map has no other values
		if holder.hosts != nil && holder.hosts.set.Serves(ctx) {
			return nil, fmt.Errorf("tools: %w: a host tool cannot run the coding agent %q in the sandbox of its caller; "+
				"set session: isolated", backend.ErrUnsupported, agent)
		}
		select {
		case <-holder.left:
		case <-ctx.Done():
			return nil, fmt.Errorf("tools: waiting for another run of the coding agent in the sandbox: %w", context.Cause(ctx))
		}
	}
}

// modelAccess is the access of a program in a sandbox to the model during one run.
type modelAccess struct {
	lease
	endpoints map[model.Dialect]executor.Endpoint
}

// lease is a *model.Lease, or noModel.
type lease interface {
	Spent() <-chan struct{}
	Under(span trace.SpanContext)
	Usage() model.Usage
	Close() error
}

// noModel is the lease of a program without a model.
type noModel struct{}

func (noModel) Spent() <-chan struct{}  { return nil }
func (noModel) Under(trace.SpanContext) {}
func (noModel) Usage() model.Usage      { return model.Usage{} }
func (noModel) Close() error            { return nil }

// grantModel gives the program in a sandbox access to the model. Programs of command custom need no model.
func (b *binding) grantModel(ctx context.Context, s *session.Session, x *execution) (*modelAccess, error) {
	cfg, models := b.cfg.Executor, b.box.plugin.Models
	if x.model == "" && cfg.Command == "custom" {
		return &modelAccess{lease: noModel{}}, nil
	}
	if models == nil {
		return nil, fmt.Errorf("tools: %w: mode executor requires a model proxy; set Plugin.Models", backend.ErrInvalid)
	}
	at, err := models.Attach(ctx, s.Sandbox)
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	provider, name, _ := strings.Cut(x.model, "/")
	issued, err := models.Issue(model.Grant{
		Provider: provider, Models: []string{name}, Web: cfg.Web,
		Budget:    model.Budget{USD: cfg.Budget.USD, OutputTokens: cfg.Budget.OutputTokens},
		SandboxID: s.ID(), Run: b.run(ctx).ID, Agent: x.agent, Span: trace.SpanContextFromContext(ctx),
	})
	if err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	a := &modelAccess{lease: issued, endpoints: map[model.Dialect]executor.Endpoint{}}
	for _, d := range models.Dialects(provider) {
		baseURL := at.BaseURL(provider)
		if d == model.OpenAIChat || d == model.OpenAIResponses {
			baseURL += "/v1" // OpenAI clients expect the version in the base URL
		}
		a.endpoints[d] = executor.Endpoint{BaseURL: baseURL, Key: issued.Key()}
	}
	return a, nil
}
