package drivers

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/model"
)

// openCodeGuard is a module for Bun, the CLI's runtime, to load first. It rejects code from outside of the CLI, because
// OpenCode imports the plugins of a repository even if OPENCODE_DISABLE_PROJECT_CONFIG and OPENCODE_PURE are set.
// Programs started by the CLI do not load it.
const openCodeGuard = `if (process.argv[1].startsWith("/$bunfs/")) {
	delete process.env.BUN_INSPECT_PRELOAD
	Bun.plugin({name: "workcell", setup(build) {
		build.onLoad({filter: /^(?!\/\$bunfs\/)/}, ({path}) => { throw new Error(path + ": not loaded from a workspace") })
	}})
}
`

// openCode returns the driver for OpenCode. Task.Model is "PROVIDER/MODEL". The provider "anthropic" uses Anthropic's
// dialect, and all others use OpenAI's chat completions.
func openCode() *Driver {
	return &Driver{
		Version: "1.18.33", name: "opencode", prepare: prepareOpenCode,
		parser: func() executor.Parser { return jsonLines[openCodeLine]((&openCodeParser{}).events) },
	}
}

func prepareOpenCode(t task) (executor.Invocation, error) {
	ref, provider, err := openCodeModel(t)
	if err != nil {
		return executor.Invocation{}, err
	}
	web, build, servers := "deny", map[string]any{}, map[string]any{}
	if t.Web {
		web = "allow"
	}
	if t.MaxTurns > 0 {
		build["steps"] = t.MaxTurns
	}
	if len(t.MCP) > 0 {
		servers[executor.Server] = map[string]any{
			"type": "local", "command": t.MCP, "enabled": true, "timeout": toolTime.Milliseconds(),
		}
	}
	config := map[string]any{
		"autoupdate": false, "share": "disabled", "model": ref, "small_model": ref, "provider": provider,
		"enabled_providers": []string{strings.SplitN(ref, "/", 2)[0]},
		"permission":        map[string]any{"*": "allow", "webfetch": web, "websearch": web},
		"mcp":               servers,
		// Creating a title for the session needs an unreported request.
		"agent": map[string]any{"title": map[string]any{"disable": true}, "build": build},
	}
	guardFile := path.Join(t.Settings, "guard.mjs")
	inv := executor.Invocation{
		Files: []executor.File{{Path: guardFile, Data: []byte(openCodeGuard)}},
		Argv: append([]string{"opencode", "run", "--format", "json", "--thinking", "--auto", "-m", ref},
			option("-s", t.ResumeID)...),
		Stdin: []byte(executor.WithSchema(t.Prompt, t.Schema)),
		Keep:  []string{".local/share/opencode"},
		Late:  true,
		// When the turns are over, the CLI only informs the model.
		CountTurns: true,
	}
	if t.System != "" {
		name := path.Join(t.Settings, "system.md")
		config["instructions"] = []string{name}
		inv.Files = append(inv.Files, executor.File{Path: name, Data: []byte(t.System)})
	}
	text, _ := json.Marshal(config) // plain data, so the error is always nil
	inv.Env = map[string]string{
		"XDG_DATA_HOME": path.Join(t.Settings, ".local/share"), "XDG_CONFIG_HOME": path.Join(t.Settings, ".config"),
		"XDG_STATE_HOME": path.Join(t.Settings, ".local/state"), "XDG_CACHE_HOME": path.Join(t.Settings, ".cache"),
		"OPENCODE_CONFIG_CONTENT": string(text), "OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
		"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
		"BUN_INSPECT_PRELOAD": guardFile,
	}
	return inv, nil
}

