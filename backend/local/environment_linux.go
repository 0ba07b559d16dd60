package local

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

const (
	// buildingDir is the install directory of an environment inside a workspace. Its files count against the workspace's
	// limit.
	buildingDir = ".environment"
	// Files in an environment's directory.
	environmentFile  = "environment.json" // metadata of the environment
	environmentFiles = "files"            // files visible in sandboxes
)

// environment is the metadata of an environment.
type environment struct {
	Labels map[string]string `json:"labels"`
	Bytes  int64             `json:"bytes"`
}

func (d dirs) environments() string           { return filepath.Join(d.root, "environments") }
func (d dirs) environment(name string) string { return filepath.Join(d.environments(), name) }

// isEnvironment reports whether name is a valid environment name. The name is also the name of a directory.
func isEnvironment(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == 32
}

// planEnvironment records the sandbox's environment, or the environment to install, in the record of a sandbox. The
// host is the image of a sandbox, and only the environment directory is writable.
func (b *driver) planEnvironment(p *kit.Plan, r *record) error {
	if p.Spec.Environment == "" {
		return nil
	}
	name, _ := p.EnvironmentName(hostDigest()) // the host declares no volumes
	if p.Spec.Building {
		r.Building, r.Root = name, backend.RootReadonly
		r.Limits.WorkspaceBytes, r.Workspace = p.Root, backend.WorkspaceWatched
		return nil
	}
	if !host.Exists(b.dirs.environment(name)) {
		return b.calls.NoEnvironment(p)
	}
	r.Environment = name
	return nil
}

// hostDigest identifies the programs of the host for which packages are installed.
func hostDigest() string {
	var text strings.Builder
	for _, name := range []string{"sh", "python3", "node"} {
		real := program{file: name}.realPath()
		if st, err := os.Stat(real); err == nil {
			fmt.Fprintf(&text, "%s %d %d\n", real, st.Size(), st.ModTime().UnixNano())
		}
	}
	sum := sha256.Sum256([]byte(text.String()))
	return hex.EncodeToString(sum[:])
}

// holdEnvironment prevents the removal of an environment until the record of a sandbox refers to it.
func (b *driver) holdEnvironment(p *kit.Plan, r *record) (release func(), err error) {
	if r.Environment == "" {
		return func() {}, nil
	}
	l := b.dirs.environmentLock(r.Environment)
	ok, err := l.TryRLock()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, failed("environment", err)
	}
	if !ok || !host.Exists(b.dirs.environment(r.Environment)) { // it is being removed
		return nil, b.calls.NoEnvironment(p)
	}
	return func() { _ = l.Unlock() }, nil // no data was written
}

// environmentLock returns the lock of an environment. Creations of sandboxes hold a shared lock, and a removal holds an
// exclusive lock.
func (d dirs) environmentLock(name string) *flock.Flock {
	return host.LockFile(filepath.Join(d.environment(name), lockFile))
}

// prepareBuilding creates the install directory. The sandbox has no running process yet.
func (b *driver) prepareBuilding(x *sandbox) error {
	if x.Building == "" {
		return nil
	}
	dir := filepath.Join(b.dirs.files(x.session()), buildingDir)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // sandboxes read it
		return failed("creating the installation directory", err)
	}
	return b.adoptFiles(x, dir)
}

// showEnvironment adds the environment, or the install directory, to the sandbox's files.
func (b *driver) showEnvironment(c *launch.Config, r *record) {
	tree := launch.Tree{Target: backend.EnvironmentDir, Alone: true}
	switch {
	case r.Building != "":
		tree.Source, tree.Writable = filepath.Join(b.dirs.files(r.session()), buildingDir), true
		if c.Landlock != nil {
			c.Landlock.Write = append(c.Landlock.Write, backend.EnvironmentDir)
		}
	case r.Environment != "":
		tree.Source = filepath.Join(b.dirs.environment(r.Environment), environmentFiles)
	default:
		return
	}
	c.Trees = append(c.Trees, tree)
	modules := launch.Link{Path: backend.NodeModulesLink, Target: backend.EnvironmentDir + backend.NodeModulesLink}
	c.Links = append(c.Links, modules)
}

// CommitEnvironment saves the files in backend.EnvironmentDir as a directory, which gets a name when it is complete.
func (b *driver) CommitEnvironment(ctx context.Context, id string) error {
	x, err := b.locked(ctx, id)
	if err != nil {
		return err
	}
	defer x.unlock()
	if x.Building == "" {
		return fmt.Errorf("local: %w", kit.ErrNotBuilding)
	}
	if err := b.halt(ctx, x); err != nil {
		return err
	}
	if host.Exists(b.dirs.environment(x.Building)) {
		return nil
	}
	tmp := b.dirs.fresh()
	if err = b.gatherEnvironment(ctx, x, tmp); err == nil {
		err = host.Public(host.RenameNew(tmp, b.dirs.environment(x.Building)))
	}
	if err == nil {
		return nil
	}
	left := b.dirs.discard(context.WithoutCancel(ctx), tmp)
	if errors.Is(err, unix.EEXIST) {
		return left
	}
	return errors.Join(failed("saving the environment", err), left)
}

