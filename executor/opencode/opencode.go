// Package opencode calls OpenCode.
package opencode

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/session"
)

// Version is the version of the CLI that the driver is written for.
const Version = "1.18.33"

// guard is a module that Bun, the CLI's runtime, loads first. It refuses code that is not part of the CLI: OpenCode imports the
// plugins of a repository even if OPENCODE_DISABLE_PROJECT_CONFIG and OPENCODE_PURE are set. Programs that the CLI starts do
// not load the guard.
const guard = `if (process.argv[1].startsWith("/$bunfs/")) {
	delete process.env.BUN_INSPECT_PRELOAD
	Bun.plugin({name: "workcell", setup(build) {
		build.onLoad({filter: /^(?!\/\$bunfs\/)/}, ({path}) => { throw new Error(path + ": not loaded from a workspace") })
	}})
}
`

// Driver calls OpenCode. Its zero value is ready for use. Task.Model is "PROVIDER/MODEL": "anthropic" speaks Anthropic's dialect,
// every other provider OpenAI's chat completions. There are no Task.Args.
type Driver struct{}

// Name returns "opencode".
func (Driver) Name() string { return "opencode" }

// Prepare implements executor.Driver.
func (Driver) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	for name := range t.Args {
		return executor.Invocation{}, fmt.Errorf("%w: opencode has no argument %s", backend.ErrInvalid, name)
	}
	ref, provider, err := modelOf(t, in)
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
	if len(in.MCP) > 0 { // a call of a host tool may wait for an approval
		servers[executor.Server] = map[string]any{"type": "local", "command": in.MCP, "enabled": true, "timeout": 1_200_000}
	}
	config := map[string]any{
		"autoupdate": false, "share": "disabled", "model": ref, "small_model": ref, "provider": provider,
		"enabled_providers": []string{strings.SplitN(ref, "/", 2)[0]},
		"permission":        map[string]any{"*": "allow", "webfetch": web, "websearch": web},
		"mcp":               servers,
		// Without a title of its own a session costs no request that it does not tell.
		"agent": map[string]any{"title": map[string]any{"disable": true}, "build": build},
	}
	guardFile := path.Join(in.Home, "guard.mjs")
	inv := executor.Invocation{
		Files: []executor.File{{Path: guardFile, Data: []byte(guard)}},
		Argv:  []string{"opencode", "run", "--format", "json", "--thinking", "--auto", "-m", ref},
		Stdin: []byte(executor.WithSchema(t.Prompt, t.Schema)),
		Keep:  []string{".local/share/opencode"},
		Late:  true,
		// The CLI itself only tells the model that the turns are over.
		CountTurns: true,
	}
	if t.System != "" {
		name := path.Join(in.Home, "system.md")
		config["instructions"] = []string{name}
		inv.Files = append(inv.Files, executor.File{Path: name, Data: []byte(t.System)})
	}
	if t.ResumeID != "" {
		inv.Argv = append(inv.Argv, "-s", t.ResumeID)
	}
	text, _ := json.Marshal(config) // plain data
	inv.Env = map[string]string{
		"HOME": in.Home, "XDG_DATA_HOME": path.Join(in.Home, ".local/share"), "XDG_CONFIG_HOME": path.Join(in.Home, ".config"),
		"XDG_STATE_HOME": path.Join(in.Home, ".local/state"), "XDG_CACHE_HOME": path.Join(in.Home, ".cache"),
		"OPENCODE_CONFIG_CONTENT": string(text), "OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1",
		"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
		"BUN_INSPECT_PRELOAD": guardFile,
	}
	return inv, nil
}

// modelOf returns the model as the CLI names it, and the providers that it knows.
func modelOf(t executor.Task, in executor.Inside) (string, map[string]any, error) {
	provider, name, ok := strings.Cut(t.Model, "/")
	if !ok || provider == "" || name == "" {
		return "", nil, fmt.Errorf("%w: opencode: model %q must be PROVIDER/MODEL", backend.ErrInvalid, t.Model)
	}
	dialect, npm, id := executor.OpenAIChat, "@ai-sdk/openai-compatible", "workcell"
	if provider == "anthropic" {
		dialect, npm, id = executor.Anthropic, "@ai-sdk/anthropic", "anthropic"
	}
	endpoint, ok := in.Models[dialect]
	if !ok {
		return "", nil, fmt.Errorf("%w: opencode requires a model with the %s API for %s", backend.ErrUnsupported, dialect, t.Model)
	}
	if dialect == executor.Anthropic {
		endpoint.BaseURL += "/v1" // as this SDK takes it
	}
	return id + "/" + name, map[string]any{id: map[string]any{
		"npm": npm, "name": id, "options": map[string]any{"baseURL": endpoint.BaseURL, "apiKey": endpoint.Key},
		"models": map[string]any{name: map[string]any{}},
	}}, nil
}

// Outcome implements executor.Driver.
func (Driver) Outcome(seen executor.Seen, exit session.ExecStatus) executor.Outcome {
	return executor.Judge(seen, exit, nil)
}

// Parser implements executor.Driver.
func (Driver) Parser() executor.Parser { return &parser{} }
