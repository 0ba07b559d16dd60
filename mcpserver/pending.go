package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session/record"
)

// maxWait is the time after which a call is answered as pending. Most clients give up after 60 seconds.
const maxWait = 45 * time.Second

// keepAfter is the minimum duration of a call whose result is kept. No client times out earlier.
const keepAfter = 5 * time.Second

// Limits of the kept results: per scope, and for all scopes together. The newest result of a scope may be larger
// than the scope's limit.
const (
	maxKept      = 64
	maxKeptBytes = 16 << 20
	maxAllBytes  = 256 << 20
)

// Names of the tools for calls in the background.
const (
	toolTaskStatus = "task_status"
	toolTaskResult = "task_result"
	toolTaskCancel = "task_cancel"
)

// job is the work of a call. It may outlast the request if the client must ask the user or stops waiting.
type job struct {
	*interrupt.Job[*mcp.CallToolResult]
	id      string
	scope   *scope
	tool    string
	began   time.Time
	waiting atomic.Pointer[context.Context] // context of the current request; nil if no request waits
	to      atomic.Pointer[func(string)]    // sends progress to the current request
	latest  atomic.Pointer[string]          // latest progress message

	// Set before the work ends. Server.mu guards ended.
	state string
	ended time.Time
	bytes int
}

// report sends a progress message to the current request.
func (j *job) report(message string) {
	j.latest.Store(&message)
	(*j.to.Load())(message)
}

// end stores the result of the work.
func (j *job) end(res *mcp.CallToolResult, err error) {
	j.ended, j.state = time.Now(), "completed"
	switch {
	case err != nil:
		j.state = "cancelled"
		return
	case res.IsError:
		j.state = "failed"
	}
	if raw, ok := res.StructuredContent.(json.RawMessage); ok {
		j.bytes = 2 * len(raw) // once as structured content and once as text
	}
	for _, c := range res.Content {
		if img, ok := c.(*mcp.ImageContent); ok {
			j.bytes += len(img.Data)
		}
	}
}

// begin starts the work of a call and waits for it.
func (s *Server) begin(ctx context.Context, req *mcp.CallToolRequest, c call, do handler) (*mcp.CallToolResult, error) {
	select {
	case c.scope.slots <- struct{}{}:
	default:
		return failed(toolspec.Failf(toolspec.CodeCapacity, "%d calls are already running", cap(c.scope.slots)).
			WithRemediation("Wait for a call to finish, or cancel one with task_cancel."))
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-c.scope.slots
		return nil, errCancelled
	}
	s.wg.Add(1)
	s.mu.Unlock()
	j := &job{id: "task_" + record.NewID(), scope: c.scope, tool: c.tool, began: time.Now()}
	j.to.Store(&c.report)
	j.waiting.Store(&ctx)
	in := c
	in.report = j.report
	approve := j.approver(ctx, req)
	j.Job = interrupt.Start(ctx, nil, func(ctx context.Context) (*mcp.CallToolResult, error) {
		defer s.wg.Done()
		defer func() { <-c.scope.slots }()
		res, err := s.perform(approve(ctx), in, do)
		s.mu.Lock()
		defer s.mu.Unlock()
		if j.end(res, err); s.jobs[j.id] == j {
			s.forget(j.ended)
		}
		return res, err
	})
	return s.await(ctx, c, j)
}

// await waits until the job ends, a question ends the request, or s.maxWait has passed.
func (s *Server) await(ctx context.Context, c call, j *job) (*mcp.CallToolResult, error) {
	j.to.Store(&c.report)
	j.waiting.Store(&ctx)
	defer j.waiting.CompareAndSwap(&ctx, nil) // another request may wait too
	patient := ctx
	if !c.scope.shared() { // otherwise the next request may reach another server
		var cancel context.CancelFunc
		patient, cancel = context.WithTimeout(ctx, s.maxWait)
		defer cancel()
		defer time.AfterFunc(s.keepAfter, func() { s.keep(j) }).Stop()
	}
	for {
		q, res, err := j.Next(patient)
		switch {
		case q == nil && ctx.Err() != nil:
			if c.tool != toolTaskResult {
				j.Cancel()
			}
			return nil, errCancelled
		case q == nil && errors.Is(err, context.DeadlineExceeded):
			s.keep(j)
			const note = "The call is still running. Pass task_id to task_result to get the result. Do not repeat the call."
			return result(map[string]any{"pending": map[string]string{"task_id": j.id, "note": note}})
		case q == nil && err != nil:
			return nil, err
		case q == nil:
			own := *res // copied because the SDK modifies it
			return &own, nil
		}
		round, asked := interrupt.Round[*job]{Job: j}, mcp.InputRequestMap{}
		for ; q != nil; q = j.Another() {
			if refused, ok := q.TooLong(); ok {
				q.Answer(refused)
				continue
			}
			round.Questions, asked[q.ID] = append(round.Questions, q), question(q.ApprovalRequest)
		}
		if len(asked) > 0 {
			state := record.NewID()
			s.rounds.Keep(state, askerOf(c), round)
			return &mcp.CallToolResult{InputRequests: asked, RequestState: state}, nil
		}
	}
}

