package tools_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// webp is an image of one pixel.
const webp = "UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA"

// pictures returns an image of 3 x 2 pixels in each format, in base64, by media type.
func pictures(t *testing.T) map[string]string {
	t.Helper()
	img := image.NewPaletted(image.Rect(0, 0, 3, 2), color.Palette{color.Black, color.White})
	out := map[string]string{"image/webp": webp}
	for media, encode := range map[string]func(*bytes.Buffer) error{
		"image/png":  func(b *bytes.Buffer) error { return png.Encode(b, img) },
		"image/jpeg": func(b *bytes.Buffer) error { return jpeg.Encode(b, img, nil) },
		"image/gif":  func(b *bytes.Buffer) error { return gif.Encode(b, img, nil) },
	} {
		var b bytes.Buffer
		checktest.Must(t, encode(&b))
		out[media] = base64.StdEncoding.EncodeToString(b.Bytes())
	}
	return out
}

// TestReadImage verifies that reading an image returns a media part, whatever the file's name. Reading only some of its
// bytes returns bytes.
func TestReadImage(t *testing.T) {
	t.Parallel()
	set := newRig(t).tools(codeMode())
	for media, data := range pictures(t) {
		set.ok("sandbox_fs_write", obj{"path": "picture.txt", "contents_b64": data, "overwrite": true})
		resp, err := set.tools["sandbox_fs_read"].RunRawMultipart(context.Background(), obj{"path": "picture.txt"})
		checktest.Must(t, err)
		out := plain(resp.Output)
		if out["media_type"] != media || out["contents"] != nil || out["contents_b64"] != nil || media != "image/webp" && (out["width"] != 3.0 || out["height"] != 2.0) {
			t.Errorf("%s: %v", media, out)
		}
		if len(resp.Content) != 1 || !resp.Content[0].IsMedia() || resp.Content[0].ContentType != media || resp.Content[0].Text != "data:"+media+";base64,"+data {
			t.Errorf("%s: parts %+v", media, resp.Content)
		}
		for _, part := range []obj{{"max_bytes": 1 << 20}, {"offset": 1}, {"line_limit": 1}} {
			part["path"] = "picture.txt"
			resp, err := set.tools["sandbox_fs_read"].RunRawMultipart(context.Background(), part)
			if err != nil || len(resp.Content) != 0 || plain(resp.Output)["media_type"] != nil {
				t.Errorf("%s by %v: %+v, %v", media, part, resp, err)
			}
		}
	}
	// A provider would reject a file only begins like an image, which would end the run.
	set.ok("sandbox_fs_write", obj{"path": "broken.png", "contents_b64": base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\n\xff"))})
	if out := set.ok("sandbox_fs_read", obj{"path": "broken.png"}); out["contents_b64"] == nil || out["media_type"] != nil {
		t.Errorf("no image: %v", out)
	}
	set.ok("sandbox_fs_write", obj{"path": "page.svg", "contents": "<svg/>"})
	if out := set.ok("sandbox_fs_read", obj{"path": "page.svg"}); out["contents"] != "<svg/>" {
		t.Errorf("text: %v", out)
	}
	set.ok("sandbox_exec", obj{"command": "base64 -d picture.txt.b64 2>/dev/null; cp picture.txt padded; head -c 1000000 /dev/zero >>padded; cp picture.txt large; head -c 5000000 /dev/zero >>large"})
	if out := set.ok("sandbox_fs_read", obj{"path": "padded"}); out["media_type"] == nil || num(out["size_bytes"]) < 1e6 {
		t.Errorf("larger than the limit for other files: %v", out)
	}
	if out := set.fails(toolspec.CodeTooLarge, "sandbox_fs_read", obj{"path": "large"}); !strings.Contains(message(out), "the limits are 3932160 bytes") {
		t.Errorf("too large: %s", message(out))
	}
}

// TestModelsSeeImages verifies that the request to each provider contains an image read, in a form the plugin supports.
func TestModelsSeeImages(t *testing.T) {
	picture := pictures(t)["image/png"]
	for _, v := range vendors() {
		t.Run(v.name, func(t *testing.T) {
			f := newFake(t, "done", []toolCall{{"sandbox_fs_write", obj{"path": "p", "contents_b64": picture}}}, []toolCall{{"sandbox_fs_read", obj{"path": "p"}}})
			r := newRig(t, v.plugin(t, f.URL))
			resp, err := genkit.Generate(context.Background(), r.g, ai.WithModelName(v.model), ai.WithPrompt("go"), ai.WithUse(r.plugin.Use(codeMode())))
			if err != nil || resp.Text() != "done" {
				t.Fatalf("%v: %v", resp, err)
			}
			last := f.Requests()[2]
			answers := last.Results()
			shown := strings.Count(text(last.Body), picture) - 1 // the model's own call contains it once
			if shown < 1 ||                                      // Ollama's plugin sends it twice
				!strings.Contains(answers[1], "image/png") {
				t.Errorf("%d images: %s", shown, answers[1])
			}
			// Genkit's own messages keep the image in the tool response.
			var parts int
			for _, m := range resp.History() {
				for _, p := range m.Content {
					if p.IsToolResponse() {
						parts += len(p.ToolResponse.Content)
					}
					if p.IsMedia() {
						t.Error("a message of the user is left in the history")
					}
				}
			}
			if parts != 1 {
				t.Errorf("%d parts of tools in the history", parts)
			}
		})
	}
}

// TestBlindModel verifies that a model without image support gets an error message. Otherwise Genkit would reject the
// request and end the run.
func TestBlindModel(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	picture := pictures(t)["image/png"]
	_, seen, err := r.generate(context.Background(), codeMode(), call("sandbox_fs_write", obj{"path": "p", "contents_b64": picture}), call("sandbox_fs_read", obj{"path": "p"}), say("done"))
	checktest.Must(t, err)
	if out := seen.outputs()[1]; out["media_type"] != "image/png" || !strings.Contains(str(out["note"]), "images cannot be shown to you") || strings.Contains(text(out), picture) {
		t.Errorf("%v", out)
	}
}

// TestMediaByAddress verifies that no media URL in an input is fetched.
func TestMediaByAddress(t *testing.T) {
	var fetched atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		http.Error(w, "internal", http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	gemini := vendors()[0] // the plugin fetches URLs
	r := newRig(t, gemini.plugin(t, newFake(t, "done").URL))
	for name, head := range map[string]string{"boxed": "sandbox: {mode: code}\n", "bare": ""} {
		a := r.agent(name, "---\nmodel: "+gemini.model+"\n"+head+"---\nDescribe {{media url=image}}")
		for _, image := range []string{server.URL, "http://169.254.169.254/", "http://youtu.be@169.254.169.254/"} {
			_, err := a.Run(t.Context(), obj{"image": image}, nil)
			if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "pass its bytes") {
				t.Errorf("%s: %v", name, err)
			}
		}
		const files = "https://generativelanguage.googleapis.com/v1beta/files/"
		for _, image := range []string{"data:image/png;base64,AA==", files + "a", "https://youtu.be/a"} {
			if res, err := a.Run(t.Context(), obj{"image": image}, nil); err != nil || res.Text != "done" {
				t.Errorf("%s: %+v, %v", name, res, err)
			}
		}
	}
	read := &ai.ToolResponse{Name: toolspec.ToolFSRead, Content: []*ai.Part{ai.NewMediaPart("image/png", server.URL)}}
	past := ai.WithMessages(ai.NewMessage(ai.RoleTool, nil, ai.NewToolResponsePart(read)))
	_, err := genkit.Generate(t.Context(), r.g, ai.WithModelName(gemini.model), past, ai.WithUse(r.plugin.Use(codeMode())))
	if !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("in the answer of a tool: %v", err)
	}
	if n := fetched.Load(); n != 0 {
		t.Errorf("%d requests", n)
	}
}
