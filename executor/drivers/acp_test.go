package drivers_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/executor/internal/drivertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
)

func acpDriver() drivers.ACP {
	return drivers.ACP{Argv: []string{"agent", "--acp", "--model={model}", "{workdir}"}}
}

func TestACPPrepare(t *testing.T) {
	drivertest.Prepared(t, "testdata/acp", acpDriver(), "1", drivertest.Tasks("claude-sonnet-4-5", 0, map[string]string{"permissions": "deny"}))
}

// TestACPSettings verifies that an agent with a driver gets the driver's protection from a repository's files: its
// environment, files, safe flags, and the _meta of its session. They include the system prompt, but not the host's MCP
// server.
func TestACPSettings(t *testing.T) {
	for _, test := range []struct {
		d    executor.Driver
		want []string // in the command line, environment, files, or session request
	}{
		{drivers.Named("claude"), []string{
			`"settingSources":["user"],"strictMcpConfig":true`, `"systemPrompt":{"append":"terse"}`, "CLAUDE_CONFIG_DIR=/",
		}},
		{drivers.Named("codex"), []string{
			"agent acp\n", "CODEX_HOME=/", `trust_level = "untrusted"`, `instructions = "terse"`, `model = "anthropic/m"`,
		}},
		{drivers.Named("gemini"), []string{
			"agent acp --skip-trust -e none --allowed-mcp-server-names workcell\n", "NODE_OPTIONS=--import=file:///", "guard.mjs=import", "GEMINI.md=terse",
		}},
		{drivers.Named("opencode"), []string{
			"agent acp\n", "OPENCODE_DISABLE_PROJECT_CONFIG=1", "BUN_INSPECT_PRELOAD=/", "guard.mjs=if", "system.md=terse",
		}},
	} {
		d := drivers.ACP{Argv: []string{"agent", "acp"}, Settings: test.d}
		inv, err := d.Prepare(executor.Task{Prompt: "x", Model: "anthropic/m", System: "terse"}, drivertest.Inside())
		checktest.Must(t, err)
		got := strings.Join(inv.Argv, " ") + "\n"
		for name, value := range inv.Env {
			got += name + "=" + value + "\n"
		}
		for _, f := range inv.Files {
			got += f.Path + "=" + string(f.Data) + "\n"
		}
		if strings.Contains(got, "workcell-guest") {
			t.Errorf("%s: the server is configured twice", test.d.Name())
		}
		var said bytes.Buffer
		inv.Talk(&said).Line([]byte(hello))
		got += said.String()
		for _, want := range append(test.want, "WORKCELL_MODEL=anthropic/m") {
			if !strings.Contains(got, want) {
				t.Errorf("%s lacks %s:\n%s", test.d.Name(), want, got)
			}
		}
		if _, trusted := inv.Env["GEMINI_CLI_TRUST_WORKSPACE"]; trusted || inv.Stdin != nil {
			t.Errorf("%s: %v, %q", test.d.Name(), inv.Env, inv.Stdin)
		}
	}
}