// keep keeps a job and the later result until the scope ends. Until then, requests can use the id.
func (s *Server) keep(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.scopes[j.scope]; ok {
		s.jobs[j.id] = j
		s.forget(time.Now())
	}
}

// forget drops results older than the idle timeout, and the oldest results above the limits. Above the limit for all
// scopes, it drops results of the owner with the most bytes, to prevent an owner from displacing others. s.mu must be
// held.
func (s *Server) forget(now time.Time) {
	type held struct{ count, bytes int }
	scopes, owners, all := map[*scope]held{}, map[string]int{}, 0
	over := slices.DeleteFunc(slices.Collect(maps.Values(s.jobs)), func(j *job) bool { return j.ended.IsZero() })
	slices.SortFunc(over, func(a, b *job) int { return b.ended.Compare(a.ended) })
	kept := slices.DeleteFunc(over, func(j *job) bool {
		h := scopes[j.scope]
		large := h.count > 0 && h.bytes+j.bytes > maxKeptBytes
		if now.Sub(j.ended) > s.opts.IdleTimeout || h.count >= maxKept || large {
			delete(s.jobs, j.id)
			return true
		}
		scopes[j.scope] = held{h.count + 1, h.bytes + j.bytes}
		owners[j.scope.owner] += j.bytes
		all += j.bytes
		return false
	})
	slices.Reverse(kept) // the oldest first
	for all > maxAllBytes {
		oldest := slices.MaxFunc(kept, func(a, b *job) int {
			return cmp.Compare(owners[a.scope.owner], owners[b.scope.owner])
		})
		delete(s.jobs, oldest.id)
		owners[oldest.scope.owner] -= oldest.bytes
		all -= oldest.bytes
		kept = slices.DeleteFunc(kept, func(j *job) bool { return j == oldest })
	}
}

// isUnused reports whether an HTTP session had no request for the idle timeout, has no running call, event stream, or
// kept result. The caller must hold s.mu.
func (s *Server) isUnused(sc *scope, now time.Time) bool {
	own := func(j *job) bool { return j.scope == sc }
	return now.Sub(sc.used) > s.opts.IdleTimeout && len(sc.slots) == 0 && sc.streams == 0 &&
		!slices.ContainsFunc(slices.Collect(maps.Values(s.jobs)), own)
}

// cancels returns the request canceled by a message, and whether the reason is the client's timeout. A user's
// cancellation stops the work, but a timeout does not.
func cancels(msg jsonrpc.Message) (id jsonrpc.ID, timeout bool) {
	req, ok := msg.(*jsonrpc.Request)
	var p mcp.CancelledParams
	if !ok || req.Method != "notifications/cancelled" || json.Unmarshal(req.Params, &p) != nil {
		return id, false
	}
	id, _ = jsonrpc.MakeID(p.RequestID) // invalid ids match no request
	return id, timedOut.MatchString(p.Reason)
}

var timedOut = regexp.MustCompile(`(?i)timed?[ -]?out|deadline exceeded`)

// pendingSchema is the schema of the field pending in the answer to a running call.
var pendingSchema = map[string]any{
	"type": "object", "description": "set while the call is running; the other fields are then missing",
	"properties": map[string]any{"task_id": map[string]any{"type": "string"}, "note": map[string]any{"type": "string"}},
}

// mayPend adds the field pending to the schema of a tool's output.
func mayPend(output map[string]any) map[string]any {
	output = maps.Clone(output)
	if properties, ok := output["properties"].(map[string]any); ok {
		properties = maps.Clone(properties)
		properties["pending"] = pendingSchema
		output["properties"] = properties
	}
	return output
}

