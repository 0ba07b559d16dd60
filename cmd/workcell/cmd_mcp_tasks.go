package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// Kinds of tasks.
const (
	taskAgent    = "agent"
	taskWorkflow = "workflow"
)

// mcpTaskFlags say which agents and workflows execute_task can run.
type mcpTaskFlags struct {
	agents    string
	workflows string
}

func (f *mcpTaskFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.agents, "agents", "", "directory of agents (*.prompt) that execute_task can run, and that workflows use")
	cmd.Flags().StringVar(&f.workflows, "workflows", "", "directory of workflows (*.yaml) that execute_task can run")
}

// taskRunner runs agents and workflows for MCP clients as `agent run` and `run` do.
type taskRunner struct {
	app     *app
	manager *session.Manager
	models  modelFlags
	tasks   map[string]mcpTask
	paths   hostPaths

	mu    sync.Mutex // guards hosts; held while one is made, so that two calls do not make it twice
	hosts map[string]*host
}

// mcpTask is a task with what it takes to run it.
type mcpTask struct {
	mcpserver.Task
	path   string
	agents map[string]string // files of the agents it needs, by name
	wf     *workflow.Workflow
}

// runner loads the tasks; there are none without a directory. A file with something wrong in it is left out, with a warning. Models are not looked for yet: a key that is missing is told to who
// runs a task that needs it.
func (f *mcpTaskFlags) runner(a *app, m *session.Manager, models modelFlags) (*taskRunner, error) {
	r := &taskRunner{app: a, manager: m, models: models, tasks: map[string]mcpTask{}, paths: newHostPaths(f.agents, f.workflows), hosts: map[string]*host{}}
	var errs []error
	if f.agents != "" {
		errs = append(errs, r.addAgents(f.agents))
	}
	if f.workflows != "" {
		errs = append(errs, r.addWorkflows(f.workflows, f.agents))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fail(exitInvalid, err, "each task needs a name of its own: an agent its file's, a workflow its id; `workcell validate` shows all other problems")
	}
	return r, nil
}

// leaveOut warns of what is wrong with a file, which does not become a task.
func (r *taskRunner) leaveOut(path string, err error) {
	for _, p := range problemsOf(path, err) {
		fmt.Fprintf(r.app.stderr, "workcell: warning: left out: %s\n", sanitize.Line(p.place().Error()))
	}
}

func (r *taskRunner) addAgents(dir string) error {
	if _, err := os.ReadDir(dir); err != nil {
		return err
	}
	files := agentFiles{dirs: []string{dir}}
	for _, name := range files.list() {
		path := filepath.Join(dir, name+agentExt)
		doc, err := checkAgent(path)
		if err != nil {
			r.leaveOut(path, err)
			continue
		}
		r.tasks[name] = mcpTask{
			Task: mcpserver.Task{Name: name, Kind: taskAgent, Description: doc.Meta.Description, Fields: doc.InputFields()},
			path: path, agents: map[string]string{name: path},
		}
	}
	return nil
}

func (r *taskRunner) addWorkflows(dir, agents string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.IsDir() || ext != ".yaml" && ext != ".yml" {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if isScript(path) {
			continue
		}
		files := agentsFor(path, agents)
		wf, err := workflow.Load(path, &workflow.LoadOptions{Agents: files.known})
		if err != nil {
			r.leaveOut(path, err)
			continue
		}
		if first, taken := r.tasks[wf.ID]; taken {
			errs = append(errs, fmt.Errorf("%s: the task %s is in %s, too", path, wf.ID, first.path))
			continue
		}
		r.tasks[wf.ID] = mcpTask{
			Task: mcpserver.Task{
				Name: wf.ID, Kind: taskWorkflow, Description: wf.Description, Fields: slices.Sorted(maps.Keys(inputFields(wf.InputSchema()))),
			},
			path: path, agents: agentPaths(files, wf), wf: wf,
		}
	}
	return errors.Join(errs...)
}

// list returns the tasks by name.
func (r *taskRunner) list() []mcpserver.Task {
	list := make([]mcpserver.Task, 0, len(r.tasks))
	for _, name := range slices.Sorted(maps.Keys(r.tasks)) {
		list = append(list, r.tasks[name].Task)
	}
	return list
}

// Run runs a task in the run of ctx.
func (r *taskRunner) Run(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	res, err := r.run(ctx, req)
	if err == nil {
		return res, nil
	}
	r.app.logger().WarnContext(ctx, "a task failed", "task", req.Name, "error", err)
	return res, r.paths.error(err)
}

