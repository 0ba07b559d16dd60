package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// newSession is the session_id to request a new session with an unguessable id from execute_task.
const newSession = "new"

// maxTaskSessions is the maximum number of sessions per scope.
const maxTaskSessions = 64

// maxTasksListed is the maximum number of tasks listed in a description.
const maxTasksListed = 50

// taskSession holds the common sandboxes of several tasks.
type taskSession struct {
	run      session.Run
	busy     int // running tasks and other calls
	lastUsed time.Time
}

// Names of the tools for clients whose users do not write programs.
const (
	toolExecuteTask = "execute_task"
	toolGetFiles    = "get_files"
	toolCleanup     = "cleanup_session"
	toolStatus      = "session_status"
)

// taskTools returns the tools for clients whose users do not write programs.
func (s *Server) taskTools() []tool {
	getFiles := define[getFilesInput, getFilesOutput](toolGetFiles, "Get files",
		"Returns files of a session or sandbox, each as base64 or all as one zip archive.", typed(s.getFiles))
	getFiles.ReadOnly = true
	cleanup := define[cleanupSessionInput, cleanupSessionOutput](toolCleanup, "Delete a session",
		"Closes a session or sandbox and deletes all its files now. Optional: idle ones are closed automatically.",
		typed(s.cleanupSession))
	cleanup.Destructive = true
	status := define[sessionStatusInput, sessionStatusOutput](toolStatus, "Show sessions",
		"Returns the state, age, idle time, CPU, memory, and disk use of a session or sandbox, or of all your sandboxes.",
		typed(s.sessionStatus))
	status.ReadOnly = true
	list := []tool{getFiles, cleanup, status}
	for i := range list {
		list[i].Idempotent = true
	}
	if len(s.opts.Tasks) > 0 {
		list = append(list, s.taskTool())
	}
	return list
}

// taskTool returns execute_task. The definition lists the existing tasks for the model.
func (s *Server) taskTool() tool {
	t := define[executeTaskInput, executeTaskOutput](toolExecuteTask, "Run an agent or workflow",
		taskDescription(s.opts.Tasks), typed(s.executeTask))
	t.open = true
	properties, _ := t.Input["properties"].(map[string]any)
	task, _ := properties["task"].(map[string]any)
	task["enum"] = taskNames(s.opts.Tasks)
	return t
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
	b.WriteString("Runs an agent or a workflow of this installation in a sandbox and returns its answer. " +
		"Pass its name as task, and its work as input or inputs. " +
		"Pass session_id to keep the files for get_files and further tasks. Tasks:")
	for _, t := range tasks[:min(len(tasks), maxTasksListed)] {
		fmt.Fprintf(&b, "\n- %s (%s", t.Name, t.Kind)
		if len(t.Fields) > 0 {
			fmt.Fprintf(&b, "; inputs: %s", strings.Join(t.Fields, ", "))
		}
		b.WriteString(")")
		if t.Description != "" {
			b.WriteString(": " + sanitize.Clip(strings.Join(strings.Fields(t.Description), " ")))
		}
	}
	return b.String()
}

func (s *Server) executeTask(ctx context.Context, c call, in executeTaskInput) (executeTaskOutput, error) {
	i := slices.IndexFunc(s.opts.Tasks, func(t Task) bool { return t.Name == in.Task })
	if i < 0 {
		return executeTaskOutput{}, toolspec.Failf(toolspec.CodeNotFound, "unknown task %q; available: %s",
			sanitize.Clip(in.Task), strings.Join(taskNames(s.opts.Tasks), ", ")).
			WithRemediation("Pass one of these names as task, and its work as input or inputs.")
	}
	if fail := s.checkSize("input", int64(len(in.Input))); fail != nil {
		return executeTaskOutput{}, fail
	}
	if in.SessionID == "" && s.opts.Tasks[i].Outputs {
		in.SessionID = newSession
	}
	run, id, leave, err := s.taskRun(ctx, c.scope, in.SessionID)
	if err != nil {
		return executeTaskOutput{}, err
	}
	defer leave()
	bound := s.policy.Limits.ExecTimeout
	if bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, bound, errTaskTime)
		defer cancel()
	}
	began := time.Now()
	res, err := s.opts.RunTask(session.WithRun(ctx, run), TaskRequest{
		Name: in.Task, Text: in.Input, Fields: in.Inputs, Report: c.report,
	})
	out := executeTaskOutput{
		Task: in.Task, TaskResult: res, SessionID: id, DurationMS: time.Since(began).Milliseconds(),
	}
	for _, o := range res.Outputs {
		out.Outputs = append(out.Outputs, taskOutput{Path: o.Path, SizeBytes: o.Size, URI: resourceURI(o.Sandbox, o.Path)})
	}
	switch {
	case err == nil:
		return out, nil
	case errors.Is(context.Cause(ctx), errTaskTime):
		out.Error = refusedBy("limits.exec_timeout", "the task was stopped after %s", bound)
		out.Error.Code = toolspec.CodeTimeout
	case ctx.Err() != nil:
		return out, err
	default:
		out.Error = s.failure(ctx, c.tool, err)
		if out.Error.Code == toolspec.CodeLost && id != "" && s.kept(ctx, run.Scope()) {
			out.Error.Remediation = "The files are kept: get them with get_files, or run the task again, with this session_id."
		}
	}
	out.Outcome = cmp.Or(out.Outcome, "failed")
	return out, nil
}