// openCodeModel returns the model name for the CLI and the provider configuration.
func openCodeModel(t task) (string, map[string]any, error) {
	provider, name, ok := strings.Cut(t.Model, "/")
	if !ok || provider == "" || name == "" {
		return "", nil, fmt.Errorf("%w: opencode: model %q must be PROVIDER/MODEL", backend.ErrInvalid, t.Model)
	}
	dialect, npm, id := model.OpenAIChat, "@ai-sdk/openai-compatible", "workcell"
	if provider == "anthropic" {
		dialect, npm, id = model.Anthropic, "@ai-sdk/anthropic", "anthropic"
	}
	endpoint, ok := t.Models[dialect]
	if !ok {
		return "", nil, fmt.Errorf("%w: opencode requires a model with the %s API for %s",
			backend.ErrUnsupported, dialect, t.Model)
	}
	if dialect == model.Anthropic {
		endpoint.BaseURL += "/v1" // required by this SDK
	}
	return id + "/" + name, map[string]any{id: map[string]any{
		"npm": npm, "name": id, "options": map[string]any{"baseURL": endpoint.BaseURL, "apiKey": endpoint.Key},
		"models": map[string]any{name: map[string]any{}},
	}}, nil
}

// openCodeParser parses the events of opencode run --format json.
type openCodeParser struct {
	session bool // the session was reported
	turns   int
}

type openCodeLine struct {
	Type    string
	Session string `json:"sessionID"`
	Part    part
	Error   struct {
		Name string
		Data struct {
			Message    string
			StatusCode int `json:"statusCode"`
		}
	}
}

type part struct {
	Text, Tool, CallID, Reason string
	State                      struct {
		Status, Output, Error string
		Input                 json.RawMessage
		Metadata              struct{ Exit int } // exit code of a command
	}
	Tokens struct {
		Input, Output, Reasoning int64
		Cache                    struct{ Read, Write int64 }
	}
}

func (p *openCodeParser) events(l openCodeLine) []executor.Event {
	var events []executor.Event
	if l.Session != "" && !p.session {
		p.session = true
		events = append(events, executor.Event{Kind: executor.KindSession, Session: l.Session})
	}
	switch l.Type {
	case "text":
		events = append(events, text(executor.KindText, l.Part.Text)...)
	case "reasoning":
		events = append(events, text(executor.KindThinking, l.Part.Text)...)
	case "tool_use": // the CLI reports a tool only when it ends
		server, name := hostTool(l.Part.Tool, executor.Server+"_")
		state := l.Part.State
		failed := state.Status == "error" || state.Metadata.Exit != 0
		events = append(events, toolStart(l.Part.CallID, server, name, state.Input),
			toolEnd(l.Part.CallID, state.Output+state.Error, failed))
	case "step_finish":
		events = append(events, p.step(l.Part)...)
	case "error":
		events = append(events, ended(openCodeFailure(l)))
	}
	return events
}

// step returns the usage of a step, and the end event after the last step. In the last step, the model stops for
// another reason than tool calls.
func (p *openCodeParser) step(s part) []executor.Event {
	p.turns++
	u := executor.Usage{
		Input: s.Tokens.Input, Output: s.Tokens.Output + s.Tokens.Reasoning,
		CacheRead: s.Tokens.Cache.Read, CacheWrite: s.Tokens.Cache.Write,
	}
	events := []executor.Event{{Kind: executor.KindUsage, Usage: &u}}
	end := executor.End{Outcome: executor.Completed, Turns: p.turns}
	switch s.Reason {
	case "tool-calls":
		return events
	case "content-filter":
		end.Outcome = executor.Refused
	case "error", "unknown":
		end.Outcome = executor.ModelError
	}
	return append(events, ended(end))
}

func openCodeFailure(l openCodeLine) executor.End {
	end := executor.End{Outcome: executor.ModelError, Detail: strings.TrimSpace(l.Error.Name + " " + l.Error.Data.Message)}
	if l.Error.Name == "ContentFilterError" {
		end.Outcome = executor.Refused
	}
	if l.Error.Name == "ProviderAuthError" || l.Error.Data.StatusCode == 401 || l.Error.Data.StatusCode == 403 {
		end.Outcome = executor.AuthError
	}
	return end
}
