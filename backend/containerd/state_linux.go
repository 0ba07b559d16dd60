package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/backend/internal/snapshots"
)

// stateDir is the driver's directory:
//
//	guest/<version>/                      the guest agent and its library, mounted in every sandbox
//	sandboxes/<container>/                files of /etc, network namespace
//	workspaces/<session>/owner.json,data  kept after the sandbox, unless removed with it
//	locks/<session>                       held while a sandbox is stopped, deleted, or created; see driver.lock
//	empty/                                mount point for private mount namespaces
type stateDir struct{ root string }

func (s stateDir) guests() string              { return filepath.Join(s.root, "guest") }
func (s stateDir) guest(version string) string { return filepath.Join(s.guests(), version) }
func (s stateDir) sandbox(id string) string    { return filepath.Join(s.root, "sandboxes", id) }
func (s stateDir) file(id, name string) string { return filepath.Join(s.sandbox(id), name) }
func (s stateDir) netns(id string) string      { return s.file(id, "netns") }
func (s stateDir) loopback(id string) string   { return s.file(id, "loopback") }
func (s stateDir) workspaces(session sessionName) string {
	return filepath.Join(s.root, "workspaces", string(session))
}
func (s stateDir) workspace(session sessionName) string {
	return filepath.Join(s.workspaces(session), "data")
}
func (s stateDir) workspaceTag(session sessionName) string {
	return filepath.Join(s.workspaces(session), "owner.json")
}
func (s stateDir) locks() string { return filepath.Join(s.root, "locks") }
func (s stateDir) empty() string { return filepath.Join(s.root, "empty") }

// openState creates the state directory if it is missing. Only the owner may have access.
func openState(root string) (stateDir, error) {
	s := stateDir{root: filepath.Clean(root)}
	for _, d := range []string{s.root, s.guests(), s.sandbox(""), s.workspaces(""), s.locks(), s.empty()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return s, stateError("create the state directory", err)
		}
	}
	st, err := os.Stat(s.root)
	if err == nil && st.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(s.root, 0o700)
	}
	return s, stateError("close the state directory", err)
}

// stateError removes the path from an error of the file system.
func stateError(what string, err error) error {
	if err == nil {
		return nil
	}
	if err = host.Public(err); !errors.Is(err, backend.ErrNoRoom) {
		err = fmt.Errorf("%v: %w", err, cmp.Or(kit.Classify(err, classify), backend.ErrUnavailable))
	}
	return fmt.Errorf("containerd: %s: %w", what, err)
}

// guestFor returns the guest agent for sandboxes of an OCI runtime.
func (b *driver) guestFor(runtime string) *backend.Guest {
	if ownKernel(runtime) {
		return kit.ReadableGuest(b.opts.Guest)
	}
	return b.opts.Guest
}

// installGuest installs the guest agent for sandboxes of an OCI runtime, unless it is already installed.
func (b *driver) installGuest(runtime string) error {
	g := b.guestFor(runtime)
	err := kit.InstallGuest(b.state.guest(g.Version), filepath.Join(b.state.guests(), "new-"), g, b.engine.arch)
	if errors.Is(err, backend.ErrUnsupported) {
		return fmt.Errorf("containerd: %w", err)
	}
	return stateError("install the guest", err)
}

// makeFiles creates a sandbox's directory and the files of /etc in it.
func makeFiles(r *record) error {
	dir, servers := r.state(), ""
	if r.bridged() {
		servers = resolvConf()
	}
	err := os.MkdirAll(dir.sandbox(r.id), 0o700)
	for name, text := range kit.NetworkFiles(servers) {
		if err == nil {
			err = dir.writeShared(r.id, name, []byte(text))
		}
	}
	return stateError("make files", err)
}

// writeShared writes a file that the sandbox's user can read, regardless of the umask. The file is never incomplete.
func (s stateDir) writeShared(id, name string, text []byte) error {
	file := s.file(id, name)
	err := os.WriteFile(file+".new", text, 0o600)
	if err == nil {
		err = os.Chmod(file+".new", 0o644) //nolint:gosec // the sandbox reads it
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	return err
}

// workspaceTag records the owner of a workspace.
type workspaceTag struct {
	Instance string `json:"instance"`
	Session  string `json:"session"`
	Bytes    int64  `json:"bytes,omitempty"` // size of the file system; 0 for a directory
}

// errStrange is the error for a workspace of another session.
var errStrange = fmt.Errorf("containerd: the existing workspace belongs to another sandbox: %w", backend.ErrExists)

func (t workspaceTag) is(instance, session string) bool {
	return t.Instance == instance && t.Session == session
}

// readTag returns the owner of a session's workspace. It returns a zero tag if the workspace does not exist, or if the
// creator died before it wrote the tag.
func (s stateDir) readTag(session sessionName) (workspaceTag, error) {
	var tag workspaceTag
	data, err := os.ReadFile(s.workspaceTag(session))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return tag, stateError("read the workspace's owner", err)
	}
	if len(data) > 0 && (json.Unmarshal(data, &tag) != nil || tag == workspaceTag{}) {
		return tag, errStrange
	}
	return tag, nil
}

// makeWorkspace creates a session's workspace or uses an existing workspace of the session. made reports whether it
// created one.
func (b *driver) makeWorkspace(ctx context.Context, r *record) (made bool, err error) {
	dir := r.state()
	user, err := r.owner()
	if err != nil {
		return false, err
	}
	tag := workspaceTag{
		Instance: r.labels[backend.LabelInstance], Session: r.labels[backend.LabelID], Bytes: r.config.Sized(),
	}
	found, err := dir.readTag(r.session)
	switch {
	case err != nil:
		return false, err
	case found == workspaceTag{}:
		if _, err := os.Lstat(dir.image(r.session)); !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("containerd: the existing workspace has no owner record: %w", backend.ErrExists)
		}
		made = true
	case !found.is(tag.Instance, tag.Session):
		return false, errStrange
	case found.Bytes != tag.Bytes:
		return false, fmt.Errorf("containerd: the existing workspace has a limit of %d bytes: %w",
			found.Bytes, backend.ErrExists)
	}
	if err := os.MkdirAll(dir.workspace(r.session), 0o755); err != nil {
		return made, stateError("create the workspace", err)
	}
	if made {
		err = snapshots.Alone(ctx, dir.workspaces(r.session), func() error {
			now, err := dir.readTag(r.session)
			if made = now == (workspaceTag{}); err != nil || !made { // another process has created it
				return err
			}
			return b.fillWorkspace(ctx, r, user, tag)
		})
	}
	if err != nil {
		return made, err
	}
	return made, r.finishImage()
}

// fillWorkspace creates the contents of a new workspace and then the tag.
func (b *driver) fillWorkspace(ctx context.Context, r *record, user kit.User, tag workspaceTag) error {
	dir := r.state()
	// The owner is set first, because a tag means that the directory is complete.
	err := stateError("create the workspace", os.Chown(dir.workspace(r.session), int(user.UID), int(user.GID)))
	switch {
	case err != nil:
	case r.config.Fork != nil:
		err = b.forkFiles(ctx, r, user)
	default:
		err = b.formatWorkspace(ctx, r, user)
	}
	if err != nil {
		return err
	}
	durable := r.config.Sized() > 0 || r.config.Fork != nil
	return stateError("create the workspace", host.WriteJSON(dir.workspaceTag(r.session), tag, durable))
}

// removeTree deletes a directory of any size below the state directory. It stops when ctx ends.
func removeTree(ctx context.Context, path string) error {
	err := host.RemoveTree(ctx, path)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return stateError("remove files", err)
}
