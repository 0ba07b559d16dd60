package mcp_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/buffertest"
)

// patience is the maximum wait on a loaded host.
const patience = 3 * time.Minute

// peer is a raw client on the standard streams of the real command.
type peer struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	exited chan error
	stderr buffertest.Buffer
	state  string

	nextID int
	notes  []message          // notifications received before an answer
	early  map[string]message // answers received before they were awaited
}

// message is a received JSON-RPC message.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

// command returns the real command with a new state directory, to allow telling its sandboxes from others.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, state string) {
	t.Helper()
	state = t.TempDir()
	policy := filepath.Join(t.TempDir(), "guard.yaml")
	must(t, os.WriteFile(policy, []byte("limits: {workspace_mb: 128}\n"), 0o600))
	args = append([]string{"mcp", "--state-dir", state, "--policy", policy, pythonMap}, args...)
	cmd = exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "OTEL_SDK_DISABLED=true", "WORKCELL_BACKEND=docker")
	return cmd, state
}

// startPeer starts the command on stdio. At the end of the test, it checks for leftover processes and sandboxes.
func startPeer(t *testing.T, args ...string) *peer {
	t.Helper()
	return startPeerEnv(t, nil, args...)
}

// startPeerEnv is like startPeer, with additional environment variables.
func startPeerEnv(t *testing.T, env []string, args ...string) *peer {
	t.Helper()
	cmd, state := command(t, args...)
	cmd.Env = append(cmd.Env, env...)
	p := &peer{t: t, early: map[string]message{}, cmd: cmd, state: state, lines: make(chan string, 1000), exited: make(chan error, 1)}
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = &p.stderr
	must(t, cmd.Start())
	go func() {
		r := bufio.NewReader(out)
		for err := error(nil); err == nil; {
			var line string
			if line, err = r.ReadString('\n'); line != "" {
				p.lines <- line
			}
		}
		close(p.lines)
		p.exited <- cmd.Wait()
	}()
	t.Cleanup(func() {
		p.in.Close() // it may already be closed
		p.wait()
		if left := containers(t, instance(t, state)); left != "" {
			t.Errorf("sandboxes are left: %s", left)
		}
		for id, m := range p.early {
			t.Errorf("an unexpected answer to %s: %.300s %v", id, m.Result, m.Error)
		}
		if t.Failed() {
			t.Logf("standard error:\n%s", p.stderr.String())
		}
	})
	return p
}

// wait waits for the exit and returns the exit code. It may be called several times.
func (p *peer) wait() int {
	p.t.Helper()
	select {
	case err := <-p.exited:
		p.exited <- err
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		_ = p.cmd.Process.Kill() // it may have just exited
		p.t.Fatalf("the server does not end; standard error:\n%s", p.stderr.String())
		return -1
	}
}

func (p *peer) sendRaw(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatalf("sending: %v; standard error:\n%s", err, p.stderr.String())
	}
}

// next returns the next message. All output must be messages.
func (p *peer) next() message {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatalf("the server hung up; standard error:\n%s", p.stderr.String())
		}
		return p.decode(line)
	case <-time.After(patience):
		p.t.Fatalf("no answer; standard error:\n%s", p.stderr.String())
	}
	return message{}
}

func (p *peer) decode(line string) message {
	p.t.Helper()
	var m message
	dec := json.NewDecoder(strings.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil || m.JSONRPC != "2.0" {
		p.t.Fatalf("not a JSON-RPC message on standard output: %.300q (%v)", line, err)
	}
	return m
}

// request sends a request and returns the id.
func (p *peer) request(method string, params any) string {
	p.t.Helper()
	p.nextID++
	id := fmt.Sprint(1000 + p.nextID)
	p.send(map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(id), "method": method, "params": params})
	return id
}

