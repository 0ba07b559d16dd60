package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// newSession asks execute_task for a session whose id cannot be guessed.
const newSession = "new"

// maxTaskSessions bounds the sessions of a scope.
const maxTaskSessions = 64

// maxTasksListed bounds how many tasks a description names.
const maxTasksListed = 50

// taskSession keeps the sandboxes of several tasks together.
type taskSession struct {
	run      session.Run
	busy     int // tasks and other calls under way
	lastUsed time.Time
}

// addTaskTools registers the tools for hosts whose users do not write programs.
func (s *Server) addTaskTools(srv *mcp.Server, find resolver) {
	closed, open := false, true
	yes, no := true, false
	if def, ok := s.taskDefinition(); ok {
		s.addTool(srv, find, def, &mcp.ToolAnnotations{Title: "Run an agent or workflow", DestructiveHint: &no, OpenWorldHint: &open}, typed(s, s.executeTask))
	}
	s.addTool(srv, find, toolspec.DefinitionOf[GetFilesInput, GetFilesOutput](ToolGetFiles,
		"Gives files out of a session or sandbox, each as base64 or all as one zip archive."),
		&mcp.ToolAnnotations{Title: "Get files", ReadOnlyHint: true, DestructiveHint: &no, IdempotentHint: true, OpenWorldHint: &closed}, typed(s, s.getFiles))
	s.addTool(srv, find, toolspec.DefinitionOf[CleanupSessionInput, CleanupSessionOutput](ToolCleanupSession,
		"Ends a session or sandbox and deletes all its files now. Not needed: idle ones end by themselves."),
		&mcp.ToolAnnotations{Title: "Delete a session", DestructiveHint: &yes, IdempotentHint: true, OpenWorldHint: &closed}, typed(s, s.cleanupSession))
	s.addTool(srv, find, toolspec.DefinitionOf[SessionStatusInput, SessionStatusOutput](ToolSessionStatus,
		"Tells of a session or sandbox, or of all of yours: state, age, idle time, CPU, memory, disk."),
		&mcp.ToolAnnotations{Title: "Show sessions", ReadOnlyHint: true, DestructiveHint: &no, IdempotentHint: true, OpenWorldHint: &closed}, typed(s, s.sessionStatus))
}

// taskDefinition describes execute_task and the tasks there are, so that a model can choose one; false when there are none.
func (s *Server) taskDefinition() (toolspec.Definition, bool) {
	tasks, err := s.tasks(s.ctx)
	if err != nil {
		s.log.Error("cannot list the tasks, so execute_task is not offered", "error", err)
	}
	if len(tasks) == 0 {
		return toolspec.Definition{}, false
	}
	def := toolspec.DefinitionOf[ExecuteTaskInput, ExecuteTaskOutput](ToolExecuteTask, taskDescription(tasks))
	if properties, ok := def.Input["properties"].(map[string]any); ok {
		if task, ok := properties["task"].(map[string]any); ok {
			task["enum"] = taskNames(tasks)
		}
	}
	return def, true
}

func taskNames(tasks []Task) []string {
	names := make([]string, len(tasks))
	for i, t := range tasks {
		names[i] = t.Name
	}
	return names
}

func taskDescription(tasks []Task) string {
	var b strings.Builder
	b.WriteString("Runs an agent or a workflow of this installation in a sandbox and returns its answer. task is its name, and what " +
		"it is to do goes into input or inputs. Pass session_id to keep the files for get_files and further tasks. Tasks:")
	for _, t := range tasks[:min(len(tasks), maxTasksListed)] {
		fmt.Fprintf(&b, "\n- %s (%s", t.Name, t.Kind)
		if len(t.Fields) > 0 {
			fmt.Fprintf(&b, "; inputs: %s", strings.Join(t.Fields, ", "))
		}
		b.WriteString(")")
		if t.Description != "" {
			b.WriteString(": " + clip(strings.Join(strings.Fields(t.Description), " ")))
		}
	}
	return b.String()
}

func (s *Server) tasks(ctx context.Context) ([]Task, error) {
	if s.opts.Runner == nil {
		return nil, nil
	}
	return s.opts.Runner.Tasks(ctx)
}