// TestACPRefusedTasks verifies that tasks with features that the protocol lacks are errors.
func TestACPRefusedTasks(t *testing.T) {
	for name, test := range map[string]struct {
		argv []string
		task executor.Task
		want error
	}{
		"turns":            {acpDriver().Argv, executor.Task{Prompt: "x", MaxTurns: 3}, backend.ErrUnsupported},
		"unknown argument": {acpDriver().Argv, executor.Task{Prompt: "x", Args: map[string]string{"x": "y"}}, backend.ErrInvalid},
		"no program":       {nil, executor.Task{Prompt: "x"}, backend.ErrInvalid},
		"a prompt":         {[]string{"agent", "{prompt}"}, executor.Task{Prompt: "x"}, backend.ErrInvalid},
	} {
		if _, err := (drivers.ACP{Argv: test.argv}).Prepare(test.task, drivertest.Inside()); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACPRecorded(t *testing.T) {
	drivertest.Recorded(t, "testdata/acp", acpDriver(), map[string]executor.Outcome{
		"opencode-tool": executor.Completed, "opencode-refused": executor.ModelError,
		"gemini-tool": executor.Completed, "gemini-refused": executor.AuthError,
	}, nil)
}

func FuzzACP(f *testing.F) { drivertest.Fuzz(f, "testdata/acp", acpDriver()) }

// conversation plays an agent. It passes each line to the parser and returns the parser's messages and events.
func conversation(t *testing.T, task executor.Task, lines ...string) (said []map[string]any, events []executor.Event) {
	t.Helper()
	inv, err := acpDriver().Prepare(task, drivertest.Inside())
	checktest.Must(t, err)
	var out bytes.Buffer
	p := inv.Talk(&out)
	for _, l := range lines {
		events = append(events, p.Line([]byte(l))...)
	}
	for s := bufio.NewScanner(&out); s.Scan(); {
		var m map[string]any
		checktest.Must(t, json.Unmarshal(s.Bytes(), &m))
		said = append(said, m)
	}
	return said, events
}

const (
	hello = `{"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}`
	begun = `{"id":2,"result":{"sessionId":"s1"}}`
)

func update(what string) string {
	return `{"method":"session/update","params":{"sessionId":"s1","update":{"sessionUpdate":` + what + `}}}`
}

// TestACPPermissions verifies that an agent gets every permission that it requests, once. Web access requires that the
// task allows it, and with permissions deny, nothing is allowed. A request without a suitable option is canceled.
func TestACPPermissions(t *testing.T) {
	ask := func(kind, options string) string {
		return `{"id":"q","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"1","title":"x","kind":"` + kind + `"},"options":` + options + `}}`
	}
	const all = `[{"optionId":"A","kind":"allow_always"},{"optionId":"a","kind":"allow_once"},{"optionId":"R","kind":"reject_always"},{"optionId":"r","kind":"reject_once"}]`
	deny := map[string]string{"permissions": "deny"}
	for name, test := range map[string]struct {
		task executor.Task
		ask  string
		want string
	}{
		"a command":        {executor.Task{}, ask("execute", all), "a"},
		"always alone":     {executor.Task{}, ask("execute", `[{"optionId":"A","kind":"allow_always"}]`), "A"},
		"the web":          {executor.Task{}, ask("fetch", all), "r"},
		"the web, allowed": {executor.Task{Web: true}, ask("fetch", all), "a"},
		"the web, by id":   {executor.Task{}, `{"id":"q","method":"session/request_permission","params":{"toolCall":{"toolCallId":"2"},"options":` + all + `}}`, "r"},
		"nothing":          {executor.Task{Args: deny}, ask("execute", all), "r"},
		"no such option":   {executor.Task{Args: deny}, ask("execute", `[{"optionId":"a","kind":"allow_once"}]`), "cancelled"},
		"no options":       {executor.Task{}, ask("execute", `7`), "cancelled"},
	} {
		test.task.Prompt = "x"
		// The request omits fields that an earlier update contained.
		said, _ := conversation(t, test.task, hello, begun, update(`"tool_call","toolCallId":"2","title":"y","kind":"fetch","status":"pending"`), test.ask)
		last := said[len(said)-1]
		outcome, _ := last["result"].(map[string]any)["outcome"].(map[string]any)
		got := outcome["optionId"]
		if got == nil {
			got = outcome["outcome"]
		}
		if last["id"] != "q" || got != test.want {
			t.Errorf("%s: %v, want %s", name, last, test.want)
		}
	}
}

// TestACPRequests verifies that requests for the client's files and terminals are refused.
func TestACPRequests(t *testing.T) {
	for _, method := range []string{"fs/read_text_file", "fs/write_text_file", "terminal/create", "_x/y", "elicitation/create"} {
		said, _ := conversation(t, executor.Task{Prompt: "x"}, hello, begun, `{"id":7,"method":"`+method+`","params":{"path":"/etc/passwd","options":3}}`)
		last := said[len(said)-1]
		if e, _ := last["error"].(map[string]any); last["id"] != 7.0 || e == nil || e["code"] != -32601.0 {
			t.Errorf("%s: %v", method, last)
		}
	}
	said, _ := conversation(t, executor.Task{Prompt: "x"}, hello)
	if c := fmt.Sprint(said[0]["params"]); !strings.Contains(c, "readTextFile:false") || !strings.Contains(c, "terminal:false") {
		t.Error(c)
	}
}

// TestACPSessions verifies that a session is started with only our MCP server, or resumed with a method that the agent
// supports. Updates of earlier tasks are ignored.
func TestACPSessions(t *testing.T) {
	resumes := `{"id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"resume":{}}}}}`
	for name, test := range map[string]struct {
		hello, id, method string
		want              executor.Outcome
	}{
		"new":           {hello, "", "session/new", ""},
		"load":          {hello, "s0", "session/load", ""},
		"resume":        {resumes, "s0", "session/resume", ""},
		"cannot":        {`{"id":1,"result":{"protocolVersion":1}}`, "s0", "", executor.Crashed},
		"other version": {`{"id":1,"result":{"protocolVersion":2}}`, "", "", executor.Crashed},
		"no version":    {`{"id":1,"result":7}`, "", "", executor.Crashed},
		"refused":       {`{"id":1,"error":{"code":-32603,"message":"no"}}`, "", "", executor.Crashed},
		"needs a login": {`{"id":1,"error":{"code":-32000,"message":"log in"}}`, "", "", executor.AuthError},
	} {
		said, events := conversation(t, executor.Task{Prompt: "x", ResumeID: test.id}, test.hello, update(`"agent_message_chunk","content":{"type":"text","text":"earlier"}`))
		last, end := said[len(said)-1], events[0].End
		if test.method != "" && (last["method"] != test.method || !strings.Contains(fmt.Sprint(last["params"]), "workcell-guest")) {
			t.Errorf("%s: %v", name, last)
		}
		if test.want != "" && (end == nil || end.Outcome != test.want || (drivers.ACP{}).Outcome(executor.Seen{End: end}, sandbox.ExecStatus{}) != test.want) {
			t.Errorf("%s: %+v", name, events)
		}
		for _, e := range events {
			if e.Kind == executor.KindText {
				t.Errorf("%s: it tells %q", name, e.Text)
			}
		}
	}
}

// TestACPEnds verifies the outcome for each way in which an agent stops, and that open tool calls fail.
func TestACPEnds(t *testing.T) {
	for answer, want := range map[string]executor.Outcome{
		`"result":{"stopReason":"end_turn"}`:          executor.Completed,
		`"result":{"stopReason":"refusal"}`:           executor.Refused,
		`"result":{"stopReason":"max_turn_requests"}`: executor.MaxTurns,
		`"result":{"stopReason":"max_tokens"}`:        executor.ModelError,
		`"result":{"stopReason":"cancelled"}`:         executor.ModelError,
		`"result":[]`:                                 executor.ModelError,
		`"error":{"code":-32603,"message":"Internal error","data":{"details":"401 Unauthorized"}}`:     executor.AuthError,
		`"error":{"code":-32603,"message":"Internal error","data":{"details":"overloaded, for 4032"}}`: executor.ModelError,
	} {
		_, events := conversation(t, executor.Task{Prompt: "x"}, hello, begun,
			update(`"tool_call","toolCallId":"1","title":"x","status":"pending"`),
			`{"id":3,`+answer+`}`, update(`"agent_message_chunk","content":{"type":"text","text":"late"}`))
		var ends int
		for _, e := range events {
			if e.Kind == executor.KindEnd {
				ends++
				if e.End.Outcome != want {
					t.Errorf("%s: %s", answer, e.End.Outcome)
				}
			}
			if e.Kind == executor.KindText {
				t.Errorf("%s: it says %q behind its end", answer, e.Text)
			}
		}
		if ends != 1 {
			t.Errorf("%s: %d ends", answer, ends)
		}
	}
}

// TestACPVersions verifies that the error names an unknown version, whatever form it has.
func TestACPVersions(t *testing.T) {
	for version, want := range map[string]string{
		"2": "speaks version 2 of the Agent Client Protocol, Workcell speaks 1", `"2026-11-01"`: `speaks version "2026-11-01" of`,
		"null": "speaks version null of", "": "has no protocolVersion",
	} {
		field := `"protocolVersion":` + version
		if version == "" {
			field = `"agentInfo":{}`
		}
		said, events := conversation(t, executor.Task{Prompt: "x"}, `{"id":1,"result":{`+field+`}}`)
		if len(said) != 1 || len(events) != 1 || events[0].End == nil || !strings.Contains(events[0].End.Detail, want) {
			t.Errorf("%s: %v, %+v, want %q", version, said, events, want)
		}
	}
}

// full is a writer that takes nothing more.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("full") }

// TestACPUnheard verifies that an agent that reads no messages has crashed.
func TestACPUnheard(t *testing.T) {
	inv, err := acpDriver().Prepare(executor.Task{Prompt: "x"}, drivertest.Inside())
	checktest.Must(t, err)
	events := inv.Talk(full{}).Line([]byte(hello))
	if len(events) != 1 || events[0].End == nil || events[0].End.Outcome != executor.Crashed || events[0].End.Detail != "full" {
		t.Errorf("%+v", events)
	}
}
