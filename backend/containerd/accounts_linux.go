package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/containerd/containerd/v2/core/mount"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// accountsOf returns accounts with the sandbox's user, or nil if it needs none. It reads the root before the sandbox's
// first task to avoid files of commands, because other sandboxes of the image get the same accounts.
func (b *driver) accountsOf(ctx context.Context, r *record, mounts []mount.Mount) (kit.Accounts, error) {
	user, err := r.owner()
	if err != nil || !kit.NamesUser(user, r.config.Root) || host.Exists(r.state().file(r.id, "passwd")) {
		return nil, err
	}
	if of, known := b.accounts.Load(r.config.Parent); known {
		return of.(kit.Accounts).With(user), nil
	}
	found := kit.NoAccounts()
	err = inPrivateMount(b.state.empty(), mounts, func(root *os.Root) error { return found.Read(root) })
	if errors.Is(err, backend.ErrInvalid) {
		return nil, fmt.Errorf("containerd: image %s: %w", familiar(r.image), err)
	}
	if err != nil {
		return nil, b.calls.Fail(ctx, "read the users of the image", err)
	}
	b.accounts.Store(r.config.Parent, found)
	return found.With(user), nil
}

// writeAccounts writes the account files for the sandbox's mounts. passwd is the last one, because accountsOf looks for
// it.
func writeAccounts(r *record, accounts kit.Accounts) (err error) {
	for _, name := range slices.Sorted(maps.Keys(accounts)) {
		if err == nil {
			err = r.state().writeShared(r.id, name, accounts[name])
		}
	}
	return stateError("make files", err)
}
