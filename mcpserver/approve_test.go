package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestApprovalByElicitation verifies that the user of a client with elicitation approves calls of host tools. Without
// elicitation, no call is approved.
func TestApprovalByElicitation(t *testing.T) {
	t.Parallel()
	s := newServer(t, newManager(t), &mcpserver.Options{
		Tasks: []mcpserver.Task{{Name: "desk", Kind: "agent"}},
		RunTask: func(ctx context.Context, _ mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			by := hosttools.ApproverFromContext(ctx)
			if by == nil {
				return mcpserver.TaskResult{Text: "nobody"}, nil
			}
			d, err := by.Approve(ctx, hosttools.ApprovalRequest{Server: "orders", Tool: "refund", Args: []byte(`{"id":"1"}`), Caller: hosttools.Caller{Agent: "desk"}})
			return mcpserver.TaskResult{Text: fmt.Sprint(d.Allow)}, err
		},
	})
	for _, tt := range []struct {
		version string
		answer  *mcp.ElicitResult // nil if the client has no elicitation
		want    string
	}{
		{"2025-11-25", nil, "nobody"},
		{"", nil, "nobody"}, // newest revision: the server asks in the answer to the call
		{"", &mcp.ElicitResult{Action: "accept", Content: map[string]any{"allow": true}}, "true"},
		{"", &mcp.ElicitResult{Action: "accept", Content: map[string]any{"allow": false}}, "false"},
		{"", &mcp.ElicitResult{Action: "accept"}, "false"},
		{"", &mcp.ElicitResult{Action: "decline", Content: map[string]any{"allow": true}}, "false"},
		{"2025-11-25", &mcp.ElicitResult{Action: "accept", Content: map[string]any{"allow": true}}, "true"},
		{"2025-11-25", &mcp.ElicitResult{Action: "accept", Content: map[string]any{"allow": false}}, "false"},
		{"2025-11-25", &mcp.ElicitResult{Action: "decline"}, "false"},
	} {
		var opts mcp.ClientOptions
		asked := ""
		if tt.answer != nil {
			opts.ElicitationHandler = func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				asked = req.Params.Message
				return tt.answer, nil
			}
		}
		ours, theirs := mcp.NewInMemoryTransports()
		served := make(chan error, 1)
		go func() { served <- s.ServeOn(context.Background(), ours) }()
		cs := client(t, theirs, tt.version, &opts, func() error { return <-served })
		if got := do(t, cs, "execute_task", map[string]any{"task": "desk", "input": "x"}).text("text"); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.answer, got, tt.want)
		}
		if tt.want != "nobody" && !strings.Contains(asked, `agent desk asks to call orders.refund with {"id":"1"}`) {
			t.Errorf("asked %q", asked)
		}
	}
}

// TestApprovalByAnswer verifies approvals of the newest revision. The call continues after its answer. The same client
// can repeat the call with the approval, once, with the same arguments, and in the same session.
func TestApprovalByAnswer(t *testing.T) {
	t.Parallel()
	asks := func(ctx context.Context, id string) string {
		by := hosttools.ApproverFromContext(ctx)
		if by == nil {
			return "nobody"
		}
		d, err := by.Approve(ctx, hosttools.ApprovalRequest{ID: id, Server: "orders", Tool: "refund", Args: []byte(`{}`)})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(d.Allow)
	}
	s := newServer(t, newManager(t), &mcpserver.Options{
		Tasks: []mcpserver.Task{{Name: "desk", Kind: "agent"}},
		RunTask: func(ctx context.Context, _ mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
			text := asks(ctx, "first")
			var second, third string
			var both sync.WaitGroup
			both.Go(func() { second = asks(ctx, "second") })
			both.Go(func() { third = asks(ctx, "third") })
			both.Wait()
			return mcpserver.TaskResult{Text: text + " " + second + " " + third}, ctx.Err()
		},
	})
	opts := &mcp.ClientOptions{
		MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return nil, errors.New("asked behind the call's back")
		},
	}
	mine, other := connect(t, s, opts), connect(t, s, opts)
	// ask makes the call. If before is set, it repeats the call with the answers.
	ask := func(cs *mcp.ClientSession, input string, before *mcp.CallToolResult, allow bool) *mcp.CallToolResult {
		t.Helper()
		p := &mcp.CallToolParams{Name: "execute_task", Arguments: map[string]any{"task": "desk", "input": input}}
		if before != nil {
			p.RequestState, p.InputResponses = before.RequestState, mcp.InputResponseMap{}
			for id := range before.InputRequests {
				p.InputResponses[id] = &mcp.ElicitResult{Action: "accept", Content: map[string]any{"allow": allow}}
			}
		}
		res, err := cs.CallTool(t.Context(), p)
		checktest.Must(t, err)
		return res
	}
	text := func(res *mcp.CallToolResult) string {
		data, _ := json.Marshal(res.StructuredContent)
		return string(data)
	}
	first := ask(mine, "x", nil, false)
	if !first.NeedsInput() || len(first.InputRequests) != 1 || first.RequestState == "" {
		t.Fatalf("%+v", first)
	}
	for name, res := range map[string]*mcp.CallToolResult{
		"other arguments": ask(mine, "y", first, true), "another session": ask(other, "x", first, true),
		"another state": ask(mine, "x", &mcp.CallToolResult{RequestState: "x"}, true),
	} {
		if !strings.Contains(text(res), "no longer pending") {
			t.Errorf("%s: %s", name, text(res))
		}
	}
	round, rounds := ask(mine, "x", first, true), 0
	if again := ask(mine, "x", first, true); !strings.Contains(text(again), "no longer pending") {
		t.Errorf("the answer once more: %s", text(again))
	}
	for ; round.NeedsInput(); rounds++ {
		round = ask(mine, "x", round, rounds > 0)
	}
	switch got := text(round); {
	case rounds == 1 && strings.Contains(got, `"true false false"`):
	case rounds == 2 && (strings.Contains(got, `"true true false"`) || strings.Contains(got, `"true false true"`)):
	default:
		t.Errorf("after %d more rounds: %s", rounds, got)
	}
	ask(mine, "x", nil, false) // never answered, so the call must end with the server
}
