package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// serving makes the test binary run as the program.
const serving = "WORKCELL_TEST_CHAT"

func TestMain(m *testing.M) {
	if os.Getenv(serving) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// provider is a server with OpenAI's wire format. Its model runs the user's message as a command, and answers with the
// command's result. asked receives the commands, if it has capacity.
func provider(t *testing.T, asked chan<- string) string {
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
			select {
			case asked <- command:
			default:
			}
			args, _ := json.Marshal(map[string]any{"command": command})
			message = map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
				"id": "call_1", "index": 0, "type": "function", "function": map[string]any{"name": "sandbox_exec", "arguments": string(args)},
			}}}
		}
		// Genkit streams the agent's answers.
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
func start(t *testing.T, state, model string, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"-addr", "127.0.0.1:0", "-state", state, "-backend", "local", "-model", "openai/m"}, args...)...)
	cmd.Env = append(os.Environ(), serving+"=1", "OPENAI_API_KEY=key", "OPENAI_BASE_URL="+model)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	checktest.Must(t, err)
	t.Cleanup(func() { // if the test did not stop it
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	checktest.Must(t, err)
	return cmd, strings.TrimSpace(strings.TrimPrefix(line, "serving "))
}

// say sends a turn and returns the answer. If id is empty, it starts a conversation.
func say(t *testing.T, url, text, id string) (answer, conversation string) {
	t.Helper()
	return sayAs(t, "", url, text, id)
}

// sayAs is like say, with a token.
func sayAs(t *testing.T, token, url, text, id string) (answer, conversation string) {
	t.Helper()
	resp, err := post(t, token, url, text, id)
	checktest.Must(t, err)
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

// post sends a turn. If token is not empty, it sends the token too.
func post(t *testing.T, token, url, text, id string) (*http.Response, error) {
	t.Helper()
	turn := map[string]any{"data": map[string]any{"message": map[string]any{"role": "user", "content": []any{map[string]any{"text": text}}}}}
	if id != "" {
		turn["init"] = map[string]any{"sessionId": id}
	}
	body, err := json.Marshal(turn)
	checktest.Must(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	checktest.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return http.DefaultClient.Do(req)
}

// TestChat verifies that a conversation finds the file of its first turn in the second turn, even if the program was
// stopped or killed in between. Another conversation does not find it.
func TestChat(t *testing.T) {
	state, model := filepath.Join(t.TempDir(), "state"), provider(t, nil)
	t.Cleanup(func() { removeAll(t, state, 2) })
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
	checktest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
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

// TestUsers verifies that requests without a user's token are refused. If a user sends an id that belongs to another
// user, the answer contains neither the conversation nor its files, whether Genkit or the other user chose the id.
func TestUsers(t *testing.T) {
	dir := t.TempDir()
	state, model, tokens := filepath.Join(dir, "state"), provider(t, nil), filepath.Join(dir, "tokens")
	checktest.Must(t, os.WriteFile(tokens, []byte("secret-a ann\nsecret-b bob\n"), 0o600))
	t.Cleanup(func() { removeAll(t, state, 4) })
	_, url := start(t, state, model, "-tokens", tokens)
	for _, token := range []string{"", "secret-c", "ann"} {
		resp, err := post(t, token, url, "true", "")
		checktest.Must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("token %q: status %d", token, resp.StatusCode)
		}
	}
	_, given := sayAs(t, "secret-a", url, "echo ann was here > note", "")
	sayAs(t, "secret-a", url, "echo ann was here > note", "chosen")
	for _, id := range []string{given, "chosen"} {
		if answer, _ := sayAs(t, "secret-b", url, "cat note", id); strings.Contains(answer, "ann") {
			t.Errorf("bob finds %s", answer)
		}
		if answer, _ := sayAs(t, "secret-a", url, "cat note", id); !strings.Contains(answer, "ann was here") {
			t.Errorf("ann finds %s", answer)
		}
	}
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		if err := run(t.Context(), []string{"-addr", addr, "-state", filepath.Join(dir, "other"), "-backend", "local"}); err == nil || !strings.Contains(err.Error(), "-tokens") {
			t.Errorf("the server accepts all clients at %s: %v", addr, err)
		}
	}
}

// TestEnd verifies that after a signal, new requests are refused. A running turn is answered if it ends in time, and
// canceled otherwise. A second signal ends the program immediately. The conversation's files are kept in all cases.
func TestEnd(t *testing.T) {
	asked := make(chan string, 16)
	state, model := filepath.Join(t.TempDir(), "state"), provider(t, asked)
	t.Cleanup(func() { removeAll(t, state, 1) })
	cmd, url := start(t, state, model)
	_, id := say(t, url, "echo kept > note", "")
	// turn sends a turn, and returns when it is running.
	turn := func(url, command string) (answered chan error) {
		t.Helper()
		answered = make(chan error, 1)
		go func() {
			resp, err := post(t, "", url, command, id)
			if err == nil {
				var text []byte
				text, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err == nil && !strings.Contains(string(text), "in time") {
					err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
				}
			}
			answered <- err
		}()
		for of := range asked { // includes commands of earlier turns
			if of == command {
				break
			}
		}
		return answered
	}
	end := func(signals int) error {
		t.Helper()
		for range signals {
			checktest.Must(t, cmd.Process.Signal(syscall.SIGTERM))
			for { // until it has received the signal
				conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/agents/chat"))
				if err != nil {
					break
				}
				_ = conn.Close()
			}
		}
		return cmd.Wait()
	}
	answered := turn(url, "sleep 1; echo in time")
	if err := end(1); err != nil {
		t.Errorf("a turn that ends in time: %v", err)
	}
	if err := <-answered; err != nil {
		t.Errorf("its answer: %v", err)
	}
	cmd, url = start(t, state, model, "-grace", "100ms")
	answered = turn(url, "sleep 100")
	if err := end(1); err != nil {
		t.Errorf("a turn that takes long: %v", err)
	}
	if err := <-answered; err == nil {
		t.Error("it was answered")
	}
	cmd, url = start(t, state, model, "-grace", "10m")
	answered = turn(url, "sleep 100")
	if err := end(2); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("a second signal: %v", err)
	}
	<-answered
	_, url = start(t, state, model)
	if answer, _ := say(t, url, "cat note", id); !strings.Contains(answer, "kept") {
		t.Errorf("afterwards: %s", answer)
	}
}

// TestWebPages verifies that web pages cannot send requests through a browser on this host.
func TestWebPages(t *testing.T) {
	handler := authenticated(nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:8080", "", http.StatusOK},
		{"localhost", "http://localhost", http.StatusOK},
		{"[::1]:8080", "http://[::1]:8080", http.StatusOK},
		{"127.0.0.1:8080", "https://site.example", http.StatusForbidden},
		{"site.example:8080", "http://site.example:8080", http.StatusForbidden},
	} {
		r, w := httptest.NewRequest(http.MethodPost, "/agents/chat", nil), httptest.NewRecorder()
		r.Host = c.host
		r.Header.Set("Origin", c.origin)
		if handler.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("host %s, origin %q: status %d, want %d", c.host, c.origin, w.Code, c.want)
		}
	}
}

// TestTooLarge verifies that a request above the size limit is refused, and that its handler knows the size.
func TestTooLarge(t *testing.T) {
	server := httptest.NewServer(bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n != r.ContentLength || err != nil {
			t.Errorf("%d of %d bytes, %v", n, r.ContentLength, err)
		}
	})))
	defer server.Close()
	for size, want := range map[int]int{maxBody: http.StatusOK, maxBody + 1: http.StatusRequestEntityTooLarge} {
		body := struct{ io.Reader }{strings.NewReader(strings.Repeat("x", size))} // of unknown size
		resp, err := http.Post(server.URL, "application/json", body)
		checktest.Must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes: status %d", size, resp.StatusCode)
		}
	}
}

// removeAll removes the sandboxes of the test after its program has ended.
func removeAll(t *testing.T, state string, want int) {
	t.Helper()
	ctx := context.Background()
	m, end, err := openManager(ctx, state, "local", "")
	if err != nil {
		t.Error(err)
		return
	}
	list, err := m.List(ctx)
	if err != nil || len(list) != want {
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
