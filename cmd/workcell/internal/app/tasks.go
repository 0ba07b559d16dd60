package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// Kinds of tasks.
const (
	taskAgent    = "agent"
	taskWorkflow = "workflow"
)

// taskRunner runs agents and workflows for MCP clients, like `workcell run`.
type taskRunner struct {
	*App
	manager *Manager
	tools   *hosttools.Registry
	tasks   map[string]mcpTask
	prompts string         // directory of the coding agents' files; empty without coding agents
	journal runstore.Store // for approvals; nil without host tools

	making singleflight.Group // creation of hosts, by task, because the servers of a task's host tools may be slow
	hosts  sync.Map           // *host by task

	began struct {
		sync.Mutex
		with map[session.Run][]*transfer.Snapshot // initial files of the sandboxes of sessions
	}
}

// mcpTask is a task with the files and the model.
type mcpTask struct {
	mcpserver.Task
	*Program
	path  string
	model string // from --executors; overrides --model; may be empty
}

// TaskRunner loads the tasks in the directories. Invalid files are skipped with a warning. It does not check models:
// running a task without a model key returns the error. The caller must close the runner.
func (a *App) TaskRunner(
	ctx context.Context, m *Manager, hosts *hosttools.Registry, agents, workflows string, coding CodingTasks,
) (*taskRunner, error) {
	r := &taskRunner{App: a, manager: m, tools: hosts, tasks: map[string]mcpTask{}}
	r.began.with = map[session.Run][]*transfer.Snapshot{}
	var errs []error
	var err error
	if r.prompts, err = coding.write(a.opts.Model); err != nil {
		return nil, err
	}
	for _, dir := range []string{r.prompts, agents} {
		if dir != "" {
			errs = append(errs, r.addAgents(dir))
		}
	}
	for _, text := range coding.Agents {
		command, own, _ := coder(text, "")
		if t, ok := r.tasks[command]; ok {
			t.model = own
			r.tasks[command] = t
		}
	}
	if workflows != "" {
		errs = append(errs, r.addWorkflows(workflows, agents))
	}
	if err := errors.Join(errs...); err != nil {
		err = errors.Join(err, os.RemoveAll(r.prompts))
		return nil, Fail(ExitInvalid, err,
			"task names (file names of agents, ids of workflows) must be unique; to see other problems, run `workcell validate`")
	}
	if hosts != nil {
		if r.journal, err = a.OpenJournal(ctx); err != nil {
			return nil, errors.Join(err, os.RemoveAll(r.prompts))
		}
	}
	return r, nil
}

// leaveOut prints warnings for the problems of a skipped file.
func (r *taskRunner) leaveOut(path string, err error) {
	for _, p := range ProblemsOf(path, err) {
		r.Notice("warning: skipped: %v", p)
	}
}

func (r *taskRunner) addAgents(dir string) error {
	if _, err := os.ReadDir(dir); err != nil {
		return err
	}
	files := AgentFiles{Dirs: []string{dir}}
	for _, name := range files.List() {
		path := filepath.Join(dir, name+AgentExt)
		doc, err := tools.CheckAgent(path)
		if err == nil && doc.Sandbox != nil && doc.Sandbox.Session == frontmatter.SessionUser {
			err = doc.Problem("sandbox.session", "run it with `workcell run --user`",
				"session: user requires a user, and MCP clients have none")
		}
		if err != nil {
			r.leaveOut(path, err)
			continue
		}
		wf := workflow.ForAgent(doc)
		if first, taken := r.tasks[wf.ID]; taken {
			return fmt.Errorf("%s: task name %s is already used by an %s", path, name, first.Kind)
		}
		r.add(taskAgent, path, &Program{Workflow: wf, Files: map[string]string{wf.ID: path}})
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
		if HasKey(path, ScriptKey) || HasKey(path, ServersKey) {
			continue
		}
		p, err := LoadProgram(path, agents)
		if err != nil && agents != "" { // the workflow may have its own agents
			if own, ownErr := LoadProgram(path, ""); ownErr == nil {
				p, err = own, nil
			}
		}
		if err != nil {
			r.leaveOut(path, err)
			continue
		}
		if first, taken := r.tasks[p.ID]; taken {
			errs = append(errs, fmt.Errorf("%s: task name %s is already used in %s", path, p.ID, first.path))
			continue
		}
		r.add(taskWorkflow, path, p)
	}
	return errors.Join(errs...)
}

