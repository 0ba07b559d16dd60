package mcpserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// canAsk reports whether the client of a request can ask the user. byAnswer reports whether the client asks only for
// questions in an answer to the request.
func canAsk(req *mcp.CallToolRequest) (can, byAnswer bool) {
	caps := req.ClientCapabilities()
	if caps == nil || caps.Elicitation == nil || caps.Elicitation.Form == nil && caps.Elicitation.URL != nil {
		return false, false // a client supports forms if it lists neither form nor URL
	}
	p := req.Session.InitializeParams() // the SDK decides by this too; the newest revision has none
	return true, p == nil || p.ProtocolVersion >= firstStateless
}

// approver returns a function to add the approver of host tool calls to the context of the job. If the client can ask
// the user, the approver is the user. Depending on the revision, the server asks immediately or in the answer to the
// request.
func (j *job) approver(ctx context.Context, req *mcp.CallToolRequest) func(context.Context) context.Context {
	can, byAnswer := canAsk(req)
	if can && byAnswer {
		return func(ctx context.Context) context.Context { return ctx } // the job itself is the approver
	}
	by := hosttools.ApproverFromContext(ctx)
	if can {
		by = hosttools.ApproverFunc(func(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error) {
			if refused, ok := r.TooLong(); ok {
				return refused, nil
			}
			res, err := req.Session.Elicit(askContext{ctx, j.waiting.Load()}, question(r))
			if err != nil {
				return hosttools.Decision{}, err
			}
			return decision(res), nil
		})
	}
	return func(ctx context.Context) context.Context { return hosttools.WithApprover(ctx, by) }
}

// askContext has the values of the request that waits for a job. A message with this context uses the event stream of
// the request. If no request waits, it uses the session's stream.
type askContext struct {
	context.Context
	waiting *context.Context
}

func (c askContext) Value(key any) any {
	if c.waiting == nil {
		return nil
	}
	return (*c.waiting).Value(key)
}

// approvalSchema is the schema of an approval answer. allow defaults to false, to prevent approvals by accepting an
// unread form.
const approvalSchema = `{"type":"object",` +
	`"properties":{"allow":{"type":"boolean","title":"Allow this call","default":false}},"required":["allow"]}`

func question(r hosttools.ApprovalRequest) *mcp.ElicitParams {
	text := fmt.Sprintf("Code of agent %s asks to call %s.%s with %s", r.Caller.Agent, r.Server, r.Tool, r.Args)
	return &mcp.ElicitParams{Mode: "form", Message: sanitize.Line(text), RequestedSchema: json.RawMessage(approvalSchema)}
}

func decision(res *mcp.ElicitResult) hosttools.Decision {
	allow, _ := res.Content["allow"].(bool)
	return hosttools.Decision{Allow: res.Action == "accept" && allow}
}

// asker identifies the right caller for an answer: the same scope with the same call.
type asker struct {
	scope *scope
	tool  string
	args  [sha256.Size]byte
}

func askerOf(c call) asker {
	var args any
	_ = json.Unmarshal(c.args, &args) // the SDK parsed the arguments already; invalid arguments equal none
	data, _ := json.Marshal(args)     // with sorted keys
	return asker{c.scope, c.tool, sha256.Sum256(data)}
}

// resume delivers the client's answers, and waits for the asking call.
func (s *Server) resume(ctx context.Context, c call, p *mcp.CallToolParamsRaw) (*mcp.CallToolResult, error) {
	round, ok := s.rounds.Take(p.RequestState, askerOf(c))
	if !ok {
		return failed(toolspec.Failf(toolspec.CodeNotFound, "this approval is no longer pending").
			WithRemediation("Make the call again if it is still needed."))
	}
	for _, q := range round.Questions {
		d := hosttools.Decision{Note: "the client did not respond"}
		if res, ok := p.InputResponses[q.ID].(*mcp.ElicitResult); ok && res != nil {
			d = decision(res)
		}
		q.Answer(d)
	}
	return s.await(ctx, c, round.Job)
}
