package mcpserver_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestDefinitions verifies that MCP clients see the same tool definitions as Genkit's models, word for word. Each input
// must have a description.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	cs := connect(t, newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m)}), nil)
	list, err := cs.ListTools(t.Context(), nil)
	checktest.Must(t, err)
	golden, err := filepath.Glob(filepath.Join("..", "tools", "testdata", "schema", "*.json"))
	if err != nil || len(golden) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range slices.Clone(golden) {
		raw, err := os.ReadFile(file)
		checktest.Must(t, err)
		var want struct {
			Name, Description         string
			InputSchema, OutputSchema map[string]any
		}
		checktest.Must(t, json.Unmarshal(raw, &want))
		if want.Name == "sandbox_snapshot" || want.Name == "sandbox_rollback" {
			// Only agents whose file enables snapshots have it.
			golden = slices.DeleteFunc(golden, func(name string) bool { return name == file })
			continue
		}
		if want.Name == "sandbox_exec" || want.Name == "sandbox_run" { // the policy lowers the maximum
			timeout, _ := want.InputSchema["properties"].(map[string]any)["timeout_seconds"].(map[string]any)
			timeout["maximum"] = float64(300)
		}
		if want.Name == "sandbox_fs_read" { // clients truncate longer results
			size, _ := want.InputSchema["properties"].(map[string]any)["max_bytes"].(map[string]any)
			size["default"] = float64(10_000)
		}
		i := slices.IndexFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == want.Name })
		if i < 0 {
			t.Errorf("%s is missing", want.Name)
			continue
		}
		got := list.Tools[i]
		if diff := cmp.Diff(want.Description, got.Description); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Name, diff)
		}
		if diff := cmp.Diff(any(want.InputSchema), got.InputSchema); diff != "" {
			t.Errorf("%s input (-want +got):\n%s", want.Name, diff)
		}
		properties, _ := want.OutputSchema["properties"].(map[string]any)
		gotSchema, _ := got.OutputSchema.(map[string]any)
		gotProperties, _ := gotSchema["properties"].(map[string]any)
		properties["pending"] = gotProperties["pending"] // any call may be pending
		if diff := cmp.Diff(any(want.OutputSchema), got.OutputSchema); diff != "" {
			t.Errorf("%s output (-want +got):\n%s", want.Name, diff)
		}
	}
	for _, tool := range list.Tools {
		if tool.Annotations == nil || tool.Annotations.Title == "" || tool.Annotations.DestructiveHint == nil || tool.Annotations.OpenWorldHint == nil {
			t.Errorf("%s: annotations %+v", tool.Name, tool.Annotations)
		}
		readOnly := slices.Contains([]string{
			"sandbox_fs_read", "sandbox_fs_list", "sandbox_exec_read", "sandbox_exec_wait",
			"get_files", "session_status", "task_status", "task_result",
		}, tool.Name)
		if tool.Annotations.ReadOnlyHint != readOnly {
			t.Errorf("%s: readOnlyHint is %v", tool.Name, tool.Annotations.ReadOnlyHint)
		}
		schema, _ := tool.InputSchema.(map[string]any)
		properties, _ := schema["properties"].(map[string]any)
		for name, property := range properties {
			if p, _ := property.(map[string]any); p["description"] == nil || p["description"] == "" {
				t.Errorf("%s.%s has no description", tool.Name, name)
			}
		}
	}
	if want := len(golden) + 7; len(list.Tools) != want {
		t.Errorf("%d tools, want %d", len(list.Tools), want)
	}
}