// add adds the task for a program.
func (r *taskRunner) add(kind, path string, p *Program) {
	schema, _ := SchemaOf(p.Workflow) // running the task returns the error
	r.tasks[p.ID] = mcpTask{
		Task: mcpserver.Task{
			Name: p.ID, Kind: kind, Description: p.Description, Fields: slices.Sorted(maps.Keys(InputFields(schema))),
			Outputs: p.Outputs() != nil,
		},
		Program: p, path: path,
	}
}

// List returns the tasks, sorted by name.
func (r *taskRunner) List() []mcpserver.Task {
	list := make([]mcpserver.Task, 0, len(r.tasks))
	for _, name := range slices.Sorted(maps.Keys(r.tasks)) {
		list = append(list, r.tasks[name].Task)
	}
	return list
}

// Run runs a task in the run of ctx.
func (r *taskRunner) Run(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	res, err := r.run(ctx, req)
	if err != nil {
		r.Logger().WarnContext(ctx, "task failed", "task", req.Name, "error", err)
		err = taskError(err)
	}
	return res, err
}

func (r *taskRunner) run(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	t, ok := r.tasks[req.Name]
	if !ok {
		return mcpserver.TaskResult{}, toolspec.Failf(toolspec.CodeNotFound, "task not found")
	}
	input, err := t.input(req)
	if err != nil {
		return mcpserver.TaskResult{}, inputError(err)
	}
	shared, err := r.host(ctx, t)
	if err != nil {
		return mcpserver.TaskResult{}, err
	}
	own := *shared // reports are per call
	var calls atomic.Int64
	own.onTool = func(agent string, e tools.ToolEvent) {
		if !e.Done {
			calls.Add(1)
			req.Report(agent + ": " + e.Tool)
		} else if e.Duration >= time.Second {
			req.Report(fmt.Sprintf("%s: %s (%d s)", agent, e.Tool, int64(e.Duration.Seconds())))
		}
	}
	answered := own.answers(t.Workflow)
	if r.journal != nil {
		own.approve = r.approver(r.journal, own.m.Owner(), hosttools.ApproverFromContext(ctx), "the MCP client", r.Notice)
	}
	run, _ := session.RunFromContext(ctx)
	engine := workflow.NewEngine(own.m.Manager, &own, &workflow.Options{
		Within: &run, Results: string(r.snapshots()), OnSnapshot: func(s *transfer.Snapshot) { r.keepSnapshot(run, s) },
		Logger: r.Logger(), OnEvent: func(ev workflow.Event) {
			if ev.Kind == workflow.EventStepStarted && t.Kind == taskWorkflow {
				req.Report("step " + ev.Path)
			}
		},
	})
	res, err := engine.Run(ctx, t.Workflow, input)
	if res == nil {
		return mcpserver.TaskResult{}, err
	}
	out := mcpserver.TaskResult{Outcome: string(res.Outcome)}
	if got := answered(); t.Kind == taskAgent {
		out.Text, out.OutputJSON, out.Model = got.Text, jsonText(got.Output), got.Model
		out.ToolCalls, out.CostUSD = cmp.Or(got.ToolCalls, int(calls.Load())), got.Executor.Cost()
		err = cmp.Or(got.err, err)
	} else {
		out.Steps = res.Steps
		if text, ok := res.Output.(string); ok {
			out.Text = text
		} else {
			out.OutputJSON = jsonText(res.Output)
		}
	}
	if box := transfer.Shared(r.manager.Manager, run); box != nil {
		for _, name := range slices.Sorted(maps.Keys(res.Outputs)) {
			size := int64(len(res.Outputs[name].Content))
			out.Outputs = append(out.Outputs, mcpserver.TaskOutput{Sandbox: box.ID(), Path: name, Size: size})
		}
	}
	return out, err
}

// input returns the input for a run of the task.
func (t mcpTask) input(req mcpserver.TaskRequest) (map[string]any, error) {
	schema, err := SchemaOf(t.Workflow)
	if err != nil {
		return nil, err
	}
	input, err := ParseInput(t.Workflow, InputFields(schema), req.Fields, req.Text)
	if doc := t.Agent(); doc != nil && err == nil {
		err = errors.Unwrap(tools.CheckInput(doc, input)) // without the path of the agent's file
	}
	return input, err
}

// keepSnapshot keeps the initial files of a session's sandboxes until the session is closed.
func (r *taskRunner) keepSnapshot(run session.Run, s *transfer.Snapshot) {
	r.began.Lock()
	defer r.began.Unlock()
	r.began.with[run] = append(r.began.with[run], s)
	if len(r.manager.InScope(run.Scope())) == 0 { // the session was closed in the meantime
		r.forget(run)
	}
}