// typed makes a handler of a function with typed input and output, which reports failures as errors.
func typed[In, Out any](s *Server, fn func(context.Context, call, In) (Out, error)) handler {
	return func(ctx context.Context, c call) (out any, err error) {
		defer func() {
			if r := recover(); r != nil {
				s.log.ErrorContext(ctx, "a tool panicked", "tool", c.tool, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
				out, err = toolspec.Result{Error: toolspec.NewError(toolspec.CodeInternal, c.tool+" failed unexpectedly", "")}, nil
			}
		}()
		in, fail := toolspec.DecodeInput[In](c.args)
		if fail != nil {
			return toolspec.Result{Error: fail}, nil
		}
		got, err := fn(ctx, c, in)
		if err == nil {
			return got, nil
		}
		if ctx.Err() != nil && !errors.As(err, new(*toolspec.Error)) {
			return nil, err
		}
		told := toolspec.ErrorOf(err)
		if told.Code == toolspec.CodeInternal {
			s.log.ErrorContext(ctx, "a tool failed", "tool", c.tool, "error", err)
		}
		return toolspec.Result{Error: told}, nil
	}
}

func (s *Server) executeTask(ctx context.Context, c call, in ExecuteTaskInput) (ExecuteTaskOutput, error) {
	task, err := s.findTask(ctx, in)
	if err != nil {
		return ExecuteTaskOutput{}, err
	}
	run, id, leave, err := s.taskRun(ctx, c.scope, in.SessionID)
	if err != nil {
		return ExecuteTaskOutput{}, err
	}
	defer leave()
	seconds := s.policy.Limits.ExecutionSeconds
	if seconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(seconds)*time.Second, errTaskTime)
		defer cancel()
	}
	began := time.Now()
	ctx = session.WithBase(session.WithRun(ctx, run), session.Request{IdleTimeout: s.opts.IdleTimeout, Ceiling: s.ceiling()})
	res, err := s.opts.Runner.Run(ctx, TaskRequest{
		Name: task, Text: in.Input, Fields: in.Inputs, Report: c.report,
	})
	out := ExecuteTaskOutput{
		Task: task, Outcome: res.Outcome, Text: res.Text, OutputJSON: res.OutputJSON, Model: res.Model, Steps: res.Steps,
		ToolCalls: res.ToolCalls, SessionID: id, DurationMS: time.Since(began).Milliseconds(),
	}
	switch {
	case err == nil:
		return out, nil
	case errors.Is(context.Cause(ctx), errTaskTime):
		out.Error = refusal("limits.execution_seconds", "the task was ended after %d seconds", seconds)
		out.Error.Code = toolspec.CodeTimeout
	case ctx.Err() != nil:
		return out, err
	default:
		out.Error = toolspec.ErrorOf(err)
		if out.Error.Code == toolspec.CodeInternal && !errors.As(err, new(*toolspec.Error)) { // else the runner has told of it
			s.log.ErrorContext(ctx, "a task failed", "task", task, "error", err)
		}
	}
	out.Outcome = cmp.Or(out.Outcome, "failed")
	return out, nil
}

var errTaskTime = errors.New("the guard policy's time for a task has passed")

// findTask returns the name of the task that a call means.
func (s *Server) findTask(ctx context.Context, in ExecuteTaskInput) (string, error) {
	tasks, err := s.tasks(ctx)
	if err != nil {
		return "", err
	}
	if names := taskNames(tasks); !slices.Contains(names, in.Task) {
		return "", toolspec.NewError(toolspec.CodeNotFound, fmt.Sprintf("there is no task %q; the tasks are: %s", clip(in.Task), strings.Join(names, ", ")),
			"Pass one of these names as task, and what it is to do as input or inputs.")
	}
	if size := int64(len(in.Input)); size > 0 {
		if fail := s.checkSize("input", size); fail != nil {
			return "", fail
		}
	}
	return in.Task, nil
}

