package patch

import (
	"errors"
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
// dir, through a link or in a Git repository, each file as a whole. A file that is
// there with another content is replaced only when it is still as before has
// it, or when force is true; else it is a conflict. The path of dir must not
// contain a link, as that of Apply.
func (t Tree) Write(dir string, before Stamps, force bool) (Result, error) {
	var result Result
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return result, err
	}
	root, err := openExact(dir)
	if err != nil {
		return result, err
	}
	defer root.Close()
	a := newApplier(root, maps.Keys(t))
	var links []step
	for _, name := range slices.Sorted(maps.Keys(t)) {
		e := t[name]
		was, err := a.before(name, &e, before[name], force)
		to := &result.Applied
		switch {
		case err != nil:
		case was != nil && was.equal(&e):
			to = &result.Unchanged
		case e.isLink():
			links = append(links, step{name, was, &e})
			continue
		default:
			err = a.write(name, was, &e, false)
		}
		if err := result.add(name, to, err); err != nil {
			return result, err
		}
	}
	return result, a.makeLinks(links, &result)
}

// before returns what is at the place of a file that may be put there; nil is nothing.
func (a *applier) before(name string, e *Entry, before fs.FileInfo, force bool) (*Entry, error) {
	if err := errors.Join(a.check(name), checkLink(name, e)); err != nil {
		return nil, err
	}
	was, err := a.read(name)
	if err == nil && was != nil && !was.equal(e) && !force && !a.same(name, before) {
		err = conflictError("the file already exists with different content")
	}
	return was, err
}

// same reports whether the file at name is the one that before describes.
func (a *applier) same(name string, before fs.FileInfo) bool {
	now, err := a.root.Lstat(filepath.FromSlash(name))
	return err == nil && before != nil && os.SameFile(before, now) && before.Size() == now.Size() &&
		before.ModTime().Equal(now.ModTime()) && before.Mode() == now.Mode()
}
