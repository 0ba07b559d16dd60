package mcpserver_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/png"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestImageContent verifies that reading an image returns image content after the JSON. It also verifies that the
// policy applies to edits.
func TestImageContent(t *testing.T) {
	t.Parallel()
	policy := mcpserver.DefaultPolicy()
	policy.Files.Refuse = []string{"*.lock"}
	policy.Limits.FileMB = 1
	cs := connect(t, newServer(t, newManager(t), &mcpserver.Options{Policy: &policy}), nil)
	var b bytes.Buffer
	checktest.Must(t, png.Encode(&b, image.NewGray(image.Rect(0, 0, 200, 100))))
	must(t, cs, "sandbox_fs_write", map[string]any{"path": "p", "contents_b64": base64.StdEncoding.EncodeToString(b.Bytes())})
	r := must(t, cs, "sandbox_fs_read", map[string]any{"path": "p"})
	if len(r.Content) != 2 || r.fields["width"] != 200.0 || r.fields["contents_b64"] != nil {
		t.Fatalf("%d contents: %v", len(r.Content), r.fields)
	}
	if img, ok := r.Content[1].(*mcp.ImageContent); !ok || img.MIMEType != "image/png" || !bytes.Equal(img.Data, b.Bytes()) {
		t.Errorf("%+v", r.Content[1])
	}
	if r := must(t, cs, "sandbox_exec", map[string]any{"command": "cat p"}); len(r.Content) != 1 {
		t.Errorf("output of a command is %d contents", len(r.Content))
	}
	edit := map[string]any{"path": "go.lock", "old_string": "one\n", "new_string": "1\n"}
	if code, _ := do(t, cs, "sandbox_fs_edit", edit).failure(); code != "permission_denied" {
		t.Errorf("a refused file: %s", code)
	}
	must(t, cs, "sandbox_exec", map[string]any{"command": "head -c 1048570 /dev/zero | tr '\\0' x >big; echo one >>big"})
	edit = map[string]any{"path": "big", "old_string": "one", "new_string": "one and more than the policy allows"}
	if code, message := do(t, cs, "sandbox_fs_edit", edit).failure(); code != "too_large" {
		t.Errorf("a file that gets too large: %s %s", code, message)
	}
}

// TestResourcePages verifies that a long list of resources has pages.
func TestResourcePages(t *testing.T) {
	t.Parallel()
	cs := connect(t, newServer(t, newMemoryManager(t), nil), nil)
	for i := range 1002 {
		must(t, cs, "sandbox_fs_write", map[string]any{"path": fmt.Sprintf("d/%d", i), "contents": ""})
	}
	names, pages, params := map[string]bool{}, "", &mcp.ListResourcesParams{}
	for {
		list, err := cs.ListResources(t.Context(), params)
		checktest.Must(t, err)
		for _, r := range list.Resources {
			names[r.Name] = true
		}
		pages += fmt.Sprintf(" %d", len(list.Resources))
		if params.Cursor = list.NextCursor; params.Cursor == "" {
			break
		}
	}
	if len(names) != 1002 || pages != " 1000 2" {
		t.Errorf("%d files, pages%s", len(names), pages)
	}
	for _, cursor := range []string{"x", "-1"} {
		var refused *jsonrpc.Error
		_, err := cs.ListResources(t.Context(), &mcp.ListResourcesParams{Cursor: cursor})
		if !errors.As(err, &refused) || refused.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
}
