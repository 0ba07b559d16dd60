package tools

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"mime"
	"path"
	"slices"
	"unicode/utf8"

	"github.com/firebase/genkit/go/ai"
	aix "github.com/firebase/genkit/go/ai/exp"

	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

// maxArtifact is the maximum size in bytes of an output as an artifact. It is limited because a store writes all
// artifacts in every turn.
const maxArtifact = 8 << 20

// outputs reads the files listed in the agent's `outputs:` from the run's sandbox.
func (a *Agent) outputs(ctx context.Context, run session.Run) (patch.Tree, error) {
	p := pluginOf(a.g)
	if p == nil || a.doc.Outputs() == nil {
		return nil, nil
	}
	made, err := transfer.Collect(ctx, transfer.Shared(p.Manager, run), a.doc.Outputs(), nil)
	return made.Outputs, err
}

// keepingArtifacts wraps next. After each generation, it stores the existing outputs as artifacts of the current Genkit
// agent's session. Missing outputs are not an error during a conversation.
func (b *binding) keepingArtifacts(next ai.GenerateNext) ai.GenerateNext {
	return func(ctx context.Context, p *ai.GenerateParams) (*ai.ModelResponse, error) {
		resp, err := next(ctx, p)
		run, bound := session.RunFromContext(ctx)
		store := aix.ArtifactStoreFromContext(ctx)
		if err != nil || b.cfg.Outputs == nil || store == nil || !bound {
			return resp, err
		}
		if box := transfer.Shared(b.box.manager, run); box != nil {
			b.keepArtifacts(ctx, box, store)
		}
		return resp, nil
	}
}

func (b *binding) keepArtifacts(ctx context.Context, box *session.Session, store aix.ArtifactStore) {
	made, err := transfer.Collect(ctx, box, b.cfg.Outputs, nil)
	if err != nil && !errors.As(err, new(*transfer.MissingError)) {
		b.box.log.WarnContext(ctx, "some outputs were not saved as artifacts", "sandbox", box.ID(), "error", err)
	}
	for _, name := range slices.Sorted(maps.Keys(made.Outputs)) {
		if e := made.Outputs[name]; len(e.Content) <= maxArtifact && e.Mode.IsRegular() {
			store.AddArtifacts(artifact(name, e.Content))
		} else {
			b.box.log.WarnContext(ctx, "an output was not saved as an artifact: it is a link or too large",
				"sandbox", box.ID(), "bytes", len(e.Content))
		}
	}
}

// artifact converts an output to a Genkit artifact.
func artifact(name string, content []byte) *aix.Artifact {
	kind := mime.TypeByExtension(path.Ext(name))
	part := ai.NewTextPart(string(content))
	if !utf8.Valid(content) || slices.Contains(content, 0) {
		kind = cmp.Or(kind, "application/octet-stream")
		part = ai.NewMediaPart(kind, "data:"+kind+";base64,"+base64.StdEncoding.EncodeToString(content))
	}
	return &aix.Artifact{Name: name, Parts: []*ai.Part{part},
		Metadata: map[string]any{"mimeType": kind, "sizeBytes": len(content)}}
}
