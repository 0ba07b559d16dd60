// Package gemini calls Google's Gemini CLI.
package gemini

import (
	"encoding/json"
	"fmt"
	"path"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
)

// Version is the version of the CLI that the driver is written for.
const Version = "0.61.0"

// maxAttempts is how often the CLI asks a model that does not answer; by itself it does so for minutes.
const maxAttempts = 3

// guard is a module that Node loads first. It hides the files of a trusted folder that can configure the CLI, for which there is no
// switch. Programs that start the CLI, and those that the CLI starts, see the files.
const guard = `import fs from "node:fs"
import {syncBuiltinESMExports} from "node:module"
import path from "node:path"
if (/gemini/.test(process.argv[1])) {
	delete process.env.NODE_OPTIONS
	const exists = fs.existsSync, hidden = [".env", ".gemini/.env", ".gemini/settings.json"].map((name) => path.resolve(name))
	fs.existsSync = (name) => !hidden.includes(path.resolve(String(name))) && exists(name)
	syncBuiltinESMExports()
}
`

// Driver calls Gemini CLI. Its zero value is ready for use. There are no Task.Args.
type Driver struct{}

// Name returns "gemini".
func (Driver) Name() string { return "gemini" }

// Prepare implements executor.Driver.
func (Driver) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	for name := range t.Args {
		return executor.Invocation{}, fmt.Errorf("%w: gemini has no argument %s", backend.ErrInvalid, name)
	}
	model, ok := in.Models[executor.Gemini]
	if !ok {
		return executor.Invocation{}, fmt.Errorf("%w: gemini requires a model with the %s API", backend.ErrUnsupported, executor.Gemini)
	}
	guardFile := path.Join(in.Home, "guard.mjs")
	inv := executor.Invocation{
		Argv: []string{"gemini", "-o", "stream-json", "--approval-mode", "yolo"},
		// The CLI starts MCP servers in a trusted folder only. It loads no extension and only our server.
		Safe:  []string{"--skip-trust", "-e", "none", "--allowed-mcp-server-names", executor.Server},
		Stdin: []byte(sanitize.Prompt(executor.WithSchema(t.Prompt, t.Schema))),
		Files: []executor.File{
			{Path: path.Join(in.Home, ".gemini/settings.json"), Data: settings(t, in)}, {Path: guardFile, Data: []byte(guard)},
		},
		Keep: []string{".gemini/tmp", ".gemini/projects.json"},
		Env: map[string]string{
			"HOME": in.Home, "GEMINI_CLI_HOME": in.Home, "GEMINI_API_KEY": model.Key, "GOOGLE_GEMINI_BASE_URL": model.BaseURL,
			"GEMINI_TELEMETRY_ENABLED": "false", "GEMINI_CLI_NO_RELAUNCH": "true",
			"NODE_OPTIONS": "--import=file://" + guardFile,
		},
	}
	inv.Argv = append(inv.Argv, inv.Safe...)
	if t.Model != "" {
		inv.Argv = append(inv.Argv, "-m", t.Model)
	}
	if t.ResumeID != "" {
		inv.Argv = append(inv.Argv, "--resume", t.ResumeID)
	} else {
		inv.Argv = append(inv.Argv, "--session-id", t.NewID)
	}
	if t.System != "" {
		inv.Files = append(inv.Files, executor.File{Path: path.Join(in.Home, ".gemini/GEMINI.md"), Data: []byte(t.System)})
	}
	return inv, nil
}

func settings(t executor.Task, in executor.Inside) []byte {
	servers, allowed, excluded := map[string]any{}, []string{}, []string{}
	if !t.Web {
		excluded = []string{"google_web_search", "web_fetch"}
	}
	if len(in.MCP) > 0 {
		allowed = append(allowed, executor.Server)
		// A call of a host tool may wait for an approval.
		servers[executor.Server] = map[string]any{"command": in.MCP[0], "args": in.MCP[1:], "trust": true, "timeout": 1_200_000}
	}
	all := map[string]any{
		"security":    map[string]any{"auth": map[string]any{"selectedType": "gemini-api-key"}},
		"mcpServers":  servers,
		"mcp":         map[string]any{"allowed": allowed},
		"general":     map[string]any{"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "maxAttempts": maxAttempts},
		"privacy":     map[string]any{"usageStatisticsEnabled": false},
		"telemetry":   map[string]any{"enabled": false},
		"hooksConfig": map[string]any{"enabled": false},
		"tools":       map[string]any{"exclude": excluded},
	}
	if t.MaxTurns > 0 {
		all["model"] = map[string]any{"maxSessionTurns": t.MaxTurns}
	}
	b, _ := json.Marshal(all) // plain data
	return b
}

// Outcome implements executor.Driver.
func (Driver) Outcome(seen executor.Seen, exit session.ExecStatus) executor.Outcome {
	return executor.Judge(seen, exit, map[int]executor.Outcome{
		41: executor.AuthError, 53: executor.MaxTurns, 130: executor.Cancelled,
	})
}

// Parser implements executor.Driver.
func (Driver) Parser() executor.Parser { return &parser{} }
