package drivers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/executor"
)

// acpVersion is the version of the protocol. An agent answers with the same version, or with the newest known version.
const acpVersion = "1"

// Requests to the agent, in order. The number of each request is the message id.
const (
	askInitialize = iota + 1
	askSession
	askPrompt
)

// acpMaxTools is the maximum number of tracked tool calls.
const acpMaxTools = 1000

// acpParser reads the messages of an agent, responds to requests, and sends the next request.
type acpParser struct {
	out             io.Writer
	prompt, workdir string
	resume          string // session to resume
	mcp             []string
	meta            map[string]any // for the session
	web, deny       bool

	asked   int    // request without a response so far
	session string // empty until the session exists
	began   bool   // the latest text may continue
	ended   bool
	lost    error // write error of out
	tools   map[string]*acpTool
}

// begin sends the initialize request.
func (p *acpParser) begin() {
	p.tools = map[string]*acpTool{}
	p.ask(askInitialize, "initialize", object{
		"protocolVersion":    json.Number(acpVersion),
		"clientInfo":         object{"name": "workcell", "version": "1"},
		"clientCapabilities": object{"fs": object{"readTextFile": false, "writeTextFile": false}, "terminal": false},
	})
}

func (p *acpParser) ask(id int, method string, params object) {
	p.asked = id
	p.send(acpMessage{ID: fmt.Append(nil, id), Method: method, Params: params})
}

func (p *acpParser) send(m acpMessage) {
	m.Version = "2.0"
	b, err := json.Marshal(m)
	if err == nil {
		_, err = p.out.Write(append(b, '\n'))
	}
	p.lost = cmp.Or(p.lost, err)
}

// Line implements executor.Parser.
func (p *acpParser) Line(b []byte) []executor.Event {
	var l acpLine
	if json.Unmarshal(b, &l) != nil {
		return []executor.Event{executor.Raw(b)}
	}
	var events []executor.Event
	switch request := len(l.ID) > 0 && string(l.ID) != "null"; {
	case p.ended: // ignore messages after the end
	case l.Method == "session/update":
		events = p.update(l.Params)
	case l.Method != "" && request:
		events = p.serve(l)
	case l.Method == "" && string(l.ID) == fmt.Sprint(p.asked):
		events = p.answered(l)
	}
	if p.lost != nil && !p.ended {
		events = append(events, p.end(executor.Crashed, p.lost.Error()))
	}
	if events == nil {
		return []executor.Event{executor.Raw(b)}
	}
	return events
}

// serve answers a request of the agent.
func (p *acpParser) serve(l acpLine) []executor.Event {
	if l.Method != "session/request_permission" {
		fail := &acpFailure{Code: codeNoMethod, Message: "the client does not support this method"}
		p.send(acpMessage{ID: l.ID, Error: fail})
		return nil
	}
	var q acpPermission
	if json.Unmarshal(l.Params, &q) != nil {
		q = acpPermission{}
	}
	kind := q.ToolCall.Kind
	if t := p.tools[q.ToolCall.ID]; t != nil {
		t.learn(q.ToolCall)
		kind = t.kind
	}
	if p.deny || kind == "fetch" && !p.web {
		p.send(acpMessage{ID: l.ID, Result: q.choose("reject_once", "reject_always")})
		return []executor.Event{{Kind: executor.KindNotice, Text: "refused: " + cut(q.ToolCall.Title)}}
	}
	p.send(acpMessage{ID: l.ID, Result: q.choose("allow_once", "allow_always")})
	return nil
}

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), 200)], "") }

func (p *acpParser) end(o executor.Outcome, detail string) executor.Event {
	p.ended = true
	return ended(executor.End{Outcome: o, Detail: executor.CutText(detail)})
}

// answered processes the agent's response to the latest request.
func (p *acpParser) answered(l acpLine) []executor.Event {
	asked := p.asked
	p.asked = 0
	if l.Error != nil {
		return []executor.Event{p.end(l.Error.outcome(asked == askPrompt), l.Error.text())}
	}
	var err error
	switch asked {
	case askInitialize:
		err = p.open(l.Result)
	case askSession:
		if err = p.opened(l.Result); err == nil {
			return []executor.Event{{Kind: executor.KindSession, Session: p.session}}
		}
	default:
		return p.finished(l.Result)
	}
	if err != nil {
		return []executor.Event{p.end(executor.Crashed, err.Error())}
	}
	return nil
}

