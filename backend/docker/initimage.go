package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/docker/docker/api/types/container"
	imagetypes "github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// initImage names the image for containers of our own, which hold two empty directories and are one per owner of the
// workspace.
func initImage(o kit.User) string { return fmt.Sprintf("workcell/init:%d-%d", o.UID, o.GID) }

// createFromInit creates a container of our own, making its image when the engine has none. The id is given beside an
// error when there is a container nevertheless.
func (b *driver) createFromInit(ctx context.Context, name string, o kit.User, labels map[string]string,
	host *container.HostConfig, adjust func(*container.Config),
) (string, error) {
	cfg := &container.Config{
		Image: initImage(o), User: o.String(), Labels: labels, WorkingDir: "/",
		Entrypoint: []string{embed.Path}, Cmd: []string{}, Env: kit.GuestEnv(),
	}
	if adjust != nil {
		adjust(cfg)
	}
	create := func() (string, error) {
		res, err := kit.Finish(ctx, b.calls, "create init container", func(ctx context.Context) (container.CreateResponse, error) {
			return b.api.ContainerCreate(ctx, cfg, host, nil, nil, name)
		})
		return res.ID, err
	}
	id, err := create()
	if !errors.Is(err, backend.ErrNotFound) {
		return id, err
	}
	if err := b.importInit(ctx, o); err != nil {
		return "", err
	}
	return create()
}

// quietHost has neither a network nor a log.
func quietHost(mounts ...mount.Mount) *container.HostConfig {
	return &container.HostConfig{NetworkMode: "none", LogConfig: container.LogConfig{Type: "none"}, Mounts: mounts}
}

// importInit makes the image for createFromInit. Doing it twice does no harm.
func (b *driver) importInit(ctx context.Context, o kit.User) error {
	layer, err := archive(directory(guestDir, kit.User{}), directory(backend.Workdir, o))
	if err != nil {
		return err
	}
	return b.calls.Do(ctx, "import "+initImage(o), func(ctx context.Context) error {
		r, err := b.api.ImageImport(ctx, imagetypes.ImportSource{Source: layer, SourceName: "-"}, initImage(o),
			imagetypes.ImportOptions{Message: "workcell", Changes: []string{"LABEL " + backend.LabelRole + "=" + backend.RoleInit}})
		if err != nil {
			return err
		}
		defer r.Close() //nolint:errcheck // only read from
		_, err = io.Copy(io.Discard, r)
		return err
	})
}

// archive returns an archive of directories and links.
func archive(headers ...tar.Header) (*bytes.Buffer, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range headers {
		if err := tw.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("docker: archive: %w", err)
		}
	}
	return &buf, tw.Close()
}

// directory describes a directory with an owner.
func directory(path string, o kit.User) tar.Header {
	name := strings.TrimPrefix(path, "/") + "/"
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755, Uid: int(o.UID), Gid: int(o.GID)}
}
