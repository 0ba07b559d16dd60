// Package claude calls Claude Code.
package claude

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/session"
)

// Version is the version of the CLI that the driver is written for.
const Version = "2.1.330"

// maxArgument is what Linux takes as one argument, with some room.
const maxArgument = 120 << 10

// Driver calls Claude Code. Its zero value is ready for use. Task.Args may have "effort" (low, medium, high, xhigh, max) and "bare"
// ("true" leaves out what the CLI adds by itself, skills and CLAUDE.md among it).
type Driver struct{}

// Name returns "claude".
func (Driver) Name() string { return "claude" }

// Prepare implements executor.Driver.
func (Driver) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	model, ok := in.Models[executor.Anthropic]
	if !ok {
		return executor.Invocation{}, fmt.Errorf("%w: claude requires a model with the %s API", backend.ErrUnsupported, executor.Anthropic)
	}
	inv := executor.Invocation{
		Stdin: []byte(t.Prompt), Keep: []string{".claude/projects"},
		// What the flags below are to claude, to the program that speaks for it.
		Meta: map[string]any{
			"systemPrompt": map[string]any{"append": t.System},
			"claudeCode": map[string]any{
				"options": map[string]any{"settingSources": []string{"user"}, "strictMcpConfig": true},
			},
		},
	}
	mcp := path.Join(in.Home, "mcp.json")
	argv := []string{
		"claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages", "--dangerously-skip-permissions",
		"--strict-mcp-config", "--mcp-config", mcp, "--setting-sources", "user",
	}
	servers := map[string]any{}
	if len(in.MCP) > 0 {
		servers[executor.Server] = map[string]any{"command": in.MCP[0], "args": in.MCP[1:]}
	}
	config, _ := json.Marshal(map[string]any{"mcpServers": servers}) // plain data
	inv.Files = append(inv.Files, executor.File{Path: mcp, Data: config})
	if t.ResumeID != "" {
		argv = append(argv, "--resume", t.ResumeID)
	} else {
		argv = append(argv, "--session-id", t.NewID)
	}
	if t.Model != "" {
		argv = append(argv, "--model", t.Model)
	}
	if t.MaxTurns > 0 {
		argv = append(argv, "--max-turns", strconv.Itoa(t.MaxTurns))
	}
	if len(t.Schema) > maxArgument {
		return executor.Invocation{}, fmt.Errorf("%w: the schema limit of claude is %d bytes, this one has %d", backend.ErrTooLarge, maxArgument, len(t.Schema))
	}
	if t.Schema != nil {
		argv = append(argv, "--json-schema", string(t.Schema))
	}
	if t.System != "" {
		name := path.Join(in.Home, "system.md")
		argv = append(argv, "--append-system-prompt-file", name)
		inv.Files = append(inv.Files, executor.File{Path: name, Data: []byte(t.System)})
	}
	if !t.Web {
		argv = append(argv, "--disallowedTools", "WebSearch,WebFetch")
	}
	more, err := arguments(t.Args)
	if err != nil {
		return executor.Invocation{}, err
	}
	inv.Argv = append(argv, more...)
	inv.Env = map[string]string{
		"HOME": in.Home, "CLAUDE_CONFIG_DIR": path.Join(in.Home, ".claude"),
		"ANTHROPIC_BASE_URL": model.BaseURL, "ANTHROPIC_API_KEY": model.Key,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
		"CLAUDE_CODE_MAX_RETRIES": "2", "ENABLE_TOOL_SEARCH": "false",
		// A call of a host tool may wait for an approval.
		"MCP_TOOL_TIMEOUT": "1200000",
	}
	if in.Root {
		inv.Env["IS_SANDBOX"] = "1" // else it refuses to work without asking as root
	}
	if t.Model != "" { // also for requests that would otherwise go to a smaller model, which the lease may not allow
		inv.Env["ANTHROPIC_DEFAULT_HAIKU_MODEL"], inv.Env["ANTHROPIC_SMALL_FAST_MODEL"] = t.Model, t.Model
		inv.Env["ANTHROPIC_MODEL"] = t.Model
	}
	return inv, nil
}

// arguments returns the flags of Task.Args.
func arguments(args map[string]string) ([]string, error) {
	var argv []string
	for _, name := range slices.Sorted(maps.Keys(args)) {
		value := args[name]
		switch {
		case name == "effort" && slices.Contains([]string{"low", "medium", "high", "xhigh", "max"}, value):
			argv = append(argv, "--effort", value)
		case name == "bare" && value == "true":
			argv = append(argv, "--bare")
		case name == "bare" && value == "false":
		default:
			return nil, fmt.Errorf("%w: claude has no argument %s: %q; it has effort (low, medium, high, xhigh, max) and bare (true, false)", backend.ErrInvalid, name, value)
		}
	}
	return argv, nil
}

// Outcome implements executor.Driver.
func (Driver) Outcome(seen executor.Seen, exit session.ExecStatus) executor.Outcome {
	return executor.Judge(seen, exit, nil)
}

// Parser implements executor.Driver.
func (Driver) Parser() executor.Parser { return &parser{} }

// toolServer splits the name of a tool: those of an MCP server are called "mcp__SERVER__TOOL".
func toolServer(name string) (server, tool string) {
	if rest, ok := strings.CutPrefix(name, "mcp__"); ok {
		if server, tool, ok = strings.Cut(rest, "__"); ok {
			return server, tool
		}
	}
	return "", name
}