// ForgetRun removes the initial files of a session's sandboxes.
func (r *taskRunner) ForgetRun(run session.Run) {
	r.began.Lock()
	defer r.began.Unlock()
	r.forget(run)
}

// forget is ForgetRun with the lock held.
func (r *taskRunner) forget(run session.Run) {
	for _, s := range r.began.with[run] {
		if err := s.Remove(); err != nil {
			r.Logger().Warn("cannot remove the copy of a workspace", "error", err)
		}
	}
	delete(r.began.with, run)
}

func (r *taskRunner) snapshots() runfiles.Dir {
	return snapshotsIn(r.manager.place, r.manager.Owner())
}

// Close removes the remaining snapshots.
func (r *taskRunner) Close() {
	if r.journal != nil {
		defer r.journal.Close() // every answer was written to disk before it was used
	}
	if err := errors.Join(r.snapshots().Clear(), os.RemoveAll(r.prompts)); err != nil {
		r.Logger().Warn("cannot remove copies of workspaces", "error", err)
	}
}

// Diff returns the changes in a session's sandbox since it started with a workflow's workspace. It returns nil for
// other sandboxes.
func (r *taskRunner) Diff(ctx context.Context, box *session.Session) (*patch.Patch, error) {
	r.began.Lock()
	list := r.began.with[session.Run(box.Key().Scope())]
	r.began.Unlock()
	for _, s := range list {
		if p, err := s.Diff(ctx, box); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// host returns the Genkit instance for a task. It is created when the task runs for the first time.
func (r *taskRunner) host(ctx context.Context, t mcpTask) (*host, error) {
	if h, ok := r.hosts.Load(t.Name); ok {
		return h.(*host), nil
	}
	// Outlives this call.
	made := r.making.DoChan(t.Name, func() (any, error) { return r.makeHost(context.WithoutCancel(ctx), t) })
	select {
	case res := <-made:
		h, _ := res.Val.(*host)
		return h, res.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// makeHost creates the Genkit instance of a task.
func (r *taskRunner) makeHost(ctx context.Context, t mcpTask) (*host, error) {
	a := r.App
	if t.model != "" {
		flags := a.opts.runFlags
		flags.Model = t.model
		a = a.withFlags(flags)
	}
	h, err := a.newHost(ctx, r.manager, r.tools, t.Files)
	if err != nil {
		if code, _ := Classify(err); code == ExitModel {
			message, todo := "no model is available for the task", "pass --model provider/name"
			// The text contains the model and the variables. File paths and unknown texts stay on the host.
			if h := hint.Of(err); h.Hint != "" && !errors.Is(err, errNoModel) {
				message, todo = message+": "+h.Error(), h.Hint
			}
			e := toolspec.Failf(toolspec.CodeUnavailable, "%s", message).
				WithRemediation("Tell the user how to fix this where the server is started: " + todo)
			e.Retryable = false
			return nil, e
		}
		return nil, err
	}
	r.hosts.Store(t.Name, h)
	return h, nil
}

func inputError(err error) error {
	todo := ""
	if h := hint.Of(err); h != nil {
		todo = h.Hint
	}
	return toolspec.Failf(toolspec.CodeInvalid, "%v", err).WithRemediation(todo)
}

// taskError returns the error class for the client. The text, which may contain host paths, is only logged.
func taskError(err error) error {
	var told *toolspec.Error
	if errors.As(err, &told) || errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, workflow.ErrInvalidInput) {
		return inputError(err)
	}
	told = toolspec.ErrorOf(err)
	if errors.As(err, new(*session.ConflictError)) {
		return told.WithRemediation("Another task in this session uses a different kind of sandbox: pass new as session_id.")
	}
	if errors.Is(err, executor.ErrBudget) {
		return toolspec.Failf(toolspec.CodeQuota, "the task's budget is used up").
			WithRemediation("Report this to the user.")
	}
	message := "the task failed"
	var failed *workflow.Error
	switch {
	case !errors.As(err, &failed):
	case failed.Code == "failed": // message of a fail step, written for callers
		message = sanitize.Cut(failed.Message, 2000)
	case failed.Step != "":
		message = fmt.Sprintf("step %s failed: %s", failed.Step, failed.Code)
	}
	return toolspec.Failf(told.Code, "%s", message).
		WithRemediation("Report the failure to the user. The server's log contains the reason.")
}

// jsonText returns a value as JSON. It returns an empty string for nil.
func jsonText(v any) string {
	if v == nil {
		return ""
	}
	raw, _ := json.Marshal(v) // plain data can be encoded; anything else has no JSON form
	return string(raw)
}
