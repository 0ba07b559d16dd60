package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/docker/docker/api/types/filters"
	networktypes "github.com/docker/docker/api/types/network"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// networkName is the name of the network for all bridged sandboxes of an engine. One network is sufficient, because the
// sandboxes cannot reach each other. It also saves addresses in the engine's address pools. Containers refer to the
// network by name.
const networkName = "workcell"

// ensureNetwork creates the network for bridged sandboxes if it does not exist.
func (b *driver) ensureNetwork(ctx context.Context) error {
	if there, err := b.findNetwork(ctx); there || err != nil {
		return err
	}
	_, err := kit.Finish(ctx, b.calls, "create network", func(ctx context.Context) (networktypes.CreateResponse, error) {
		return b.api.NetworkCreate(ctx, networkName, networktypes.CreateOptions{
			Driver:     "bridge",
			EnableIPv6: new(false),
			Labels:     map[string]string{backend.LabelRole: backend.RoleNetwork},
			Options:    map[string]string{"com.docker.network.bridge.enable_icc": "false"},
		})
	})
	if err == nil || errors.Is(err, backend.ErrExists) {
		_, err = b.findNetwork(ctx)
	}
	return err
}

// findNetwork reports whether the network exists. With engines before 25.0, several processes can each create one at
// the same time. findNetwork removes the newer ones. If a newer one is in use, it removes older ones.
func (b *driver) findNetwork(ctx context.Context) (bool, error) {
	named := networktypes.ListOptions{Filters: filters.NewArgs(filters.Arg("name", networkName))}
	list, err := kit.Call(ctx, b.calls, "list networks", kit.With(b.api.NetworkList, named))
	if err != nil {
		return false, err
	}
	// The filter also matches longer names with this name inside.
	list = slices.DeleteFunc(list, func(n networktypes.Summary) bool { return n.Name != networkName })
	for _, n := range list {
		if n.Labels[backend.LabelRole] != backend.RoleNetwork || n.Driver != "bridge" || n.EnableIPv6 ||
			n.Options["com.docker.network.bridge.enable_icc"] != "false" {
			return false, fmt.Errorf("docker: network %q was not created by Workcell: %w", networkName, backend.ErrUnsupported)
		}
	}
	slices.SortFunc(list, func(a, b networktypes.Summary) int { return b.Created.Compare(a.Created) })
	left, used := len(list), ""
	for i := 0; left > 1 && i < len(list); i++ {
		err := b.calls.Do(ctx, "remove network", func(ctx context.Context) error {
			return b.api.NetworkRemove(ctx, list[i].ID)
		})
		switch {
		case err == nil, errors.Is(err, backend.ErrNotFound): // perhaps another process removed it
			left--
		case errors.Is(err, backend.ErrPermission): // it is in use
			used = list[i].ID
		default:
			return false, err
		}
	}
	if left > 1 {
		return false, fmt.Errorf("docker: %d networks named %q are in use; remove the containers of one, then run "+
			"`docker network rm %s`: %w", left, networkName, used, backend.ErrUnsupported)
	}
	return left > 0, nil
}
