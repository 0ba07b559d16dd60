package launch

import (
	"errors"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Temporary mount points of a layer's parts. The overlay keeps the parts after they are unmounted.
const (
	lowerDir = "/.lower"
	upperDir = "/.upper"
)

// lowerTrees returns the host directories of layers.
func lowerTrees(layers []Layer) []Tree {
	var trees []Tree
	for _, l := range layers {
		trees = append(trees, Tree{Source: l.Source, Target: lowerDir, Alone: true})
	}
	return trees
}

// placeLayer mounts an overlay.
func placeLayer(l Layer, lower detached) error {
	if err := attach(lower); err != nil {
		return err
	}
	if err := mount(Mount{Type: "tmpfs", Target: upperDir, Exec: true, Data: l.Data}); err != nil {
		return err
	}
	upper, work := upperDir+"/upper", upperDir+"/work"
	err := errors.Join(makeDir(upper, 0o755), makeDir(work, 0o755), makeDir(l.Target, 0o755))
	for _, d := range l.Dirs {
		err = errors.Join(err, makeDir(filepath.Join(upper, d), 0o755))
	}
	if err != nil {
		return err
	}
	data := "userxattr,lowerdir=" + below(lowerDir) + ",upperdir=" + below(upper) + ",workdir=" + below(work)
	if err := unix.Mount("overlay", below(l.Target), "overlay", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return err
	}
	for _, d := range []string{lowerDir, upperDir} {
		if err := errors.Join(unix.Unmount(below(d), unix.MNT_DETACH), unix.Rmdir(below(d))); err != nil {
			return err
		}
	}
	return nil
}