type taskInput struct {
	TaskID string `json:"task_id" jsonschema_description:"the task_id of a pending call"`
}

type taskStatusInput struct {
	TaskID string `json:"task_id,omitempty" jsonschema_description:"a pending call; all of your calls when left out"`
}

type taskStatusOutput struct {
	toolspec.Result
	Tasks []taskStatus `json:"tasks" jsonschema_description:"the newest first"`
}

type taskStatus struct {
	TaskID     string `json:"task_id"`
	Tool       string `json:"tool"`
	State      string `json:"state" jsonschema:"enum=running,enum=completed,enum=failed,enum=cancelled"`
	AgeSeconds int64  `json:"age_seconds" jsonschema_description:"time since the call"`
	Progress   string `json:"progress,omitempty" jsonschema_description:"its latest message"`
}

// pendingTools returns the tools for calls in the background.
func (s *Server) pendingTools() []tool {
	status := define[taskStatusInput, taskStatusOutput](toolTaskStatus, "Show running calls",
		"Lists your calls that took 5 seconds or more, running and finished, with those that timed out on your side.",
		typed(s.taskStatus))
	status.ReadOnly = true
	res := define[taskInput, taskStatusOutput](toolTaskResult, "Get the result of a call",
		fmt.Sprintf("Waits up to %s for a call and returns its result, or pending again.", s.maxWait), typed(s.taskResult))
	res.ReadOnly = true
	res.Output = map[string]any{"type": "object"} // may be the output of any tool
	end := define[taskInput, taskStatusOutput](toolTaskCancel, "Cancel a call",
		"Cancels a running call and kills the processes it started.", typed(s.taskCancel))
	end.Destructive = true
	list := []tool{status, res, end}
	for i := range list {
		list[i].Idempotent, list[i].direct = true, true
	}
	return list
}

// job returns a job of the caller's scope.
func (s *Server) job(c call, id string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[id]; j != nil && j.scope == c.scope {
		return j, nil
	}
	return nil, toolspec.Failf(toolspec.CodeNotFound, "task not found, or its result has expired").
		WithRemediation("Call task_status for your tasks, or make the call again.")
}

func (s *Server) taskStatus(_ context.Context, c call, in taskStatusInput) (taskStatusOutput, error) {
	if in.TaskID != "" {
		j, err := s.job(c, in.TaskID)
		if err != nil {
			return taskStatusOutput{}, err
		}
		return statusOf(j), nil
	}
	if c.scope.handles && !c.scope.named {
		return taskStatusOutput{}, toolspec.Failf(toolspec.CodeInvalid, "task_id is required").
			WithRemediation("Pass the task_id of a pending call.")
	}
	s.mu.Lock()
	own := slices.DeleteFunc(slices.Collect(maps.Values(s.jobs)), func(j *job) bool { return j.scope != c.scope })
	s.mu.Unlock()
	slices.SortFunc(own, func(a, b *job) int { return b.began.Compare(a.began) })
	return statusOf(own...), nil
}

func statusOf(jobs ...*job) taskStatusOutput {
	out := taskStatusOutput{Tasks: []taskStatus{}}
	for _, j := range jobs {
		st := taskStatus{TaskID: j.id, Tool: j.tool, State: "running", AgeSeconds: int64(time.Since(j.began).Seconds())}
		if bound.Closed(j.Done()) {
			st.State = j.state
		}
		st.Progress = *cmp.Or(j.latest.Load(), new(string))
		out.Tasks = append(out.Tasks, st)
	}
	return out
}

func (s *Server) taskResult(ctx context.Context, c call, in taskInput) (*mcp.CallToolResult, error) {
	j, err := s.job(c, in.TaskID)
	if err != nil {
		return nil, err
	}
	res, err := s.await(ctx, c, j)
	if err != nil && ctx.Err() == nil {
		err = toolspec.Failf(toolspec.CodeClosed, "the call was canceled").
			WithRemediation("Make the call again if it is still needed.")
	}
	return res, err
}

func (s *Server) taskCancel(_ context.Context, c call, in taskInput) (taskStatusOutput, error) {
	j, err := s.job(c, in.TaskID)
	if err != nil {
		return taskStatusOutput{}, err
	}
	j.Cancel()
	return statusOf(j), nil
}
