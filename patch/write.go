package patch

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Stamps describes the files of a directory at one time.
type Stamps map[string]fs.FileInfo

// Stamp describes the files and links listed in names that exist in the directory dir.
func Stamp(dir string, names []string) Stamps {
	stamps := Stamps{}
	for _, name := range names {
		if info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name))); err == nil && !info.IsDir() {
			stamps[name] = info
		}
	}
	return stamps
}

// Write writes the files of the tree into the directory dir and creates dir if it does not exist. Like [Patch.Apply],
// it never writes outside dir, through a link, or into a Git repository, it replaces files atomically, and it keeps
// their permissions. It replaces an existing file with other content only if the file is unchanged since before, or if
// force is true. Otherwise the file is a conflict. The path of dir must not contain a link: Write then fails, but may
// create missing directories of the path.
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
			err = a.take(&step{name, was, e.withPermissions(was)})
		}
		if err := result.add(name, to, err); err != nil {
			return result, err
		}
	}
	return result, a.makeLinks(links, &result)
}

// before returns the entry to be replaced by a new file, or nil. If the file may not be written, it returns an error.
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

// same reports whether the file at name is the file described by before.
func (a *applier) same(name string, before fs.FileInfo) bool {
	now, err := a.root.Lstat(filepath.FromSlash(name))
	return err == nil && before != nil && os.SameFile(before, now) && before.Size() == now.Size() &&
		before.ModTime().Equal(now.ModTime()) && before.Mode() == now.Mode()
}