var errTaskTime = errors.New("the guard policy's time limit for a task has passed")

// taskRun returns the run of a task and the id of the session. The caller must call leave when the task has ended.
func (s *Server) taskRun(ctx context.Context, sc *scope, id string) (
	run session.Run, session string, leave func(), err error) {
	fresh, given := newRun(sc.run.Namespace), id == newSession || sc.named
	switch {
	case id == "":
		return fresh, "", func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			s.logClose(fresh, s.closeRun(ctx, fresh))
		}, nil
	case id == newSession:
		id = fresh.ID
	case !validSessionID(id):
		return run, "", nil, toolspec.Failf(toolspec.CodeInvalid,
			"session_id must have up to 64 letters, digits, '.', '_', and '-'").
			WithRemediation("Pass another session_id, or new.")
	}
	if sc.shared() {
		fresh = sc.sharedTask(id)
		list, err := s.manager.Join(ctx, fresh.Scope())
		if err != nil {
			return run, "", nil, err
		}
		given = given || len(list) > 0 // opened by another server
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	t := sc.tasks[id]
	switch {
	case t != nil && (given || t.busy > 0 || !sc.shared()): // otherwise another server may have ended it
	case !given:
		return run, "", nil, toolspec.Failf(toolspec.CodeNotFound, "session not found").
			WithRemediation("Pass new as session_id to create a session.")
	case len(sc.tasks) >= maxTaskSessions:
		return run, "", nil, toolspec.Failf(toolspec.CodeCapacity, "session limit reached (%d)", maxTaskSessions).
			WithRemediation("Delete a session with cleanup_session, or use an existing session.")
	default:
		t = &taskSession{run: fresh}
		sc.tasks[id] = t
	}
	t.busy++
	return t.run, id, func() {
		sc.mu.Lock()
		defer sc.mu.Unlock()
		t.busy--
		t.lastUsed = time.Now()
	}, nil
}

var sessionIDPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

func validSessionID(id string) bool { return sessionIDPattern.MatchString(id) }

// takeTasks removes the matching sessions from the scope and returns them.
func (sc *scope) takeTasks(want func(*taskSession) bool) (taken []*taskSession) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
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

// found is a sandbox and the id of the session, if any.
type found struct {
	session   *session.Session
	sessionID string
}

// all returns all sandboxes of a scope and the runs of the sessions. If id is a session of another server, all includes
// the sandboxes of the session.
func (s *Server) all(ctx context.Context, sc *scope, id string) (list []found, runs map[string]session.Run, err error) {
	runs = sc.taskRuns()
	elsewhere := sc.shared() && validSessionID(id) // another server may have started or ended the session
	if elsewhere {
		runs[id] = sc.sharedTask(id)
	}
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(runs))...) {
		run := sc.run
		if name != "" {
			run = runs[name]
		}
		in, err := s.manager.Join(ctx, run.Scope())
		if err != nil {
			return nil, nil, err
		}
		if elsewhere && name == id && len(in) == 0 {
			delete(runs, id)
		}
		for _, one := range in {
			list = append(list, found{one, name})
		}
	}
	return list, runs, nil
}

// lookup returns the sandboxes with id. If id is an execute_task session, lookup returns all sandboxes and the run of
// the session. The error for an inaccessible id is the same as for an unknown id.
func (s *Server) lookup(ctx context.Context, sc *scope, id string) (list []found, run *session.Run, err error) {
	all, runs, err := s.all(ctx, sc, id)
	if err != nil {
		return nil, nil, err
	}
	if r, ok := runs[id]; ok {
		run = &r
	}
	list = slices.DeleteFunc(all, func(f found) bool { return f.sessionID != id && f.session.ID() != id })
	if id != "" && (run != nil || len(list) > 0) {
		return list, run, nil
	}
	one, err := s.manager.Lookup(ctx, sc.run.Scope(), id)
	if errors.Is(err, backend.ErrNotFound) {
		return nil, nil, toolspec.Failf(toolspec.CodeNotFound, "session or sandbox not found").
			WithRemediation("Pass a session_id of execute_task or a sandbox_id of sandbox_open; session_status lists yours.")
	}
	return []found{{session: one}}, nil, err
}

