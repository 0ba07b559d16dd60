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
//	guest/<version>/                 the guest agent and its library, visible in every sandbox
//	sandboxes/<session id>/          a sandbox, see type sandbox
//	workspaces/<session id>/         its workspace, may exist without the sandbox
//	environments/<name>/             installed packages for sandboxes, see type environment
//	ids/<number>                     the user ID block of a workspace's owner, a link to the session ID
//	tmp/<process>-<text>             an object in creation by this process
//	trash/<process>-<text>           an object in removal by this process, or by "any" process
type dirs struct {
	root string
	self string // unique name of this process
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

// fresh returns a name for a new object.
func (d dirs) fresh() string { return filepath.Join(d.tmp(), d.self+"-"+strings.ToLower(rand.Text())) }

// openDirs creates missing directories. If other users have access, openDirs returns an error.
func openDirs(root string) (dirs, error) {
	self, err := nameSelf()
	if err != nil {
		return dirs{}, err
	}
	d := dirs{root, self}
	for _, dir := range []string{d.root, d.sandboxes(), d.workspaces(), d.ids(), d.tmp(), d.trash(), d.guest()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return d, failed("state directory", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return d, fmt.Errorf("local: state directory: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return d, fmt.Errorf("local: the state directory belongs to user %d with mode %04o, must belong to user %d with "+
			"mode 0700: %w", st.Uid, st.Mode&0o7777, os.Geteuid(), backend.ErrPermission)
	}
	if err := outsideView(root); err != nil {
		return d, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return d, fmt.Errorf("local: state directory: %w", err)
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		return d, fmt.Errorf("local: the state directory is on a file system mounted noexec; use one that allows "+
			"execution: %w", backend.ErrUnsupported)
	}
	return d, nil
}

// outsideView returns an error if sandboxes would see the state directory, because it contains workspaces and sockets
// of other sandboxes.
func outsideView(root string) error {
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return failed("state directory", err)
	}
	for _, dir := range append(systemDirs(), hostFiles()...) {
		if shown, err := filepath.EvalSymlinks(dir); err == nil && (real == shown || strings.HasPrefix(real, shown+"/")) {
			return fmt.Errorf("local: the state directory is below %s, which all sandboxes can read; use another directory: %w",
				dir, backend.ErrInvalid)
		}
	}
	return nil
}

// installGuest installs the guest agent's files, once per version, and returns their directory.
func (d dirs) installGuest(g *backend.Guest) (string, error) {
	dir := filepath.Join(d.guest(), g.Version)
	if !filepath.IsLocal(g.Version) || strings.Contains(g.Version, "/") {
		return "", fmt.Errorf("local: guest agent version %.40q: %w", g.Version, backend.ErrInvalid)
	}
	if err := kit.InstallGuest(dir, d.fresh(), g, runtime.GOARCH); err != nil {
		return "", failed("installing the guest agent", err)
	}
	return dir, nil
}

// failed returns the error of an operation on this host without host paths. If err is nil, failed returns nil.
func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("local: %s: %w", what, host.Public(err))
}
