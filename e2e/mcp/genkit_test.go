package mcp_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"
	genkitmcp "github.com/firebase/genkit/go/plugins/mcp"
)

// TestGenkitClient: a Genkit program can use the tools of the real command through Genkit's own MCP client, with calls
// by a model.
func TestGenkitClient(t *testing.T) {
	t.Parallel()
	cmd, state := command(t)
	client, err := genkitmcp.NewGenkitMCPClient(genkitmcp.MCPClientOptions{
		Name: "workcell", Version: "1", Stdio: &genkitmcp.StdioConfig{Command: cmd.Path, Args: cmd.Args[1:], Env: cmd.Env[len(os.Environ()):]},
	})
	must(t, err)
	t.Cleanup(func() {
		if err := client.Disconnect(); err != nil {
			t.Error(err)
		}
		if left := containers(t, instance(t, state)); left != "" {
			t.Errorf("sandboxes are left: %s", left)
		}
	})
	g := genkit.Init(t.Context())
	tools, err := client.GetActiveTools(t.Context(), g)
	must(t, err)
	var names []string
	var refs []ai.ToolRef
	for _, tool := range tools {
		def := tool.Definition()
		names = append(names, def.Name)
		refs = append(refs, tool)
		if properties, _ := def.InputSchema["properties"].(map[string]any); def.Description == "" || len(properties) == 0 {
			t.Errorf("%s: description %q, input %v", def.Name, def.Description, def.InputSchema)
		}
	}
	for _, want := range []string{"workcell_sandbox_exec", "workcell_sandbox_fs_edit", "workcell_sandbox_run", "workcell_get_files"} {
		if !slices.Contains(names, want) {
			t.Errorf("no tool %s among %v", want, names)
		}
	}
	calls := []*ai.ToolRequest{
		{Name: "workcell_sandbox_run", Input: map[string]any{"code": "print(6*7)"}},
		{Name: "workcell_sandbox_fs_write", Input: map[string]any{"path": "a.txt", "contents": "one\r\ntwo\r\n"}},
		{Name: "workcell_sandbox_fs_edit", Input: map[string]any{"path": "a.txt", "old_string": "one\ntwo", "new_string": "one\nand two"}},
		{Name: "workcell_sandbox_exec", Input: map[string]any{"command": "od -c a.txt"}},
		{Name: "workcell_sandbox_fs_write", Input: map[string]any{"path": "p.png", "contents_b64": base64.StdEncoding.EncodeToString([]byte(pixel))}},
		{Name: "workcell_sandbox_fs_read", Input: map[string]any{"path": "p.png"}},
		{Name: "workcell_sandbox_exec", Input: map[string]any{"cmdd": "x"}},
	}
	var outputs []string
	genkit.DefineModelAction(g, "test/script", &ai.ModelOptions{Supports: &ai.ModelSupports{Multiturn: true, Tools: true}},
		func(_ context.Context, req *ai.ModelRequest, _ map[string]any, _ ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			last := req.Messages[len(req.Messages)-1]
			for _, p := range last.Content {
				if p.IsToolResponse() {
					raw, err := json.Marshal(p.ToolResponse.Output)
					if err != nil {
						return nil, err
					}
					outputs = append(outputs, string(raw))
				}
			}
			message := ai.NewModelTextMessage("done")
			if n := len(outputs); n < len(calls) {
				message = ai.NewModelMessage(ai.NewToolRequestPart(calls[n]))
			}
			return &ai.ModelResponse{Request: req, Message: message, FinishReason: ai.FinishReasonStop}, nil
		})
	resp, err := genkit.Generate(t.Context(), g, ai.WithModelName("test/script"), ai.WithPrompt("go"), ai.WithTools(refs...), ai.WithMaxTurns(20))
	if err != nil || resp.Text() != "done" {
		t.Fatalf("%v: %v", resp, err)
	}
	for i, want := range []string{`42\\n`, `size_bytes`, `\"matches\":1`, `a   n   d       t   w   o  \\\\r  \\\\n`, "size_bytes", "image/png", `did you mean \\\"cmd\\\"?`} {
		if !strings.Contains(outputs[i], want) {
			t.Errorf("%s: %s, want %s in it", calls[i].Name, outputs[i], want)
		}
	}
	if data := base64.StdEncoding.EncodeToString([]byte(pixel)); !strings.Contains(outputs[5], data) {
		t.Errorf("the image: %s", outputs[5])
	}
}

// pixel is a PNG of one pixel.
const pixel = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89" +
	"\x00\x00\x00\rIDATx\x9cc\xf8\xff\xff?\x00\x05\xfe\x02\xfe\x0d\xefF\xb8\x00\x00\x00\x00IEND\xaeB`\x82"
