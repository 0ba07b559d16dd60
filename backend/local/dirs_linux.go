package local

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// dirs is the state directory.
//
//	guest/<version>/                 the guest and its library, shown in every sandbox
//	sandboxes/<session id>/          a sandbox, see the type
//	workspaces/<session id>/         its workspace, which may outlive it
//	environments/<name>/             what was installed for sandboxes, see the type
//	ids/<number>                     the block of user ids that a workspace's owner belongs to, a link to the session id
//	tmp/<process>-<text>             what that process is making
//	trash/<process>-<text>           what that process is removing, or "any" process is to remove
type dirs struct {
	root string
	self string // names this process among all that ever ran here
}

func (d dirs) sandboxes() string          { return filepath.Join(d.root, "sandboxes") }
func (d dirs) sandbox(id string) string   { return filepath.Join(d.sandboxes(), id) }
func (d dirs) workspaces() string         { return filepath.Join(d.root, "workspaces") }
func (d dirs) workspace(id string) string { return filepath.Join(d.workspaces(), id) }
func (d dirs) files(id string) string     { return filepath.Join(d.workspace(id), "files") }
func (d dirs) ids() string                { return filepath.Join(d.root, "ids") }
func (d dirs) tmp() string                { return filepath.Join(d.root, "tmp") }
func (d dirs) trash() string              { return filepath.Join(d.root, "trash") }
func (d dirs) guest() string              { return filepath.Join(d.root, "guest") }

// fresh names something to make, discarded something to remove.
func (d dirs) fresh() string { return filepath.Join(d.tmp(), d.self+"-"+strings.ToLower(rand.Text())) }
func (d dirs) discarded() string {
	return filepath.Join(d.trash(), d.self+"-"+strings.ToLower(rand.Text()))
}

// openDirs makes what is missing and checks that nobody else can reach it.
func openDirs(root string) (dirs, error) {
	self, err := nameSelf()
	if err != nil {
		return dirs{}, err
	}
	d := dirs{root, self}
	for _, dir := range []string{d.root, d.sandboxes(), d.workspaces(), d.ids(), d.tmp(), d.trash(), d.guest()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return d, fmt.Errorf("local: state directory: %w", scrub(err))
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return d, fmt.Errorf("local: state directory: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return d, fmt.Errorf("local: the state directory belongs to user %d with mode %04o, must belong to user %d with mode 0700: %w",
			st.Uid, st.Mode&0o7777, os.Geteuid(), backend.ErrPermission)
	}
	if err := outsideView(root); err != nil {
		return d, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return d, fmt.Errorf("local: state directory: %w", err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return d, fmt.Errorf("local: the state directory is on a file system mounted noexec; use one that allows execution: %w",
			backend.ErrUnsupported)
	}
	return d, nil
}

// outsideView refuses a state directory that sandboxes would see: it holds the workspaces and sockets of others.
func outsideView(root string) error {
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return fmt.Errorf("local: state directory: %w", scrub(err))
	}
	for _, dir := range append(systemDirs(), hostFiles()...) {
		if shown, err := filepath.EvalSymlinks(dir); err == nil && (real == shown || strings.HasPrefix(real, shown+"/")) {
			return fmt.Errorf("local: the state directory is below %s, which all sandboxes can read; use another directory: %w", dir, backend.ErrInvalid)
		}
	}
	return nil
}

// installGuest puts the guest's binary in place, once per version, and returns its directory.
func (d dirs) installGuest(g *backend.Guest) (string, error) {
	dir := filepath.Join(d.guest(), g.Version)
	if !filepath.IsLocal(g.Version) || strings.Contains(g.Version, "/") {
		return "", fmt.Errorf("local: guest agent version %.40q: %w", g.Version, backend.ErrInvalid)
	}
	if err := kit.InstallGuest(dir, d.fresh(), g, runtime.GOARCH); err != nil {
		return "", fmt.Errorf("local: installing the guest agent: %w", scrub(err))
	}
	return dir, nil
}

// scrub takes the paths of this machine out of an error.
func scrub(err error) error { return host.Public(err) }
