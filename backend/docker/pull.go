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

// pullMessage is one JSON object in the engine's response to a pull.
type pullMessage struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Progress struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
	Error string `json:"error"`
}

// fetchImage pulls an image. The engine's errors in the response have no types, so fetchImage returns ErrImage for all
// of them.
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
	defer body.Close() //nolint:errcheck // only used for reading
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
			b.opts.Logger.Debug("docker: pull failed", "image", p.Image, "error", m.Error)
			return b.calls.Error(what, backend.ErrImage, kit.Scrub(m.Error))
		}
		report(backend.PullProgress{
			Image: p.Image, Layer: m.ID, Status: m.Status, Current: m.Progress.Current, Total: m.Progress.Total,
		})
	}
}

// pullError keeps errors of an unavailable engine or a canceled caller. It converts all other errors to ErrImage.
func (b *driver) pullError(ctx context.Context, what string, err error) error {
	err = b.calls.Fail(ctx, what, err)
	if e, ok := errors.AsType[*kit.Error](err); ok && !errors.Is(e.Kind, backend.ErrUnavailable) {
		return b.calls.Error(what, backend.ErrImage, e.Detail)
	}
	return err
}
