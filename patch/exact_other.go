//go:build !linux

package patch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// statExact describes the directory at a clean path without links.
func statExact(dir string) (os.FileInfo, error) {
	const sep = string(filepath.Separator)
	start, rest := ".", dir
	if volume := filepath.VolumeName(dir); filepath.IsAbs(dir) {
		start, rest = volume+sep, strings.TrimPrefix(dir[len(volume):], sep)
	}
	for ; rest == ".." || strings.HasPrefix(rest, ".."+sep); rest = strings.TrimPrefix(rest[2:], sep) {
		start = filepath.Join(start, "..")
	}
	root, err := os.OpenRoot(start)
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(rest, sep) {
		if name == "" {
			continue
		}
		above := root
		there, err := above.Lstat(name)
		if err == nil {
			root, err = above.OpenRoot(name)
		}
		err = errors.Join(err, above.Close())
		if err != nil {
			return nil, err
		}
		// OpenRoot follows links, so compare the opened directory with the entry in the parent.
		if opened, err := root.Stat("."); err != nil || !os.SameFile(there, opened) {
			return nil, errors.Join(fmt.Errorf("%s in the path %s is a link", name, dir), err, root.Close())
		}
	}
	defer root.Close()
	return root.Stat(".")
}

// lockDir returns false, because directories cannot be locked on this system.
func lockDir(*os.File, int) bool { return false }

// keepOwner has no effect on this system.
func keepOwner(*os.File, os.FileInfo) {}