// TestTools uses every tool on a real sandbox over stdio. It checks each result against the tool's output schema.
func TestTools(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	cs := connectPipes(t, newServer(t, m, &mcpserver.Options{Tasks: shellTasks, RunTask: runShellTask(m)}), nil)
	schemas := outputSchemas(t, cs)
	used := map[string]bool{"task_result": true, "task_cancel": true} // covered by TestPendingCalls
	check := func(name string, args map[string]any) result {
		t.Helper()
		used[name] = true
		r := must(t, cs, name, args)
		checkResult(t, name, schemas[name], r)
		return r
	}
	if r := check("sandbox_run", map[string]any{"code": "import sys; print(sys.argv[1])", "args": []string{"<&>"}}); r.text("stdout") != "<&>\n" {
		t.Errorf("stdout = %q", r.text("stdout"))
	}
	opened := check("sandbox_open", nil)
	if again := check("sandbox_open", nil); again.text("sandbox_id") != opened.text("sandbox_id") || again.fields["created"] != false {
		t.Errorf("opened again: %v", again.fields)
	}
	check("sandbox_fs_write", map[string]any{"path": "d/a b.txt", "contents": "one\ntwo\n"})
	if r := check("sandbox_fs_read", map[string]any{"path": "d/a b.txt", "line_offset": 2}); r.text("contents") != "two\n" {
		t.Errorf("contents = %q", r.text("contents"))
	}
	check("sandbox_fs_edit", map[string]any{"path": "d/a b.txt", "old_string": "two", "new_string": "2"})
	check("sandbox_fs_list", map[string]any{"recursive": true})
	if r := check("sandbox_exec", map[string]any{"cmd": []string{"sh", "-c", "exit 3"}}); r.fields["exit_code"] != 3.0 || r.IsError {
		t.Errorf("a non-zero exit: %v", r.fields)
	}
	running := check("sandbox_exec", map[string]any{"cmd": []string{"cat"}, "stream": true}).text("exec_id")
	check("sandbox_exec_write", map[string]any{"exec_id": running, "text": "hello\n", "eof": true})
	check("sandbox_exec_wait", map[string]any{"exec_id": running})
	if r := check("sandbox_exec_read", map[string]any{"exec_id": running}); r.fields["done"] != true {
		t.Errorf("read: %v", r.fields)
	}
	check("sandbox_exec_kill", map[string]any{"exec_id": running})
	check("session_status", nil)
	check("task_status", nil)
	check("get_files", nil)
	check("get_files", map[string]any{"format": "zip"})
	check("sandbox_fs_delete", map[string]any{"path": "d", "recursive": true})
	check("sandbox_close", map[string]any{"delete_workspace": true})
	if r := check("execute_task", map[string]any{"task": "shell", "input": "echo hi", "session_id": "work"}); r.text("text") != "hi\n" {
		t.Errorf("text = %q", r.text("text"))
	}
	check("cleanup_session", map[string]any{"session_id": "work"})
	for name := range schemas {
		if !used[name] {
			t.Errorf("%s was not called", name)
		}
	}
}

// checkResult checks a result against its tool's output schema, and its text against its structured content.
func checkResult(t *testing.T, name string, schema *jsonschema.Resolved, r result) {
	t.Helper()
	if err := schema.Validate(r.StructuredContent); err != nil {
		t.Errorf("%s: %v: %v", name, err, r.StructuredContent)
	}
	text, ok := r.Content[0].(*mcp.TextContent)
	var fromText any
	if !ok || len(r.Content) != 1 || json.Unmarshal([]byte(text.Text), &fromText) != nil {
		t.Fatalf("%s: content %v", name, r.Content)
	}
	if diff := cmp.Diff(r.StructuredContent, fromText); diff != "" {
		t.Errorf("%s: text and structure differ:\n%s", name, diff)
	}
}

func outputSchemas(t *testing.T, cs *mcp.ClientSession) map[string]*jsonschema.Resolved {
	t.Helper()
	list, err := cs.ListTools(t.Context(), nil)
	checktest.Must(t, err)
	out := map[string]*jsonschema.Resolved{}
	for _, tool := range list.Tools {
		raw, err := json.Marshal(tool.OutputSchema)
		checktest.Must(t, err)
		var schema jsonschema.Schema
		checktest.Must(t, json.Unmarshal(raw, &schema))
		out[tool.Name], err = schema.Resolve(nil)
		checktest.Must(t, err)
	}
	return out
}

// TestFailures verifies that errors that a model can fix are results with isError, with a code that the schema lists.
func TestFailures(t *testing.T) {
	t.Parallel()
	cs := connect(t, newServer(t, newManager(t), nil), nil)
	schemas := outputSchemas(t, cs)
	for _, tc := range []struct {
		tool string
		args map[string]any
		code toolspec.Code
	}{
		{"sandbox_fs_read", map[string]any{"path": "none"}, toolspec.CodeNotFound},
		{"sandbox_fs_read", map[string]any{"path": "../../etc/passwd"}, ""},
		{"sandbox_exec", map[string]any{"sandbox_id": "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa", "command": "true"}, toolspec.CodeNotFound},
		{"sandbox_exec", map[string]any{"cmd": []string{"no-such-program"}}, toolspec.CodeNotFound},
		{"sandbox_exec", map[string]any{"command": "x", "timeout_seconds": 301}, toolspec.CodePermission},
		{"sandbox_fs_write", map[string]any{"path": "big", "contents": strings.Repeat("x", 10<<20+1)}, toolspec.CodeTooLarge},
		{"get_files", map[string]any{"session_id": "none"}, toolspec.CodeNotFound},
		{"get_files", map[string]any{"paths": []string{"../../etc/passwd"}}, ""},
		{"cleanup_session", map[string]any{"session_id": "none"}, toolspec.CodeNotFound},
	} {
		r := do(t, cs, tc.tool, tc.args)
		code, message := r.failure()
		if !r.IsError || !slices.Contains(toolspec.Codes(), toolspec.Code(code)) || tc.code != "" && code != string(tc.code) {
			t.Errorf("%s %.60v: %s %s, want %s", tc.tool, tc.args, code, message, tc.code)
		}
		if err := schemas[tc.tool].Validate(r.StructuredContent); err != nil {
			t.Errorf("%s: %v", tc.tool, err)
		}
	}
}