func (p *peer) notify(method string, params any) {
	p.t.Helper()
	p.send(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
}

func (p *peer) send(message map[string]any) {
	p.t.Helper()
	raw, err := json.Marshal(message)
	must(p.t, err)
	p.sendRaw(string(raw))
}

// answer waits for the answer to a request. It stores earlier notifications and answers to other requests. The test
// must wait for all of these answers before the end.
func (p *peer) answer(id string) message {
	p.t.Helper()
	if m, ok := p.early[id]; ok {
		delete(p.early, id)
		return m
	}
	for {
		m := p.next()
		if m.Method != "" {
			p.notes = append(p.notes, m)
			continue
		}
		if string(m.ID) == id {
			return m
		}
		if _, twice := p.early[string(m.ID)]; twice || string(m.ID) == "null" {
			p.t.Fatalf("answer to %s, want %s: %s %v", m.ID, id, m.Result, m.Error)
		}
		p.early[string(m.ID)] = m
	}
}

func (p *peer) call(method string, params any) message {
	p.t.Helper()
	return p.answer(p.request(method, params))
}

// initialize does the handshake of clients up to 2025-11-25.
func (p *peer) initialize() {
	p.t.Helper()
	m := p.call("initialize", map[string]any{
		"protocolVersion": "2025-11-25", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "peer", "version": "1"},
	})
	if m.Error != nil {
		p.t.Fatalf("initialize: %v", m.Error)
	}
	p.notify("notifications/initialized", map[string]any{})
}

// toolResult is the result of a tool call.
type toolResult struct {
	IsError    bool                       `json:"isError"`
	Structured map[string]json.RawMessage `json:"structuredContent"`
	Content    []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"content"`
}

func (r toolResult) text(t *testing.T, field string) string {
	t.Helper()
	var s string
	if raw, ok := r.Structured[field]; ok {
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatalf("%s = %s: %v", field, raw, err)
		}
	}
	return s
}

func (r toolResult) errorCode() string {
	var e struct{ Code string }
	if raw, ok := r.Structured["error"]; ok && json.Unmarshal(raw, &e) != nil {
		return "unreadable"
	}
	return e.Code
}

func decodeResult(t *testing.T, m message) toolResult {
	t.Helper()
	if m.Error != nil {
		t.Fatalf("the call failed: %d %s", m.Error.Code, m.Error.Message)
	}
	var r toolResult
	must(t, json.Unmarshal(m.Result, &r))
	return r
}

// tool calls a tool, which must return a result, possibly with an error.
func (p *peer) tool(name string, args map[string]any) toolResult {
	p.t.Helper()
	return decodeResult(p.t, p.call("tools/call", map[string]any{"name": name, "arguments": args}))
}

// outcome waits for the answer to a tool call. If the call is pending, it waits for the result.
func (p *peer) outcome(id string) toolResult {
	p.t.Helper()
	r := decodeResult(p.t, p.answer(id))
	for task := r.taskID(p.t); task != ""; task = r.taskID(p.t) {
		r = p.tool("task_result", map[string]any{"task_id": task})
	}
	return r
}

// taskID returns the id of a pending call, or an empty string.
func (r toolResult) taskID(t *testing.T) string {
	t.Helper()
	var pending struct {
		TaskID string `json:"task_id"`
	}
	if raw, ok := r.Structured["pending"]; ok {
		must(t, json.Unmarshal(raw, &pending))
	}
	return pending.TaskID
}

// must calls a tool, which must succeed.
func (p *peer) must(name string, args map[string]any) toolResult {
	p.t.Helper()
	r := p.tool(name, args)
	if r.IsError {
		p.t.Fatalf("%s: %s", name, r.Structured["error"])
	}
	return r
}

// alive verifies that the connection is usable.
func (p *peer) alive() {
	p.t.Helper()
	if m := p.call("ping", map[string]any{}); m.Error != nil {
		p.t.Fatalf("ping: %v", m.Error)
	}
}

// instance returns the id of a state directory's sandboxes.
func instance(t *testing.T, state string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(state, "instance"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// containers lists the containers of an instance's sandboxes. 30 s after their server has exited, none may be left.
func containers(t *testing.T, instance string) (left string) {
	t.Helper()
	if instance == "" {
		return ""
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		if left = listContainers(t, instance); left == "" || time.Now().After(deadline) {
			return left
		}
	}
}

func listContainers(t *testing.T, instance string) string {
	t.Helper()
	out, err := exec.Command("docker", "ps", "--all", "--quiet", "--filter", "label=dev.workcell.instance="+instance).Output()
	if err != nil {
		t.Fatalf("docker ps: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// cli runs another command with the same state.
func cli(t *testing.T, state string, args ...string) string {
	t.Helper()
	out, err := exec.Command(binary, append(args, "--state-dir", state)...).CombinedOutput()
	if err != nil {
		t.Fatalf("workcell %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