// gatherEnvironment creates an environment's directory from the files in a workspace. The sandbox must have no running
// process.
func (b *driver) gatherEnvironment(ctx context.Context, x *sandbox, tmp string) error {
	files := filepath.Join(tmp, environmentFiles)
	err := errors.Join(os.MkdirAll(b.dirs.environments(), 0o700), os.Mkdir(tmp, 0o700))
	if err == nil {
		from := filepath.Join(b.dirs.files(x.session()), buildingDir)
		if !isDir(from) { // the sandbox may have replaced it with a link
			return fmt.Errorf("the installation directory was removed: %w", backend.ErrInvalid)
		}
		err = os.Rename(from, files)
	}
	if err == nil {
		err = os.Chmod(files, 0o755) //nolint:gosec // sandboxes read it
	}
	if err != nil {
		return err
	}
	size, err := b.shareTree(ctx, files)
	if err == nil {
		e := environment{kit.EnvironmentLabels(&x.Record, x.Labels, time.Now()), size}
		err = host.WriteJSON(filepath.Join(tmp, environmentFile), e, false)
	}
	if err != nil {
		return err
	}
	f, err := os.Open(tmp)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd())) // the name is assigned after all files are on the disk
}

// anyNames is the file system of a root. Unlike Root.FS, it accepts names that are not UTF-8.
type anyNames struct{ *os.Root }

// Open opens a file.
func (r anyNames) Open(name string) (fs.File, error) { return r.Root.Open(name) }

// shareTree makes the files of one sandbox readable for all sandboxes. It returns their total size.
func (b *driver) shareTree(ctx context.Context, dir string) (size int64, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	err = fs.WalkDir(anyNames{root}, ".", func(name string, _ fs.DirEntry, err error) error {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		st, err := root.Lstat(name)
		if err == nil && b.machine.blocks { // other sandboxes have other user IDs
			err = root.Lchown(name, os.Geteuid(), os.Getegid())
		}
		switch {
		case err != nil:
		case st.IsDir():
			err = root.Chmod(name, 0o755)
		case st.Mode().IsRegular():
			size += st.Size()
			err = root.Chmod(name, 0o444|executable(st.Mode()))
		case st.Mode().Type() != fs.ModeSymlink: // a pipe or socket
			err = root.Remove(name)
		}
		return err
	})
	return size, err
}

// executable returns the execute permission for all users if mode has at least one execute permission.
func executable(mode fs.FileMode) fs.FileMode {
	if mode&0o111 == 0 {
		return 0
	}
	return 0o111
}

// Environments returns the environments of an instance.
func (b *driver) Environments(_ context.Context, instance string) ([]backend.Environment, error) {
	entries, err := os.ReadDir(b.dirs.environments())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, failed("listing environments", err)
	}
	var out []backend.Environment
	for _, entry := range entries {
		if e, ok := b.readEnvironment(entry.Name(), instance); ok {
			out = append(out, e)
		}
	}
	return out, nil
}

// readEnvironment returns an environment of the instance. It returns false if name is not such an environment.
func (b *driver) readEnvironment(name, instance string) (backend.Environment, bool) {
	var kept environment
	if !isEnvironment(name) || host.ReadJSON(filepath.Join(b.dirs.environment(name), environmentFile), &kept) != nil {
		return backend.Environment{}, false
	}
	e, ok := kit.DescribeEnvironment(name, instance, kept.Labels)
	e.Bytes = kept.Bytes
	return e, ok
}

// RemoveEnvironment removes the directory of an unused environment.
func (b *driver) RemoveEnvironment(ctx context.Context, instance, name string) error {
	if !isEnvironment(name) || !host.Exists(b.dirs.environment(name)) {
		return nil
	}
	if _, ok := b.readEnvironment(name, instance); !ok {
		return fmt.Errorf("local: environment %s belongs to another instance: %w", name, backend.ErrExists)
	}
	l := b.dirs.environmentLock(name)
	ok, err := l.TryLock()
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed concurrently
	}
	if err != nil {
		return failed("environment", err)
	}
	defer l.Unlock() //nolint:errcheck // no data was written
	if !ok || b.hasSandboxes(name) {
		return fmt.Errorf("local: the environment is in use by a sandbox: %w", backend.ErrExists)
	}
	return failed("removing an environment", b.dirs.discard(ctx, b.dirs.environment(name)))
}

// hasSandboxes reports whether a sandbox, including a sandbox in creation, uses an environment.
func (b *driver) hasSandboxes(name string) bool {
	entries, err := os.ReadDir(b.dirs.sandboxes())
	if err != nil {
		return true
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		x, err := b.readSandbox(e.Name())
		return err == nil && x.Environment == name
	})
}

// realPath returns the path of a program in the search path, with links resolved. If the program is missing, realPath
// returns an empty string.
func (p program) realPath() string {
	for dir := range strings.SplitSeq(searchPath, ":") {
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, p.file)); err == nil {
			return real
		}
	}
	return ""
}
