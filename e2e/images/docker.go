//go:build !no_docker

package images

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	dockerclient "github.com/docker/docker/client"
)

// dockerEngine is a Docker engine for a Keeper.
type dockerEngine struct{ api *dockerclient.Client }

// Docker returns an Engine for the Docker engine behind api. The caller must close api.
func Docker(api *dockerclient.Client) Engine { return dockerEngine{api} }

func (e dockerEngine) arch(ctx context.Context) (string, error) {
	v, err := e.api.ServerVersion(ctx)
	return v.Arch, err
}

func (e dockerEngine) find(ctx context.Context, ref string) (map[string]string, bool, error) {
	info, err := e.api.ImageInspect(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if info.Config == nil {
		return nil, true, nil
	}
	return info.Config.Labels, true, nil
}

func (e dockerEngine) load(ctx context.Context, archive io.Reader) error {
	resp, err := e.api.ImageLoad(ctx, archive, dockerclient.ImageLoadWithQuiet(true))
	if err != nil {
		return err
	}
	return errors.Join(lastError(resp.Body), resp.Body.Close())
}

func (e dockerEngine) tag(ctx context.Context, from, to string) error {
	return e.api.ImageTag(ctx, from, to)
}

func (e dockerEngine) pull(ctx context.Context, ref string, progress func()) error {
	body, err := e.api.ImagePull(ctx, ref, image.PullOptions{})
	if err != nil {
		return err
	}
	return errors.Join(lastError(&watched{body, progress}), body.Close())
}

// watched calls progress after each read.
type watched struct {
	r        io.Reader
	progress func()
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.progress()
	}
	return n, err
}

// lastError reads the engine's stream of JSON messages to the end and returns the error, if any.
func lastError(r io.Reader) error {
	dec := json.NewDecoder(bufio.NewReader(r))
	var last error
	for {
		var m struct {
			Error string `json:"error"`
		}
		err := dec.Decode(&m)
		if errors.Is(err, io.EOF) {
			return last
		}
		if err != nil {
			return errors.Join(last, err)
		}
		if m.Error != "" {
			last = errors.New(strings.TrimSpace(m.Error))
		}
	}
}
