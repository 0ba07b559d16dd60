package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/status"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// unknownTool is the name of the tool answering calls of unknown tools. It is never offered to a model.
const unknownTool = "sandbox_unknown_tool"

// unknownInput replaces the input of a call of an unknown tool.
type unknownInput struct {
	Tool      string   `json:"tool,omitempty"`
	Arguments string   `json:"arguments,omitempty"`
	Known     []string `json:"known,omitempty"`
	// Reason why no call in an answer was readable; the other fields are empty then.
	Unread string `json:"unread,omitempty"`
}

// unknownTool returns the tool answering calls of unknown tools.
func (b *binding) unknownTool() ai.Tool {
	return newTool(b, b.unknown, toolspec.Definition{Name: unknownTool,
		Description: "Answers calls of tools that do not exist."})
}

// unknown returns the error for an unknown tool.
func (b *binding) unknown(_ context.Context, in unknownInput) (toolspec.Result, error) {
	if in.Unread != "" {
		return toolspec.Result{}, toolspec.Failf(toolspec.CodeInvalid,
			"the arguments of a tool call are not a JSON object (%s); none of the calls was made", in.Unread).
			WithRemediation("Call again with one JSON object as arguments: escape quotes, backslashes, and newlines in " +
				"strings. If they were truncated, write less in one call.")
	}
	return toolspec.Result{}, unknown(in.Tool, in.Known)
}

// unknown returns the error for tool, which is not in known.
func unknown(tool string, known []string) *toolspec.Error {
	e := toolspec.Failf(toolspec.CodeNotFound, "unknown tool %q", sanitize.Clip(tool))
	if len(known) == 0 {
		return e.WithRemediation("There are no tools: answer without one.")
	}
	hint := "Call one of: " + strings.Join(known, ", ") + "."
	near, ok := suggest.Closest(tool, known)
	if exec := "sandbox_exec"; tool == "sandbox_run" && slices.Contains(known, exec) {
		// sandbox_run's equivalent in other modes.
		near = exec
	}
	if ok {
		hint = fmt.Sprintf("Did you mean %s? %s", near, hint)
	}
	return e.WithRemediation(hint)
}

// maxUnread is the maximum number of consecutive answers with unreadable calls. Afterwards, the error ends the run.
const maxUnread = 5

// guard prevents mistakes of a model from ending a run. It converts calls of unknown tools, invalid arguments, and
// panics to tool output. It also offers tools to models in a fixed order. It restricts models to the offered tools,
// because Genkit would run any registered tool. It rejects media URLs, to prevent models from making Genkit fetch them.
// A guard belongs to one Generate call.
type guard struct {
	log    *slog.Logger
	unread int                      // consecutive answers with unreadable calls; model calls are sequential
	known  atomic.Pointer[[]string] // names of the tools offered last; nil before the first model call
}

// wrapModel sorts the offered tools and redirects calls of other tools to unknownTool. It also redirects answers whose
// calls the model's plugin could not parse.
func (g *guard) wrapModel(ctx context.Context, p *ai.ModelParams, next ai.ModelNext) (*ai.ModelResponse, error) {
	if p.Request == nil {
		return next(ctx, p)
	}
	if err := mediaByAddress(ctx, p.Request.Messages); err != nil {
		return nil, classified(err)
	}
	req := *p.Request
	req.Tools = make([]*ai.ToolDefinition, 0, len(p.Request.Tools))
	known := make([]string, 0, len(p.Request.Tools))
	for _, t := range p.Request.Tools {
		if t != nil && t.Name != unknownTool {
			req.Tools = append(req.Tools, t)
			known = append(known, t.Name)
		}
	}
	slices.SortFunc(req.Tools, func(a, b *ai.ToolDefinition) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(known)
	g.known.Store(&known)
	described := describeOutput(ctx, &req)
	req.Messages = imagesApart(ctx, req.Messages)
	params := &ai.ModelParams{Request: &req, Callback: p.Callback}
	resp, err := next(ctx, params)
	for ; err == nil && malformed(resp) && len(known) > 0 && g.unread < maxUnread; g.unread++ {
		resp, err = next(ctx, params)
	}
	if why := unreadable(err); why != "" && len(known) > 0 && g.unread < maxUnread && ctx.Err() == nil {
		g.unread++
		call := &ai.ToolRequest{Name: unknownTool, Input: unknownInput{Unread: why}}
		return &ai.ModelResponse{Request: p.Request, Message: ai.NewModelMessage(ai.NewToolRequestPart(call)),
			FinishReason: ai.FinishReasonStop}, nil
	}
	g.unread = 0
	if err != nil || resp == nil || resp.Message == nil {
		return resp, err
	}
	out := *resp
	if out.Request != nil && (described || len(req.Messages) != len(p.Request.Messages)) {
		// Programs continue the conversation from this request, so restore the original messages.
		out.Request = new(*out.Request)
		out.Request.Messages, out.Request.Output = p.Request.Messages, p.Request.Output
	}
	if m := repaired(out.Message, known); m != nil {
		out.Message = m
	}
	if m := withoutNarration(p.Request, out.Message); m != nil {
		out.Message = m
	}
	return &out, nil
}

// malformed reports whether the model ended without an answer and without a call, for example because Gemini could not
// parse the model's call.
func malformed(resp *ai.ModelResponse) bool {
	return resp != nil && resp.FinishReason == ai.FinishReasonOther && resp.Text() == "" && resp.Media() == "" &&
		len(resp.ToolRequests()) == 0
}

// unreadable returns the parse error if the model's plugin failed because the arguments of a tool call are malformed.
// It returns an empty string for other errors. The OpenAI-compatible plugins parse arguments as JSON objects. The
// Anthropic plugin encodes a streamed answer again when it is complete.
func unreadable(err error) string {
	if !errors.Is(err, status.ErrInvalidOutput) && !errors.As(err, new(*json.MarshalerError)) {
		return ""
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return syntax.Error()
	}
	if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return "they are of type " + kind.Value
	}
	return ""
}