// taskRun returns the run of a task and the id of its session. leave must be called when the task ended.
func (s *Server) taskRun(ctx context.Context, sc *scope, id string) (run session.Run, session string, leave func(), err error) {
	switch {
	case id == "":
		run = newRun()
		return run, "", func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			if err := s.manager.CloseScope(ctx, run.Scope()); err != nil {
				s.log.ErrorContext(ctx, "cannot remove all sandboxes of a task yet", "run", run.ID, "error", err)
			}
		}, nil
	case id == newSession:
		run = newRun()
		id = run.ID
	case !validSessionID(id):
		return run, "", nil, toolspec.NewError(toolspec.CodeInvalid, "session_id has up to 64 letters, digits, '.', '_' and '-'", "Pass another session_id, or new.")
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	t := sc.tasks[id]
	switch {
	case t != nil:
	case run.ID == "" && !sc.named:
		return run, "", nil, toolspec.NewError(toolspec.CodeNotFound, "there is no such session", "Pass new as session_id for a fresh one.")
	case len(sc.tasks) >= maxTaskSessions:
		return run, "", nil, toolspec.NewError(toolspec.CodeCapacity, fmt.Sprintf("there are %d sessions, which is the limit", maxTaskSessions),
			"End one with cleanup_session, or work on in one of them.")
	default:
		if run.ID == "" {
			run = newRun()
		}
		t = &taskSession{run: run}
		sc.tasks[id] = t
	}
	return t.run, id, sc.use(t), nil
}

var sessionIDPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

func validSessionID(id string) bool { return sessionIDPattern.MatchString(id) }

// use counts a call in; sc.mu must be held. The function counts it out.
func (sc *scope) use(t *taskSession) func() {
	t.busy++
	t.lastUsed = time.Now()
	return func() {
		sc.mu.Lock()
		defer sc.mu.Unlock()
		t.busy--
		t.lastUsed = time.Now()
	}
}

// hold counts a call in as use of a session, until the call's ctx ends.
func (sc *scope) hold(ctx context.Context, id string) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if t := sc.tasks[id]; t != nil {
		context.AfterFunc(ctx, sc.use(t))
	}
}

// takeTasks takes sessions out of the scope.
func (sc *scope) takeTasks(want func(*taskSession) bool) []*taskSession {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	var taken []*taskSession
	for id, t := range sc.tasks {
		if want(t) {
			taken = append(taken, t)
			delete(sc.tasks, id)
		}
	}
	return taken
}

// taskRuns returns the runs of the scope's sessions by session id.
func (sc *scope) taskRuns() map[string]session.Run {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	runs := make(map[string]session.Run, len(sc.tasks))
	for id, t := range sc.tasks {
		runs[id] = t.run
	}
	return runs
}

// errNoSession is the answer for every session that the caller may not know of, whether it exists or not.
func errNoSession() *toolspec.Error {
	return toolspec.NewError(toolspec.CodeNotFound, "there is no such session or sandbox",
		"Pass a session_id of execute_task or a sandbox_id of sandbox_open; session_status lists yours.")
}

// found is a sandbox and the session it belongs to, if any.
type found struct {
	session   *session.Session
	sessionID string
}

// lookup returns the sandboxes that an id means: those of a session of execute_task, or one. Until ctx ends, which must be
// soon after the call, it is use of the session.
func (s *Server) lookup(ctx context.Context, sc *scope, id string) ([]found, error) {
	runs := sc.taskRuns()
	if run, ok := runs[id]; ok {
		sc.hold(ctx, id)
		var list []found
		for _, one := range s.manager.InScope(run.Scope()) {
			list = append(list, found{one, id})
		}
		return list, nil
	}
	for name, run := range runs { // before the manager is asked, which logs ids of other scopes
		for _, one := range s.manager.InScope(run.Scope()) {
			if one.ID() == id {
				sc.hold(ctx, name)
				return []found{{one, name}}, nil
			}
		}
	}
	one, err := s.manager.Lookup(ctx, sc.run.Scope(), id)
	if err == nil {
		return []found{{session: one}}, nil
	}
	if errors.Is(err, backend.ErrNotFound) {
		return nil, errNoSession()
	}
	return nil, err
}

// all returns every sandbox of a scope.
func (s *Server) all(sc *scope) []found {
	var list []found
	for _, one := range s.manager.InScope(sc.run.Scope()) {
		list = append(list, found{session: one})
	}
	runs := sc.taskRuns()
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		for _, one := range s.manager.InScope(runs[id].Scope()) {
			list = append(list, found{one, id})
		}
	}
	return list
}

