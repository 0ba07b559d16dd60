package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	"github.com/tiktoken-go/tokenizer"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/tools"
)

// realTools has the answers to tools/list of @modelcontextprotocol/server-github 2025.4.8, server-filesystem, server-memory
// and server-everything 2026.8.31 and @playwright/mcp 0.0.83, whose first 25 are taken: 87 tools.
//
//go:embed testdata/tools.json
var realTools embed.FS

const lookups = 20

// measureTokens counts what a model reads of 87 tools, and in a task that calls one of them twenty times to add something
// up: with the tools as definitions, one call after the other or all in one turn, and with one tool that runs a script, whose
// description has an index of the tools or leaves them to a search. The model is scripted; the requests are those that Genkit makes, and the script runs in a sandbox.
func (c *contest) measureTokens(ctx context.Context) error {
	at := slices.IndexFunc(c.all, func(who contestant) bool { _, ok := who.(*workcell); return ok })
	if at < 0 {
		return nil
	}
	codec, err := tokenizer.Get(tokenizer.O200kBase)
	if err != nil {
		return err
	}
	sources, all, err := readRealTools()
	if err != nil {
		return err
	}
	registry, err := hosttools.New(nil, sources...)
	if err != nil {
		return err
	}
	w := c.all[at].(*workcell)
	plugin := &tools.Plugin{Manager: w.manager, HostTools: registry}
	g := genkit.Init(ctx, genkit.WithPlugins(plugin))
	run := func(name string, task []turn, options ...ai.GenerateOption) (*reader, error) {
		r := &reader{codec: codec, task: task}
		model := genkit.DefineModelAction(g, "bench/"+name, &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, SystemRole: true, Tools: true}}, r.answer)
		options = append(options, ai.WithModel(model), ai.WithMaxTurns(lookups+2),
			ai.WithPrompt("How many comments do issues 1 to 20 of acme/shop have together?"))
		resp, err := genkit.Generate(ctx, g, options...)
		if err == nil && resp.Text() != fmt.Sprint(lookups*(lookups+1)/2) {
			err = fmt.Errorf("task %s: the answer is %q", name, resp.Text())
		}
		return r, err
	}
	defined := make([]ai.ToolRef, len(all))
	for i, t := range all {
		defined[i] = ai.NewTool(t.MCPName(), t.Description, func(tc *ai.ToolContext, in any) (any, error) {
			args, err := json.Marshal(in)
			if err != nil {
				return nil, err
			}
			res, err := t.Handle(tc, hosttools.Call{Args: args})
			return res.Data, err
		}, ai.WithInputSchema(t.Input))
	}
	inTurns, err1 := run("in_turns", askInTurns(), ai.WithTools(defined...))
	atOnce, err2 := run("at_once", askAtOnce(), ai.WithTools(defined...))
	rules := hosttools.Rules{}
	for _, s := range sources {
		rules.Allow = append(rules.Allow, hosttools.Rule{Tool: s.Name() + ".*"})
	}
	use := func(index string) ai.GenerateOption {
		rules.Index = index
		return ai.WithUse(plugin.Use(tools.Sandbox{Mode: frontmatter.ModeScript, Image: w.request.Image, HostTools: &rules}))
	}
	script, err3 := run("script", askByScript(), use("full"))
	search, err4 := run("search", slices.Concat(askBySearch(), askByScript()), use("search"))
	index, err5 := indexTokens(ctx, registry, rules, codec)
	if err := errors.Join(err1, err2, err3, err4, err5, registry.Close()); err != nil {
		return err
	}
	for key, v := range map[string]int{
		"tokens_tools_87.definitions": inTurns.tools, "tokens_tools_87.index": index, "tokens_tools_87.script": script.tools, "tokens_tools_87.script_search": search.tools,
		"tokens_task_20.definitions_in_turns": inTurns.total, "tokens_task_20.definitions_at_once": atOnce.total, "tokens_task_20.script": script.total, "tokens_task_20.script_search": search.total,
	} {
		c.figures[key] = float64(v)
	}
	return nil
}

// indexTokens returns the tokens of an index with all tools.
func indexTokens(ctx context.Context, registry *hosttools.Registry, rules hosttools.Rules, codec tokenizer.Codec) (int, error) {
	rules.Index = "full"
	set, err := registry.Set(ctx, hosttools.Grant{Rules: rules})
	if err != nil {
		return 0, err
	}
	n, err := codec.Count(set.Index())
	return n, errors.Join(err, set.Close(ctx))
}

