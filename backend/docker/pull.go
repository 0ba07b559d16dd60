package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	imagetypes "github.com/docker/docker/api/types/image"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// pullMessage is one JSON object of the engine's answer to a pull.
type pullMessage struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Progress struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
	Error string `json:"error"`
}

// fetchImage does one pull. The engine's refusals have no types in its answer, so all of them are ErrImage.
func (b *driver) fetchImage(ctx context.Context, p *kit.Plan, report func(backend.PullProgress)) error {
	e, err := b.learn(ctx)
	if err != nil {
		return err
	}
	what := "pull " + p.Image
	auth, err := b.registryAuth(ctx, p.Ref)
	if err != nil {
		return b.calls.Error(what, backend.ErrImage, kit.Scrub(err.Error()))
	}
	cctx, cancel := b.calls.Bound(ctx, b.opts.PullTimeout)
	defer cancel()
	body, err := b.api.ImagePull(cctx, p.Ref, imagetypes.PullOptions{RegistryAuth: auth, Platform: "linux/" + e.arch})
	if err != nil {
		return b.pullError(ctx, what, err)
	}
	defer body.Close() //nolint:errcheck // only read from
	dec := json.NewDecoder(body)
	for {
		var m pullMessage
		err := dec.Decode(&m)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return b.pullError(ctx, what, err)
		case m.Error != "":
			b.log.Debug("docker: pull failed", "image", p.Image, "error", m.Error)
			return b.calls.Error(what, backend.ErrImage, kit.Scrub(m.Error))
		}
		report(backend.PullProgress{
			Image: p.Image, Layer: m.ID, Status: m.Status, Current: m.Progress.Current, Total: m.Progress.Total,
		})
	}
}

// pullError keeps the errors of an engine or a caller that is gone; all others are about the image.
func (b *driver) pullError(ctx context.Context, what string, err error) error {
	err = b.calls.Fail(ctx, what, err)
	if e, ok := errors.AsType[*kit.Error](err); ok && !errors.Is(e.Kind, backend.ErrUnavailable) {
		return b.calls.Error(what, backend.ErrImage, e.Detail)
	}
	return err
}
