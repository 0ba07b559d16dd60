package mcpserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// maxShownArgs is how much of a call's arguments a question shows. What is longer is not approved unseen.
const maxShownArgs = 4000

// noQuestionsSince is the revision of the protocol from which on a server cannot ask while it works on a request: a question ends the
// request, which the client makes again with the answer.
const noQuestionsSince = "2026-07-28"

// canAsk reports whether the client of a request can ask its user, and whether it does so for an answer to the request alone.
func canAsk(req *mcp.CallToolRequest) (can, byAnswer bool) {
	caps := req.ClientCapabilities()
	if caps == nil || caps.Elicitation == nil || caps.Elicitation.Form == nil && caps.Elicitation.URL != nil {
		return false, false // one that names no kind knows forms
	}
	p := req.Session.InitializeParams() // by which the library decides; none is there of the newest
	return true, p == nil || p.ProtocolVersion >= noQuestionsSince
}

// withApprover has calls of host tools below ctx approved by the user of a client that can be asked at any time.
func withApprover(ctx context.Context, req *mcp.CallToolRequest) context.Context {
	if can, byAnswer := canAsk(req); !can || byAnswer {
		return ctx
	}
	return hosttools.WithApprover(ctx, hosttools.ApproverFunc(func(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error) {
		if len(r.Args) > maxShownArgs {
			return tooLong(), nil
		}
		res, err := req.Session.Elicit(ctx, question(r))
		if err != nil {
			return hosttools.Decision{}, err
		}
		return decision(res), nil
	}))
}

func tooLong() hosttools.Decision {
	return hosttools.Decision{Note: "the arguments are too long to be looked at"}
}

// approvalSchema is that of an answer: accepting a form that was not looked at approves nothing.
const approvalSchema = `{"type":"object","properties":{"allow":{"type":"boolean","title":"Allow this call","default":false}},"required":["allow"]}`

func question(r hosttools.ApprovalRequest) *mcp.ElicitParams {
	return &mcp.ElicitParams{
		Mode:            "form",
		Message:         sanitize.Line(fmt.Sprintf("Code of agent %s asks to call %s.%s with %s", r.Caller.Agent, r.Server, r.Tool, r.Args)),
		RequestedSchema: json.RawMessage(approvalSchema),
	}
}

func decision(res *mcp.ElicitResult) hosttools.Decision {
	allow, _ := res.Content["allow"].(bool)
	return hosttools.Decision{Allow: res.Action == "accept" && allow}
}

// job is a call that goes on in the background while its client asks its user.
type job struct {
	*interrupt.Job[*mcp.CallToolResult]
	tell *relay
}

// relay passes reports on to the request that waits for the call now.
type relay struct{ to atomic.Pointer[func(string)] }

func (r *relay) report(message string) { (*r.to.Load())(message) }

// asker is who may answer a question: who made the call, with the same call.
type asker struct {
	scope *scope
	tool  string
	args  [sha256.Size]byte
}

func askerOf(c call) asker {
	var args any
	_ = json.Unmarshal(c.args, &args) // the library has read them; else they are like none
	data, _ := json.Marshal(args)     // with sorted keys
	return asker{c.scope, c.tool, sha256.Sum256(data)}
}

// begin makes a call that is answered with questions, and waits for the first of them or the end.
func (s *Server) begin(ctx context.Context, c call, do func(context.Context, call) (*mcp.CallToolResult, error)) (*mcp.CallToolResult, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errServerClosed
	}
	s.wg.Add(1)
	s.mu.Unlock()
	tell := &relay{}
	tell.to.Store(&c.report)
	in := c
	in.report = tell.report
	return s.await(ctx, c, job{interrupt.Start(ctx, nil, func(ctx context.Context) (*mcp.CallToolResult, error) {
		defer s.wg.Done()
		return do(ctx, in)
	}), tell})
}

// resume passes on the answers that a client brings, and waits on for the call they are about.
func (s *Server) resume(ctx context.Context, c call, p *mcp.CallToolParamsRaw) (*mcp.CallToolResult, error) {
	round, ok := s.rounds.Take(p.RequestState, askerOf(c))
	if !ok {
		return result(toolspec.Result{Error: toolspec.NewError(toolspec.CodeNotFound, "nothing waits for this answer any more", "Make the call again when it is still needed.")})
	}
	round.Job.tell.to.Store(&c.report)
	for _, q := range round.Questions {
		d := hosttools.Decision{Note: "the client did not answer"}
		if res, ok := p.InputResponses[q.ID].(*mcp.ElicitResult); ok && res != nil {
			d = decision(res)
		}
		q.Answer(d)
	}
	return s.await(ctx, c, round.Job)
}

// await waits for the end of a call, or for the questions that end its request.
func (s *Server) await(ctx context.Context, c call, j job) (*mcp.CallToolResult, error) {
	for {
		q, res, err := j.Wait(ctx)
		switch {
		case q == nil && ctx.Err() != nil:
			return nil, errCancelled()
		case q == nil:
			return res, err
		}
		round, asked := interrupt.Round[job]{Job: j}, mcp.InputRequestMap{}
		for ; q != nil; q = j.Another() {
			if len(q.Args) > maxShownArgs {
				q.Answer(tooLong())
				continue
			}
			round.Questions, asked[q.ID] = append(round.Questions, q), question(q.ApprovalRequest)
		}
		if len(asked) == 0 {
			continue
		}
		state := session.NewID()
		s.rounds.Keep(state, askerOf(c), round)
		return &mcp.CallToolResult{InputRequests: asked, RequestState: state}, nil
	}
}