// TestProgress verifies that a client that requests progress gets notifications with increasing numbers while its
// command runs.
func TestProgress(t *testing.T) {
	t.Parallel()
	heard := make(chan *mcp.ProgressNotificationParams, 100)
	cs := connect(t, newServer(t, newManager(t), nil), &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { heard <- req.Params },
	})
	must(t, cs, "sandbox_open", nil)
	params := &mcp.CallToolParams{Name: "sandbox_exec", Arguments: map[string]any{
		"command": "until [ -e go ]; do sleep 0.05; done", "yield_ms": 250_000,
	}}
	params.SetProgressToken("token")
	done := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(t.Context(), params)
		done <- err
	}()
	last := 0.0
	for range 3 {
		p := <-heard
		if p.ProgressToken != "token" || p.Progress <= last || !strings.Contains(p.Message, "sandbox_exec has been running") {
			t.Errorf("progress %+v after %v", p, last)
		}
		last = p.Progress
	}
	must(t, cs, "sandbox_fs_write", map[string]any{"path": "go", "contents": ""})
	checktest.Must(t, <-done)
}

// TestResources verifies that the files of a sandbox can be listed and read as resources.
func TestResources(t *testing.T) {
	t.Parallel()
	cs := connect(t, newServer(t, newManager(t), nil), nil)
	if list, err := cs.ListResources(t.Context(), nil); err != nil || len(list.Resources) != 0 {
		t.Fatalf("before anything is open: %v %v", list, err)
	}
	sandbox := must(t, cs, "sandbox_open", nil).text("sandbox_id")
	must(t, cs, "sandbox_fs_write", map[string]any{"path": "d/ä %2f?#.txt", "contents": "text"})
	must(t, cs, "sandbox_fs_write", map[string]any{"path": "bytes.bin", "contents_b64": "AAH/"})
	must(t, cs, "sandbox_exec", map[string]any{"command": "ln -s /etc/passwd link; mkfifo pipe"})
	list, err := cs.ListResources(t.Context(), nil)
	checktest.Must(t, err)
	got := map[string]string{}
	for _, r := range list.Resources {
		res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: r.URI})
		if err != nil {
			t.Fatalf("%s: %v", r.URI, err)
		}
		got[r.Name] = res.Contents[0].Text + string(res.Contents[0].Blob)
	}
	if diff := cmp.Diff(map[string]string{"d/ä %2f?#.txt": "text", "bytes.bin": "\x00\x01\xff"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	dir, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://" + sandbox + "/d"})
	if err != nil || dir.Contents[0].Text != "d/ä %2f?#.txt\n" {
		t.Errorf("directory: %v %v", dir, err)
	}
	for _, uri := range []string{
		"sandbox://" + sandbox + "/none", "sandbox://" + sandbox + "/../../etc/passwd", "sandbox://" + sandbox + "/%2e%2e/%2e%2e/etc/passwd",
		"sandbox://" + sandbox + "//etc/passwd", "sandbox://" + sandbox + "/link", "sandbox://" + sandbox + "/pipe", "sandbox:///etc/passwd",
		"sandbox://sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa/bytes.bin", "file:///etc/passwd", "sandbox://" + sandbox + "/bytes.bin?x", "sandbox://" + sandbox + "/%zz",
	} {
		if res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s was read: %+v", uri, res.Contents[0])
		}
	}
}

// TestCloseEndsCalls verifies that Close does not wait for running commands.
func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	s := newServer(t, m, nil)
	cs := connectPipes(t, s, nil)
	must(t, cs, "sandbox_open", nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: map[string]any{"command": "touch on; sleep 250", "yield_ms": 250_000}})
	}()
	checktest.Eventually(t, "the command runs", func() bool { return !do(t, cs, "sandbox_fs_read", map[string]any{"path": "on"}).IsError })
	checktest.Must(t, s.Close(t.Context()))
	<-done
	if n := sandboxes(t, m); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// TestCloseTogether verifies that Close removes the sandboxes of all clients concurrently.
func TestCloseTogether(t *testing.T) {
	t.Parallel()
	b, err := memory.New(nil)
	checktest.Must(t, err)
	s := newServer(t, newManagerOn(t, b, nil), nil)
	var all sync.WaitGroup
	for range 3 {
		must(t, connectPipes(t, s, nil), "sandbox_open", nil)
		all.Add(1)
	}
	b.Fault(func(_ context.Context, c memory.Call) error {
		if c.Op == memory.OpRemove {
			all.Done()
			all.Wait()
		}
		return nil
	})
	checktest.Must(t, s.Close(t.Context()))
	b.Fault(nil)
}

// TestClientTakesNoAnswers verifies that a client that hangs up without reading blocks nothing.
func TestClientTakesNoAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t, newManager(t), nil)
	never, out := io.Pipe()
	t.Cleanup(func() { never.Close() })
	list := `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}` + "\n"
	served := make(chan error, 1)
	go func() { served <- s.ServeStdio(context.Background(), strings.NewReader(list), out) }()
	select {
	case err := <-served:
		checktest.Must(t, err)
	case <-time.After(patience):
		t.Error("the server waits for a client that hung up")
	}
}
