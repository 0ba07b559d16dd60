package patch

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Stamps are the files of a directory as they were at a time.
type Stamps map[string]fs.FileInfo

// Stamp returns those of the files and links that names lists which are there
// in the directory dir.
func Stamp(dir string, names []string) Stamps {
	stamps := Stamps{}
	for _, name := range names {
		if info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name))); err == nil && !info.IsDir() {
			stamps[name] = info
		}
	}
	return stamps
}

// Write puts the files of the tree into the directory dir, which is made when
// there is none. It keeps to the rules of [Patch.Apply]: nothing outside of
// dir, through a link or below .git, each file as a whole. A file that is
// there with another content is replaced only when it is still as before has
// it, or when force is true; else it is a conflict.
func (t Tree) Write(dir string, before Stamps, force bool) (Result, error) {
	var result Result
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return result, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return result, err
	}
	defer root.Close()
	a := &applier{root}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		e := t[name]
		var conflict conflictError
		switch err := a.put(name, &e, before[name], force); {
		case errors.As(err, &conflict):
			result.Conflicts = append(result.Conflicts, Conflict{name, string(conflict)})
		case err != nil:
			return result, fmt.Errorf("write %s: %w", name, err)
		default:
			result.Applied = append(result.Applied, name)
		}
	}
	return result, nil
}

// put writes one file.
func (a *applier) put(name string, e *Entry, before fs.FileInfo, force bool) error {
	if err := errors.Join(a.check(name), checkLink(name, e)); err != nil {
		return err
	}
	was, err := a.read(name)
	if err != nil {
		return err
	}
	switch {
	case was != nil && was.equal(e):
		return nil
	case was != nil && !force && !a.same(name, before):
		return conflictError("the file exists already, with another content")
	}
	return a.write(name, was, e, false)
}

// same reports whether the file at name is the one that before describes.
func (a *applier) same(name string, before fs.FileInfo) bool {
	now, err := a.root.Lstat(filepath.FromSlash(name))
	return err == nil && before != nil && os.SameFile(before, now) && before.Size() == now.Size() &&
		before.ModTime().Equal(now.ModTime()) && before.Mode() == now.Mode()
}