// readRealTools returns the tools by server. They answer with an issue.
func readRealTools() (sources []hosttools.Source, all []hosttools.Tool, err error) {
	text, err := realTools.ReadFile("testdata/tools.json")
	if err != nil {
		return nil, nil, err
	}
	var servers map[string][]struct {
		Name, Title, Description  string
		InputSchema, OutputSchema map[string]any
	}
	if err := json.Unmarshal(text, &servers); err != nil {
		return nil, nil, err
	}
	for server, list := range servers {
		var own []hosttools.Tool
		for _, t := range list {
			own = append(own, hosttools.Tool{Server: server, Handle: issue, Definition: hosttools.Definition{
				Name: t.Name, Title: t.Title, Description: t.Description, Input: t.InputSchema, Output: t.OutputSchema,
			}})
		}
		all = append(all, own...)
		sources = append(sources, hosttools.Static(server, own...))
	}
	slices.SortFunc(all, func(a, b hosttools.Tool) int { return strings.Compare(a.FullName(), b.FullName()) })
	return sources, all, nil
}

// issue answers as GitHub does, in short: a real answer has ten times as many fields.
func issue(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
	var in struct {
		Number int `json:"issue_number"`
	}
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return hosttools.Result{}, err
	}
	return hosttools.Result{Data: fmt.Appendf(nil, `{"number":%d,"title":"Checkout fails for order %d","state":"open","user":{"login":"ada","id":%d},`+
		`"labels":[{"name":"bug"},{"name":"checkout"}],"comments":%d,"created_at":"2026-03-%02dT09:12:44Z","html_url":"https://github.com/acme/shop/issues/%d",`+
		`"body":"Steps: put two articles into the basket, go to the checkout, pay by card. The page stays empty, and the order is not in the list."}`,
		in.Number, in.Number, in.Number*7, in.Number, in.Number, in.Number)}, nil
}

// turn is what a scripted model does: it calls tools, or answers with what it read.
type turn []*ai.ToolRequest

const lookupTool = "github_get_issue"

func lookup(n int) *ai.ToolRequest {
	return &ai.ToolRequest{Name: lookupTool, Ref: fmt.Sprint(n), Input: map[string]any{"owner": "acme", "repo": "shop", "issue_number": n}}
}

func askInTurns() (task []turn) {
	for n := range lookups {
		task = append(task, turn{lookup(n + 1)})
	}
	return task
}

func askAtOnce() []turn { return []turn{slices.Concat(askInTurns()...)} }

func askByScript() []turn {
	return []turn{{{Name: "sandbox_run", Ref: "1", Input: map[string]any{
		"code": "from workcell import tools\nprint(sum(tools.github.get_issue(owner=\"acme\", repo=\"shop\", issue_number=n)[\"comments\"] for n in range(1, 21)))",
	}}}}
}

func askBySearch() []turn {
	return []turn{{{Name: "sandbox_run", Ref: "0", Input: map[string]any{"runtime": "bash", "code": "tools search issue; tools show github.get_issue"}}}}
}

// reader is a model that counts the tokens it is sent and does a task.
type reader struct {
	codec        tokenizer.Codec
	task         []turn
	tools, total int // tokens of the definitions in one request, and of all requests
}

func (r *reader) answer(_ context.Context, req *ai.ModelRequest, _ any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
	var err error
	if r.tools, err = r.count(definitions(req.Tools)); err != nil {
		return nil, err
	}
	messages, err := r.count(req.Messages)
	if err != nil {
		return nil, err
	}
	r.total += r.tools + messages
	msg := &ai.Message{Role: ai.RoleModel}
	if len(r.task) == 0 {
		sum, err := sumOf(req.Messages)
		msg.Content = []*ai.Part{ai.NewTextPart(sum)}
		return &ai.ModelResponse{Request: req, Message: msg, FinishReason: ai.FinishReasonStop}, err
	}
	for _, call := range r.task[0] {
		msg.Content = append(msg.Content, ai.NewToolRequestPart(call))
	}
	r.task = r.task[1:]
	return &ai.ModelResponse{Request: req, Message: msg, FinishReason: ai.FinishReasonStop}, nil
}

// count returns the tokens of the JSON of v, which is close to what providers count.
func (r *reader) count(v any) (int, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	return r.codec.Count(string(text))
}

// definitions returns what providers send of tools.
func definitions(list []*ai.ToolDefinition) any {
	type definition struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  map[string]any `json:"parameters"`
	}
	out := make([]definition, len(list))
	for i, t := range list {
		out[i] = definition{t.Name, t.Description, t.InputSchema}
	}
	return out
}

// sumOf adds up what the tools answered.
func sumOf(messages []*ai.Message) (string, error) {
	sum := 0
	for _, m := range messages {
		for _, p := range m.Content {
			if !p.IsToolResponse() || p.ToolResponse.Ref == "0" {
				continue
			}
			text, err := json.Marshal(p.ToolResponse.Output)
			if err != nil {
				return "", err
			}
			var out struct {
				Comments       int
				Stdout, Stderr string
				Error          json.RawMessage
			}
			if err := json.Unmarshal(text, &out); err != nil {
				return "", err
			}
			if out.Stdout != "" {
				return strings.TrimSpace(out.Stdout), nil
			}
			if out.Stderr != "" || out.Error != nil {
				return "", fmt.Errorf("a tool failed: %s", text)
			}
			sum += out.Comments
		}
	}
	return fmt.Sprint(sum), nil
}
