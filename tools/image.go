package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	_ "image/gif"  // reads its header
	_ "image/jpeg" // likewise
	_ "image/png"  // likewise
	"net/http"
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

// Bounds of images that models are shown: what Anthropic's API takes, which takes least of the large providers. It
// counts 5 MiB in base64.
const (
	maxImage = 5 << 20 / 4 * 3 // bytes
	maxSide  = 8000            // pixels
)

// imageType returns the media type of what a file holds, by its first bytes, and the size of the picture; empty when it
// is no image that models are shown, or a damaged one. The size of WebP is not known.
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

// asImage turns what was read from the beginning of a file into an image when it is one.
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
		return toolspec.Failf(toolspec.CodeTooLarge, "the image has %d bytes and %d x %d pixels, the limits are %d bytes and %d pixels a side", info.Size, width, height, maxImage, maxSide).
			WithRemediation("Create a smaller copy with a program in the sandbox and read it, or pass max_bytes for part of its bytes.")
	}
	*out = fsReadOutput{SizeBytes: info.Size, Width: width, Height: height, Image: toolspec.Image{MediaType: media, Data: data}}
	if !b.box.seesImages(ctx) {
		out.Image.Data = nil
		out.Note = "images cannot be shown to you; inspect it with a program in the sandbox"
	}
	return nil
}

// modelKey holds the name of the model that a Generate call asks.
type modelKey struct{}

// seesImages reports whether the model that ctx belongs to takes images. One that nobody describes does.
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
		parts = append(parts, ai.NewMediaPart(img.MediaType, "data:"+img.MediaType+";base64,"+base64.StdEncoding.EncodeToString(img.Data)))
	}
	return parts
}

// imagesApart returns messages in which the images of a sandbox's tools follow their tool message as one of the user.
// Of Genkit's plugins Anthropic's sends parts of a tool's answer to every model; those of OpenAI's protocol and of
// Ollama drop them, Gemini before 3 refuses them. Every model that takes images takes a user's.
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

// mediaByAddress refuses media that are named by their address, which code inside may have chosen. Genkit fetches them
// for some providers, from this machine, and has the answer in its error.
func mediaByAddress(messages []*ai.Message) error {
	for _, m := range messages {
		for _, p := range m.Content {
			if p.IsMedia() && strings.HasPrefix(strings.ToLower(p.Text), "http") {
				return fmt.Errorf("%w: media %s: URLs are not fetched; pass its bytes, for example data:image/png;base64,…",
					backend.ErrInvalid, sanitize.Clip(p.Text))
			}
			if p.IsToolResponse() {
				if err := mediaByAddress([]*ai.Message{{Content: p.ToolResponse.Content}}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// showsImages reports whether a tool's answers can have images.
func showsImages(tool string) bool {
	return slices.Contains([]string{toolspec.ToolFSRead, toolspec.ToolExec, toolspec.ToolExecWait}, tool)
}
