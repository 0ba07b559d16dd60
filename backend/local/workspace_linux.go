package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// ownerFile contains the JSON of workspace.
const ownerFile = "owner.json"

// workspace describes a session's workspace, which may exist without a sandbox.
type workspace struct {
	Instance string `json:"instance"`
	Base     uint32 `json:"base"` // first ID of the block of user IDs
	Size     int64  `json:"size"` // size of the file system; 0 for a directory without a hard limit
	// Maker is the nonce of the workspace's first sandbox. Last is the nonce of the last completely created sandbox with
	// this workspace.
	Maker string `json:"maker"`
	Last  string `json:"last"`
	Group string `json:"group"` // control group of the current or last sandbox
}

// errDamaged is the error for a workspace with an unknown owner.
var errDamaged = errors.New("its owner record is damaged")

func (d dirs) ownerFile(session string) string { return filepath.Join(d.workspace(session), ownerFile) }

// readOwner reads the owner of a workspace. It returns os.ErrNotExist if the workspace does not exist, and errDamaged
// if the owner is unknown.
func (d dirs) readOwner(session string) (workspace, error) {
	var w workspace
	switch err := host.ReadJSON(d.ownerFile(session), &w); {
	case err == nil && w.Maker != "":
		return w, nil
	case !host.Exists(d.workspace(session)):
		return workspace{}, os.ErrNotExist
	}
	return workspace{}, errDamaged
}

// claimWorkspace creates the sandbox's workspace or uses the existing workspace of the session. It also determines the
// user IDs.
func (b *driver) claimWorkspace(ctx context.Context, x *sandbox) error {
	old, err := b.dirs.readOwner(x.session())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return b.makeWorkspace(ctx, x)
	case err != nil:
		return fmt.Errorf("local: the workspace of sandbox %s cannot be used, %w; remove it first: %w",
			x.session(), host.Public(err), backend.ErrExists)
	case old.Instance != x.instance():
		return fmt.Errorf("local: workspace of sandbox %s belongs to another instance: %w", x.session(), backend.ErrExists)
	case old.Size == 0 && x.Sized() > 0: // a directory cannot become a file system
		x.Workspace = backend.WorkspaceWatched
	case old.Size != x.Sized():
		return fmt.Errorf("local: the existing workspace of sandbox %s has a limit of %d bytes: %w",
			x.session(), old.Size, backend.ErrExists)
	}
	if err := b.endFormer(ctx, old); err != nil {
		return err
	}
	x.IDs.Base = old.Base
	if err := b.adoptFiles(x, b.dirs.files(x.session())); err != nil {
		return err
	}
	old.Group = x.Group
	return host.WriteJSON(b.dirs.ownerFile(x.session()), old, true)
}

// endFormer kills remaining processes of the workspace's last sandbox, if another program removed the sandbox's
// directory. The caller must hold the session's name. Without control groups, such processes cannot be found.
func (b *driver) endFormer(ctx context.Context, w workspace) error {
	g := group{b.machine.cgroups, w.Group}
	if err := g.kill(ctx, b.machine.boot); err != nil {
		return err
	}
	return g.remove(ctx)
}

// HasWorkspace reports whether a session has a workspace.
func (b *driver) HasWorkspace(_ context.Context, instance, sessionID string) (bool, error) {
	if !kit.IsSessionID(sessionID) || !host.Exists(b.dirs.workspace(sessionID)) {
		return false, nil
	}
	w, err := b.dirs.readOwner(sessionID)
	return err == nil && w.Instance == instance, err
}

// RemoveWorkspace deletes the workspace of a session without a sandbox.
func (b *driver) RemoveWorkspace(ctx context.Context, instance, sessionID string) error {
	if !kit.IsSessionID(sessionID) || !host.Exists(b.dirs.workspace(sessionID)) {
		return nil
	}
	x, err := b.takeName(nameOnly(sessionID, instance, newNonce()))
	if err != nil {
		return err
	}
	defer x.unlock()
	w, err := b.dirs.readOwner(sessionID)
	if err == nil && w.Instance != instance { // with a damaged record, the unguessable session ID is sufficient
		err = fmt.Errorf("local: workspace of sandbox %s belongs to another instance: %w", sessionID, backend.ErrExists)
	} else {
		err = b.removeWorkspace(ctx, sessionID, func(workspace) bool { return true })
	}
	return errors.Join(err, b.drop(ctx, x))
}

func (b *driver) makeWorkspace(ctx context.Context, x *sandbox) (err error) {
	if b.machine.blocks {
		if x.IDs.Base, err = b.dirs.claimBlock(x.session()); err != nil {
			return err
		}
	}
	tmp := b.dirs.fresh()
	files := filepath.Join(tmp, "files")
	err = os.MkdirAll(files, 0o700)
	if err == nil {
		w := workspace{
			Instance: x.instance(), Base: x.IDs.Base, Size: x.Sized(), Maker: x.Nonce, Last: x.Nonce, Group: x.Group,
		}
		err = host.WriteJSON(filepath.Join(tmp, ownerFile), w, false)
	}
	if err == nil {
		err = b.adoptFiles(x, files)
	}
	if err == nil && x.fork != nil {
		err = b.forkFiles(ctx, x, tmp)
	} else if err == nil && x.Workspace == backend.WorkspaceSized {
		err = sizedfs.Format(ctx, filepath.Join(tmp, imageFile), x.sizedSpec())
	}
	if err == nil {
		err = os.Rename(tmp, b.dirs.workspace(x.session()))
	}
	if err != nil {
		_ = host.RemoveTree(context.WithoutCancel(ctx), tmp) // a leftover directory does no harm
		return errors.Join(failed("creating a workspace", err), b.dirs.releaseBlock(x.IDs.Base))
	}
	return nil
}

// adoptFiles makes the sandbox's user the owner of the workspace's root directory.
func (b *driver) adoptFiles(x *sandbox, files string) error {
	if b.machine.blocks {
		uid, gid := x.IDs.hostUser()
		if err := os.Lchown(files, uid, gid); err != nil {
			return failed("changing the owner of the workspace", err)
		}
	}
	return host.Public(os.Chmod(files, 0o755))
}

// settle completes a creation. From now on, the sandbox exists and owns the workspace.
func (b *driver) settle(x *sandbox) error {
	if err := x.disk.Wait(); err != nil {
		return err
	}
	w, err := b.dirs.readOwner(x.session())
	if err != nil {
		return err
	}
	if w.Last != x.Nonce {
		w.Last = x.Nonce
		if err := host.WriteJSON(b.dirs.ownerFile(x.session()), w, true); err != nil {
			return err
		}
	}
	return os.WriteFile(x.file(madeFile), nil, 0o600)
}

// removeWorkspace removes a session's workspace if meant returns true, and releases the user IDs. The caller must hold
// the session's name, to prevent a takeover of the workspace by another process. If the owner is unknown, meant gets a
// workspace without a Maker.
func (b *driver) removeWorkspace(ctx context.Context, session string, meant func(workspace) bool) error {
	w, err := b.dirs.readOwner(session)
	if errors.Is(err, os.ErrNotExist) || !meant(w) {
		return nil
	}
	if err := b.endFormer(ctx, w); err != nil {
		return err
	}
	// The IDs are released only when no file belongs to them.
	dir := b.dirs.workspace(session)
	if err = snapshots.Alone(ctx, dir, func() error { return b.dirs.discard(ctx, dir) }); err == nil {
		err = b.dirs.releaseBlock(w.Base)
	}
	return failed("removing a workspace", err)
}