// meant returns the sandboxes with id. If id is empty, it returns all sandboxes of the scope, or an error if must is
// set.
func (s *Server) meant(ctx context.Context, sc *scope, id string, must bool) (list []found, err error) {
	switch {
	case id != "":
		list, _, err = s.lookup(ctx, sc, id)
	case must:
		err = toolspec.Failf(toolspec.CodeInvalid, "session_id is required").
			WithRemediation("Pass a session_id of execute_task or a sandbox_id of sandbox_open.")
	default:
		list, _, err = s.all(ctx, sc, "")
	}
	return list, err
}

// one returns the sandbox with id. If id is a session, it returns the common sandbox of the session's tasks.
func (s *Server) one(ctx context.Context, sc *scope, id string) (*session.Session, error) {
	list, err := s.meant(ctx, sc, id, sc.handles)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, toolspec.Failf(toolspec.CodeNotFound, "no sandbox yet, so there are no files").
			WithRemediation("Run a task or open a sandbox first.")
	}
	ids := make([]string, len(list))
	for i, f := range list {
		if len(list) == 1 || id != "" && f.session.Key().Name == record.DefaultName {
			return s.reopened(ctx, f.session)
		}
		ids[i] = f.session.ID()
	}
	return nil, toolspec.Failf(toolspec.CodeInvalid, "several sandboxes exist: %s", strings.Join(ids, ", ")).
		WithRemediation("Pass one of them as session_id.")
}

// reopened returns a sandbox. If the sandbox died without losing files, reopened opens it again.
func (s *Server) reopened(ctx context.Context, one *session.Session) (*session.Session, error) {
	info := one.Info()
	if info.State != session.StateLost || !s.kept(ctx, info.Key.Scope()) {
		return one, nil
	}
	req := session.Request{Image: info.Image, Network: info.Network, Egress: info.Egress, Mode: session.OpenAsIs}
	again, _, err := s.manager.Open(ctx, info.Key, req.WithDefaults(s.base))
	return again, err
}

// kept reports whether the files of all sandboxes of a scope are kept, including those of dead sandboxes.
func (s *Server) kept(ctx context.Context, scope record.Scope) bool {
	gone, _, err := s.manager.Gone(ctx, scope)
	return err == nil && len(gone) == 0
}

func (s *Server) cleanupSession(ctx context.Context, c call, in cleanupSessionInput) (cleanupSessionOutput, error) {
	list, run, err := s.lookup(ctx, c.scope, in.SessionID)
	if err != nil {
		return cleanupSessionOutput{}, err
	}
	if run != nil && !c.scope.shared() {
		err = s.closeRun(ctx, *run)
	} else { // a session's name can be used again, and all servers derive the run from the name
		for _, f := range list {
			err = errors.Join(err, s.manager.Remove(ctx, f.session.ID(), true))
		}
	}
	if err != nil {
		return cleanupSessionOutput{}, err
	}
	for _, t := range c.scope.takeTasks(func(t *taskSession) bool { return run != nil && t.run == *run }) {
		if c.scope.shared() {
			s.onClose(t.run)
		}
	}
	return cleanupSessionOutput{OK: true, Removed: len(list)}, nil
}

func (s *Server) sessionStatus(ctx context.Context, c call, in sessionStatusInput) (sessionStatusOutput, error) {
	list, err := s.meant(ctx, c.scope, in.SessionID, c.scope.handles && !c.scope.named)
	if err != nil {
		return sessionStatusOutput{}, err
	}
	out := sessionStatusOutput{Sessions: []sessionStatus{}}
	for _, f := range list {
		out.Sessions = append(out.Sessions, s.statusOf(ctx, f))
		if in.SessionID != "" {
			f.session.Touch() // asking for the status counts as use
		}
	}
	return out, nil
}

// statusTimeout limits the request to one sandbox. If the sandbox does not answer, the status has no numbers.
const statusTimeout = 5 * time.Second

func (s *Server) statusOf(ctx context.Context, f found) sessionStatus {
	info, now := f.session.Info(), time.Now()
	st := sessionStatus{
		SessionID: f.sessionID, SandboxID: info.ID, State: string(info.State), Image: info.Image,
		Network: string(info.Network), AgeSeconds: int64(now.Sub(info.Created).Seconds()),
		IdleSeconds: int64(max(0, now.Sub(info.LastUsed)).Seconds()), CPUMillicores: info.Limits.CPUMillis,
		MemoryLimit: info.Limits.MemoryBytes, WorkspaceLimit: info.Limits.WorkspaceBytes,
		IdleLimit: int64(max(0, info.IdleTimeout).Seconds()),
	}
	if info.State != session.StateReady {
		return st
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	stats, err := f.session.Stats(ctx)
	if err != nil {
		s.log.WarnContext(ctx, "cannot read a sandbox's resource usage", "sandbox", info.ID, "error", err)
		return st
	}
	st.Running, st.MemoryBytes, st.Processes = stats.Running, stats.MemoryBytes, stats.PIDs
	st.WorkspaceBytes, st.WorkspaceMore = stats.WorkspaceBytes, stats.WorkspaceMore
	st.CPUTimeMS = stats.CPU.Milliseconds()
	return st
}
