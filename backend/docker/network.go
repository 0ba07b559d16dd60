package docker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/filters"
	networktypes "github.com/docker/docker/api/types/network"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// networkName names the one network of an engine's bridged sandboxes. One is enough, because they cannot reach each
// other, and saves the engine's address pools.
const networkName = "workcell"

// ensureNetwork returns what a sandbox's container is to be connected to.
func (b *driver) ensureNetwork(ctx context.Context, p *plan) (string, error) {
	if p.Spec.Network != backend.NetworkBridge {
		return string(backend.NetworkNone), nil
	}
	id, err := b.findNetwork(ctx)
	if id != "" || err != nil {
		return id, err
	}
	no := false
	made, err := kit.Finish(ctx, b.calls, "create network", func(ctx context.Context) (networktypes.CreateResponse, error) {
		return b.api.NetworkCreate(ctx, networkName, networktypes.CreateOptions{
			Driver:     "bridge",
			EnableIPv6: &no,
			Labels:     map[string]string{backend.LabelRole: backend.RoleNetwork},
			Options:    map[string]string{"com.docker.network.bridge.enable_icc": "false"},
		})
	})
	if err != nil && !errors.Is(err, backend.ErrExists) {
		return "", err
	}
	id, err = b.findNetwork(ctx)
	if id != "" && made.ID != "" && id != made.ID { // somebody else's was first, and the engine refuses containers while there are two
		_, err = kit.Finish(ctx, b.calls, "remove network", func(ctx context.Context) (struct{}, error) {
			return struct{}{}, b.api.NetworkRemove(ctx, made.ID)
		})
		if errors.Is(err, backend.ErrNotFound) {
			err = nil
		}
	}
	if id == "" && err == nil {
		err = fmt.Errorf("docker: network %s vanished: %w", networkName, backend.ErrUnavailable)
	}
	return id, err
}

// findNetwork looks the network up. Older engines let two processes make two of one name; the first is the one.
func (b *driver) findNetwork(ctx context.Context) (string, error) {
	list, err := kit.Call(ctx, b.calls, "list networks", func(ctx context.Context) ([]networktypes.Summary, error) {
		return b.api.NetworkList(ctx, networktypes.ListOptions{Filters: filters.NewArgs(filters.Arg("name", networkName))})
	})
	if err != nil {
		return "", err
	}
	list = slices.DeleteFunc(list, func(n networktypes.Summary) bool { return n.Name != networkName }) // the filter matches parts
	if len(list) == 0 {
		return "", nil
	}
	slices.SortFunc(list, func(a, b networktypes.Summary) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	n := list[0]
	if n.Labels[backend.LabelRole] != backend.RoleNetwork || n.Driver != "bridge" || n.EnableIPv6 ||
		n.Options["com.docker.network.bridge.enable_icc"] != "false" {
		return "", fmt.Errorf("docker: the engine's network %q is not Workcell's: %w", networkName, backend.ErrUnsupported)
	}
	return n.ID, nil
}
