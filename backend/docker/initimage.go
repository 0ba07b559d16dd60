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

// initImage returns the image for helper containers. It contains two empty directories. Each owner of a workspace has a
// separate image.
func initImage(o kit.User) string { return fmt.Sprintf("workcell/init:%d-%d", o.UID, o.GID) }

// helper describes a helper container.
type helper struct {
	name   string   // empty means a name from the engine
	owner  kit.User // see initImage
	labels map[string]string
	host   *container.HostConfig
	adjust func(*container.Config) // changes the configuration; may be nil
}

// createHelper creates a helper container, and the image if the engine does not have it. If a container exists despite
// an error, createHelper returns the container's ID together with the error.
func (b *driver) createHelper(ctx context.Context, h helper) (string, error) {
	cfg := &container.Config{
		Image: initImage(h.owner), User: h.owner.String(), Labels: h.labels, WorkingDir: "/",
		Entrypoint: []string{embed.Path}, Cmd: []string{}, Env: kit.GuestEnv(),
	}
	if h.adjust != nil {
		h.adjust(cfg)
	}
	create := func() (string, error) {
		return b.createContainer(ctx, "create init container", h.name, cfg, h.host, nil)
	}
	id, err := create()
	if !errors.Is(err, backend.ErrNotFound) {
		return id, err
	}
	if err := b.importInit(ctx, h.owner); err != nil {
		return "", err
	}
	return create()
}

// withHelper calls f with the ID of a helper container, which is not running, and then removes the container.
func (b *driver) withHelper(ctx context.Context, h helper, f func(id string) error) error {
	id, err := b.createHelper(ctx, h)
	if err == nil {
		err = f(id)
	}
	if id != "" {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), kit.CleanupTimeout)
		defer cancel()
		err = errors.Join(err, b.removeContainer(cctx, id))
	}
	return err
}

// quietHost returns a configuration without a network and a log.
func quietHost(mounts ...mount.Mount) *container.HostConfig {
	return &container.HostConfig{NetworkMode: "none", LogConfig: container.LogConfig{Type: "none"}, Mounts: mounts}
}

// importInit creates the image for createHelper. Concurrent calls are safe.
func (b *driver) importInit(ctx context.Context, o kit.User) error {
	layer, err := archive(directory(guestDir, kit.User{}), directory(backend.Workdir, o))
	if err != nil {
		return err
	}
	return b.calls.Do(ctx, "import "+initImage(o), func(ctx context.Context) error {
		source := imagetypes.ImportSource{Source: layer, SourceName: "-"}
		label := "LABEL " + backend.LabelRole + "=" + backend.RoleInit
		options := imagetypes.ImportOptions{Message: "workcell", Changes: []string{label}}
		r, err := b.api.ImageImport(ctx, source, initImage(o), options)
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

// directory returns the header of a directory with an owner.
func directory(path string, o kit.User) tar.Header {
	name := strings.TrimPrefix(path, "/") + "/"
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755, Uid: int(o.UID), Gid: int(o.GID)}
}
