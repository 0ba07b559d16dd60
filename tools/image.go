package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	_ "image/gif"  // reads the header
	_ "image/jpeg" // reads the header
	_ "image/png"  // reads the header
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Limits for images models may see. These are the limits of Anthropic's API, the lowest of the large providers.
// Anthropic counts 5 MiB in base64.
const (
	maxImage = 5 << 20 / 4 * 3 // bytes
	maxSide  = 8000            // pixels
)

// imageType detects the media type from the first bytes of a file and returns it with the size of the image. media is
// empty if data is damaged or is not an image of a supported type. The size of WebP images is unknown.
func imageType(data []byte) (media string, width, height int) {
	media = http.DetectContentType(data)
	switch media {
	case "image/webp":
		return media, 0, 0
	case "image/png", "image/jpeg", "image/gif":
		if config, _, err := image.DecodeConfig(bytes.NewReader(data)); err == nil {
			return media, config.Width, config.Height
		}
	}
	return "", 0, 0
}

// asImage converts the beginning of a file to an image if the file is an image.
func (b *binding) asImage(ctx context.Context, s *session.Session, name string, out *fsReadOutput) (err error) {
	data := out.data
	if !strings.HasPrefix(http.DetectContentType(data), "image/") {
		return nil
	}
	info := sandbox.FileInfo{Size: out.SizeBytes}
	if out.Truncated && out.SizeBytes <= maxImage {
		if data, info, err = s.ReadFileBytes(ctx, name, sandbox.ReadFileOptions{Limit: maxImage}); err != nil {
			return err
		}
	}
	media, width, height := imageType(data)
	switch {
	case media == "":
		return nil
	case info.Size > maxImage || width > maxSide || height > maxSide:
		return toolspec.Failf(toolspec.CodeTooLarge,
			"the image has %d bytes and %d x %d pixels, the limits are %d bytes and %d pixels a side", info.Size, width, height,
			maxImage, maxSide).
			WithRemediation("Create a smaller copy with a program in the sandbox and read it, or pass max_bytes for part of " +
				"its bytes.")
	}
	*out = fsReadOutput{SizeBytes: info.Size, Width: width, Height: height,
		Image: toolspec.Image{MediaType: media, Data: data}}
	if !b.box.seesImages(ctx) {
		out.Image.Data = nil
		out.Note = "images cannot be shown to you; inspect it with a program in the sandbox"
	}
	return nil
}

// modelKey holds the name of the model of a Generate call.
type modelKey struct{}

// seesImages reports whether the model in ctx accepts images. It returns true for unknown models.
func (t *toolbox) seesImages(ctx context.Context) bool {
	name, _ := ctx.Value(modelKey{}).(string)
	r := t.registry.Load()
	if name == "" || r == nil {
		return true
	}
	action := (*r).ResolveAction(api.KeyFromName(api.ActionTypeModel, name))
	if action == nil {
		return true
	}
	model, _ := action.Desc().Metadata["model"].(map[string]any)
	supports, known := model["supports"].(map[string]any)
	media, _ := supports["media"].(bool)
	return media || !known
}

// imageParts returns the images of an output as Genkit's parts.
func imageParts(out any) (parts []*ai.Part) {
	for _, img := range toolspec.ImagesOf(out) {
		parts = append(parts, ai.NewMediaPart(img.MediaType,
			"data:"+img.MediaType+";base64,"+base64.StdEncoding.EncodeToString(img.Data)))
	}
	return parts
}

// imagesApart returns messages in which the images of sandbox tools follow their tool message in a separate user
// message. Of Genkit's plugins, only Anthropic's plugin sends tool result parts to every model. The plugins for the
// OpenAI protocol and Ollama drop them, and Gemini before 3 rejects them. All models with support for images accept
// them in user messages.
func imagesApart(ctx context.Context, messages []*ai.Message) []*ai.Message {
	if name, _ := ctx.Value(modelKey{}).(string); provider(name) == "anthropic" {
		return messages
	}
	var out []*ai.Message
	for _, m := range messages {
		plain := *m
		plain.Content = slices.Clone(m.Content)
		var images []*ai.Part
		for i, p := range m.Content {
			if p == nil || !p.IsToolResponse() || !showsImages(p.ToolResponse.Name) || len(p.ToolResponse.Content) == 0 {
				continue
			}
			images = append(images, ai.NewTextPart(fmt.Sprintf("Image in the answer of %s:", p.ToolResponse.Name)))
			images = append(images, p.ToolResponse.Content...)
			part, response := *p, *p.ToolResponse
			response.Content = nil
			part.ToolResponse = &response
			plain.Content[i] = &part
		}
		if out = append(out, &plain); len(images) > 0 {
			out = append(out, ai.NewUserMessage(images...))
		}
	}
	return out
}

// geminiHosts are the hosts of media that Google's servers read themselves. Genkit downloads from all other hosts.
var geminiHosts = []string{"generativelanguage.googleapis.com", "www.youtube.com", "youtube.com", "youtu.be"}

// mediaByAddress rejects media referenced by URL, because code in a sandbox may have chosen the URL. For some
// providers, Genkit fetches the URL from the host and includes the response in the error.
func mediaByAddress(ctx context.Context, messages []*ai.Message) error {
	for _, m := range messages {
		for _, p := range m.Content {
			if p.IsMedia() && strings.HasPrefix(strings.ToLower(p.Text), "http") && !readByGemini(ctx, p.Text) {
				return fmt.Errorf("%w: media %s: URLs are not fetched; pass its bytes, for example data:image/png;base64,…",
					backend.ErrInvalid, sanitize.Clip(p.Text))
			}
			if p.IsToolResponse() {
				if err := mediaByAddress(ctx, []*ai.Message{{Content: p.ToolResponse.Content}}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readByGemini reports whether the model of ctx is a Gemini model and Genkit passes address to it unread.
func readByGemini(ctx context.Context, address string) bool {
	u, err := url.Parse(address)
	return err == nil && isGemini(ctx) && slices.Contains(geminiHosts, u.Hostname())
}

// isGemini reports whether the model of ctx is one of Google's models.
func isGemini(ctx context.Context) bool {
	name, _ := ctx.Value(modelKey{}).(string)
	return slices.Contains([]string{"googleai", "vertexai"}, maker(name))
}

// showsImages reports whether the tool's results can contain images.
func showsImages(tool string) bool {
	return slices.Contains([]string{toolspec.ToolFSRead, toolspec.ToolExec, toolspec.ToolExecWait}, tool)
}
