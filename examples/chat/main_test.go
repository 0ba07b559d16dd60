package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// serving makes this test binary the program.
const serving = "WORKCELL_TEST_CHAT"

func TestMain(m *testing.M) {
	if os.Getenv(serving) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// provider is a server that speaks OpenAI's wire format. Its model runs the command that a user's message is, and answers with
// what the command returned.
func provider(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Messages []struct {
				Role    string
				Content any
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Messages) == 0 {
			t.Errorf("request: %v", err)
			return
		}
		last := req.Messages[len(req.Messages)-1]
		content, _ := json.Marshal(last.Content)
		message := map[string]any{"role": "assistant", "content": string(content)}
		if last.Role == "user" {
			var parts []struct{ Text string }
			command, isText := last.Content.(string)
			if !isText && json.Unmarshal(content, &parts) == nil && len(parts) > 0 {
				command = parts[0].Text
			}
			args, _ := json.Marshal(map[string]any{"command": command})
			message = map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
				"id": "call_1", "index": 0, "type": "function", "function": map[string]any{"name": "sandbox_exec", "arguments": string(args)},
			}}}
		}
		// Genkit streams what an agent answers.
		w.Header().Set("Content-Type", "text/event-stream")
		for _, choice := range []map[string]any{{"index": 0, "delta": message}, {"index": 0, "delta": map[string]any{}, "finish_reason": "stop"}} {
			chunk, _ := json.Marshal(map[string]any{"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": []any{choice}})
			fmt.Fprintf(w, "data: %s\n\n", chunk)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1/"
}

// start starts the program and returns it with its address.
func start(t *testing.T, state, model string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-addr", "127.0.0.1:0", "-state", state, "-backend", "local", "-model", "openai/m")
	cmd.Env = append(os.Environ(), serving+"=1", "OPENAI_API_KEY=key", "OPENAI_BASE_URL="+model)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // when the test did not end it
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(strings.TrimPrefix(line, "serving "))
}

// say sends a turn and returns the answer; without the id of a conversation it begins one.
func say(t *testing.T, url, text, id string) (answer, conversation string) {
	t.Helper()
	turn := map[string]any{"data": map[string]any{"message": map[string]any{"role": "user", "content": []any{map[string]any{"text": text}}}}}
	if id != "" {
		turn["init"] = map[string]any{"sessionId": id}
	}
	body, err := json.Marshal(turn)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url, "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out struct {
		Result struct {
			SessionID    string
			FinishReason string
			Error        any
			Message      struct{ Content []struct{ Text string } }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || resp.StatusCode != http.StatusOK || out.Result.FinishReason != "stop" {
		t.Fatalf("status %d, %+v, %v", resp.StatusCode, out, err)
	}
	for _, part := range out.Result.Message.Content {
		answer += part.Text
	}
	return answer, out.Result.SessionID
}

// TestChat: a conversation finds the file of its first turn in the second, when the program was ended in between, and when it
// was killed; another conversation does not.
func TestChat(t *testing.T) {
	state, model := filepath.Join(t.TempDir(), "state"), provider(t)
	t.Cleanup(func() { removeAll(t, state) })
	cmd, url := start(t, state, model)
	_, id := say(t, url, "echo kept for later > note", "")
	finds := func(when string) {
		t.Helper()
		if answer, _ := say(t, url, "cat note", id); !strings.Contains(answer, "kept for later") {
			t.Errorf("%s: %s", when, answer)
		}
	}
	finds("in the second turn")
	if answer, other := say(t, url, "cat note", ""); strings.Contains(answer, "kept for later") || other == id {
		t.Errorf("another conversation: %s", answer)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the end of the program: %v", err)
	}
	cmd, url = start(t, state, model)
	finds("after the program was ended")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	_, url = start(t, state, model)
	finds("after the program was killed")
}

// removeAll removes the sandboxes of the test, whose program has ended.
func removeAll(t *testing.T, state string) {
	t.Helper()
	ctx := context.Background()
	m, end, err := openManager(ctx, state, "local")
	if err != nil {
		t.Error(err)
		return
	}
	list, err := m.List(ctx)
	if err != nil || len(list) != 2 {
		t.Errorf("%d sandboxes, %v", len(list), err)
	}
	for _, s := range list {
		if err := m.Remove(ctx, s.ID, true); err != nil {
			t.Error(fmt.Errorf("%s: %w", s.ID, err))
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
