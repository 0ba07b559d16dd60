package launch

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// commandUmask is the initial umask of commands.
const commandUmask = 0o022

// detached is a cloned and restricted part of the host's file system, not yet mounted in the sandbox.
type detached struct {
	fd     int
	dir    bool
	target string
}

// buildFiles creates the sandbox's file system and changes the root to it.
func buildFiles(cfg *Config) error {
	// From now on, mounts do not propagate to the host or from the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failed(IsolationMounts, "making mounts private", err)
	}
	// As the user who started this process, because only this user may have access to the host's directories.
	trees, err := cloneTrees(cfg.Trees)
	if err != nil {
		return err
	}
	// Each layer's tree has the layer's index, because only optional trees are omitted, and lowerTrees returns none.
	lowers, err := cloneTrees(lowerTrees(cfg.Layers))
	if err != nil {
		return err
	}
	if err := setUser(cfg); err != nil {
		return err
	}
	unix.Umask(0) // modes are set exactly
	if err := unix.Mount("tmpfs", cfg.Stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, cfg.RootData); err != nil {
		return failed(IsolationFiles, "mounting a tmpfs", err)
	}
	if err := unix.Chdir(cfg.Stage); err != nil { // all later paths are relative to it
		return failed(IsolationFiles, "entering the root", err)
	}
	for i, l := range cfg.Layers {
		if err := placeLayer(l, lowers[i]); err != nil {
			return failed(IsolationLayers, "putting a layer over "+l.Target, err)
		}
	}
	if err := populate(cfg, trees); err != nil {
		return err
	}
	unix.Umask(commandUmask)
	if err := pivot(); err != nil {
		return err
	}
	return restrict(cfg)
}

// cloneTrees clones parts of the host's file system.
func cloneTrees(from []Tree) ([]detached, error) {
	var trees []detached
	for _, t := range from {
		d, err := cloneTree(t, 0)
		if t.Optional && errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, failed(IsolationFiles, "showing "+t.Source, err)
		}
		trees = append(trees, d)
	}
	return trees, nil
}

// cloneTree clones a part of the host's file system, with additional mount attributes.
func cloneTree(t Tree, attributes uint64) (detached, error) {
	flags, recursive := uint(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint(0)
	if !t.Alone {
		recursive = unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, t.Source, flags|recursive)
	if err != nil {
		return detached{}, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | attributes, Propagation: unix.MS_PRIVATE}
	if !t.Writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if !t.Device {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|recursive, &attr); err != nil {
		return detached{}, fmt.Errorf("restricting it: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return detached{}, err
	}
	return detached{fd: fd, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, target: t.Target}, nil
}

// below returns a path of the sandbox before the sandbox's root is the root directory.
func below(p string) string { return "." + p }

func populate(cfg *Config, trees []detached) error {
	for _, t := range trees {
		if err := attach(t); err != nil {
			return failed(IsolationFiles, "placing "+t.target, err)
		}
	}
	for _, d := range cfg.Dirs {
		if err := makeDir(d.Path, d.Mode); err != nil {
			return failed(IsolationFiles, "making "+d.Path, err)
		}
	}
	for _, l := range cfg.Links {
		if err := errors.Join(makeParent(l.Path), unix.Symlink(l.Target, below(l.Path))); err != nil {
			return failed(IsolationFiles, "making "+l.Path, err)
		}
	}
	for _, f := range cfg.Files {
		if err := errors.Join(makeParent(f.Path), writeNew(f)); err != nil {
			return failed(IsolationFiles, "making "+f.Path, err)
		}
	}
	for _, m := range cfg.Mounts {
		if err := mount(m); err != nil {
			part := IsolationFiles
			if m.Type == "proc" {
				part = IsolationProc
			}
			return failed(part, "mounting "+m.Type+" on "+m.Target, err)
		}
	}
	return nil
}

func attach(t detached) error {
	var err error
	if t.dir {
		err = makeDir(t.target, 0o755)
	} else if err = makeParent(t.target); err == nil {
		err = writeNew(File{Path: t.target, Mode: 0o444})
	}
	if err != nil {
		return err
	}
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, below(t.target), unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Close(t.fd)
}

// makeDir creates a directory and the parents. It does not change existing directories.
func makeDir(p string, mode uint32) error {
	err := unix.Mkdir(below(p), mode)
	if errors.Is(err, unix.ENOENT) {
		if err := makeParent(p); err != nil {
			return err
		}
		err = unix.Mkdir(below(p), mode)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func makeParent(p string) error {
	dir := path.Dir(p)
	if dir == "/" {
		return nil
	}
	return makeDir(dir, 0o755)
}

func writeNew(f File) error {
	out, err := os.OpenFile(below(f.Path), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, os.FileMode(f.Mode))
	if err != nil {
		return err
	}
	_, err = out.Write(f.Data)
	return errors.Join(err, out.Close())
}

func mount(m Mount) error {
	if err := makeDir(m.Target, 0o755); err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOSUID)
	if !m.Exec {
		flags |= unix.MS_NOEXEC
	}
	if m.Type != "devpts" { // the files in devpts are devices
		flags |= unix.MS_NODEV
	}
	return unix.Mount(m.Type, below(m.Target), m.Type, flags, m.Data)
}

// pivot makes the working directory the root and unmounts the host's root.
func pivot() error {
	if err := unix.PivotRoot(".", "."); err != nil {
		return failed(IsolationPivot, "changing the root", err)
	}
	// The old root is now mounted over the new root and has the same name.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return failed(IsolationPivot, "leaving the host's root", err)
	}
	return failed(IsolationPivot, "entering the root", unix.Chdir("/"))
}

// restrict blocks access to kernel information in the sandbox's file systems.
func restrict(cfg *Config) error {
	for _, s := range cfg.Settings {
		if err := unlessMissing(os.WriteFile(s.Path, s.Data, 0)); err != nil {
			return failed(IsolationProc, "setting "+s.Path, err)
		}
	}
	for _, p := range cfg.Readonly {
		if err := bindReadonly(p); err != nil {
			return failed(IsolationProc, "closing "+p, err)
		}
	}
	for _, p := range cfg.Masked {
		if err := mask(p); err != nil {
			return failed(IsolationProc, "masking "+p, err)
		}
	}
	if !cfg.RootReadonly {
		return nil
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	return failed(IsolationFiles, "making the root read-only", unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr))
}

// bindReadonly mounts a path over itself, read-only.
func bindReadonly(p string) error {
	d, err := cloneTree(Tree{Source: p}, unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return unlessMissing(err)
	}
	defer unix.Close(d.fd)
	return unix.MoveMount(d.fd, "", unix.AT_FDCWD, p, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// mask hides a file behind the null device, or a directory behind an empty directory. Missing files need no mask.
func mask(p string) error {
	var st unix.Stat_t
	err := unix.Lstat(p, &st)
	if err != nil {
		return unlessMissing(err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
		err = unix.Mount("tmpfs", p, "tmpfs", flags, "size=4k,nr_inodes=2,mode=0555")
	} else {
		err = unix.Mount("/dev/null", p, "", unix.MS_BIND, "")
	}
	return unlessMissing(err) // the file may have disappeared after the check
}

// unlessMissing returns err, or nil if the file is missing.
func unlessMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
