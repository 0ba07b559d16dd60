package docker

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	imagetypes "github.com/docker/docker/api/types/image"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const (
	// environments is the repository of the images with environments. The tag is the environment's name.
	environments = "workcell/environment:"
	// labelBuilding contains the name of the environment to install in a sandbox.
	labelBuilding = backend.LabelPrefix + "building"
	// labelImage contains the ID of the sandbox's image. The container of an environment has another image.
	labelImage = backend.LabelPrefix + "image-id"
)

// findEnvironment makes the environment's image the image of the sandbox's container.
func (b *driver) findEnvironment(ctx context.Context, p *plan, img *image) error {
	if p.Spec.Environment == "" {
		return nil
	}
	name, err := p.EnvironmentName(img.id, img.volumes...)
	if err != nil {
		return err
	}
	if p.Spec.Building {
		p.labels[labelBuilding] = name
		return nil
	}
	p.installed = name
	if id, known := b.installed.Load(name); known {
		img.id, p.Image = id.(string), id.(string)
		return nil
	}
	res, err := b.inspectRef(ctx, environments+name)
	if errors.Is(err, backend.ErrNotFound) {
		return b.calls.NoEnvironment(p.Plan)
	}
	if err == nil {
		img.id, p.Image = res.ID, res.ID
		b.installed.Store(name, res.ID)
	}
	return err
}

// prepareBuilding creates the install directory.
func (b *driver) prepareBuilding(ctx context.Context, id string, o kit.User) error {
	headers := []tar.Header{directory(path.Dir(backend.EnvironmentDir), kit.User{}), directory(backend.EnvironmentDir, o)}
	_, err := b.statPath(ctx, id, backend.NodeModulesLink)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		headers = append(headers, tar.Header{
			Name: strings.TrimPrefix(backend.NodeModulesLink, "/"), Typeflag: tar.TypeSymlink, Mode: 0o777,
			Linkname: backend.EnvironmentDir + backend.NodeModulesLink,
		})
	case err != nil:
		return err
	}
	files, err := archive(headers...)
	if err != nil {
		return err
	}
	return b.copyTo(ctx, "create the installation directory", id, "/", files)
}

// CommitEnvironment saves the root of a sandbox as an image.
func (b *driver) CommitEnvironment(ctx context.Context, id string) error {
	res, err := b.own(ctx, id)
	if err != nil {
		return err
	}
	name := res.Config.Labels[labelBuilding]
	if name == "" {
		return fmt.Errorf("docker: %w", kit.ErrNotBuilding)
	}
	if err := b.stopContainer(ctx, id); err != nil {
		return err
	}
	if _, err := b.inspectRef(ctx, environments+name); !errors.Is(err, backend.ErrNotFound) {
		return err
	}
	var c config
	if err := json.Unmarshal([]byte(res.Config.Labels[labelConfig]), &c); err != nil {
		return fmt.Errorf("docker: label %s: %w", labelConfig, err)
	}
	labels := kit.EnvironmentLabels(&c.Record, res.Config.Labels, time.Now())
	for l := range res.Config.Labels { // clears the labels because the image would inherit them
		if _, set := labels[l]; !set {
			labels[l] = ""
		}
	}
	options := container.CommitOptions{Reference: environments + name, Config: &container.Config{Labels: labels}}
	// The engine may compress many gigabytes, and completes the request even if the caller gives up.
	cctx, cancel := b.calls.Bound(context.WithoutCancel(ctx), b.opts.PullTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(b.opts.CallTimeout, cancel) })
	defer stop()
	_, err = b.api.ContainerCommit(cctx, id, options)
	return b.calls.Fail(ctx, "commit environment", cmp.Or(err, ctx.Err()))
}

// Environments returns the images of an instance's environments. An image without a name lost the name to a newer image
// with the same recipe.
func (b *driver) Environments(ctx context.Context, instance string) ([]backend.Environment, error) {
	list, err := kit.Call(ctx, b.calls, "list images", kit.With(b.api.ImageList, imagetypes.ListOptions{}))
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, img := range list {
		sizes[img.ID] = img.Size
	}
	var out []backend.Environment
	for _, img := range list {
		name := img.ID
		for _, tag := range img.RepoTags {
			if cut, ok := strings.CutPrefix(tag, environments); ok {
				name = cut
			}
		}
		if e, ok := kit.DescribeEnvironment(name, instance, img.Labels); ok {
			e.Bytes = max(0, img.Size-sizes[img.ParentID])
			out = append(out, e)
		}
	}
	return out, nil
}

// RemoveEnvironment removes the image of an environment. The engine refuses to remove the image of a container.
func (b *driver) RemoveEnvironment(ctx context.Context, instance, name string) error {
	ref := environments + name
	if strings.HasPrefix(name, "sha256:") {
		ref = name
	}
	res, err := b.inspectRef(ctx, ref)
	if err == nil && res.Config != nil {
		if _, ok := kit.DescribeEnvironment(name, instance, res.Config.Labels); !ok {
			return fmt.Errorf("docker: image %.80s is not an environment of this instance: %w", ref, backend.ErrExists)
		}
		if err = b.unused(ctx, res.ID); err == nil {
			err = b.calls.Do(ctx, "remove environment", func(ctx context.Context) error {
				_, err := b.api.ImageRemove(ctx, ref, imagetypes.RemoveOptions{})
				return err
			})
		}
	}
	return kit.Ignore(err, backend.ErrNotFound)
}

// unused returns ErrExists if a container uses the image. Without this check, the engine would keep the image of a
// running container but remove the image's name.
func (b *driver) unused(ctx context.Context, image string) error {
	list, err := b.listContainers(ctx, filters.Arg("ancestor", image))
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("docker: the environment is in use by a sandbox: %w", backend.ErrExists)
	}
	return err
}