// repaired returns a copy of m with calls of unknown tools replaced. It returns nil if m has no such calls.
func repaired(m *ai.Message, known []string) *ai.Message {
	var out *ai.Message
	for i, part := range m.Content {
		if part == nil || !part.IsToolRequest() || slices.Contains(known, part.ToolRequest.Name) {
			continue
		}
		if out == nil {
			out = new(*m)
			out.Content = slices.Clone(m.Content)
		}
		in := unknownInput{Tool: part.ToolRequest.Name, Known: known}
		if text, err := json.Marshal(part.ToolRequest.Input); err == nil && string(text) != "null" {
			in.Arguments = string(text)
		}
		call := new(*part.ToolRequest)
		call.Name, call.Input = unknownTool, in
		out.Content[i] = new(*part)
		out.Content[i].ToolRequest = call
	}
	return out
}

// wrapTool converts panics and rejected arguments of any tool to output. It does not change other errors, for example
// interrupts and the errors of tools outside of Workcell.
func (g *guard) wrapTool(ctx context.Context, p *ai.ToolParams,
	next ai.ToolNext) (resp *ai.MultipartToolResponse, err error) {
	defer func() {
		if r := recover(); r != nil {
			resp, err = output(panicked(ctx, g.log, p.Tool.Name(), r)), nil
		}
	}()
	// A middleware outside of the guard may have called another model.
	name, known := p.Tool.Name(), g.known.Load()
	if known != nil && name != unknownTool && !slices.Contains(*known, name) {
		return output(unknown(name, *known)), nil
	}
	resp, err = next(ctx, p)
	if err == nil || ctx.Err() != nil {
		return resp, err
	}
	if interrupt, _ := ai.IsToolInterruptError(err); interrupt || !errors.Is(err, status.ErrInvalidInput) {
		return resp, err
	}
	return output(toolspec.Failf(toolspec.CodeInvalid, "the arguments of %s do not fit its schema: %s", p.Tool.Name(),
		oneLine(err.Error()))), nil
}

func output(e *toolspec.Error) *ai.MultipartToolResponse {
	return &ai.MultipartToolResponse{Output: toolspec.Result{Error: e}}
}

// oneLine shortens an error of Genkit's schema validation to one line.
func oneLine(text string) string { return sanitize.OneLine(text, 600) }

// withoutNarration returns a copy of m without the text, if m also calls tools and the request has an output format. It
// returns nil if nothing must be removed. Genkit validates every answer against the output schema, even answers with
// only tool calls. Without this, a text such as "I run the tests first" next to a call would end the run.
func withoutNarration(req *ai.ModelRequest, m *ai.Message) *ai.Message {
	if req.Output == nil || req.Output.Format == "" || req.Output.Format == ai.OutputFormatText {
		return nil
	}
	calls := slices.ContainsFunc(m.Content, func(p *ai.Part) bool { return p != nil && p.IsToolRequest() })
	text := func(p *ai.Part) bool { return p == nil || p.IsText() }
	if !calls || !slices.ContainsFunc(m.Content, text) {
		return nil
	}
	out := *m
	out.Content = slices.DeleteFunc(slices.Clone(m.Content), text)
	return &out
}