// one returns the sandbox that an id means: of a session, the one that its tasks share.
func (s *Server) one(ctx context.Context, sc *scope, id string) (*session.Session, error) {
	var list []found
	switch {
	case id == "" && sc.handles:
		return nil, toolspec.NewError(toolspec.CodeInvalid, "session_id is required", "Pass a session_id of execute_task or a sandbox_id of sandbox_open.")
	case id == "":
		list = s.all(sc)
	default:
		var err error
		if list, err = s.lookup(ctx, sc, id); err != nil {
			return nil, err
		}
	}
	switch len(list) {
	case 0:
		return nil, toolspec.NewError(toolspec.CodeNotFound, "there is no sandbox yet, so there are no files", "Run a task or open a sandbox first.")
	case 1:
		return list[0].session, nil
	}
	for _, f := range list {
		if id != "" && f.session.Key().Name == session.DefaultName {
			return f.session, nil
		}
	}
	ids := make([]string, len(list))
	for i, f := range list {
		ids[i] = f.session.ID()
	}
	return nil, toolspec.NewError(toolspec.CodeInvalid, "there are several sandboxes: "+strings.Join(ids, ", "), "Pass one of them as session_id.")
}

func (s *Server) cleanupSession(ctx context.Context, c call, in CleanupSessionInput) (CleanupSessionOutput, error) {
	if run, ok := c.scope.taskRuns()[in.SessionID]; ok {
		removed := len(s.manager.InScope(run.Scope()))
		if err := s.manager.CloseScope(ctx, run.Scope()); err != nil {
			return CleanupSessionOutput{}, err
		}
		c.scope.takeTasks(func(t *taskSession) bool { return t.run == run })
		return CleanupSessionOutput{OK: true, Removed: removed}, nil
	}
	list, err := s.lookup(ctx, c.scope, in.SessionID)
	if err != nil {
		return CleanupSessionOutput{}, err
	}
	for _, f := range list {
		if err := s.manager.CloseSession(ctx, f.session.Key(), session.CloseOptions{}); err != nil {
			return CleanupSessionOutput{}, err
		}
	}
	return CleanupSessionOutput{OK: true, Removed: len(list)}, nil
}

func (s *Server) sessionStatus(ctx context.Context, c call, in SessionStatusInput) (SessionStatusOutput, error) {
	list := s.all(c.scope)
	switch {
	case in.SessionID != "":
		var err error
		if list, err = s.lookup(ctx, c.scope, in.SessionID); err != nil {
			return SessionStatusOutput{}, err
		}
	case c.scope.handles && !c.scope.named:
		return SessionStatusOutput{}, toolspec.NewError(toolspec.CodeInvalid, "session_id is required", "Pass a session_id of execute_task or a sandbox_id of sandbox_open.")
	}
	out := SessionStatusOutput{Sessions: []SessionStatus{}}
	for _, f := range list {
		out.Sessions = append(out.Sessions, s.statusOf(ctx, f))
		if in.SessionID != "" {
			f.session.Touch() // who asks for it wants it
		}
	}
	return out, nil
}

// statusTimeout bounds the question to one sandbox: one that does not answer is described without its numbers.
const statusTimeout = 5 * time.Second

func (s *Server) statusOf(ctx context.Context, f found) SessionStatus {
	info, now := f.session.Info(), time.Now()
	st := SessionStatus{
		SessionID: f.sessionID, SandboxID: info.ID, State: string(info.State), Image: info.Image, Network: string(info.Network),
		AgeSeconds: int64(now.Sub(info.Created).Seconds()), IdleSeconds: int64(max(0, now.Sub(info.LastUsed)).Seconds()),
		CPUMillicores: info.Limits.CPUMillis, MemoryLimit: info.Limits.MemoryBytes, WorkspaceLimit: info.Limits.WorkspaceBytes,
	}
	if info.IdleTimeout > 0 {
		st.IdleLimit = int64(info.IdleTimeout.Seconds())
	}
	if info.State != session.StateReady {
		return st
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	stats, err := f.session.Stats(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "cannot read a sandbox's resource use", "sandbox", info.ID, "error", err)
		return st
	}
	st.Running, st.MemoryBytes, st.Processes = stats.Running, stats.MemoryBytes, stats.PIDs
	st.WorkspaceBytes, st.WorkspaceMore = stats.WorkspaceBytes, stats.WorkspaceMore
	st.CPUTimeMS = stats.CPU.Milliseconds()
	return st
}
