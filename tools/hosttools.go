package tools

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// GenkitSource returns the program's Genkit tools with these names as the host tool server "app". Their spans are
// children of the caller's span. Call GenkitSource after genkit.Init and after the tools have been defined.
//
//	g := genkit.Init(ctx, genkit.WithPlugins(plugin))
//	genkit.DefineTool(g, "lookup", …)
//	source, err := tools.GenkitSource(g, "lookup")
//	plugin.HostTools, err = hosttools.New(nil, source)
func GenkitSource(g *genkit.Genkit, names ...string) (hosttools.Source, error) {
	if g == nil {
		return nil, errors.New("tools: Genkit not initialized; call genkit.Init before GenkitSource")
	}
	list := make([]hosttools.Tool, len(names))
	for i, name := range names {
		t := genkit.LookupTool(g, name)
		if t == nil {
			return nil, fmt.Errorf("tools: unknown tool %q; define the tool before GenkitSource", name)
		}
		def := t.Definition()
		if def.Metadata["multipart"] == true {
			def.OutputSchema = nil // it may describe Genkit's message around the output
		}
		list[i] = hosttools.Tool{
			// Genkit does not describe the effects of a tool, so assume the worst.
			Definition: hosttools.Definition{Name: name, Description: def.Description, Destructive: true, Network: true,
				Input: def.InputSchema, Output: def.OutputSchema},
			Handle: func(ctx context.Context, c hosttools.Call) (hosttools.Result, error) { return runGenkit(ctx, t, c) },
		}
	}
	return hosttools.Static(hosttools.AppServer, list...), nil
}

func runGenkit(ctx context.Context, t ai.Tool, c hosttools.Call) (res hosttools.Result, err error) {
	out, err := t.RunRawMultipart(ctx, c.Args)
	if interrupted, _ := ai.IsToolInterruptError(err); interrupted {
		return res, toolspec.Failf(toolspec.CodeToolFailed, "%s requires an answer that code cannot provide", t.Name())
	}
	if err != nil {
		return res, err
	}
	for _, p := range out.Content {
		if p.IsText() {
			res.Text += p.Text
			continue
		}
		media, encoded, inline := strings.Cut(strings.TrimPrefix(p.Text, "data:"), ";base64,")
		data, err := base64.StdEncoding.DecodeString(encoded)
		if !p.IsMedia() || !inline || err != nil {
			return res, toolspec.Failf(toolspec.CodeToolFailed, "%s returned neither text nor a data URL", t.Name())
		}
		res.Files = append(res.Files, hosttools.File{MIME: cmp.Or(p.ContentType, media), Bytes: data})
	}
	if out.Output != nil {
		res.Data, err = json.Marshal(out.Output)
	}
	return res, err
}