func (r *taskRunner) run(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	t, ok := r.tasks[req.Name]
	if !ok {
		return mcpserver.TaskResult{}, tools.NewError(tools.CodeNotFound, "there is no such task", "")
	}
	shared, err := r.host(ctx, t)
	if err != nil {
		return mcpserver.TaskResult{}, err
	}
	own := *shared // each call reports its own tool calls
	calls := &toolCalls{report: req.Report}
	own.onTool = calls.event
	if t.wf != nil {
		return r.runWorkflow(ctx, &own, t.wf, req)
	}
	agent := own.agents[t.Name]
	input, err := taskInput(inputFields(agent.InputSchema()), req)
	if err == nil {
		err = agent.CheckInput(input)
	}
	if err != nil {
		return mcpserver.TaskResult{}, inputError(err)
	}
	res, err := own.run(ctx, t.Name, input)
	if err != nil {
		return mcpserver.TaskResult{ToolCalls: calls.count(), Model: res.Model}, taskError(err)
	}
	return mcpserver.TaskResult{
		Outcome: string(workflow.Succeeded), Text: res.Text, OutputJSON: jsonText(res.Output), Model: res.Model, ToolCalls: res.ToolCalls,
	}, nil
}

func (r *taskRunner) runWorkflow(ctx context.Context, h *host, wf *workflow.Workflow, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	pairs := maps.Clone(req.Fields)
	if req.Text != "" {
		field, err := textField(inputFields(wf.InputSchema()))
		if err != nil {
			return mcpserver.TaskResult{}, inputError(err)
		}
		if pairs == nil {
			pairs = map[string]string{}
		}
		pairs[field] = req.Text
	}
	input, err := wf.ParseInput(pairs)
	if err != nil {
		return mcpserver.TaskResult{}, inputError(err)
	}
	run, _ := session.RunFromContext(ctx)
	engine := workflow.NewEngine(r.manager, h, &workflow.Options{
		Within: &run, Logger: r.app.logger(), OnEvent: func(ev workflow.Event) {
			if ev.Kind == workflow.EventStepStarted {
				req.Report("step " + ev.Path)
			}
		},
	})
	res, err := engine.Run(ctx, wf, input)
	if res == nil {
		return mcpserver.TaskResult{}, taskError(err)
	}
	out := mcpserver.TaskResult{Outcome: string(res.Outcome), Steps: res.Steps, OutputJSON: jsonText(res.Output)}
	if text, ok := res.Output.(string); ok {
		out.Text, out.OutputJSON = text, ""
	}
	if err != nil {
		return out, taskError(err)
	}
	return out, nil
}

// host returns the Genkit instance for a task, made when the task is run for the first time.
func (r *taskRunner) host(ctx context.Context, t mcpTask) (*host, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.hosts[t.Name]; h != nil {
		return h, nil
	}
	h, err := r.app.newHost(context.WithoutCancel(ctx), r.manager, t.agents, r.models) // it outlives this call
	if err != nil {
		if code, todo := classify(err); code == exitModel {
			e := tools.NewError(tools.CodeUnavailable, "the task has no model to run with: "+err.Error(),
				"Tell the user how to mend it where the server is started: "+todo)
			e.Retryable = false
			return nil, e
		}
		return nil, err
	}
	r.hosts[t.Name] = h
	return h, nil
}

// taskInput returns an agent's input.
func taskInput(fields map[string]string, req mcpserver.TaskRequest) (map[string]any, error) {
	pairs := maps.Clone(req.Fields)
	if pairs == nil {
		pairs = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		if err := knownInput(name, fields); err != nil {
			return nil, err
		}
		if !expr.IsIdent(name) {
			return nil, fmt.Errorf("%q is not the name of an input", clip(name, 60))
		}
	}
	if req.Text != "" {
		field, err := textField(fields)
		if err != nil {
			return nil, err
		}
		if _, given := pairs[field]; !given {
			pairs[field] = req.Text
		}
	}
	input := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		value, err := typedValue(name, fields[name], pairs[name])
		if err != nil {
			return nil, err
		}
		input[name] = value
	}
	return input, nil
}

func inputError(err error) error {
	var ce *cliError
	hint := ""
	if errors.As(err, &ce) {
		hint = ce.hint
	}
	return tools.NewError(tools.CodeInvalid, err.Error(), hint)
}

// taskError makes a failure of why a task failed, in the words of the operator's own agents, workflows and model.
func taskError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, workflow.ErrInvalidInput) {
		return inputError(err)
	}
	code := tools.ErrorOf(err).Code
	return tools.NewError(code, clip(err.Error(), 2000), "Correct the input, or report the failure to the user.")
}

// jsonText returns a value as JSON, empty for none.
func jsonText(v any) string {
	if v == nil {
		return ""
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return "" // plain data can be encoded; anything else has no JSON form
	}
	return string(raw)
}

// toolCalls reports an agent's tool calls.
type toolCalls struct {
	report func(string)

	mu sync.Mutex // guards n
	n  int
}

func (c *toolCalls) event(agent string, e tools.ToolEvent) {
	if e.Done {
		return
	}
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	c.report(agent + ": " + e.Tool)
}

func (c *toolCalls) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
