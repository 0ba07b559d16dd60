// Package gemini calls Google's Gemini CLI.
//
// The CLI lets the settings of a repository, .gemini/settings.json, stand over those of its user. The images of Workcell have
// /etc/gemini-cli/settings.json, which stands over both, so that the repository's have no effect that matters. In another image
// they can run commands, inside the sandbox.
package gemini

import (
	"encoding/json"
	"fmt"
	"path"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/session"
)

// Version is the version of the CLI that the driver is written for.
const Version = "0.61.0"

// maxAttempts is how often the CLI asks a model that does not answer; by itself it does so for minutes.
const maxAttempts = 3

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
		return executor.Invocation{}, fmt.Errorf("%w: gemini needs a model that speaks %s", backend.ErrUnsupported, executor.Gemini)
	}
	inv := executor.Invocation{
		// No extension, and no server but ours, whoever configures one.
		Argv:  []string{"gemini", "-o", "stream-json", "--approval-mode", "yolo", "-e", "none", "--allowed-mcp-server-names", executor.Server},
		Stdin: []byte(executor.WithSchema(t.Prompt, t.Schema)),
		Files: []executor.File{{Path: path.Join(in.Home, ".gemini/settings.json"), Data: settings(t, in)}},
		Keep:  []string{".gemini/tmp", ".gemini/projects.json"},
		Env: map[string]string{
			"HOME": in.Home, "GEMINI_CLI_HOME": in.Home, "GEMINI_API_KEY": model.Key, "GOOGLE_GEMINI_BASE_URL": model.BaseURL,
			// Where it does not trust the workspace it starts no MCP server and asks before each tool.
			"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_TELEMETRY_ENABLED": "false", "GEMINI_CLI_NO_RELAUNCH": "true",
		},
	}
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
	servers := map[string]any{}
	allowed := []string{}
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
		"tools":       map[string]any{"exclude": web(t)},
	}
	if t.MaxTurns > 0 {
		all["model"] = map[string]any{"maxSessionTurns": t.MaxTurns}
	}
	b, _ := json.Marshal(all) // plain data
	return b
}

// web returns the tools of the web that the task does not permit.
func web(t executor.Task) []string {
	if t.Web {
		return []string{}
	}
	return []string{"google_web_search", "web_fetch"}
}

// Outcome implements executor.Driver.
func (Driver) Outcome(seen executor.Seen, exit session.ExecStatus) executor.Outcome {
	return executor.Judge(seen, exit, map[int]executor.Outcome{
		41: executor.AuthError, 53: executor.MaxTurns, 130: executor.Cancelled,
	})
}

// Parser implements executor.Driver.
func (Driver) Parser() executor.Parser { return &parser{} }
