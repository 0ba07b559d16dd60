package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/status"
	"github.com/firebase/genkit/go/genkit"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/tools"
)

// TestGenkitSource verifies that tools of the program work as host tools without changes.
func TestGenkitSource(t *testing.T) {
	t.Parallel()
	g := genkit.Init(t.Context())
	type order struct {
		ID string `json:"id"`
	}
	genkit.DefineTool(g, "lookup", "Finds an order.", func(_ *ai.ToolContext, in order) (map[string]any, error) {
		return map[string]any{"order": in.ID}, nil
	})
	genkit.DefineTool(g, "asks", "Asks first.", func(tc *ai.ToolContext, _ order) (string, error) {
		return "", tc.Interrupt(&ai.InterruptOptions{})
	})
	genkit.DefineMultipartTool(g, "draws", "Draws an order.",
		func(_ *ai.ToolContext, in order) (*ai.MultipartToolResponse, error) {
			return &ai.MultipartToolResponse{Output: "drawn", Content: []*ai.Part{ai.NewMediaPart("", in.ID)}}, nil
		})
	for want, g := range map[string]*genkit.Genkit{"define the tool before": g, "call genkit.Init before": nil} {
		if _, err := tools.GenkitSource(g, "lokup"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	source, err := tools.GenkitSource(g, "lookup", "asks", "draws")
	checktest.Must(t, err)
	r, err := hosttools.New(&hosttools.Options{Log: slog.New(slog.DiscardHandler)}, source)
	checktest.Must(t, err)
	set, err := r.Set(t.Context(), hosttools.Grant{Rules: hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.*"}}}})
	checktest.Must(t, err)
	call := func(name, args string) hosttools.Reply {
		return set.Access(hosttools.Command{}).Call(t.Context(), "ex1", trace.SpanContext{}, hosttools.Request{Tool: name, Args: json.RawMessage(args)})
	}
	if got := call("app_lookup", `{"id":"42"}`); string(got.Data) != `{"order":"42"}` {
		t.Errorf("%s, %v", got.Data, got.Error)
	}
	if got := call("app_lookup", `{"id":42}`); got.Error == nil || got.Error.Code != "invalid_argument" {
		t.Errorf("%s, %v", got.Data, got.Error)
	}
	list, err := source.Tools(t.Context())
	checktest.Must(t, err)
	drawn, err := list[2].Handle(t.Context(), hosttools.Call{Args: json.RawMessage(`{"id":"data:image/png;base64,cG5n"}`)})
	files := []hosttools.File{{MIME: "image/png", Bytes: []byte("png")}}
	want := hosttools.Result{Data: json.RawMessage(`"drawn"`), Files: files}
	if diff := cmp.Diff(want, drawn); err != nil || diff != "" || list[2].Output != nil {
		t.Errorf("%v, schema %v (-want +got):\n%s", err, list[2].Output, diff)
	}
	if got := call("app_draws", `{"id":"https://example.com/x.png"}`); got.Error == nil || got.Error.Code != "tool_failed" {
		t.Errorf("%s, %v", got.Data, got.Error)
	}
	if got := call("app_asks", `{"id":"42"}`); got.Error == nil || got.Error.Code != "tool_failed" || !strings.Contains(got.Error.Message, "code cannot provide") {
		t.Errorf("%s, %v", got.Data, got.Error)
	}
	checktest.Must(t, set.Close(t.Context()))
}

// TestHostToolsAfterInit verifies that code gets the host tools a plugin received after genkit.Init.
func TestHostToolsAfterInit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	genkit.DefineTool(r.g, "lookup", "Finds an order.", func(*ai.ToolContext, struct{}) (string, error) { return "", nil })
	source, err := tools.GenkitSource(r.g, "lookup")
	checktest.Must(t, err)
	if r.plugin.HostTools, err = hosttools.New(nil, source); err != nil {
		t.Fatal(err)
	}
	cfg := tools.Sandbox{
		Mode: frontmatter.ModeScript, HostTools: &hosttools.Rules{Allow: []hosttools.Rule{{Tool: "app.lookup"}}},
	}
	list, err := r.plugin.Tools(t.Context(), cfg)
	if err != nil || !strings.Contains(list[0].Definition().Description, "app.lookup(") {
		t.Errorf("%v, %v", list, err)
	}
	r.plugin.HostTools, err = hosttools.New(nil, unreachable{source})
	checktest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, want := range []status.Name{status.Unavailable, status.Cancelled} {
		if _, err := r.plugin.Tools(ctx, cfg); status.Of(err) != want {
			t.Errorf("an unreachable server: %v, want %s", err, want)
		}
		cancel()
	}
}

// unreachable is a source without an answer.
type unreachable struct{ hosttools.Source }

func (unreachable) Tools(ctx context.Context) ([]hosttools.Tool, error) {
	return nil, errors.Join(errors.New("connection refused"), ctx.Err())
}
