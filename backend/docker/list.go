package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// isSandbox reports whether a container is a Workcell sandbox. Labels are not sufficient, because the engine copies
// labels from images to containers. An image cannot choose the container's name.
func isSandbox(labels map[string]string, name string) bool {
	id := labels[backend.LabelID]
	return labels[backend.LabelRole] == backend.RoleSandbox && id != "" && strings.TrimPrefix(name, "/") == namePre+id
}

// Get describes a sandbox.
func (b *driver) Get(ctx context.Context, id string) (backend.Info, error) {
	res, err := b.own(ctx, id)
	if err != nil {
		return backend.Info{}, err
	}
	info := describeContainer(res)
	info.ImageEnv, err = b.imageEnv(ctx, res.Image)
	return info, err
}

// imageEnv returns the environment of an image, without the guest agent's variables, which an environment's image
// contains. For a deleted image it returns nil.
func (b *driver) imageEnv(ctx context.Context, id string) ([]string, error) {
	res, err := b.inspectRef(ctx, id)
	if errors.Is(err, backend.ErrNotFound) || err == nil && res.Config == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ofGuest := func(e string) bool { return slices.Contains(kit.GuestEnv(), e) }
	return slices.DeleteFunc(slices.Clone(res.Config.Env), ofGuest), nil
}

// List describes the sandboxes matching filter.
func (b *driver) List(ctx context.Context, filter backend.Filter) ([]backend.Info, error) {
	var args []filters.KeyValuePair
	for label, want := range kit.FilterLabels(filter) {
		args = append(args, filters.Arg("label", label+"="+want))
	}
	list, err := b.listContainers(ctx, args...)
	if err != nil {
		return nil, err
	}
	infos := make([]backend.Info, 0, len(list))
	for _, c := range list {
		if !slices.ContainsFunc(c.Names, func(n string) bool { return isSandbox(c.Labels, n) }) {
			continue
		}
		b.workspaces.Store(c.ID, workspaceName(c.Labels[backend.LabelID]))
		info := describeLabels(c.Labels)
		info.ID, info.ImageID, info.State = c.ID, cmp.Or(c.Labels[labelImage], c.ImageID), state(c.State)
		if info.State == backend.StateStopped { // only inspect returns the reason
			res, err := b.own(ctx, c.ID)
			if errors.Is(err, backend.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			info = describeContainer(res)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// listContainers returns the running and stopped containers matching a filter.
func (b *driver) listContainers(ctx context.Context, filter ...filters.KeyValuePair) ([]container.Summary, error) {
	options := container.ListOptions{All: true, Filters: filters.NewArgs(filter...)}
	return kit.Call(ctx, b.calls, "list containers", kit.With(b.api.ContainerList, options))
}

func describeContainer(res container.InspectResponse) backend.Info {
	info := describeLabels(res.Config.Labels)
	info.ID, info.ImageID = res.ID, cmp.Or(res.Config.Labels[labelImage], res.Image)
	info.State, info.OOMKilled = state(res.State.Status), res.State.OOMKilled
	return info
}

// describeLabels parses the labels set by Create. Fields with invalid labels stay empty.
func describeLabels(l map[string]string) backend.Info {
	var c config
	_ = json.Unmarshal([]byte(l[labelConfig]), &c)
	user := map[string]string{}
	for _, k := range c.Labels {
		user[k] = l[k]
	}
	return c.Info(l, user)
}

func state(s container.ContainerState) backend.State {
	switch s {
	case container.StateCreated:
		return backend.StateCreated
	case container.StateRunning, container.StateRestarting:
		return backend.StateRunning
	case container.StatePaused:
		return backend.StatePaused
	case container.StateRemoving:
		return backend.StateGone
	}
	return backend.StateStopped
}
