package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// makeAccounts writes the files that name the sandbox's user, before its first task: later its root can contain what
// commands wrote, which must not become that of other sandboxes of the image.
func (b *driver) makeAccounts(ctx context.Context, r *record, mounts []mount.Mount) error {
	user, err := r.owner()
	if err != nil || !kit.NamesUser(user, r.config.Root) || exists(r.state().file(r.id, "passwd")) {
		return err
	}
	of, known := b.accounts.Load(r.config.Parent)
	if !known {
		found := kit.NoAccounts()
		err := inPrivateMount(b.state.empty(), mounts, func(root *os.Root) error { return readAccounts(root, &found) })
		if errors.Is(err, backend.ErrInvalid) {
			return err
		}
		if err != nil {
			return b.calls.Fail(ctx, "read the users of the image", err)
		}
		of = &found
		b.accounts.Store(r.config.Parent, of)
	}
	accounts := of.(*kit.Accounts).With(user)
	for _, name := range kit.AccountFiles() {
		err := os.WriteFile(r.state().file(r.id, name), accounts.Of(name), 0o644) //nolint:gosec // the sandbox reads it
		if err != nil {
			return stateError("make files", err)
		}
	}
	return nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// readAccounts reads the accounts of an image, which can have anything at their paths.
func readAccounts(root *os.Root, accounts *kit.Accounts) error {
	for name, to := range map[string]*[]byte{"etc/passwd": &accounts.Passwd, "etc/group": &accounts.Group} {
		st, err := root.Stat(name) // a device must not be opened
		switch {
		case err != nil: // also a link out of the root
			continue
		case st.IsDir():
			return fmt.Errorf("containerd: /%s of the image is a directory: %w", name, backend.ErrInvalid)
		case !st.Mode().IsRegular() || st.Size() == 0 || st.Size() > kit.MaxAccounts:
			continue
		}
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		*to, err = io.ReadAll(io.LimitReader(f, kit.MaxAccounts))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
