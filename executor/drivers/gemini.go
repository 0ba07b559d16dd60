package drivers

import (
	"cmp"
	"encoding/json"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// maxAttempts limits the requests to an unavailable model. The CLI's default takes minutes.
const maxAttempts = 3

// geminiGuard is a module for Node to load first. It hides the CLI's configuration files in a trusted folder, because
// no switch disables them. Other programs see the files, for example programs started by the CLI.
const geminiGuard = `import fs from "node:fs"
import {syncBuiltinESMExports} from "node:module"
import path from "node:path"
if (/gemini/.test(process.argv[1])) {
	delete process.env.NODE_OPTIONS
	const exists = fs.existsSync, hidden = [".env", ".gemini/.env", ".gemini/settings.json"].map((name) => path.resolve(name))
	fs.existsSync = (name) => !hidden.includes(path.resolve(String(name))) && exists(name)
	syncBuiltinESMExports()
}
`

// gemini returns the driver for Google's Gemini CLI.
func gemini() *Driver {
	return &Driver{
		Version: "0.61.0", name: "gemini", dialect: model.Gemini, prepare: prepareGemini,
		codes:  map[int]executor.Outcome{41: executor.AuthError, 53: executor.MaxTurns, 130: executor.Cancelled},
		parser: func() executor.Parser { return jsonLines[geminiLine]((&geminiParser{}).events) },
	}
}

func prepareGemini(t task) (executor.Invocation, error) {
	guardFile := path.Join(t.Settings, "guard.mjs")
	inv := executor.Invocation{
		// The CLI starts MCP servers only in a trusted folder. It loads no extensions and only our server.
		Safe:  []string{"--skip-trust", "-e", "none", "--allowed-mcp-server-names", executor.Server},
		Stdin: []byte(sanitize.Prompt(executor.WithSchema(t.Prompt, t.Schema))),
		Files: []executor.File{
			{Path: path.Join(t.Settings, ".gemini/settings.json"), Data: geminiSettings(t)},
			{Path: guardFile, Data: []byte(geminiGuard)},
		},
		Keep: []string{".gemini/tmp", ".gemini/projects.json"}, Home: t.Settings,
		Env: map[string]string{
			"GEMINI_CLI_HOME": t.Settings, "GEMINI_API_KEY": t.model.Key, "GOOGLE_GEMINI_BASE_URL": t.model.BaseURL,
			"GEMINI_TELEMETRY_ENABLED": "false", "GEMINI_CLI_NO_RELAUNCH": "true",
			"NODE_OPTIONS": "--import=file://" + guardFile,
		},
	}
	inv.Argv = slices.Concat([]string{"gemini", "-o", "stream-json", "--approval-mode", "yolo"}, inv.Safe,
		option("-m", t.Model), t.session())
	if t.System != "" {
		inv.Files = append(inv.Files, executor.File{Path: path.Join(t.Settings, ".gemini/GEMINI.md"), Data: []byte(t.System)})
	}
	return inv, nil
}

func geminiSettings(t task) []byte {
	servers, allowed, excluded := map[string]any{}, []string{}, []string{}
	if !t.Web {
		excluded = []string{"google_web_search", "web_fetch"}
	}
	if len(t.MCP) > 0 {
		allowed = append(allowed, executor.Server)
		servers[executor.Server] = map[string]any{
			"command": t.MCP[0], "args": t.MCP[1:], "trust": true, "timeout": toolTime.Milliseconds(),
		}
	}
	all := map[string]any{
		"security":   map[string]any{"auth": map[string]any{"selectedType": "gemini-api-key"}},
		"mcpServers": servers,
		"mcp":        map[string]any{"allowed": allowed},
		"general": map[string]any{
			"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "maxAttempts": maxAttempts,
		},
		"privacy":     map[string]any{"usageStatisticsEnabled": false},
		"telemetry":   map[string]any{"enabled": false},
		"hooksConfig": map[string]any{"enabled": false},
		"tools":       map[string]any{"exclude": excluded},
	}
	if t.MaxTurns > 0 {
		all["model"] = map[string]any{"maxSessionTurns": t.MaxTurns}
	}
	b, _ := json.Marshal(all) // plain data, so the error is always nil
	return b
}

// geminiParser parses the events of --output-format stream-json.
type geminiParser struct {
	began   bool   // the latest text continues
	problem string // latest reported problem
	stopped bool   // no event followed the problem
}

type geminiLine struct {
	Type       string
	Session    string `json:"session_id"`
	Role       string
	Content    string
	ToolName   string `json:"tool_name"`
	ToolID     string `json:"tool_id"`
	Parameters json.RawMessage
	Status     string
	Output     string
	Message    string
	Error      struct{ Type, Message string }
	Stats      struct {
		Output int64 `json:"output_tokens"`
		Cached int64
		Input  int64 // without cached tokens
	}
}

func (p *geminiParser) events(l geminiLine) []executor.Event {
	began := p.began
	p.began = l.Type == "message" && l.Role == "assistant"
	p.stopped = l.Type == "error" || p.stopped && l.Type == "result"
	switch {
	case l.Type == "init":
		return []executor.Event{{Kind: executor.KindSession, Session: l.Session}}
	case p.began:
		return []executor.Event{{Kind: executor.KindText, Text: l.Content, Delta: began}}
	case l.Type == "tool_use":
		server, name := hostTool(l.ToolName, "mcp_"+executor.Server+"_")
		return []executor.Event{toolStart(l.ToolID, server, name, l.Parameters)}
	case l.Type == "tool_result":
		return []executor.Event{toolEnd(l.ToolID, l.Output, l.Status == "error")}
	case l.Type == "error":
		p.problem = l.Message
		return text(executor.KindNotice, l.Message)
	case l.Type == "result":
		u := executor.Usage{Input: l.Stats.Input, Output: l.Stats.Output, CacheRead: l.Stats.Cached}
		return []executor.Event{{Kind: executor.KindUsage, Usage: &u}, ended(p.end(l))}
	}
	return nil
}

// geminiRefused matches the API's error for an invalid key, which the CLI reports as text.
var geminiRefused = regexp.MustCompile(`"code": ?40[13]\b`)

func (p *geminiParser) end(l geminiLine) executor.End {
	if l.Status == "success" && !p.stopped { // the CLI reports success if it stops because the model repeats itself
		return executor.End{Outcome: executor.Completed}
	}
	e := executor.End{Outcome: executor.ModelError, Detail: cmp.Or(l.Error.Message, p.problem)}
	switch {
	case l.Error.Type == "FatalTurnLimitedError":
		e.Outcome = executor.MaxTurns
	case strings.Contains(e.Detail, "response was blocked"): // the provider's filters blocked it
		e.Outcome = executor.Refused
	case l.Error.Type == "FatalAuthenticationError", geminiRefused.MatchString(l.Error.Message):
		e.Outcome = executor.AuthError
	}
	return e
}