// open starts or resumes a session.
func (p *acpParser) open(answer json.RawMessage) error {
	var c acpCapabilities
	if err := json.Unmarshal(answer, &c); err != nil || len(c.Protocol) == 0 {
		return fmt.Errorf("its answer to initialize has no protocolVersion: %s", cut(string(answer)))
	}
	if version := string(c.Protocol); version != acpVersion {
		return fmt.Errorf("the agent speaks version %s of the Agent Client Protocol, Workcell speaks %s; "+
			"use a version of the agent that supports it", cut(version), acpVersion)
	}
	servers := []object{}
	if len(p.mcp) > 0 {
		servers = append(servers, object{"name": executor.Server, "command": p.mcp[0], "args": p.mcp[1:], "env": []object{}})
	}
	params, method := object{"cwd": p.workdir, "mcpServers": servers}, "session/new"
	if p.meta != nil {
		params["_meta"] = p.meta
	}
	if p.resume != "" {
		params["sessionId"] = p.resume
		if method = c.opener(); method == "" {
			return errors.New("it cannot resume a session")
		}
	}
	p.ask(askSession, method, params)
	return nil
}

// opened sends the prompt.
func (p *acpParser) opened(answer json.RawMessage) error {
	var a struct {
		Session string `json:"sessionId"`
	}
	if p.session = p.resume; p.session == "" {
		if err := json.Unmarshal(answer, &a); err != nil || a.Session == "" {
			return errors.New("it started a session without an ID")
		}
		p.session = a.Session
	}
	prompt := []object{{"type": "text", "text": p.prompt}}
	p.ask(askPrompt, "session/prompt", object{"sessionId": p.session, "prompt": prompt})
	return nil
}

// finished processes the response to the prompt.
func (p *acpParser) finished(answer json.RawMessage) (events []executor.Event) {
	for _, id := range slices.Sorted(maps.Keys(p.tools)) { // tools whose end was not reported
		events = append(events, p.stop(id, acpUpdate{acpToolCall: acpToolCall{Status: "failed"}})...)
	}
	var r acpResult
	if err := json.Unmarshal(answer, &r); err != nil {
		return append(events, p.end(executor.ModelError, "unknown result: "+cut(string(answer))))
	}
	if u := r.usage(); u != nil {
		events = append(events, executor.Event{Kind: executor.KindUsage, Usage: u})
	}
	switch r.Reason {
	case "end_turn":
		return append(events, p.end(executor.Completed, ""))
	case "refusal":
		return append(events, p.end(executor.Refused, ""))
	case "max_turn_requests":
		return append(events, p.end(executor.MaxTurns, ""))
	}
	return append(events, p.end(executor.ModelError, "it stopped: "+cmp.Or(cut(r.Reason), "without a reason")))
}

// update processes a session update. It ignores updates before the prompt, because they belong to an earlier task.
func (p *acpParser) update(params json.RawMessage) []executor.Event {
	var n struct{ Update acpUpdate }
	if p.asked != askPrompt || json.Unmarshal(params, &n) != nil {
		return nil
	}
	u := n.Update
	switch u.Update {
	case "agent_message_chunk":
		e := executor.Event{Kind: executor.KindText, Text: u.text(), Delta: p.began}
		p.began = true
		return []executor.Event{e}
	case "agent_thought_chunk":
		p.began = false
		return []executor.Event{{Kind: executor.KindThinking, Text: u.text(), Delta: true}}
	case "user_message_chunk":
		p.began = false
	case "tool_call", "tool_call_update":
		p.began = false
		return p.tool(u)
	}
	return nil
}

// tool processes an update of a tool call. The start event is sent when the input is known.
func (p *acpParser) tool(u acpUpdate) []executor.Event {
	t := p.tools[u.ID]
	if t == nil {
		if u.ID == "" || len(u.ID) > 200 || u.Update != "tool_call" || len(p.tools) >= acpMaxTools {
			return nil
		}
		t = &acpTool{ToolUse: executor.ToolUse{ID: u.ID}}
		p.tools[u.ID] = t
	}
	t.learn(u.acpToolCall)
	switch u.Status {
	case "completed", "failed":
		return p.stop(u.ID, u)
	case "in_progress":
		return t.start()
	}
	return nil
}

// start returns the start event of a call, once.
func (t *acpTool) start() []executor.Event {
	if t.started {
		return nil
	}
	t.started = true
	return []executor.Event{{Kind: executor.KindToolStart, Tool: new(t.ToolUse)}}
}

// stop returns the end event of a call.
func (p *acpParser) stop(id string, u acpUpdate) []executor.Event {
	t := p.tools[id]
	delete(p.tools, id)
	return append(t.start(), toolEnd(id, u.output(), u.Status == "failed"))
}
