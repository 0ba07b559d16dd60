package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// accountsDir returns the directory in the guest volume with the account files for an image and a user. The files are
// mounted because the engine cannot copy files into a container with a read-only root.
func (p *plan) accountsDir(img *image) string {
	sum := sha256.Sum256([]byte(img.id + " " + p.User.String()))
	return path.Join("accounts", hex.EncodeToString(sum[:16]))
}

// accountMounts returns the mounts of the account files. The source is the engine's path of the volume, because engines
// before 26.0 can only mount whole volumes.
func (b *driver) accountMounts(p *plan, img *image) []mount.Mount {
	if !kit.NamesUser(p.User, p.Spec.Root) || p.unnamed || b.guest.unnamed.Load() {
		return nil
	}
	volume := b.guest.of(p.engine.runtime(p.Spec)).name()
	dir := path.Join(p.engine.root, "volumes", string(volume), "_data", p.accountsDir(img))
	var ms []mount.Mount
	for _, name := range kit.AccountFiles() {
		ms = append(ms, mount.Mount{
			Type: mount.TypeBind, Source: path.Join(dir, name), Target: "/etc/" + name, ReadOnly: true,
			// For files below its data root, the engine sets the propagation.
			BindOptions: &mount.BindOptions{NonRecursive: true},
		})
	}
	return ms
}

// refusesMount reports whether the engine refused a mount, for example because the source does not exist.
func refusesMount(err error) bool {
	return errors.Is(err, backend.ErrInvalid) && strings.Contains(strings.ToLower(err.Error()), "mount")
}

// createWithAccounts creates the container. If the account files are missing, the engine refuses the mounts;
// createWithAccounts then writes the files and tries again. If the engine stores volumes in another directory, the
// sandbox runs without the files.
func (c *creation) createWithAccounts(ctx context.Context, create func() error) error {
	err := create()
	if !refusesMount(err) || len(c.b.accountMounts(c.p, c.img)) == 0 {
		return err
	}
	v := c.b.guest.of(c.p.engine.runtime(c.p.Spec))
	if err := v.lock.Acquire(ctx, 1); err != nil {
		return c.b.calls.Fail(ctx, "prepare guest", err)
	}
	defer v.lock.Release(1)
	if err = create(); !refusesMount(err) { // another creation has written them
		return err
	}
	if err := c.b.writeAccounts(ctx, c.p, c.img); err != nil {
		return err
	}
	if err = create(); refusesMount(err) {
		c.p.unnamed = true
		if err = create(); err == nil {
			c.b.guest.unnamed.Store(true)
			c.b.opts.Logger.Warn("docker: cannot mount /etc/passwd; the user of a sandbox has no name")
		}
	}
	return err
}

// writeAccounts writes the account files for an image and a user to the guest volume.
func (b *driver) writeAccounts(ctx context.Context, p *plan, img *image) error {
	found, err := b.readAccounts(ctx, p, img)
	if err != nil {
		return err
	}
	v, accounts, dir := b.guest.of(p.engine.runtime(p.Spec)), found.With(p.User), p.accountsDir(img)
	var files []embed.File
	for _, name := range kit.AccountFiles() {
		files = append(files, embed.File{Path: path.Join(dir, name), Mode: 0o444, Data: accounts[name]})
	}
	var buf bytes.Buffer
	if err := embed.Tar(&buf, files...); err != nil {
		return fmt.Errorf("docker: pack the users of an image: %w", err)
	}
	last := kit.AccountFiles()[len(kit.AccountFiles())-1]
	whole := func(ctx context.Context, id string) (bool, error) {
		st, err := b.statPath(ctx, id, path.Join(guestDir, dir, last))
		return err == nil && st.Size == int64(len(accounts[last])), kit.Ignore(err, backend.ErrNotFound)
	}
	return b.fillOnce(ctx, v, string(v.name())+"-users", whole, func(ctx context.Context, id string) error {
		return b.copyTo(ctx, "copy users", id, guestDir, &buf)
	})
}

// readAccounts reads the accounts of an image. The image may have any type of file at the paths of the accounts. Images
// with other types than regular files are refused to avoid a hang of the engine: it opens the image's /etc/passwd to
// start a container. For a pipe, Docker 20.10 waits forever and holds the container's lock.
func (b *driver) readAccounts(ctx context.Context, p *plan, img *image) (kit.Accounts, error) {
	accounts := kit.NoAccounts()
	h := helper{
		labels: b.guest.of(p.engine.runtime(p.Spec)).labels(backend.RoleInit), host: quietHost(overVolumes(img)...),
		adjust: func(c *container.Config) { c.Image = img.id },
	}
	err := b.withHelper(ctx, h, func(id string) error {
		for _, file := range kit.AccountFiles() {
			data, err := b.readSmall(ctx, id, "/etc/"+file)
			switch {
			case errors.Is(err, errNoFile):
				return fmt.Errorf("docker: image %s: etc/%s of the image %w: %w", p.Image, file, err, backend.ErrInvalid)
			case err != nil:
				return err
			case len(data) > 0:
				accounts[file] = data
			}
		}
		return nil
	})
	return accounts, err
}

var errNoFile = errors.New("is not a regular file")

// readSmall reads a file of an image. If the file does not exist or is larger than kit.MaxAccounts, readSmall returns
// nil. If it is not a regular file, readSmall returns errNoFile.
func (b *driver) readSmall(ctx context.Context, id, name string) ([]byte, error) {
	for range 2 { // a link and the target
		st, err := b.statPath(ctx, id, name)
		switch {
		case errors.Is(err, backend.ErrNotFound):
			return nil, nil
		case err != nil:
			return nil, err
		case st.Mode&fs.ModeSymlink != 0 && st.LinkTarget != "":
			name = st.LinkTarget
			continue
		case !st.Mode.IsRegular():
			return nil, errNoFile
		case st.Size > kit.MaxAccounts:
			return nil, nil
		}
		return kit.Call(ctx, b.calls, "read users", func(ctx context.Context) ([]byte, error) {
			r, _, err := b.api.CopyFromContainer(ctx, id, name)
			if err != nil {
				return nil, err
			}
			defer r.Close() //nolint:errcheck // only read from
			tr := tar.NewReader(r)
			if _, err := tr.Next(); err != nil {
				return nil, err
			}
			return io.ReadAll(io.LimitReader(tr, kit.MaxAccounts))
		})
	}
	return nil, nil
}
